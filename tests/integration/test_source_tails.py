"""Tails over real gRPC: what the driver learns of our Pumps and of a real one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.source import tails as source_tails
from pyspark_tidb_binlog.binlog_source.source.admission import Limits, TailView, pending_bytes, plan_raw, plan_sorted
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, Pull
from pyspark_tidb_binlog.binlog_source.source.read_notes import away
from pyspark_tidb_binlog.binlog_source.source.tails import Tail, Tails
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, ConfigError, ProtocolViolation, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery
from tests.support.eventually import eventually
from tests.support.fakes.scripted_pump import Asked, Broken, ScriptedPump, message, tip

pytestmark = pytest.mark.grpc

TIP = {"tidb-binlog-delivery": "tip"}
RAW_10 = BinlogOffset(Delivery.RAW, 10, 10, {})
SORTED_10 = BinlogOffset(Delivery.SORTED, 10, 10, {})


class Held:
    """A script that sends its messages, then stays silent until the test is over."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = messages
        self.over = threading.Event()

    def __call__(self, asked: Asked) -> Iterator[bytes]:
        yield from self.messages
        self.over.wait(10)


@pytest.fixture
def tails() -> Iterator[Tails]:
    made = Tails(fail_on_data_loss=True)
    yield made
    made.stop()


def follow(tails: Tails, **pumps: ScriptedPump) -> None:
    tails.follow({name: Endpoint(name, pump.address, 1) for name, pump in pumps.items()}, 10)


def resolved(tails: Tails, start: BinlogOffset) -> int:
    views = tails.views(start)
    if views is None:
        return 0
    planned = plan_raw(start, views, Limits(), None) if start.delivery is Delivery.RAW else plan_sorted(start, views, None, None)
    return planned.resolved_ts


def test_a_tip_gives_positions_and_promises(tails: Tails) -> None:
    script = Held(tip(100, 10, 10), tip(200, 15, 14), tip(300_000, 25, 22))
    with ScriptedPump(script, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, RAW_10) == 25, 5)
        views = tails.views(RAW_10)
        assert views is not None
        assert plan_raw(RAW_10, views, Limits(), None).pumps == {"p": PumpMark(Position(0, 300_000), Position(0, 100))}
        assert resolved(tails, SORTED_10) == 22
        script.over.set()


def test_after_a_restart_the_promise_at_the_old_position_is_known(tails: Tails) -> None:
    start = BinlogOffset(Delivery.RAW, 10, 1, {"p": PumpMark(Position(0, 200))})
    script = Held(tip(100, 10, 10), tip(200, 15, 14))
    with ScriptedPump(script, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, start) == 15, 5)
        script.over.set()


def view_of(tails: Tails, offset: int, resolved_ts: int) -> TailView:
    views = tails.views(BinlogOffset(Delivery.RAW, resolved_ts, 1, {"p": PumpMark(Position(0, offset))}))
    assert views is not None
    return views["p"]


def test_what_is_read_waits_until_r_has_passed_it(tails: Tails) -> None:
    """A Prewrite waits in the second step, so the raw promise stays at 20 and the sorted one at 21."""
    script = Held(tip(0, 10, 10), *(tip(100_000 * n, min(10 * n + 10, 20), min(10 * n + 10, 21), max_ts=10 * n + 10) for n in range(1, 5)))
    with ScriptedPump(script, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: tails.views(RAW_10) is not None and len(view_of(tails, 0, 10).steps) == 4, 5)
        read = view_of(tails, 300_000, 10)
        assert [step.max_ts for step in read.waiting] == [20, 30, 40] and pending_bytes({"p": read}) == 300_000
        assert (read.promise, read.max_ts, len(read.steps)) == (20, 40, 1)
        assert [step.max_ts for step in view_of(tails, 300_000, 20).waiting] == [30, 40], "the Prewrite lies past 21"
        assert [step.max_ts for step in view_of(tails, 400_000, 45).waiting] == [30, 40, 50], "and is not released"
        script.over.set()


def test_after_a_restart_what_waits_is_known_again(tails: Tails) -> None:
    """The tip begins at the base of R, and cuts the log elsewhere than the stream did."""
    script = Held(tip(100_000, 10, 10), tip(300_000, 25, 25, max_ts=25), tip(400_000, 35, 35, max_ts=35))
    with ScriptedPump(script, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: tails.views(RAW_10) is not None and len(view_of(tails, 100_000, 10).steps) == 2, 5)
        read = view_of(tails, 250_000, 10)
        assert pending_bytes({"p": read}) == 150_000
        assert [step.size for step in read.steps] == [50_000, 100_000]
        assert view_of(tails, 250_000, 10) == read
        assert pending_bytes({"p": view_of(tails, 400_000, 34)}) == 100_000
        script.over.set()


def test_a_tail_that_has_not_come_to_where_the_stream_is_says_nothing(tails: Tails) -> None:
    """Or less would seem to wait than does, and more would be read."""
    start = BinlogOffset(Delivery.RAW, 10, 1, {"p": PumpMark(Position(0, 400_000))})
    slow = threading.Event()

    def script(asked: Asked) -> Iterator[bytes]:
        yield tip(100_000, 10, 10)
        yield tip(200_000, 10, 25, max_ts=25)
        slow.wait(10)
        yield tip(400_000, 10, 35, max_ts=35)
        over.wait(10)

    over = threading.Event()
    with ScriptedPump(script, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: not tails.unreachable(), 5)
        assert tails.views(start) is None
        slow.set()
        assert tails.wait(lambda: tails.views(start) is not None, 5)
        assert pending_bytes(tails.views(start) or {}) == 300_000
        over.set()


