"""The identity of an event's row: events of the same row have the same identity. Pure.

Promises: whole columns at a time, but for few rows. The identity of a row does not depend on the schema version of the event.

After EXCHANGE PARTITION two partitions of a table may each have a row with the same ``_tidb_rowid``:

    1  update A 2 -> 3    2  update B 12 -> 13    3  delete A 3        all of rowid 1: row 0, row 1, row 0

Binlogs never name the partition (rows.md 1), so the images decide. The old image of an event equals the new image of the row's event
before it. Where the two differ, another row begins, and its number becomes part of its identity. Columns that an event lacks are not compared (rows.md 6).
Images with the same value of a unique key belong to one row. Rows that are equal in all columns may be mistaken for each other, which leaves the
table the same. A table with a clustered handle or without partitions costs nothing, and its identities do not change.

In a table with gaps (``gapped``: events that are not to be applied), an event that no unique key assigns continues a row whose last image is not the
old image of a later event.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder, reference_decoder
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.row_layout import lacking_at
from pyspark_tidb_binlog.sinks.engine.fold import Indexes, Mask

FEW_ROWS = 8
"""So many rows of a table are decoded one by one: that is faster than what whole columns cost however few their rows are."""
_NONE = -1
"""The code of no value: NULL, or an image that the event does not have."""


class EventColumns:
    """The events' columns as arrays."""

    def __init__(self, events: pa.Table) -> None:
        self.ops = events["op"].to_numpy()
        self.table_ids = events["table_id"].to_numpy()
        self.versions = events["schema_version"].to_numpy()
        self.commit_ts = events["commit_ts"].to_numpy()
        self._rows = events["row"].combine_chunks()

    def rows_at(self, indexes: Indexes) -> pa.BinaryArray:
        """Row bytes of some events."""
        if len(indexes) == len(self._rows) and bool(np.all(np.diff(indexes) == 1)):
            return self._rows
        return self._rows.take(pa.array(indexes))


def row_identities(events: pa.Table, tables: Mapping[int, TableAt]) -> pa.BinaryArray:
    """``schemas.decoder.row_keys`` over the events of many tables, in the events' order."""
    if events.num_rows == 0:
        return pa.array([], pa.binary())
    source = EventColumns(events)
    pieces: list[pa.BinaryArray] = []
    places: list[Indexes] = []
    for table_id in np.unique(source.table_ids).tolist():
        rows = np.flatnonzero(source.table_ids == table_id)
        row_keys = reference_decoder.row_keys if len(rows) <= FEW_ROWS else decoder.row_keys
        pieces.append(row_keys(tables[table_id], source.ops[rows], source.rows_at(rows)))
        places.append(rows)
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def sharing(tables: Mapping[int, TableAt]) -> tuple[int, ...]:
    """Return the ids of the tables of which two rows may have the same ``_tidb_rowid``."""
    return tuple(i for i, t in tables.items() if not (t.info.pk_is_handle or t.info.is_common_handle) and _upstream(t).info.partitions)


def identities(events: pa.Table, tables: Mapping[int, TableAt], gapped: Collection[int] = ()) -> pa.BinaryArray:
    """``row_identities`` of a whole span, in which rows with the same ``_tidb_rowid`` are told apart; ``gapped``: as in ``row_numbers``."""
    keys = row_identities(events, tables)
    return numbered(keys, row_numbers(events, keys, tables, gapped)) if sharing(tables) else keys


def numbered(keys: pa.BinaryArray, numbers: Indexes) -> pa.BinaryArray:
    """``keys`` with the numbers of their rows; those of number 0 as they are."""
    others = np.flatnonzero(numbers)
    if not len(others):
        return keys
    values = keys.to_pylist()
    for place in others.tolist():
        values[place] += int(numbers[place]).to_bytes(4, "big")
    return pa.array(values, pa.binary())


def repeated(table_ids: Indexes, keys: pa.BinaryArray, tables: Mapping[int, TableAt]) -> Mask:
    """The events that ``row_numbers`` must see together: those of ``sharing`` tables whose identity is that of another event, too."""
    mask: Mask = np.zeros(len(keys), dtype=bool)
    for table_id in sharing(tables):
        places = np.flatnonzero(table_ids == table_id)
        rows = _codes(keys.take(pa.array(places)))
        mask[places] = (np.bincount(rows)[rows] > 1) if len(rows) else False
    return mask


