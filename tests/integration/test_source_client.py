"""Reads from a Pump over real gRPC: what survives, what is refused, and what the errors say."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal
from pyspark_tidb_binlog.binlog_source.source.framing import Records
from pyspark_tidb_binlog.binlog_source.source.gc_bound import gc_ts_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, Pull, offers_raw, renew
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw, read_sorted
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import pump_pb2
from tests.support.fakes.scripted_pump import Asked, Broken, ScriptedPump, message, metrics_page

pytestmark = pytest.mark.grpc

RAW = {"tidb-binlog-delivery": "raw"}
LOG = [message(0, 5, 0, 0, 10), message(1, 5, 9, 0, 20), message(2, 11, 11, 0, 30), message(0, 12, 0, 1, 10)]
ENDS = [Position(0, 10), Position(0, 20), Position(0, 30), Position(1, 10)]


def endpoint(pump: ScriptedPump) -> Endpoint:
    return Endpoint("p7", pump.address, 1)


def commits(runs: Iterator[Records]) -> list[int]:
    return [ts for run in runs for ts in run.commit_ts.tolist()]


def refuse(*lost: object) -> None:
    raise AssertionError(f"a loss: {lost}")


def log_from(asked: Asked) -> Iterator[bytes]:
    for end, data in zip(ENDS, LOG, strict=True):
        if end > Position(asked.suffix, asked.offset):
            yield data


def test_raw_reads_up_to_the_end_and_not_further() -> None:
    with ScriptedPump(log_from, RAW) as pump:
        assert commits(read_raw(endpoint(pump), Position(0, 0), Position(0, 20), 1, ReadTerms(5, refuse))) == [0, 9]
        assert commits(read_raw(endpoint(pump), Position(0, 20), Position(1, 10), 1, ReadTerms(5, refuse))) == [11, 0]
        assert commits(read_raw(endpoint(pump), Position(0, 20), Position(0, 20), 1, ReadTerms(5, refuse))) == []


def test_raw_goes_on_where_it_was_when_the_pump_dies() -> None:
    def one_then_die(asked: Asked) -> Iterator[bytes]:
        yield next(log_from(asked))
        raise Broken("killed")

    with ScriptedPump(one_then_die, RAW) as pump:
        assert commits(read_raw(endpoint(pump), Position(0, 0), Position(1, 10), 1, ReadTerms(5, refuse))) == [0, 9, 11, 0]
        assert [(a.suffix, a.offset) for a in pump.asked] == [(0, 0), (0, 10), (0, 20), (0, 30)]


def test_a_pump_that_comes_back_elsewhere_is_read_on_there() -> None:
    def one_then_die(asked: Asked) -> Iterator[bytes]:
        yield next(log_from(asked))
        raise Broken("killed")

    with ScriptedPump(one_then_die, RAW) as before, ScriptedPump(log_from, RAW) as now:
        runs = read_raw(endpoint(before), Position(0, 0), Position(1, 10), 1, ReadTerms(5, refuse, lambda known: endpoint(now)))
        assert commits(runs) == [0, 9, 11, 0]
        assert [(a.suffix, a.offset) for a in before.asked + now.asked] == [(0, 0), (0, 10)]


def test_another_pump_at_the_address_is_not_listened_to() -> None:
    """Addresses are given away again: what a stranger promises says nothing of the Pump that is asked for."""
    theirs = [message(1, 5, 9), message(2, 20, 20)]
    with (
        ScriptedPump(lambda asked: iter(theirs), {"tidb-binlog-pump": "p7"}) as pump,
        ScriptedPump(lambda asked: iter(theirs), {"tidb-binlog-pump": "p8"}) as stranger,
    ):
        places = [endpoint(stranger), endpoint(pump)]
        assert commits(read_sorted(endpoint(stranger), 8, 9, ReadTerms(5, refuse, lambda known: places.pop(0)))) == [9]
        assert (len(stranger.asked), len(pump.asked)) == (2, 1)
        with pytest.raises(PumpUnavailable, match=f"{stranger.address} is the address of Pump p8, not p7"):
            commits(read_sorted(endpoint(stranger), 8, 9, ReadTerms(0.0, refuse)))
        known_by_address = Endpoint(stranger.address, stranger.address, 1, by_address=True)
        assert commits(read_sorted(known_by_address, 8, 9, ReadTerms(5, refuse))) == [9]
    with ScriptedPump(log_from, RAW | {"tidb-binlog-pump": "p8"}) as stranger, pytest.raises(PumpUnavailable, match="Pump p8, not p7"):
        commits(read_raw(endpoint(stranger), Position(0, 0), Position(0, 20), 1, ReadTerms(0.0, refuse)))


def test_a_real_pump_is_asked_who_it_is_once_for_each_of_its_lives() -> None:
    with ScriptedPump(lambda asked: iter([message(1, 5, 9)]), node_id="p7") as pump:
        for _ in range(3):
            assert commits(read_sorted(endpoint(pump), 8, 9, ReadTerms(5, refuse))) == [9]
        pump.metrics = metrics_page("0", started="1.795278e+09")
        assert commits(read_sorted(endpoint(pump), 8, 9, ReadTerms(5, refuse))) == [9]
        assert pump.introduced == ["p7", "p7"], "it was started again"
        for asked_as in ("p8", pump.address):
            with pytest.raises(PumpUnavailable, match=f"{pump.address} is the address of Pump p7, not {asked_as}"):
                commits(read_sorted(Endpoint(asked_as, pump.address, 1), 8, 9, ReadTerms(0.0, refuse)))
            with pytest.raises(PumpUnavailable, match=f"{pump.address} is the address of Pump p7, not {asked_as}"):
                gc_ts_of(asked_as, pump.address)
        assert commits(read_sorted(Endpoint(pump.address, pump.address, 1, by_address=True), 8, 9, ReadTerms(5, refuse))) == [9]
        assert gc_ts_of(pump.address, pump.address, by_address=True) == 0


@pytest.mark.shows("PullBinlogs")
@pytest.mark.parametrize("greeting", [{}, RAW])
def test_a_listed_pump_of_another_cluster_is_refused_at_once(greeting: dict[str, str]) -> None:
    def other(asked: Asked) -> Iterator[bytes]:
        raise Refusal(UNKNOWN, "cluster ID are mismatch, 0 vs 7")
        yield b""

    with ScriptedPump(other, greeting) as pump:
        listed = Endpoint(pump.address, pump.address, 0, by_address=True)
        with pytest.raises(ConfigError, match=f"Pump {pump.address} is of another cluster .*0 vs 7.* set spark.cluster-id"):
            commits(read_sorted(listed, 8, 9, ReadTerms(60, refuse)))
        with pytest.raises(PumpUnavailable, match="0 vs 7"):
            commits(read_sorted(endpoint(pump), 8, 9, ReadTerms(0.0, refuse)))


def test_sorted_goes_on_where_it_was_when_the_pump_ends_the_stream() -> None:
    def one(asked: Asked) -> Iterator[bytes]:
        yield message(1, asked.offset + 1, asked.offset + 2)

    with ScriptedPump(one) as pump:
        assert commits(read_sorted(endpoint(pump), 10, 16, ReadTerms(5, refuse))) == [12, 14, 16]
        assert [a.offset for a in pump.asked] == [10, 12, 14]


def test_sorted_stops_at_the_first_message_past_the_end() -> None:
    with ScriptedPump(lambda asked: iter([message(1, 1, 12), message(1, 1, 17)])) as pump:
        assert commits(read_sorted(endpoint(pump), 10, 16, ReadTerms(5, refuse))) == [12]


def test_a_dead_pump_is_named_with_the_ts() -> None:
    def dead(asked: Asked) -> Iterator[bytes]:
        raise Broken("no disk")
        yield b""

    with ScriptedPump(dead, RAW) as pump, pytest.raises(PumpUnavailable, match=r"Pump p7 at .* above ts 470604693853437952, 2026.*no disk"):
        commits(read_raw(endpoint(pump), Position(0, 0), Position(1, 10), 470604693853437952, ReadTerms(0.2, refuse)))


def test_garbage_is_named() -> None:
    with ScriptedPump(lambda asked: iter([b"\xff\xff"]), RAW) as pump, pytest.raises(ProtocolViolation, match="Pump p7 answered 2 bytes"):
        commits(read_raw(endpoint(pump), Position(0, 0), Position(1, 10), 1, ReadTerms(5, refuse)))


def test_a_sorted_pump_that_goes_backwards_is_named_with_both_ts() -> None:
    script = [message(1, 1, 12), message(1, 1, 11)]
    with (
        ScriptedPump(lambda asked: iter(script)) as pump,
        pytest.raises(ProtocolViolation, match="Pump p7 goes backwards: commit_ts 11 after 12"),
    ):
        commits(read_sorted(endpoint(pump), 10, 20, ReadTerms(5, refuse)))


def test_a_log_that_goes_backwards_is_named() -> None:
    script = [message(0, 5, 0, 1, 10), message(1, 5, 9, 0, 20)]
    with (
        ScriptedPump(lambda asked: iter(script), RAW) as pump,
        pytest.raises(ProtocolViolation, match=r"Pump p7 goes backwards .* 1/10 to 0/20"),
    ):
        commits(read_raw(endpoint(pump), Position(0, 0), Position(2, 0), 1, ReadTerms(5, refuse)))


def test_a_purged_span_is_told_with_the_oldest_ts() -> None:
    told: list[int] = []
    with ScriptedPump(log_from, RAW | {"tidb-binlog-gc-ts": "500"}) as pump:
        assert commits(
            read_raw(
                endpoint(pump),
                Position(0, 10),
                Position(1, 10),
                400,
                ReadTerms(5, lambda kind, after_ts, upto_ts, text: told.append(upto_ts)),
            )
        ) == [0, 9, 11, 0]
        assert [(a.suffix, a.offset) for a in pump.asked] == [(0, 10), (0, 0)]
        assert commits(read_raw(endpoint(pump), Position(0, 10), Position(1, 10), 500, ReadTerms(5, refuse))) == [9, 11, 0]
        assert commits(read_raw(endpoint(pump), Position(0, 10), Position(1, 10), 0, ReadTerms(5, refuse))) == [9, 11, 0]
    assert told == [500]


@pytest.mark.shows("spark.delivery")
def test_a_pump_without_raw_is_refused_by_name() -> None:
    with ScriptedPump(lambda asked: iter([message(1, 5, 9)])) as pump, pytest.raises(ConfigError, match="Pump p7 .* no raw delivery"):
        commits(read_raw(endpoint(pump), Position(0, 0), Position(1, 10), 1, ReadTerms(5, refuse)))


@pytest.mark.shows("spark.pumps", "spark.delivery")
@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:1"])
def test_who_offers_raw(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with (
        ScriptedPump(lambda asked: iter(()), {"tidb-binlog-delivery": "tip"}) as ours,
        ScriptedPump(lambda asked: iter([message(1, 5, 9)])) as real,
    ):
        assert offers_raw(endpoint(ours), 5)
        assert not offers_raw(endpoint(real), 5)
        assert real.asked == [], "a pull of a Pump without a new binlog is not answered at once"
    greeting = {"tidb-binlog-delivery": "tip", "tidb-binlog-pump": "another"}
    with ScriptedPump(lambda asked: iter(()), greeting) as another, pytest.raises(PumpUnavailable, match="address of Pump another"):
        offers_raw(endpoint(another), 0)
    with pytest.raises(PumpUnavailable, match="Pump gone"):
        offers_raw(Endpoint("gone", "127.0.0.1:1", 1), 0.0)


def piece(first_seq: int, more: bool, commit_ts: int = 9) -> bytes:
    """A piece of the binlog of ``commit_ts``, as our Pump delivers a huge one."""
    response = pump_pb2.PullBinlogResp.FromString(message(1, 5, commit_ts))
    response.entity.first_seq, response.entity.more = first_seq, more
    return response.SerializeToString()


HUGE = [message(1, 3, 4), piece(0, True), piece(7, True), piece(8, False), message(1, 10, 12), message(2, 20, 20)]


def seen(runs: Iterator[Records]) -> list[tuple[int, int]]:
    return [pair for run in runs for pair in zip(run.commit_ts.tolist(), run.first_seqs.tolist(), strict=True)]


@pytest.mark.parametrize("dies_after", range(1, 7))
def test_a_huge_binlog_is_handed_on_once_wherever_its_pump_dies(dies_after: int) -> None:
    """The Pump begins it again from its first piece; those that were handed on are left out."""

    def some_then_die(asked: Asked) -> Iterator[bytes]:
        rest = [data for data in HUGE if pump_pb2.PullBinlogResp.FromString(data).entity.meta.commitTs > asked.offset]
        yield from rest[: dies_after if len(pump.asked) == 1 else len(rest)]
        if len(pump.asked) == 1:
            raise Broken("killed")

    with ScriptedPump(some_then_die) as pump:
        found = seen(read_sorted(endpoint(pump), 1, 20, ReadTerms(5, refuse)))
    assert found == [(4, 0), (9, 0), (9, 7), (9, 8), (12, 0), (20, 0)]


@pytest.mark.parametrize("wrong", [[piece(0, False), piece(7, False)], [piece(7, True), piece(0, False)]])
def test_pieces_out_of_order_are_refused(wrong: list[bytes]) -> None:
    with ScriptedPump(lambda asked: iter([b"".join(wrong)])) as pump, pytest.raises(ProtocolViolation, match="goes backwards"):
        list(read_sorted(endpoint(pump), 1, 9, ReadTerms(5, refuse)))


def test_a_pull_that_was_left_leaves_nothing_behind() -> None:
    """A stream opens one for each Pump and batch, for months; each has more to come when its reader has what it wanted."""

    def held() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    with ScriptedPump(log_from, RAW) as pump:
        for count in (100, 800):
            before = held()
            for _ in range(count):
                assert commits(read_raw(endpoint(pump), Position(0, 0), Position(0, 20), 1, ReadTerms(5, refuse))) == [0, 9]
        # 20 KiB each were kept; the process itself takes one or two MiB now and then
        assert held() - before < 800 * 5 * 1024


def test_a_pull_goes_on_when_others_get_a_new_connection() -> None:
    """The time-out of one reader is no reason to cut off the others of its process."""
    renewed = threading.Event()

    def slowly(asked: Asked) -> Iterator[bytes]:
        yield LOG[0]
        renewed.wait(10)
        yield LOG[1]

    with ScriptedPump(slowly, RAW) as pump:
        pull = Pull(endpoint(pump), "raw", Position(0, 0), 10)
        messages = iter(pull)
        try:
            next(messages)
            renew(pump.address)
            gc.collect()
            renewed.set()
            assert len(list(messages)) == 1
        finally:
            renewed.set()
            pull.close()


def test_ctrl_c_while_a_pull_waits_is_what_the_reader_sees() -> None:
    """It breaks off grpcio's wait for the next event, after which there is none that could be taken."""
    over = threading.Event()

    def one_then_wait(asked: Asked) -> Iterator[bytes]:
        yield LOG[0]
        over.wait(10)

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ScriptedPump(one_then_wait, RAW) as pump:
        try:
            read = read_raw(endpoint(pump), Position(0, 0), Position(1, 10), 1, ReadTerms(5, refuse))
            next(read)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                next(read)
        finally:
            over.set()
            signal.signal(signal.SIGINT, former)