def test_a_real_pump_is_followed_by_commit_ts_alone(tails: Tails) -> None:
    script = Held(message(1, 11, 12), message(2, 20, 20))
    with ScriptedPump(script) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, SORTED_10) == 20, 5)
        with pytest.raises(ConfigError, match="Pump p .* no raw delivery"):
            tails.views(RAW_10)
        script.over.set()


@pytest.mark.shows("drainer gotcha 1")
def test_a_silent_pump_holds_r_and_is_named(tails: Tails) -> None:
    script = Held(tip(100, 10, 10), tip(200, 15, 14))
    with ScriptedPump(script, TIP) as pump:
        tails.follow({"p": Endpoint("p", pump.address, 1), "q": Endpoint("q", "127.0.0.1:1", 1)}, 10)
        assert not tails.wait(lambda: tails.views(RAW_10) is not None, 0.5)
        assert set(tails.unreachable()) == {"q"}
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, RAW_10) == 15, 5)
        script.over.set()


def test_another_pump_at_its_address_promises_nothing(tails: Tails) -> None:
    script = Held(tip(100, 10, 10), tip(200, 15, 14))
    with ScriptedPump(script, TIP | {"tidb-binlog-pump": "q"}) as stranger, ScriptedPump(script, TIP | {"tidb-binlog-pump": "p"}) as pump:
        follow(tails, p=stranger)
        assert tails.wait(lambda: "is the address of Pump q, not p" in tails.unreachable().get("p", ""), 5)
        assert tails.views(RAW_10) is None
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, RAW_10) == 15, 5)
        script.over.set()


def test_a_tail_comes_back_after_the_pump_died(tails: Tails) -> None:
    over = threading.Event()

    def dies_once(asked: Asked) -> Iterator[bytes]:
        yield tip(100, 10, 10)
        if len(pump.asked) == 1:
            yield tip(200, 15, 14)
            raise Broken("killed")
        yield tip(200, 15, 14)
        yield tip(300, 25, 24)
        over.wait(10)

    with ScriptedPump(dies_once, TIP) as pump:
        follow(tails, p=pump)
        assert tails.wait(lambda: resolved(tails, RAW_10) == 25, 5)
        assert [a.offset for a in pump.asked] == [10, 14]
        views = tails.views(RAW_10)
        assert views is not None and sum(s.size for s in views["p"].steps) == 200
        over.set()


def fault_of(tails: Tails) -> ReplicationError:
    tails.wait(lambda: any(tail.fault for tail in tails._tails.values()), 5)
    with pytest.raises(ReplicationError) as caught:
        tails.views(SORTED_10)
    return caught.value


def test_a_real_pump_that_goes_backwards_is_a_fault(tails: Tails) -> None:
    with ScriptedPump(lambda asked: iter([message(1, 11, 12), message(1, 11, 11)])) as pump:
        follow(tails, p=pump)
        fault = fault_of(tails)
    assert isinstance(fault, ProtocolViolation) and "Pump p goes backwards: commit_ts 11 after 12" in str(fault)


def test_a_purged_span_is_a_fault_with_both_ts(tails: Tails) -> None:
    with ScriptedPump(lambda asked: iter([tip(100, 10, 10)]), TIP | {"tidb-binlog-gc-ts": "500"}) as pump:
        follow(tails, p=pump)
        fault = fault_of(tails)
    assert isinstance(fault, BinlogPurged) and "above ts 10 " in str(fault) and "oldest kept 500 " in str(fault)


def test_what_cannot_be_read_is_an_error_and_no_silence(tails: Tails) -> None:
    with ScriptedPump(Held(tip(100, 10, 10)), TIP | {"tidb-binlog-gc-ts": "soon"}) as pump:
        follow(tails, p=pump)
        with pytest.raises(ProtocolViolation, match=r"Pump p at .* sent a message that cannot be read: .*soon"):
            tails.wait(lambda: resolved(tails, RAW_10) == 10, 5)


def test_one_that_is_stopped_just_before_it_pulls_leaves_no_pull_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """``stop`` comes after the thread has seen that it goes on, and before there is a pull to cancel."""
    cancelled = threading.Event()

    class Late(Pull):
        def __init__(self, *given: Any, **more: Any) -> None:
            made[0].stop()
            super().__init__(*given, **more)

        def cancel(self) -> None:
            super().cancel()
            cancelled.set()

    made: list[Tail] = []
    begun = threading.Event()
    monkeypatch.setattr(source_tails, "Pull", lambda *given, **more: begun.wait(10) and Late(*given, **more))
    script = Held(tip(100, 10, 10))
    with ScriptedPump(script, TIP) as pump:
        made.append(Tail(Endpoint("p", pump.address, 1), 10, threading.Condition(), True, 0))
        begun.set()
        try:
            made[0]._thread.join(5)
            assert cancelled.is_set() and not made[0]._thread.is_alive()
        finally:
            script.over.set()


def test_a_pump_that_is_not_reached_is_noted_until_it_is_back_or_left(tmp_path: Path) -> None:
    """A batch may be under way, which asks the source for nothing."""
    stop_file = tmp_path / "stop"
    tails = Tails(fail_on_data_loss=True, stop_file=str(stop_file))
    with ScriptedPump(Held(tip(100, 10, 10)), TIP) as pump:
        follow(tails, **{"p:1": pump})
        assert tails.wait(lambda: resolved(tails, RAW_10) == 10, 5) and away(stop_file) == {}
    try:
        assert list(eventually(lambda: away(stop_file))) == ["p:1"]
        tails.follow({}, 10)
        eventually(lambda: not away(stop_file), what="the Pump is not read any more")
    finally:
        tails.stop()