def row_numbers(events: pa.Table, keys: pa.BinaryArray, tables: Mapping[int, TableAt], gapped: Collection[int] = ()) -> Indexes:
    """For each of ``events`` (``ROW_EVENT``) the number of its row among the rows of its identity, from 0 in the order of their first events.

    Args:
        events: all of a span, or all of some identities, in any order.
        keys: their identities (``row_identities``).
        tables: by table id; rows of tables that are not ``sharing`` have the number 0.
        gapped: ids of tables of which events may be missing.

    Raises:
        Corruption: a row's bytes are damaged.
    """
    numbers = np.zeros(events.num_rows, dtype=np.int64)
    table_ids = events["table_id"].to_numpy()
    again = repeated(table_ids, keys, tables)
    for table_id in sharing(tables) if again.any() else ():
        places = np.flatnonzero(again & (table_ids == table_id))
        if len(places):
            rows = _codes(keys.take(pa.array(places)))
            commit_ts, seq = (events[name].to_numpy()[places] for name in ("commit_ts", "seq"))
            order = np.lexsort((seq, commit_ts, rows))
            images = _Images.of(_upstream(tables[table_id]), EventColumns(events.take(pa.array(places[order]))))
            numbers[places[order]] = _numbers(images, rows[order], gapped=table_id in gapped)
    return numbers


def _upstream(table: TableAt) -> TableAt:
    """The table with all columns and partitions that it has upstream; its rows may lack any of them."""
    return replace(table, info=table.snapshots[-1].info, dropping=True) if table.snapshots else table


