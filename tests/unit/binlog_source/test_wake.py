"""Which idle Pumps are woken, and that a thread which cannot wake them says so once and holds nothing up."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.discovery import ConfiguredDiscovery
from pyspark_tidb_binlog.binlog_source.pump.storage.format import HEADER
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.source import waker as waker_module
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.source.wake import RECORD_HEADER, LastWake, PumpHead, WakeChoice, choose, fake_payload, is_of_now
from pyspark_tidb_binlog.binlog_source.source.waker import PumpWaker, waker_of
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, tso
from tests.support.eventually import eventually

NOBODY = WakeChoice((), None)


def head(promise: int, newest_commit: int = 0, rose_at: float = 0.0, reachable: bool = True) -> PumpHead:
    return PumpHead(promise, newest_commit, rose_at, reachable)


def chosen(heads: Mapping[str, PumpHead], woken: Mapping[str, LastWake] | None = None, now: float = 100.0) -> WakeChoice:
    return replace(choose(heads, woken or {}, now, 0.2), wanted=0)


@pytest.mark.parametrize("ts", [1, 127, 128, 470604668048769025, (1 << 63) - 1])
def test_the_fake_is_the_one_that_a_pump_writes(ts: int) -> None:
    assert fake_payload(ts) == fake(ts).payload
    assert RECORD_HEADER == HEADER.size


def test_every_pump_behind_a_transaction_is_woken_at_once() -> None:
    assert choose({"a": head(50, 50), "b": head(40), "c": head(45), "d": head(60)}, {}, 100.0, 0.2) == WakeChoice(("b", "c"), None, 50)


def test_nobody_is_woken_for_fakes_alone() -> None:
    assert chosen({"a": head(50, 30), "b": head(40, 20)}) == NOBODY, "the transactions up to 30 are released already"
    assert chosen({"a": head(50), "b": head(40)}) == NOBODY and chosen({}) == NOBODY


def test_a_transaction_that_its_own_pump_holds_back_wakes_others_only_up_to_there() -> None:
    assert chosen({"a": head(45, 60), "b": head(40)}).pumps == ("b",), "other transactions of a, up to 45, are complete"
    assert chosen({"a": head(40, 60), "b": head(40)}) == NOBODY


def test_a_busy_pump_moves_by_itself() -> None:
    heads = {"a": head(50, 50), "b": head(40, 40, rose_at=99.9)}
    assert chosen(heads).pumps == () and chosen(heads).again_in == pytest.approx(0.1)
    assert chosen(heads, now=100.11).pumps == ("b",)


def test_a_pump_gets_at_most_one_fake_per_interval() -> None:
    heads = {"a": head(50, 50), "b": head(40)}
    assert chosen(heads, {"b": LastWake(30, 100.15)}).again_in == pytest.approx(0.15)
    assert chosen(heads, {"b": LastWake(30, 100.0)}).pumps == ("b",)


def test_a_pump_that_keeps_its_fake_back_gets_no_other_one() -> None:
    """A Prewrite under way holds it back, and would hold the next one back, too."""
    assert chosen({"a": head(50, 50), "b": head(40)}, {"b": LastWake(41, 0.0)}) == NOBODY


def test_a_pump_that_cannot_be_reached_is_left_alone() -> None:
    assert chosen({"a": head(50, 50), "b": head(40, reachable=False)}) == NOBODY
    assert chosen({"a": head(50, 50, reachable=False), "b": head(40)}).pumps == ("b",), "what it has said stays true"


def test_a_timestamp_far_beyond_the_transaction_is_not_sent(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    """The transaction was recorded long ago: others may still be written that began as early."""
    assert is_of_now(50 + tso(60_000), 50) and not is_of_now(51 + tso(60_000), 50)
    registry = Away(51 + tso(60_000))
    with waking(registry) as waker, waker.asked(Delivery.SORTED):
        eventually(lambda: registry.asked > 3)
        assert waker.counts() == {}
    assert caplog.records == [], "what is sent there fails, and that is said"


@pytest.mark.parametrize("config", [SourceConfig("h:1,h:2"), SourceConfig("http://r:1", wake_idle_pumps="0")])
def test_without_a_registry_or_with_0_there_is_no_thread(config: SourceConfig) -> None:
    assert waker_of(config, lambda: {}, Tails(fail_on_data_loss=True)) is None


class Behind(Tails):
    """Pump ``b`` is behind a transaction of ``a``."""

    def heads(self, delivery: Delivery) -> dict[str, PumpHead]:
        return {"a": head(50, 50), "b": head(40)}


class Away(ConfiguredDiscovery):
    """A registry that does not answer, or with the timestamp ``ts``."""

    def __init__(self, ts: int = 0) -> None:
        super().__init__("127.0.0.1:1", 7)
        self.ts = ts
        self.asked = 0
        self.blocked = threading.Event()
        self.blocked.set()

    def now(self) -> int:
        self.asked += 1
        self.blocked.wait()
        if not self.ts:
            raise PumpUnavailable("the registry is away")
        return self.ts


@contextlib.contextmanager
def waking(registry: Away) -> Iterator[PumpWaker]:
    made = PumpWaker(lambda: {"b": "127.0.0.1:1"}, lambda: registry, Behind(fail_on_data_loss=True), 0.01)
    try:
        yield made
    finally:
        made.stop()
        registry.blocked.set()
        made._thread.join(20)
        assert not made._thread.is_alive()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again at once; where no Pump is, the Pump that is asked says who it is."""
    monkeypatch.setattr(waker_module, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(waker_module, "require_pump", lambda *_: "")


@pytest.mark.parametrize(
    ("ts", "words"), [(0, "the registry is away"), (40, "timestamp 40 is not above the promise 40 of Pump b"), (60, "Pump b")]
)
def test_what_fails_is_said_once_per_outage_and_tried_again(quick: None, caplog: pytest.LogCaptureFixture, ts: int, words: str) -> None:
    registry = Away(ts)
    with caplog.at_level(logging.WARNING), waking(registry) as waker, waker.asked(Delivery.SORTED):
        eventually(lambda: registry.asked > 3)
        said = [record.getMessage() for record in caplog.records if "cannot be woken" in record.getMessage()]
        assert len(said) == 1 and words in said[0]
        assert waker.counts() == {}


def test_nothing_is_asked_while_the_stream_does_not_wait(quick: None) -> None:
    registry = Away()
    with waking(registry) as waker:
        for _ in range(10):
            with waker._tails.changed:
                waker._tails.changed.notify_all()
            time.sleep(0.01)
        assert registry.asked == 0
        with waker.asked(Delivery.SORTED):
            eventually(lambda: registry.asked)


def test_a_registry_that_hangs_holds_up_nobody(quick: None) -> None:
    registry = Away()
    registry.blocked.clear()
    with waking(registry) as waker:
        for _ in range(100):
            with waker.asked(Delivery.SORTED), waker._tails.changed:
                pass
        with waker.asked(Delivery.SORTED):
            eventually(lambda: registry.asked == 1)
