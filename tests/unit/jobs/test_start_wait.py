"""What a start says while the upstream does not answer."""

import threading

import pytest

from pyspark_tidb_binlog.jobs.stream.start_wait import StartWait
from pyspark_tidb_binlog.schemas.errors import Stopped


def test_it_is_said_at_once_and_then_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now, said = [100.0], list[str]()
    waiting = StartWait(60.0, threading.Event(), said.append, lambda: now[0])
    for second in range(13):
        now[0] = 100.0 + second
        waiting(f"nobody answers, {second}")
    assert said == [
        "waiting for the upstream, 0 of 60 s (spark.upstream-timeout): nobody answers, 0",
        "waiting for the upstream, 5 of 60 s (spark.upstream-timeout): nobody answers, 5",
        "waiting for the upstream, 10 of 60 s (spark.upstream-timeout): nobody answers, 10",
    ]
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.shows("spark.upstream-timeout")
def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    waiting = StartWait(60.0, stop, lambda text: None)
    waiting("PD is away")
    stop.set()
    with pytest.raises(Stopped, match="PD is away"):
        waiting("PD is away")
