"""Any interleaving that a schedule allows ends like the upstream's order: over drawn keys, and over drawn histories of real row events."""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.sinks.engine.causality import OpKeys, Schedule, keys_of, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, operations_of
from tests.support.examples import examples
from tests.support.row_worlds import RowHistory, RowWorld, clustered, half_keyed, keyless, two_keys

KEYS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True), max_size=40)


@given(keys=KEYS, lanes=st.integers(1, 6), run=st.integers(1, 5))
def test_operations_that_share_a_key_keep_their_order(keys: list[list[int]], lanes: int, run: int) -> None:
    found = schedule(OpKeys.of(keys), lanes, run=run)
    assert len(found.lanes) == len(found.rounds) == len(keys)
    assert sorted(found.rounds.tolist()) == found.rounds.tolist()
    assert all(0 <= lane < lanes for lane in found.lanes.tolist())
    for a, b in itertools.combinations(range(len(keys)), 2):
        if set(keys[a]) & set(keys[b]):
            assert found.rounds[a] < found.rounds[b] or found.lanes[a] == found.lanes[b], (a, b)


@given(keys=KEYS, lanes=st.integers(1, 6), run=st.integers(1, 5))
def test_a_flush_has_a_reason(keys: list[list[int]], lanes: int, run: int) -> None:
    """Keys of two lanes."""
    found = schedule(OpKeys.of(keys), lanes, run=run)
    for place in found.flushed_before:
        earlier = [i for i in range(place) if found.rounds[i] == found.rounds[place - 1] and set(keys[i]) & set(keys[place])]
        assert len({int(found.lanes[i]) for i in earlier}) >= 2


@given(keys=KEYS, more=KEYS, lanes=st.integers(1, 6), run=st.integers(1, 5))
def test_what_comes_later_changes_nothing(keys: Any, more: Any, lanes: int, run: int) -> None:
    short, long = (schedule(OpKeys.of(k), lanes, run=run) for k in (keys, keys + more))
    assert short.lanes.tolist() == long.lanes.tolist()[: len(keys)] and short.rounds.tolist() == long.rounds.tolist()[: len(keys)]


class Model:
    """A table as a target keeps it: rows under unique keys whose collation ignores case and trailing spaces; strict about what it is told."""

    def __init__(self, world: RowWorld) -> None:
        self.world, self.rows = world, list[tuple[Any, ...]]()

    def run(self, op: Op, old: tuple[Any, ...] | None, new: tuple[Any, ...] | None) -> None:
        if old is not None:
            self.rows.remove(old)
        if new is not None:
            for key in self.world.unique:
                mine = self.world.fold(new, key)
                assert mine is None or all(self.world.fold(row, key) != mine for row in self.rows), f"{new} is a duplicate"
            self.rows.append(new)


def changes_of(batch: RowBatch, worlds: dict[int, RowWorld]) -> list[tuple[int, Op, Any, Any]]:
    found: list[Any] = [None] * len(batch)
    for piece in batch.pieces:
        columns = len(piece.table.info.columns)
        old = [None] * len(piece) if piece.old is None else _rows(piece.old.select(range(columns)))
        new = [None] * len(piece) if piece.new is None else _rows(piece.new)
        for place, before, after in zip(piece.places.tolist(), old, new, strict=True):
            found[place] = (piece.table.table_id, piece.op, before, after)
    return found


def _rows(images: Any) -> list[Any]:
    return [tuple(c.decode() if isinstance(c, bytes) else c for c in row.values()) for row in images.to_pylist()]


def interleaved(found: Schedule, rng: random.Random) -> list[int]:
    """Some order in which the lanes of each round may run."""
    order: list[int] = []
    for _, places in itertools.groupby(range(len(found.lanes)), key=lambda i: found.rounds[i]):
        lanes: dict[int, list[int]] = {}
        for place in places:
            lanes.setdefault(int(found.lanes[place]), []).append(place)
        while lanes:
            lane = rng.choice(list(lanes))
            order.append(lanes[lane].pop(0))
            if not lanes[lane]:
                del lanes[lane]
    return order


@pytest.mark.parametrize("kind", [clustered, two_keys, keyless, half_keyed])
@examples(100)
@given(seed=st.integers(0, 1 << 30), lanes=st.integers(1, 5), run=st.integers(1, 3))
def test_any_interleaving_of_real_events_ends_as_upstream(kind: Any, seed: int, lanes: int, run: int) -> None:
    rng = random.Random(seed)
    worlds = (kind("t", 1), replace(kind("o", 2)))
    history = RowHistory(worlds, rng)
    models = {world.at.table_id: Model(world) for world in worlds}
    for _ in range(2):
        batch = operations_of(history.batch(12), {w.at.table_id: w.at for w in worlds})
        changes = changes_of(batch, {w.at.table_id: w for w in worlds})
        for place in interleaved(schedule(keys_of(batch), lanes, run=run), rng):
            table_id, op, old, new = changes[place]
            models[table_id].run(op, old, new)
        for world in worlds:
            assert sorted(map(repr, models[world.at.table_id].rows)) == sorted(map(repr, world.rows.values()))