def _codes(values: pa.Array) -> Indexes:
    """A number for each value, equal for equal ones; ``_NONE`` for NULL."""
    codes: Indexes = pc.fill_null(pc.dictionary_encode(values).indices, _NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


@dataclass(frozen=True, slots=True)
class _Cells:
    """One column, or several as one: a number for the value in each event's images; ``_NONE`` where there is no value to compare."""

    before: Indexes
    after: Indexes

    def with_(self, other: "_Cells") -> "_Cells":
        """Return both as one column: equal where both are."""
        left, right = (np.concatenate([cells.before, cells.after]) + 1 for cells in (self, other))
        _, codes = np.unique(left * (int(right.max(initial=0)) + 1) + right, return_inverse=True)
        before, after = np.split(codes.astype(np.int64), 2)
        return _Cells(before, after)


@dataclass(frozen=True, slots=True)
class _Images:
    """The images of some events, ordered by row and time, so that they can be compared."""

    ops: Sequence[int]
    rows: _Cells
    """All columns; cells that are lacking count with their defaults."""
    columns: tuple[_Cells, ...]
    lacking: tuple[Mask, ...]
    """For each column the events that do not contain it."""
    incomplete: bool
    """Whether any event lacks a column."""
    keys: tuple[_Cells, ...]
    """Each unique key; ``_NONE`` where one of its columns is NULL or lacking."""

    @classmethod
    def of(cls, table: TableAt, source: EventColumns) -> "_Images":
        """Decode the images of the events ``source``."""
        had, has = np.flatnonzero(source.ops != Op.INSERT), np.flatnonzero(source.ops != Op.DELETE)
        count = len(source.ops)
        old = decoder.old_rows(table, source.ops[had], source.rows_at(had), source.versions[had])
        new = decoder.new_images(table, source.ops[has], source.rows_at(has), source.versions[has])
        columns, lacking = [], []
        for place in range(new.num_columns):
            codes = _codes(pa.concat_arrays([old.column(place), new.column(place)]))
            before, after = np.full(count, _NONE, np.int64), np.full(count, _NONE, np.int64)
            before[had], after[has] = codes[: len(had)], codes[len(had) :]
            columns.append(_Cells(before, after))
            mask = np.zeros(count, dtype=bool)
            mask[had] = lacking_at(old.column(old.num_columns - 1), place)
            lacking.append(mask)
        whole = _Cells(np.zeros(count, np.int64), np.zeros(count, np.int64))
        for cells in columns:
            whole = whole.with_(cells)
        places = {c.id: place for place, c in enumerate(table.info.target_columns())}
        keys = tuple(_key([places[c.id] for c in key], columns, lacking) for key in table.info.unique_keys())
        return cls(source.ops.tolist(), whole, tuple(columns), tuple(lacking), any(bool(m.any()) for m in lacking), keys)

    def follows(self, earlier: Indexes, later: Indexes) -> Mask:
        """For each pair of events whether the later one begins with what the earlier one left."""
        follows: Mask = self.rows.after[earlier] == self.rows.before[later]
        if self.incomplete:
            here = np.flatnonzero(~follows)
            same = np.ones(len(here), dtype=bool)
            for cells, lacking in zip(self.columns, self.lacking, strict=True):
                known = ~(lacking[earlier[here]] | lacking[later[here]])
                same &= ~known | (cells.after[earlier[here]] == cells.before[later[here]])
            follows[here] = same
        return follows


def _key(places: Sequence[int], columns: Sequence[_Cells], lacking: Sequence[Mask]) -> _Cells:
    whole = columns[places[0]]
    known = [np.ones(len(whole.before), dtype=bool) for _ in range(2)]
    for place in places:
        cells, present = columns[place], ~lacking[place]
        known[0] &= (cells.before != _NONE) & present
        known[1] &= (cells.after != _NONE) & present
        whole = whole.with_(cells)
    return _Cells(np.where(known[0], whole.before, _NONE), np.where(known[1], whole.after, _NONE))


def _numbers(images: _Images, rows: Indexes, *, gapped: bool) -> Indexes:
    """The numbers of the rows of events that are ordered by identity (``rows``) and time."""
    ops, numbers = np.array(images.ops), np.zeros(len(rows), dtype=np.int64)
    later = np.flatnonzero(np.diff(rows) == 0) + 1
    inserted, deleted = ops[later] == Op.INSERT, ops[later - 1] == Op.DELETE
    goes_on = (inserted & deleted) | (~inserted & ~deleted & images.follows(later - 1, later))
    doubted = np.unique(rows[later[~goes_on]])
    if len(doubted):
        assigner = _RowAssigner(images, gapped=gapped)
        for first, end in zip(np.searchsorted(rows, doubted).tolist(), np.searchsorted(rows, doubted, "right").tolist(), strict=True):
            numbers[first:end] = assigner.numbers(range(first, end))
    return numbers


class _RowAssigner:
    """Assigns the events of one identity to rows, one by one."""

    def __init__(self, images: _Images, *, gapped: bool) -> None:
        self._images = images
        self._gapped = gapped
        # Lists: looking up single elements of them is much faster.
        self._before, self._after = images.rows.before.tolist(), images.rows.after.tolist()
        self._keys = [(cells.before.tolist(), cells.after.tolist()) for cells in images.keys]

    def numbers(self, events: range) -> list[int]:
        """The number of the row of each of ``events``."""
        last: list[int] = []
        """The last event of each row."""
        numbers = []
        for event in events:
            inserts = self._images.ops[event] == Op.INSERT
            number = self._inserted(event, last) if inserts else self._touched(event, last, events)
            if number == len(last):
                last.append(event)
            last[number] = event
            numbers.append(number)
        return numbers

    def _inserted(self, event: int, last: Sequence[int]) -> int:
        """The row that ``event`` inserts: the one that was deleted last, else another one."""
        known = next((n for n in self._living(last) if self._one_row(last[n], event, image=1)), None)
        if known is not None:
            return known
        return max(self._dead(last), key=lambda n: last[n], default=len(last))

    def _touched(self, event: int, last: Sequence[int], events: range) -> int:
        """The row that ``event`` changes or deletes."""
        living = sorted(self._living(last), key=lambda n: -last[n])
        for number in living:
            if self._follows(last[number], event):
                return number
        by_key = {number: self._one_row(last[number], event, image=0) for number in living}
        for number, same in by_key.items():
            if same:
                return number
        if self._gapped:
            later = range(event + 1, events.stop)
            open_ = [n for n in living if by_key[n] is None and not any(self._follows(last[n], e) for e in later)]
            if open_ or not living:
                return max(open_ or self._dead(last), key=lambda n: last[n], default=len(last))
        return len(last)

    def _living(self, last: Sequence[int]) -> Iterator[int]:
        return (n for n, event in enumerate(last) if self._images.ops[event] != Op.DELETE)

    def _dead(self, last: Sequence[int]) -> Iterator[int]:
        return (n for n, event in enumerate(last) if self._images.ops[event] == Op.DELETE)

    def _follows(self, earlier: int, later: int) -> bool:
        if self._images.ops[later] == Op.INSERT:
            return False
        if self._after[earlier] == self._before[later]:
            return True
        return self._images.incomplete and bool(self._images.follows(np.array([earlier]), np.array([later]))[0])

    def _one_row(self, earlier: int, later: int, *, image: int) -> bool | None:
        """Whether the row after one event and an image of another one, 0 = the old one, share a unique key; None: no key has values in both."""
        keys = [(cells[1][earlier], cells[image][later]) for cells in self._keys]
        same = [left == right for left, right in keys if _NONE not in (left, right)]
        return any(same) if same else None
