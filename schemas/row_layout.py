"""The layout of all rows of one table version: the cells of their images and the parts of their keys, decided once from the table info.

    INSERT  handle datums | pairs          UPDATE  pairs of the old row | pairs of the new row          DELETE  pairs of the old row
    pair    column id | datum              an update's halves have no separator: a column's second pair is its new value

Promises: pure. A table info that no table can have raises ``Corruption``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, image_schema, kind_of
from pyspark_tidb_binlog.schemas.codec import datum
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN, ColumnInfo, TableInfo

Ops = npt.NDArray[np.int32]
Versions = npt.NDArray[np.int64]

ROWID = -1
"""Column id of ``_tidb_rowid``."""
EMPTY_ROW = datum.NULL
"""The pairs of a row without columns."""
LACKING = pa.field("", pa.binary(), nullable=False)
"""Which cells of an old image belong to columns that its event does not contain: bit i % 8 of byte i // 8 for the i-th; empty = none."""


class Half(IntEnum):
    """Which row image of an event."""

    OLD = 0
    NEW = 1


HALVES = {Op.INSERT: (Half.NEW,), Op.UPDATE: (Half.OLD, Half.NEW), Op.DELETE: (Half.OLD,)}
"""The row images of each kind of event, in the order of a column's pairs in the row bytes."""


@dataclass(frozen=True, slots=True)
class CellType:
    """How the datums of a column become cells."""

    kind: CellKind
    digits: int
    """Fraction digits that the text of a DECIMAL or a time shows."""

    @classmethod
    def of(cls, column: ColumnInfo) -> Self:
        """The type of a column's cells."""
        return cls(kind_of(column), digits_of(column))


_ROWID_CELL = CellType(CellKind.INT, 0)
_MOST_KEPT = 128
"""Tables whose layouts are kept."""

T = TypeVar("T")
P = ParamSpec("P")
L = TypeVar("L")


class Once(Generic[T, P, L]):
    """A decision about a table, with its newest answers kept, by the very object: a hash of a table info would walk all its columns."""

    def __init__(self, decide: Callable[Concatenate[T, P], L]) -> None:
        self._decide = decide
        self._kept: dict[tuple[int, tuple[object, ...]], tuple[T, L]] = {}

    def __call__(self, table: T, *given: P.args, **none: P.kwargs) -> L:
        """The decision about ``table`` with what is ``given``, by position."""
        found = self._kept.get((id(table), given))
        if found is None or found[0] is not table:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = self._kept[id(table), given] = table, self._decide(table, *given, **none)
        return found[1]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a row's identity."""

    id: int
    cell: CellType
    length: int = WHOLE_COLUMN
    """Prefix length in characters (bytes, if ``binary``), or ``WHOLE_COLUMN``."""
    binary: bool = True

    @property
    def whole(self) -> bool:
        """False for a prefix: then the handle of an insert row contains only part of the value."""
        return self.length == WHOLE_COLUMN


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """What identifies a row of a table upstream."""

    parts: tuple[KeyPart, ...]
    """The columns of its handle, in handle order; else ``_tidb_rowid``."""
    ids: frozenset[int]
    """Those of the parts."""
    by_handle: bool
    """An insert is identified by its handle alone, an integer; else the row's own value precedes the handle's (rows.md 6)."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The row images of a table, one cell per target column."""

    columns: tuple[ColumnInfo, ...]
    cells: tuple[CellType, ...]
    """Those of ``columns``."""
    slots: Mapping[int, int]
    """The place in ``columns`` of a column id."""
    handle: tuple[KeyPart, ...]
    """The datums that precede an insert's pairs."""
    schema: pa.Schema


@Once
def key_layout(info: TableInfo) -> KeyLayout:
    """The key of a table's rows."""
    columns = info.handle_columns()
    index = info.primary_index() if info.is_common_handle else None
    lengths = [c.length for c in index.columns] if index is not None else [WHOLE_COLUMN] * len(columns)
    found = tuple(KeyPart(c.id, CellType.of(c), length, c.is_binary) for c, length in zip(columns, lengths, strict=True))
    parts = found or (KeyPart(ROWID, _ROWID_CELL),)
    return KeyLayout(parts, frozenset(p.id for p in parts), len(parts) == 1 and parts[0].cell.kind in (CellKind.INT, CellKind.UINT))


@Once
def image_layout(info: TableInfo) -> ImageLayout:
    """The images of a table's rows."""
    columns = info.target_columns()
    slots = {column.id: slot for slot, column in enumerate(columns)}
    return ImageLayout(columns, tuple(map(CellType.of, columns)), slots, key_layout(info).parts, image_schema(columns))


def lacking_at(lacking: pa.BinaryArray, place: int) -> npt.NDArray[np.bool_]:
    """Of images with these ``LACKING`` bits: those that do not have the cell at ``place``."""
    kinds = pc.dictionary_encode(lacking)
    of_kind = np.array([has_bit(bits, place) for bits in kinds.dictionary.to_pylist()], dtype=np.bool_)
    found: npt.NDArray[np.bool_] = of_kind[kinds.indices.to_numpy()]
    return found


def has_bit(bits: bytes, place: int) -> bool:
    """Whether the bit of ``LACKING`` is set for the cell at ``place``."""
    return len(bits) > place // 8 and bool(bits[place // 8] >> place % 8 & 1)


def without_lacking(images: pa.RecordBatch) -> pa.RecordBatch:
    """The images without the column ``LACKING``."""
    return images.select(list(range(images.num_columns - 1)))
