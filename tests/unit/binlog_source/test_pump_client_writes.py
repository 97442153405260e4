"""The Pump client over fake Pumps and fake time: who is asked when, how often, and what is given up."""

import logging
import threading
from dataclasses import replace

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, ClientStats, PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, PumpUnavailable
from tests.support import binlogs
from tests.support.fakes.pump_world import World, fails, takes

PUMPS = [NodeStatus(name, f"{name}:1") for name in "abc"]
A, B, C = (pump.host for pump in PUMPS)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def make(world):
    made = []

    def client(pumps=PUMPS, settings=DEFAULTS):
        made.append(PumpClient(pumps, 7, settings, world.dependencies()))
        return made[-1]

    yield client
    for one in made:
        one.close()


def asked(world):
    return "".join(call.address[0] for call in world.calls)


def test_prewrites_go_round_and_outcomes_follow(world, make):
    client = make()
    for start_ts in (10, 20, 30, 40):
        client.prewrite(start_ts, b"p%d" % start_ts)
    assert asked(world) == "abca"
    for start_ts in (30, 10, 20, 40):
        client.outcome(start_ts, b"c%d" % start_ts)
    client.flush()
    assert world.taken(A) == [b"p10", b"p40", b"c10", b"c40"]
    assert world.taken(B) == [b"p20", b"c20"]
    assert world.taken(C) == [b"p30", b"c30"]
    assert client.stats() == ClientStats(prewrites=4)
    assert sorted(world.dialled) == [A, B, C]


def test_write_tells_the_kinds_apart(world, make):
    client = make()
    records = [binlogs.payload(0, 10), binlogs.payload(0, 20), binlogs.payload(2, 20), binlogs.payload(1, 10, 15)]
    for payload in records:
        client.write(payload)
    assert (world.taken(A), world.taken(B)) == ([records[0], records[3]], [records[1], records[2]])
    with pytest.raises(ProtocolViolation, match="no Binlog"):
        client.write(b"\x0a\x99")


def test_a_failed_prewrite_goes_to_the_next_after_a_pause(world, make):
    world.rules = {A: fails("UNKNOWN", "no online: pausing")}
    client = make()
    client.prewrite(10, b"p")
    assert asked(world) == "ab" and world.clock.waits == [0.1]
    client.outcome(10, b"c")
    client.flush()
    assert world.taken(B) == [b"p", b"c"]
    assert client.stats() == ClientStats(prewrites=1, retries=1, failovers=1)


def test_all_are_tried_for_the_timeout_then_each_once_more(world, make):
    world.rules = {pump.host: fails() for pump in PUMPS}
    client = make()
    with pytest.raises(
        PumpUnavailable, match=r"no Pump accepted the Prewrite of start_ts 10 .*last error: Pump: UNAVAILABLE.*start a Pump"
    ):
        client.prewrite(10, b"p")
    rounds = len(world.clock.waits)
    assert world.clock.waits == [0.1] * rounds and 15 < world.clock.time < 15.3
    assert asked(world) == ("abc" * 99)[: rounds + 1] + "abc"
    assert client.stats() == ClientStats(retries=rounds, demotions=3)
    assert client.available() == ()


def test_with_one_slow_call_every_available_pump_is_still_tried(world, make):
    def slow(payloads):
        world.clock.time += 15
        return fails("DEADLINE_EXCEEDED", "too slow")(payloads)

    world.rules = {pump.host: slow for pump in PUMPS}
    with pytest.raises(PumpUnavailable, match="DEADLINE_EXCEEDED"):
        make().prewrite(10, b"p")
    assert asked(world) == "abcab" + "abc", "five tries: more retries than Pumps, then everyone"


def test_the_sweep_takes_who_is_not_available_and_makes_it_so(world, make):
    world.rules = {pump.host: fails() for pump in PUMPS}
    client = make()
    with pytest.raises(PumpUnavailable):
        client.prewrite(10, b"p")
    del world.rules[B], world.calls[:]
    dialled = len(world.dialled)
    client.prewrite(20, b"q")
    assert asked(world) == "ab" and world.dialled[dialled:] == [A, B], "no pause, a new connection each"
    assert client.available() == ("b",)
    client.prewrite(30, b"r")
    assert asked(world) == "abb"


def test_the_sweep_asks_only_who_is_registered_online(world, make):
    client = make([replace(pump, state=NodeState.PAUSED) for pump in PUMPS[:2]])
    with pytest.raises(PumpUnavailable, match="no available pump to write binlog"):
        client.prewrite(10, b"p")
    assert world.calls == []


def test_without_scores_the_sweep_is_all_there_is(world, make):
    client = make(settings=PumpClientSettings(strategy="score"))
    client.prewrite(10, b"p")
    client.outcome(10, b"c")
    client.flush()
    assert world.taken(A) == [b"p", b"c"] and world.clock.waits == []


