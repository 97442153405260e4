"""Folding any valid history and applying its net changes gives the state that replaying every event gives."""

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.sinks.engine.fold import ends_of, first_events, fold, part_numbers

State = dict[tuple[int, bytes], int]


@dataclass(frozen=True)
class History:
    """A state, events that are valid from it on, and the state they end in."""

    before: State
    events: list[tuple[int, int, Op, int, bytes, int | None, int | None]]
    """(commit_ts, seq, op, table_id, key, old value, new value)"""
    after: State


@st.composite
def histories(draw: st.DrawFn) -> History:
    keys = draw(st.sampled_from([st.binary(max_size=10), st.binary(min_size=8, max_size=8)]))
    rows = draw(st.lists(st.tuples(st.integers(1, 3), keys), min_size=1, max_size=6, unique=True))
    state: State = {row: -i - 1 for i, row in enumerate(rows) if draw(st.booleans())}
    before, events, value, ts, seq = dict(state), [], 0, 100, 0
    for _ in range(draw(st.integers(0, 40))):
        row = draw(st.sampled_from(rows))
        ts, seq = (ts, seq + 1) if draw(st.booleans()) else (ts + draw(st.integers(1, 5)), 0)
        value += 1
        old = state.get(row)
        op = Op.INSERT if old is None else draw(st.sampled_from([Op.UPDATE, Op.DELETE]))
        if op is Op.DELETE:
            del state[row]
        else:
            state[row] = value
        events.append((ts, seq, op, *row, old, state.get(row)))
    return History(before, draw(st.permutations(events)), state)


def as_table(history: History) -> pa.Table:
    columns = list(zip(*history.events, strict=True)) or [[]] * 7
    types = [("commit_ts", pa.int64()), ("seq", pa.int32()), ("op", pa.int32()), ("table_id", pa.int64()), ("key", pa.binary())]
    arrays = {n: pa.array([int(v) if isinstance(v, Op) else v for v in c], t) for (n, t), c in zip(types, columns[:5], strict=True)}
    return pa.table(arrays)


@given(histories())
def test_fold_equals_replay(history: History) -> None:
    state = dict(history.before)
    for table in fold(as_table(history)):
        for i in [*table.removed.tolist(), *table.before.tolist()]:
            _, _, _, table_id, key, old, _ = history.events[i]
            assert table_id == table.table_id
            assert state.pop((table_id, key)) == old, "the old image is what stood there before the span"
        for i in [*table.after.tolist(), *table.added.tolist()]:
            _, _, _, table_id, key, _, new = history.events[i]
            assert (table_id, key) not in state
            assert new is not None
            state[table_id, key] = new
        before = [history.events[i][4] for i in table.before.tolist()]
        assert before == [history.events[i][4] for i in table.after.tolist()], "old and new images are paired"
    assert state == history.after


@given(histories(), st.integers(1, 5))
def test_parts_folded_alone_make_the_whole(history: History, parts: int) -> None:
    table = as_table(history)
    if table.num_rows == 0:
        return
    ids = table["table_id"].to_numpy()
    numbers = part_numbers(ids, table["key"].combine_chunks(), ids == 1, parts)
    assert len(set(numbers[ids == 1].tolist())) <= 1, "a keyless table lies in one part"
    split = [fold(table.filter(pa.array(numbers == n))) for n in range(parts)]
    for name in ("removed", "before", "after", "added"):
        assert sum(len(getattr(t, name)) for s in split for t in s) == sum(len(getattr(t, name)) for t in fold(table))


@given(histories())
def test_the_first_and_the_last_event_of_each_row_fold_like_all_of_them(history: History) -> None:
    table = as_table(history)
    kept = ends_of(table)
    places = [i for i, keep in enumerate(kept.tolist()) if keep]
    assert len(places) <= 2 * len({event[3:5] for event in history.events})
    few = fold(table.filter(pa.array(kept)))
    for whole, part in zip(fold(table), few, strict=True):
        for name in ("removed", "before", "after", "added"):
            assert [places[i] for i in getattr(part, name)] == getattr(whole, name).tolist()


@given(histories())
def test_the_first_event_of_each_events_row(history: History) -> None:
    table = as_table(history)
    rows = table.select(["commit_ts", "seq", "table_id", "key"]).to_pylist()
    for row, first in zip(rows, first_events(table).tolist(), strict=True):
        same = [i for i, other in enumerate(rows) if (other["table_id"], other["key"]) == (row["table_id"], row["key"])]
        assert first == min(same, key=lambda i: (rows[i]["commit_ts"], rows[i]["seq"]))
