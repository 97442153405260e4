"""Compressed requests of one server: who is inflated when, what waits, and what becomes of the memory."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.rpc import inflater as inflater_module
from pyspark_tidb_binlog.binlog_source.rpc.budget import Budget
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import CANCELLED, UNAVAILABLE, Refusal, inflated, prefixed_gzip
from pyspark_tidb_binlog.binlog_source.rpc.inflater import WAIT_SECONDS, Inflater, Inflation

KIB = 1024
CAPACITY = 1024 * KIB


class PretendedLoop:
    """Runs what others ask for when the test looks."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Callable[[], None]] = queue.Queue()
        self.time = 0.0

    def call(self, act: Callable[..., None], *arguments: object) -> None:
        self.asked.put(lambda: act(*arguments))

    def now(self) -> float:
        return self.time

    def run_one(self) -> None:
        self.asked.get(timeout=20)()


class Scene:
    """An inflater whose thread waits for ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.budget = PretendedLoop(), Budget(CAPACITY)
        self.inflater = Inflater("test", self.budget, self.loop)
        self.found: dict[str, bytes | Refusal] = {}
        self.go_on = threading.Semaphore(0)
        self.begun: queue.Queue[int] = queue.Queue()

        def slowly(packed: bytes, limit: int, wanted: Callable[[], bool]) -> bytes:
            self.begun.put(len(packed))
            assert self.go_on.acquire(timeout=20)
            return inflated(packed, limit, wanted)

        monkeypatch.setattr(inflater_module, "inflated", slowly)

    def take(self, name: str, size: int, owner: str = "a") -> Inflation:
        return self.inflater.take(owner, prefixed_gzip(b"z" * size)[5:], 1 << 30, lambda found: self.found.update({name: found}))

    def delivered(self) -> list[str]:
        """The names so far, after one more was inflated."""
        self.go_on.release()
        self.loop.run_one()
        return list(self.found)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    yield made
    for _ in range(20):
        made.go_on.release()
    made.inflater.close()


def test_one_after_the_other_charged_until_it_was_handled_and_addresses_take_turns(scene: Scene) -> None:
    jobs = {name: scene.take(name, 100 * KIB, owner) for name, owner in (("a1", "a"), ("a2", "a"), ("b1", "b"))}
    assert scene.budget.held == 100 * KIB
    assert scene.delivered() == ["a1"] and scene.found["a1"] == b"z" * 100 * KIB
    assert scene.budget.held == 100 * KIB and scene.begun.get() and scene.begun.empty(), "its message is in memory"
    jobs["a1"].end()
    assert scene.delivered() == ["a1", "b1"]
    jobs["b1"].end()
    jobs["b1"].end()
    assert scene.delivered() == ["a1", "b1", "a2"]
    jobs["a2"].end()
    assert scene.budget.held == 0


def test_a_huge_one_waits_for_the_huge_one_under_way_and_holds_up_no_other(scene: Scene) -> None:
    first = scene.take("huge", 300 * KIB)
    second = scene.take("huge too", 300 * KIB)
    other = scene.take("large", 200 * KIB)
    assert scene.budget.held == 200 * KIB
    scene.go_on.release(2)
    scene.loop.run_one()
    scene.loop.run_one()
    assert set(scene.found) == {"huge", "large"}
    other.end()
    first.end()
    assert scene.delivered()[-1] == "huge too"
    second.end()
    assert scene.budget.held == 0 and scene.budget.ask(scene.inflater._large._share, 7, 300 * KIB), "the place of the huge one is free"


def test_who_leaves_is_inflated_no_further_and_leaves_nothing(scene: Scene) -> None:
    scene.take("first", 100 * KIB).end()
    scene.take("second", 100 * KIB).end()
    last = scene.take("last", 100 * KIB)
    scene.go_on.release(2)
    while "last" not in scene.found:
        scene.loop.run_one()
    last.end()
    assert scene.found == {"last": b"z" * 100 * KIB} and scene.budget.held == 0
    with pytest.raises(Refusal) as refused:
        inflated(prefixed_gzip(b"z")[5:], 10, lambda: False)
    assert refused.value.status == CANCELLED


def test_what_waits_is_bounded_and_the_address_with_most_of_it_is_refused(scene: Scene) -> None:
    for n in range(400):
        scene.take(f"a{n}", 70 * KIB)
    scene.take("b", 70 * KIB, "b")
    assert scene.inflater._large._waiting <= CAPACITY // 4
    while not scene.loop.asked.empty():
        scene.loop.run_one()
    refused = scene.found["a399"]
    assert isinstance(refused, Refusal) and refused.status == UNAVAILABLE
    assert refused.text == f"no memory for a compressed request of {70 * KIB} bytes: too many compressed requests wait"
    assert "b" not in scene.found and "a0" not in scene.found


def test_what_waits_for_too_long_is_refused(scene: Scene) -> None:
    plain = scene.inflater._large._share
    assert scene.budget.ask(plain, 7, 300 * KIB), "a plain huge request is under way"
    scene.take("huge", 300 * KIB)
    scene.take("huge too", 300 * KIB)
    scene.loop.time = WAIT_SECONDS - 1
    scene.inflater.look()
    assert scene.loop.asked.empty()
    scene.loop.time = WAIT_SECONDS + 1
    scene.inflater.look()
    scene.inflater.look()
    scene.loop.run_one()
    scene.loop.run_one()
    assert scene.loop.asked.empty() and all(isinstance(found, Refusal) and found.status == UNAVAILABLE for found in scene.found.values())
    assert list(scene.found) == ["huge too", "huge"] and not scene.budget.waiting
