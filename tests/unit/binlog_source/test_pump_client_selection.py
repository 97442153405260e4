"""Which Pump is chosen: by each strategy, by labels, and the one that took the Prewrite."""

import random
from collections import Counter

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.binlog_source.pump_client.pump_set import PumpSet
from pyspark_tidb_binlog.binlog_source.pump_client.selection import STRATEGIES, Selector, preferred
from pyspark_tidb_binlog.binlog_source.pump_client.settings import DEFAULTS, Counters
from tests.support.fakes.pump_world import World

A, B, C = (NodeStatus(name, f"{name}:1") for name in "abc")
NEAR = {"zone": "east"}


def selector(strategy, pumps, labels=None, seed=1):
    made = Selector(STRATEGIES[strategy], labels or {}, random.Random(seed))
    made.offer(pumps)
    return made


def chosen(made, count, start_ts=0):
    return "".join(made.choose(start_ts, retry) or "-" for retry in range(count))


def test_range_goes_round_and_wraps():
    assert chosen(selector("range", [A, B, C]), 7) == "abcabca"


@pytest.mark.parametrize("fresh, then", [([A, B], "aba"), ([B, C], "bcb"), ([A, B, C, NodeStatus("d", "d:1")], "abc"), ([C, B, A], "cba")])
def test_range_begins_anew_when_the_list_changes(fresh, then):
    made = selector("range", [A, B, C])
    assert chosen(made, 2) == "ab"
    made.offer(fresh)
    assert chosen(made, 3) == then


def test_range_goes_on_when_only_a_status_is_newer():
    made = selector("range", [A, B, C])
    assert chosen(made, 2) == "ab"
    made.offer([A, NodeStatus("b", "b:1", update_ts=9), C])
    assert chosen(made, 2) == "ca"


@pytest.mark.parametrize("start_ts, then", [(0, "abcab"), (1, "bcabc"), (470604699283750912, "bcabc"), (470604699283750913, "cabca")])
def test_hash_follows_the_start_ts_and_moves_on_with_retries(start_ts, then):
    made = selector("hash", [A, B, C])
    assert [made.choose(start_ts, 0) for _ in range(3)] == [then[0]] * 3
    assert chosen(made, 5, start_ts) == then


def scored(*scores):
    return [NodeStatus(name, f"{name}:1", score=score) for name, score in zip("abc", scores, strict=True)]


def test_score_draws_by_weight_and_never_zero():
    made = selector("score", scored(1, 0, 3))
    drawn = Counter(chosen(made, 4000))
    assert set(drawn) == {"a", "c"}
    assert 0.22 < drawn["a"] / 4000 < 0.28


@pytest.mark.parametrize("scores", [(0, 0, 0), (-1, 0, 0)])
def test_scores_of_nothing_choose_nobody(scores):
    assert selector("score", scored(*scores)).choose(1, 0) is None


def test_score_follows_a_newer_score():
    made = selector("score", scored(1, 0, 0))
    assert chosen(made, 3) == "aaa"
    made.offer(scored(0, 5, 0))
    assert chosen(made, 3) == "bbb"


def test_score_is_drawn_from_the_given_chance():
    assert chosen(selector("score", scored(1, 1, 1), seed=5), 30) == chosen(selector("score", scored(1, 1, 1), seed=5), 30)


def test_local_is_the_only_one():
    assert chosen(selector("local", [A]), 3) == "aaa"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_pumps_there_is_no_choice(strategy):
    assert selector(strategy, []).choose(1, 0) is None
    assert Selector(STRATEGIES[strategy], {}, random.Random(1)).choose(1, 0) is None


def labelled(name, **labels):
    return NodeStatus(name, f"{name}:1", labels=labels)


@pytest.mark.parametrize(
    "pumps, wanted, then",
    [
        ([labelled("a", zone="east"), labelled("b", zone="west")], {"zone": "east"}, "a"),
        ([labelled("a", zone="east"), labelled("b", zone="west")], {"zone": "north"}, "ab"),
        ([labelled("a", zone="east"), labelled("b", zone="west")], {}, "ab"),
        ([labelled("a", zone="east", disk="ssd"), labelled("b", zone="east")], {"zone": "east", "disk": "ssd"}, "a"),
        ([labelled("a", zone="east", disk="ssd"), labelled("b", zone="east")], {"zone": "east"}, "ab"),
        ([labelled("a"), labelled("b", zone="")], {"zone": "east"}, "ab"),
        ([], {"zone": "east"}, ""),
    ],
)
def test_labels_prefer_those_that_carry_all(pumps, wanted, then):
    assert "".join(pump.node_id for pump in preferred(pumps, wanted)) == then


def test_others_are_taken_for_a_prewrite_that_every_matching_one_failed():
    near, far = labelled("n", **NEAR), labelled("f")
    made = selector("range", [far, near], NEAR)
    assert made.choose(0, 0) == "n"
    assert {made.choose(0, retries) for retries in (1, 2)} == {"n", "f"}
    assert made.choose(0, 0) == "n"


def test_others_are_taken_while_no_matching_one_is_available():
    near, far = labelled("n", **NEAR), labelled("f")
    made = selector("range", [near, far], NEAR)
    assert [made.choose(0, 0) for _ in range(3)] == ["n"] * 3
    made.offer([far])
    assert made.choose(0, 0) == "f"
    made.offer([far, near])
    assert made.choose(0, 0) == "n"


@pytest.mark.shows("pump spark.labels", "pump spark.score")
def test_labels_come_before_scores():
    near, far = NodeStatus("n", "n:1", score=1, labels=NEAR), NodeStatus("f", "f:1", score=1000)
    made = selector("score", [far, near], NEAR)
    assert {made.choose(start_ts, 0) for start_ts in range(20)} == {"n"}


def test_the_taker_of_a_prewrite_is_remembered_until_it_is_told_otherwise():
    pumps = PumpSet(DEFAULTS, World().dependencies(), Counters())
    pumps.register([A, B])
    a, b = pumps.handles()
    assert pumps.pump_of(5) is None
    pumps.remember(5, a)
    pumps.remember(6, b)
    assert (pumps.pump_of(5), pumps.pump_of(5), pumps.pump_of(6), len(pumps._takers)) == (a, a, b, 2)
    pumps.remember(5, b)
    assert pumps.pump_of(5) == b
    pumps.remember(5, None)
    pumps.remember(7, None)
    assert (pumps.pump_of(5), len(pumps._takers)) == (None, 1)
