"""Which Pumps are written to: every event in every availability, and the walk of a Pump through a bad day."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.availability import TRANSITIONS, Availability, Event, KnownPump, KnownPumps

A, B = NodeStatus("a", "a:1"), NodeStatus("b", "b:1")
U, GOOD, BAD = Availability.UNKNOWN, Availability.AVAILABLE, Availability.UNAVAILABLE

EXPECTED = {
    U: {Event.ONLINE: GOOD, Event.AWAY: BAD, Event.UNUSABLE: U, Event.ANSWERED: U},
    GOOD: {Event.ONLINE: GOOD, Event.AWAY: BAD, Event.UNUSABLE: BAD, Event.ANSWERED: GOOD},
    BAD: {Event.ONLINE: GOOD, Event.AWAY: BAD, Event.UNUSABLE: BAD, Event.ANSWERED: GOOD},
}


@pytest.mark.parametrize("availability", Availability)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_standing(availability, event):
    known = KnownPump(A, availability, errors=4)
    after = known.after(event)
    assert after.availability is EXPECTED[availability][event]
    assert after.errors == (4 if after.availability is availability else 0)


def test_the_table_holds_only_moves():
    assert all(before is not after for (before, _), after in TRANSITIONS.items())


def ids(pumps):
    return "".join(pump.node_id for pump in pumps)


def pumps(*statuses, max_errors=10):
    made = KnownPumps(max_errors)
    for status in statuses:
        made.register(status)
    return made


@pytest.mark.parametrize("state", NodeState)
def test_who_is_listed_online_is_available(state):
    made = pumps(replace(A, state=state))
    there = "a" if state is NodeState.ONLINE else ""
    assert (ids(made.available()), ids(made.to_probe()), ids(made.online())) == (there, "", there)


@pytest.mark.parametrize("before", NodeState)
@pytest.mark.parametrize("after", NodeState)
def test_a_change_of_state_moves_exactly_when_it_is_to_or_from_online(before, after):
    made = pumps(replace(A, state=before))
    moved = made.register(replace(A, state=after, update_ts=2))
    assert moved == ((before is NodeState.ONLINE) != (after is NodeState.ONLINE))
    assert bool(made.available()) == (after is NodeState.ONLINE)


def test_order_is_that_of_becoming_known_and_statuses_are_the_newest():
    made = pumps(B, A, replace(B, max_commit_ts=9))
    assert made.available() == (replace(B, max_commit_ts=9), A)
    made.register(replace(B, state=NodeState.PAUSED))
    made.register(B)
    assert made.available() == (B, A)


def fail(made, node_id, times):
    for _ in range(times):
        made.count_failure(node_id)


@pytest.mark.parametrize("errors, demoted", [(0, ()), (10, ()), (11, ("a",)), (50, ("a",))])
def test_more_than_ten_errors_in_a_row_make_unusable(errors, demoted):
    made = pumps(A, B)
    fail(made, "a", errors)
    assert ids(made.available()) == "ab", "nobody looked yet"
    assert made.demote_unusable() == demoted
    assert ids(made.available()) == ("b" if demoted else "ab")
    assert made.demote_unusable() == ()


def test_a_success_begins_the_count_anew():
    made = pumps(A)
    fail(made, "a", 10)
    made.count_success("a")
    fail(made, "a", 10)
    assert made.demote_unusable() == ()
    fail(made, "a", 1)
    assert made.demote_unusable() == ("a",)


def test_heartbeats_do_not_bring_a_demoted_one_back_but_an_answer_does():
    made = pumps(A, B)
    fail(made, "a", 11)
    made.demote_unusable()
    assert made.register(replace(A, update_ts=5)) is False
    assert (ids(made.available()), ids(made.to_probe())) == ("b", "a")
    assert made.answered("a") is True
    assert (ids(made.available()), ids(made.to_probe())) == ("ab", "")
    assert made.answered("a") is False
    assert made.demote_unusable() == (), "the count began anew"


def test_a_demoted_one_that_comes_back_online_is_available_without_a_probe():
    made = pumps(A)
    fail(made, "a", 11)
    made.demote_unusable()
    assert made.register(replace(A, state=NodeState.PAUSED)) is False
    assert made.to_probe() == (), "who is away is not probed"
    assert made.register(A) is True
    assert ids(made.available()) == "a"


def test_an_answer_of_one_that_left_meanwhile_counts_for_nothing():
    made = pumps(replace(A, state=NodeState.PAUSING))
    assert made.answered("a") is False
    assert made.available() == ()


def test_leaving_online_begins_the_count_anew():
    made = pumps(A)
    fail(made, "a", 11)
    made.register(replace(A, state=NodeState.PAUSED))
    made.register(A)
    assert made.demote_unusable() == ()