def test_scores_are_followed(world, make):
    client = make([replace(pump, score=int(pump.node_id == "c")) for pump in PUMPS], PumpClientSettings(strategy="score"))
    for start_ts in range(10):
        client.prewrite(start_ts, b"p")
    assert asked(world) == "c" * 10


def test_hash_sends_a_start_ts_to_its_place(world, make):
    world.rules = {B: fails()}
    client = make(settings=PumpClientSettings(strategy="hash"))
    for start_ts in (6, 7, 8):
        client.prewrite(start_ts, b"p")
    assert asked(world) == "abcc"


def test_an_unknown_strategy_is_range_with_a_warning(world, make, caplog):
    client = make(settings=PumpClientSettings(strategy="nearest"))
    for start_ts in range(3):
        client.prewrite(start_ts, b"p")
    assert asked(world) == "abc"
    assert "strategy 'nearest' is unknown" in caplog.text


def test_labels_decide_until_nobody_matches(world, make):
    near = replace(PUMPS[1], labels={"zone": "east"})
    client = make([PUMPS[0], near, PUMPS[2]], PumpClientSettings(labels={"zone": "east"}))
    for start_ts in range(3):
        client.prewrite(start_ts, b"p")
    assert asked(world) == "bbb"
    world.rules = {B: fails()}
    client.prewrite(10, b"p")
    assert world.calls[-1].address in (A, C) and world.clock.time < 1
    client._pump_set.register([replace(near, state=NodeState.PAUSED)])
    world.calls.clear()
    client.prewrite(20, b"q")
    assert asked(world) == "a"
    client._pump_set.register([replace(pump, state=NodeState.PAUSED) for pump in PUMPS])
    client._pump_set.register([near])
    world.rules.clear()
    client.prewrite(30, b"r")
    assert asked(world) == "ab"


@pytest.mark.parametrize(
    "failure",
    [
        WriteFailed("Pump: too big", "RESOURCE_EXHAUSTED", "received message larger than max (9 vs. 4)"),
        WriteFailed("Pump: too big", "UNKNOWN", "rpc error: code = ResourceExhausted desc = received message larger than max"),
    ],
)
def test_too_large_fails_at_once(world, make, failure):
    world.rules = {pump.host: lambda payloads: failure for pump in PUMPS}
    client = make()
    with pytest.raises(WriteFailed, match="start_ts 10 is too large for Pump a, 1 bytes: .*larger than max.*make the transaction smaller"):
        client.prewrite(10, b"p")
    assert asked(world) == "a" and world.clock.waits == []
    world.rules.clear()
    client.prewrite(20, b"q")
    assert asked(world) == "ab"


def test_only_unavailable_dials_anew(world, make):
    client = make(PUMPS[:1])
    answers = [fails("UNKNOWN", "disk full"), fails("DEADLINE_EXCEEDED", ""), fails("UNAVAILABLE", ""), takes]
    world.rules = {A: lambda payloads: answers.pop(0)(payloads)}
    client.prewrite(10, b"p")
    assert (asked(world), world.dialled, world.hung_up) == ("aaaa", [A, A], [A])


def test_eleven_failures_demote(world, make):
    world.rules = {A: fails()}
    client = make(PUMPS[:2])
    for start_ts in range(10):
        client.prewrite(start_ts, b"p")
    assert client.available() == ("a", "b") and world.calls[-1].address == B
    client.prewrite(10, b"p")
    assert (client.available(), client.stats().demotions) == (("b",), 1)
    world.calls.clear()
    client.prewrite(11, b"p")
    assert asked(world) == "b"


def test_an_errmsg_is_a_failure_that_does_not_demote(world, make):
    world.rules = {A: fails("OK", "out of space")}
    client = make(PUMPS[:2])
    for start_ts in range(30):
        client.prewrite(start_ts, b"p")
    assert client.available() == ("a", "b") and client.stats().failovers == 30


def test_an_outcome_is_tried_every_second_for_ten_minutes_then_given_up(world, make, caplog):
    client = make(PUMPS[:2])
    client.prewrite(10, b"p")
    world.rules = {A: fails()}
    world.calls.clear()
    client.outcome(10, b"c")
    client.flush()
    assert asked(world) == "a" * 602 and world.clock.waits == [1.0] * 601
    assert [call.at for call in world.calls[:3]] == [0, 1, 2]
    assert client.stats() == ClientStats(prewrites=1, retries=601, outcomes_given_up=1, demotions=1)
    assert any(r.levelno == logging.ERROR and "start_ts 10" in r.message and "given up" in r.message for r in caplog.records)
    assert client.available() == ("b",)


def test_an_outcome_for_a_pump_that_has_left_is_given_up_at_once(world, make):
    client = make(PUMPS[:2])
    client.prewrite(10, b"p")
    world.rules = {A: fails()}
    client._pump_set.register([replace(PUMPS[0], state=NodeState.OFFLINE)])
    client.outcome(10, b"c")
    client.flush()
    assert asked(world) == "aa" and world.clock.waits == []
    assert client.stats() == ClientStats(prewrites=1, outcomes_given_up=1)


