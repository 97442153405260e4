"""What a node registers, and a task that goes on after a failure."""

import threading

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.periodic_task import PeriodicTask
from pyspark_tidb_binlog.binlog_source.cluster.registration import Registration
from pyspark_tidb_binlog.binlog_source.cluster.registry import PUMPS, NodeState, NodeStatus
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


class Recorded:
    """A registry that keeps what is put into it."""

    def __init__(self) -> None:
        self.put: list[tuple[str, NodeStatus]] = []

    def tso(self) -> int:
        return 9

    def put_status(self, kind: str, status: NodeStatus) -> None:
        self.put.append((kind, status))


def test_each_registration_says_how_far_the_node_is_now() -> None:
    registry, promises = Recorded(), iter((5, 7))
    node = Registration(registry, PUMPS, "p1", "h:8250", lambda: next(promises), 3, {"zone": "a"})  # type: ignore[arg-type]
    node.put(NodeState.ONLINE)
    node.put(NodeState.PAUSED)
    assert registry.put == [
        (PUMPS, NodeStatus("p1", "h:8250", NodeState.ONLINE, 5, 9, 3, {"zone": "a"})),
        (PUMPS, NodeStatus("p1", "h:8250", NodeState.PAUSED, 7, 9, 3, {"zone": "a"})),
    ]


def test_a_task_that_fails_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    again = threading.Event()
    failures = iter((PumpUnavailable("the registry is away"), OSError("no disk"), RuntimeError("a defect")))

    def act() -> None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        again.set()

    task = PeriodicTask("p1 heartbeat", 0.001, act)
    assert again.wait(30)
    task.stop()
    assert "p1 heartbeat: the registry is away" in caplog.text and "no disk" in caplog.text
    traced = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert traced == ["a defect"], "with its trace; a node whose heartbeat ended would look dead"
