"""Hashes of the rows of a mirror, and of the same rows as they come from the upstream; whole columns at a time. Pure.

    rows (``mirror_schema``) -> canonical bytes of each cell -> a hash of the key, and of the row -> ``Buckets``

A row's bucket follows from its key, so rows with one key are in one bucket. A table without a key has all columns as its key.

Promises: equal rows give equal bytes, whatever rows are with them. NULL is not ''. Two JSON documents are equal if their values are: 1 is 1.0, and the
order of keys does not count. Zero has no sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.changes.row_images import image_cells
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells
from pyspark_tidb_binlog.schemas.changes.variant_values import encoded
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.lake.net_changes import hidden_column, identity, mirror_schema
from pyspark_tidb_binlog.sinks.verify.hash_sums import hashes_of, shortened


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
        short = list(map(shortened, cells))
        key = hashes_of([short[place] for place in self.key])
        return key, hashes_of(short, key)


def _comparable(cells: pa.Array, kind: pa.DataType, column: ColumnInfo | None) -> pa.Array:
    if pa.types.is_struct(kind):
        assert column is not None
        return image_cells(column, documents_as(cells, kind))
    return pc.add(cells.cast(kind), pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else cells.cast(kind)
