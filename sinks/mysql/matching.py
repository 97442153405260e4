"""Determines how each row that a span deletes is found in the target: by which unique key, or by which columns.

    old image -> its first unique key without NULL, of columns that it carries            -> ByKey
              -> no such key: the columns that it carries and that are not being dropped  -> ByColumns

An image lacks a column while a DDL on that column runs (rows.md 6). Its cell is then a guess and is not used in a key or a condition. Among
rows that are equal in all other columns, guesses decide which one is deleted: the value that the column had under its former id, else its
default. For a column that a DROP COLUMN is about to remove, its value is used in the same way only: the value is unreliable once a delete
without that column may have removed another of those rows.

Promises: pure; rows are grouped on whole columns, never processed one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.row_layout import LACKING, has_bit, lacking_at
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.engine.fold import Mask

Numbers = np.ndarray[Any, np.dtype[np.int64]]

NO_KEY = -1


@dataclass(frozen=True, slots=True)
class OldRows:
    """Rows before a span."""

    images: pa.RecordBatch
    """``schemas.decoder.old_rows``: the target's columns, and as the last one the columns that each image lacks."""
    events: Numbers
    """Row number of the event of each image."""

    @classmethod
    def complete(cls, images: pa.RecordBatch, events: Numbers) -> "OldRows":
        """Images of the target's columns that lack none of them."""
        lacking = pa.repeat(pa.scalar(b"", LACKING.type), len(images))
        return cls(pa.RecordBatch.from_arrays([*images.columns, lacking], schema=images.schema.append(LACKING)), events)

    def __len__(self) -> int:
        return int(self.images.num_rows)

    def only(self, rows: Numbers | Mask) -> "OldRows":
        """Some of the rows."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(chosen) == len(self) and bool((np.diff(chosen) == 1).all()):
            return self
        return OldRows(self.images.take(pa.array(chosen)), self.events[chosen])

    def slice(self, start: int, rows: int) -> "OldRows":
        """Consecutive rows, without a copy."""
        return OldRows(self.images.slice(start, rows), self.events[start : start + rows])

    @property
    def lacking(self) -> pa.BinaryArray:
        """The columns that each image lacks (``schemas.row_layout.LACKING``)."""
        return self.images.column(self.images.num_columns - 1)

    @property
    def whole(self) -> bool:
        """Whether no image lacks a column."""
        return int(pc.sum(pc.binary_length(self.lacking)).as_py() or 0) == 0

    def lacks(self, place: int) -> Mask:
        """The rows whose image lacks the column at ``place``."""
        return lacking_at(self.lacking, place)


@dataclass(frozen=True, slots=True)
class ByKey:
    """Rows that are found by a unique key."""

    key: tuple[ColumnInfo, ...]
    rows: OldRows


@dataclass(frozen=True, slots=True)
class ByColumns:
    """Rows that are found by column values, all of one schema version if their images lack columns."""

    certain: tuple[ColumnInfo, ...]
    """Columns that must match."""
    preferred: tuple[ColumnInfo, ...]
    """Columns that decide among rows that are equal in the certain columns."""
    lacked: tuple[ColumnInfo, ...]
    """Columns that the images do not carry: their cells hold what the target has unless it was changed."""
    rows: OldRows


def key_numbers(table: TableAt, old: OldRows) -> Numbers:
    """The index in ``unique_keys`` of each row's first key without NULL; ``NO_KEY`` if the row has none."""
    found = np.full(len(old), NO_KEY, dtype=np.int64)
    whole = old.whole
    places = {c.id: i for i, c in enumerate(table.info.target_columns())}
    for number, key in enumerate(table.info.unique_keys()):
        open_ = found == NO_KEY
        if not open_.any():
            break
        for column in key:
            place = places[column.id]
            values = old.images.column(place)
            if values.null_count:
                open_ &= values.is_valid().to_numpy(zero_copy_only=False)
            if not whole:
                open_ &= ~old.lacks(place)
        found[open_] = number
    return found


def differ(old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]) -> Mask:
    """Mask of the rows whose images differ in any of these columns; NULL equals NULL."""
    found: Mask = np.zeros(old.num_rows, dtype=bool)
    for name in names:
        a, b = old.column(name), new.column(name)
        same = pc.fill_null(pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))
        found |= ~same.to_numpy(zero_copy_only=False)
    return found


def matches(table: TableAt, old: OldRows, versions: Numbers) -> Iterator[ByKey | ByColumns]:
    """The ways to find all rows of ``old``; the most precise first, since the rows that one deletes cannot be matched by the next.

    Args:
        table: the table on the target.
        old: the rows.
        versions: the schema version of each event, indexed by ``OldRows.events``.
    """
    numbers = key_numbers(table, old)
    for number, key in enumerate(table.info.unique_keys()):
        if (numbers == number).any():
            yield ByKey(key, old.only(numbers == number))
    rest = old.only(numbers == NO_KEY)
    if len(rest):
        yield from sorted(_by_columns(table, rest, versions), key=lambda m: len(m.lacked))


def _by_columns(table: TableAt, rows: OldRows, versions: Numbers) -> Iterator[ByColumns]:
    columns = table.info.target_columns()
    if rows.whole:
        yield _by(table, columns, rows, b"")
        return
    kinds = pc.dictionary_encode(rows.lacking)
    codes, of_event = kinds.indices.to_numpy(), versions[rows.events]
    for code, bits in enumerate(kinds.dictionary.to_pylist()):
        here = codes == code
        for version in np.unique(of_event[here]).tolist() if bits else [None]:
            yield _by(table, columns, rows.only(here if version is None else here & (of_event == version)), bits)


def _by(table: TableAt, columns: Sequence[ColumnInfo], rows: OldRows, bits: bytes) -> ByColumns:
    lacked = tuple(c for i, c in enumerate(columns) if has_bit(bits, i))
    carried = [c for c in columns if c not in lacked]
    certain = tuple(c for c in carried if c.id not in table.leaving)
    return ByColumns(certain, tuple(c for c in carried if c.id in table.leaving), lacked, rows)
