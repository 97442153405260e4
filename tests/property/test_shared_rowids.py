"""Rows of two partitions that share a ``_tidb_rowid``: the net changes of any valid history give what replaying every event gives."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.sinks.engine.fold import fold
from pyspark_tidb_binlog.sinks.engine.identity import EventColumns, identities, row_identities, row_numbers
from tests.support.plan_samples import NOT_NULL, TABLE_ID, Events, column, index, parted, table

Row = tuple[int, int | None]
RANGES = {0: range(5), 1: range(5, 10)}
"""The values of ``a`` in each partition."""


KEYED = parted(table([column("a", flag=NOT_NULL), column("b")], [index("PRIMARY", ("a", -1), primary=True)]))
KEYLESS = parted(table([column("a"), column("b")]))
PLAIN = table([column("a"), column("b")])


@dataclass(frozen=True)
class History:
    at: TableAt
    before: Counter[Row]
    events: pa.Table
    after: Counter[Row]
    owners: list[int]
    """The partition of each event's row."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    at = draw(st.sampled_from([KEYED, KEYLESS]))
    places = [(partition, rowid) for partition in RANGES for rowid in (1, 2)]
    state: dict[tuple[int, int], Row] = {}

    def fresh(partition: int, but: tuple[int, int] | None = None) -> Row:
        taken = {row[0] for place, row in state.items() if place != but} if at is KEYED else set()
        a = draw(st.sampled_from([n for n in RANGES[partition] if n not in taken]))
        return a, draw(st.sampled_from([None, 0, 1]))

    for place in places:
        if draw(st.booleans()):
            state[place] = fresh(place[0])
    before, made, owners = Counter(state.values()), Events(at), []
    for _ in range(draw(st.integers(0, 14))):
        place = draw(st.sampled_from(places))
        same, old = bool(owners) and draw(st.booleans()), state.get(place)
        if old is None:
            state[place] = fresh(place[0])
            made.insert(*state[place], rowid=place[1], same=same)
        elif draw(st.booleans()):
            state[place] = fresh(place[0], but=place)
            made.update(old, state[place], rowid=place[1], same=same)
        else:
            del state[place]
            made.delete(*old, rowid=place[1], same=same)
        owners.append(place[0])
    order = draw(st.permutations(range(len(owners))))
    return History(at, before, made.table().take(pa.array(order, pa.int64())), Counter(state.values()), [owners[i] for i in order])


def replayed(history: History) -> Counter[Row]:
    """``before`` after the net changes: every image that is taken away must be there."""
    rows, at, events = Counter(history.before), history.at, history.events
    keyed = events.append_column("key", identities(events, {TABLE_ID: at}))
    source = EventColumns(keyed)
    for changes in fold(keyed):
        taken = np.concatenate([changes.removed, changes.before])
        old = decoder.old_images(at, source.ops[taken], source.rows_at(taken), source.versions[taken])
        for row in map(tuple, (r.values() for r in old.to_pylist())):
            rows[row] -= 1
            assert rows[row] >= 0, f"{row} is taken away, and was not there before the span"
        put = np.concatenate([changes.after, changes.added])
        new = decoder.new_images(at, source.ops[put], source.rows_at(put), source.versions[put])
        rows.update(map(tuple, (r.values() for r in new.to_pylist())))
    return +rows


@given(histories())
def test_net_changes_equal_replay(history: History) -> None:
    assert replayed(history) == history.after


def numbers(at: TableAt, events: Events, **more: Any) -> list[int]:
    made = events.table()
    return row_numbers(made, row_identities(made, {TABLE_ID: at}), {TABLE_ID: at}, **more).tolist()


def test_interleaved_changes_of_two_rows_are_told_apart() -> None:
    for at in (KEYED, KEYLESS):
        events = Events(at).update((2, 2), (2, 3), rowid=1).update((7, 7), (7, 8), rowid=1)
        events.update((2, 3), (2, 4), rowid=1).delete(7, 8, rowid=1).insert(7, 9, rowid=1).delete(2, 4, rowid=1)
        assert numbers(at, events) == [0, 1, 0, 1, 1, 0]


def test_a_row_whose_events_follow_each_other_keeps_its_identity() -> None:
    events = Events(KEYLESS).insert(2, 2, rowid=1).update((2, 2), (3, None), rowid=1).delete(3, None, rowid=1).insert(4, 4, rowid=1).table()
    assert identities(events, {TABLE_ID: KEYLESS}).equals(row_identities(events, {TABLE_ID: KEYLESS}))


def test_a_table_without_partitions_is_left_as_it_is() -> None:
    events = Events(PLAIN).update((2, 2), (2, 3), rowid=1).update((7, 7), (7, 8), rowid=1)
    assert numbers(PLAIN, events) == [0, 0]


def test_a_gap_is_no_other_row() -> None:
    """2 -> 3 -> 4 -> 5 without 3 -> 4; the same of another row under the same rowid, which goes on: it has no gap."""
    gap = Events(KEYLESS).update((2, 2), (2, 3), rowid=1).update((2, 4), (2, 5), rowid=1)
    assert numbers(KEYLESS, gap, gapped={TABLE_ID}) == [0, 0]
    goes_on = Events(KEYLESS).update((2, 2), (2, 3), rowid=1).update((7, 4), (7, 5), rowid=1).delete(2, 3, rowid=1)
    assert numbers(KEYLESS, goes_on, gapped={TABLE_ID}) == [0, 1, 0]
    keyed = Events(KEYED).update((2, 2), (2, 3), rowid=1).update((2, 4), (2, 5), rowid=1)
    assert numbers(KEYED, keyed) == [0, 0], "both have the key 2"
    assert numbers(KEYED, Events(KEYED).update((2, 2), (2, 3), rowid=1).delete(7, 4, rowid=1), gapped={TABLE_ID}) == [0, 1]


def test_a_column_that_an_event_lacks_is_not_compared() -> None:
    """An ADD COLUMN is under way: a transaction of the older version writes rows without it."""
    wide = [dataclasses.replace(c, id=i + 1, offset=i) for i, c in enumerate([column("a"), column("b"), column("c")])]
    newer = replace(KEYLESS.info, columns=tuple(wide))
    at = replace(
        KEYLESS,
        info=newer,
        version=SchemaVersion(41),
        snapshots=(*KEYLESS.snapshots, TableSnapshot(SchemaVersion(41), "d", "t", newer)),
    )
    first = Events(at).update((2, 2, 9), (2, 3, 9), rowid=1).table()
    old = Events(KEYLESS, 2000).update((2, 3), (2, 4), rowid=1).table()
    last = Events(at, 3000).delete(2, 4, 9, rowid=1).table()
    events = pa.concat_tables(
        [
            part.set_column(4, first.schema.field(4), [pa.array([v], first.schema.field(4).type)])
            for part, v in ((first, 41), (old, 40), (last, 41))
        ]
    )
    assert events.schema.names[4] == "schema_version"
    assert row_numbers(events, row_identities(events, {TABLE_ID: at}), {TABLE_ID: at}).tolist() == [0, 0, 0]
    assert {Op(o) for o in events["op"].to_pylist()} == {Op.UPDATE, Op.DELETE}
