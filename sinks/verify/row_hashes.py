"""Hashes of the rows of a mirror, and of the same rows as they come from the upstream; whole columns at a time. Pure.

    rows (``mirror_schema``) -> canonical bytes of each cell -> a hash of the key, and of the row -> how many rows, and the sum of their hashes, in a bucket

A row's bucket follows from its key. So the rows of buckets that are equal on both sides are equal, and rows with one key are in one bucket. A row that
is there twice counts twice. A table without a key has all columns as its key.

Promises: equal rows give equal bytes, whatever rows are with them. NULL is not ''. Two JSON documents are equal if their values are: 1 is 1.0, and the
order of keys does not count. Zero has no sign.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.row_images import image_cells
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells
from pyspark_tidb_binlog.schemas.changes.variant_values import encoded
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.fold import mixed_in
from pyspark_tidb_binlog.sinks.lake.net_changes import hidden_column, identity, mirror_schema

BUCKETS = 1 << 18
_LONG = 1 << 12
"""Bytes of a cell from which on its SHA-1 stands for it: words are mixed in one after the other."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of a mirror."""

    schema: pa.Schema
    columns: tuple[ColumnInfo | None, ...]
    """None: ``_tidb_rowid``."""
    key: tuple[int, ...]
    """Places of the columns by which a row is found."""

    @classmethod
    def of(cls, info: TableInfo) -> Self:
        """Of a table's mirror."""
        schema = mirror_schema(info)
        hidden = [None] if hidden_column(info) is not None else []
        return cls(schema, (*hidden, *info.target_columns()), tuple(schema.get_field_index(name) for name in identity(info)))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def bytes_of(self, rows: pa.RecordBatch) -> list[pa.BinaryArray]:
        """The canonical bytes of each column's cells; ``rows`` may have the columns in another order."""
        return encoded([TypedCells(_comparable(rows.column(f.name), f.type, c)) for f, c in zip(self.schema, self.columns, strict=True)])

    def shown(self, cells: pa.Array, name: str) -> pa.Array:
        """A column's cells as values: a JSON document is its text."""
        place = self.schema.get_field_index(name)
        return _comparable(cells, self.schema.field(place).type, self.columns[place])

    def hashes(self, cells: Sequence[pa.BinaryArray]) -> tuple[Any, Any]:
        """Of each row the hash of its key, and that of all of it, as uint64."""
        short = [_short(one) for one in cells]
        key = np.zeros(len(cells[0]), np.uint64)
        for place in self.key:
            key = mixed_in(key, short[place])
        row = key
        for one in short:
            row = mixed_in(row, one)
        return key, row


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rows, summed up. It has one size, whatever the table's."""

    counts: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    sums: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.uint64))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def add(self, shape: RowShape, rows: pa.RecordBatch) -> None:
        """Count rows."""
        key, row = shape.hashes(shape.bytes_of(rows))
        at = buckets_of(key)
        np.add.at(self.counts, at, 1)
        np.add.at(self.sums, at, row)

    def include(self, other: "Buckets") -> None:
        """Take in the rows of another part."""
        self.counts[:] += other.counts
        self.sums[:] += other.sums

    def unlike(self, other: "Buckets") -> Any:
        """The numbers of the buckets that differ."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))


def buckets_of(key: Any) -> Any:
    """The bucket of each row, by the hash of its key."""
    return (key % np.uint64(BUCKETS)).astype(np.int64)


def _comparable(cells: pa.Array, kind: pa.DataType, column: ColumnInfo | None) -> pa.Array:
    if pa.types.is_struct(kind):
        assert column is not None
        return image_cells(column, cells)
    return pc.add(cells.cast(kind), pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else cells.cast(kind)


def _short(cells: pa.BinaryArray) -> pa.BinaryArray:
    long = pc.greater(pc.binary_length(cells), _LONG)
    if not pc.any(long).as_py():
        return cells
    digests = [hashlib.sha1(cell.as_py(), usedforsecurity=False).digest() for cell in cells.filter(long)]
    return pc.replace_with_mask(cells, long, pa.array(digests, pa.binary()))