def test_an_awaited_outcome_is_given_up_without_an_error(world, make):
    client = make(PUMPS[:1])
    client.write(binlogs.payload(0, 10))
    world.rules = {A: fails("UNKNOWN", "no")}
    client.write(binlogs.payload(1, 10, 15))
    assert client.stats().outcomes_given_up == 1 and 600 < world.clock.time < 602


def test_an_outcome_goes_to_its_pump_though_that_is_unavailable(world, make):
    client = make(PUMPS[:2])
    client.prewrite(10, b"p")
    client._pump_set.register([replace(PUMPS[0], state=NodeState.PAUSING)])
    assert client.available() == ("b",)
    client.outcome(10, b"c")
    client.flush()
    assert world.taken(A) == [b"p", b"c"]


def test_an_outcome_follows_its_pump_to_another_address(world, make):
    client = make(PUMPS[:1])
    client.prewrite(10, b"p")
    client._pump_set.register([replace(PUMPS[0], host="moved:1")])
    client.outcome(10, b"c")
    client.flush()
    assert world.taken("moved:1") == [b"c"] and world.hung_up == [A]


def test_an_outcome_of_no_known_prewrite_is_not_written(world, make, caplog):
    client = make()
    client.outcome(10, b"c")
    client.write(binlogs.payload(1, 20, 25))
    client.prewrite(30, b"p")
    client.outcome(30, b"c")
    client.outcome(30, b"again")
    client.prewrite(40, b"p")
    client.forget(40)
    client.outcome(40, b"c")
    client.flush()
    assert sorted(call.payloads for call in world.calls) == [(b"c",), (b"p",), (b"p",)]
    assert client.stats().outcomes_given_up == 4
    assert "start_ts 10 is not written" in caplog.text


def test_after_a_failed_prewrite_its_outcome_has_no_pump(world, make):
    world.rules = {pump.host: fails() for pump in PUMPS}
    client = make(settings=PumpClientSettings(write_timeout=0.2))
    with pytest.raises(PumpUnavailable):
        client.prewrite(10, b"p")
    world.calls.clear()
    client.outcome(10, b"c")
    client.flush()
    assert world.calls == []


def test_what_is_written_while_one_waits_goes_together(world, make):
    client = make(PUMPS[:1])
    for start_ts in range(5):
        client.prewrite(start_ts, b"p")
    world.calls.clear()
    on_its_way, go_on = threading.Event(), threading.Event()

    def slow(payloads):
        on_its_way.set()
        go_on.wait(5)

    world.rules = {A: slow}
    client.outcome(0, b"c0")
    assert on_its_way.wait(5)
    for start_ts in range(1, 5):
        client.outcome(start_ts, b"c%d" % start_ts)
    go_on.set()
    client.flush()
    assert [call.payloads for call in world.calls] == [(b"c0",), (b"c1", b"c2", b"c3", b"c4")]


def test_order_is_kept_over_failures(world, make):
    client = make(PUMPS[:1])
    for start_ts in range(600):
        client.prewrite(start_ts, b"p")
    world.calls.clear()
    failures = [fails()] * 3
    took = []

    def shaky(payloads):
        if failures:
            return failures.pop()(payloads)
        took.extend(payloads)

    world.rules = {A: shaky}
    payloads = [b"%d" % start_ts for start_ts in range(600)]
    for start_ts, payload in enumerate(payloads):
        client.outcome(start_ts, payload)
    client.flush()
    assert took == payloads and max(len(call.payloads) for call in world.calls) <= 256


def test_a_closed_client_writes_nothing(world, make):
    client = make()
    client.prewrite(10, b"p")
    client.close()
    with pytest.raises(PumpUnavailable, match="client was closed"):
        client.prewrite(20, b"q")
    client.outcome(10, b"c")
    client.write(binlogs.payload(1, 10, 15))
    assert len(world.calls) == 1 and world.hung_up == [A]


def test_closing_ends_an_awaited_outcome(world, make, caplog):
    client = make(PUMPS[:1])
    client.write(binlogs.payload(0, 10))
    failed = threading.Event()

    def away(payloads):
        failed.set()
        world.clock.time = 0
        return fails()(payloads)

    world.rules = {A: away}
    writing = threading.Thread(target=client.write, args=(binlogs.payload(1, 10, 15),))
    writing.start()
    assert failed.wait(5)
    client.close()
    writing.join(5)
    assert not writing.is_alive()
    assert "1 outcomes for Pump a were not written" in caplog.text


def test_flush_names_the_pump_that_stays_away(world, make):
    client = make(PUMPS[:1])
    client.prewrite(10, b"p")
    held = threading.Event()
    world.rules = {A: lambda payloads: held.wait(5) and None}
    client.outcome(10, b"c")
    with pytest.raises(PumpUnavailable, match="Pump a at a:1 did not accept 1 outcomes within 0.01 s"):
        client.flush(0.01)
    held.set()
    client.flush()
