"""The datums of a row event by column id, as bytes: most values are copied as they are, so nothing is decoded here (rows.md 3, 4 and 6).

Promises: pure. Gives all columns that the row has, public or not, generated or not; columns that nobody asks for cost nothing more. Damaged
bytes raise nothing but ``Corruption``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pyspark_tidb_binlog.schemas.codec import decimal as mydecimal
from pyspark_tidb_binlog.schemas.codec.cursor import Cursor
from pyspark_tidb_binlog.schemas.codec.datum import FIXED_SIZE, Flag, as_integer, encode_uint, take_datum
from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint, to_unsigned
from pyspark_tidb_binlog.schemas.codec.rowwriter import EMPTY_ROW
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.row_layout import KeyPart, key_layout
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

Datums: TypeAlias = Mapping[int, bytes]
"""By column id: a datum, its flag first."""

_VARINTS = (Flag.VARINT, Flag.UVARINT)
_FIXED = (Flag.COMPARABLE_INT, Flag.COMPARABLE_UINT, Flag.FLOAT, Flag.DURATION)


@dataclass(frozen=True, slots=True)
class RowImages:
    """Both images of one row event; an image that the event does not have is empty."""

    old: Datums
    new: Datums


@dataclass(frozen=True, slots=True)
class HandleLayout:
    """What precedes the pairs of an insert row."""

    parts: tuple[KeyPart, ...]
    of_integer: int
    """Id of the column that is the integer handle; 0 = none is."""
    unsigned: bool
    """Whether that column is UNSIGNED: the handle holds it as signed."""

    @classmethod
    def of(cls, info: TableInfo) -> "HandleLayout":
        """That of a table's rows."""
        column = info.handle_columns()[0] if info.pk_is_handle else None
        return cls(key_layout(info).parts, column.id if column else 0, bool(column and column.unsigned))


def images_of(handle: HandleLayout, op: int, row: bytes) -> RowImages:
    """The images of a row event.

    Raises:
        Corruption: the row does not parse, or a column occurs more often than its kind of event allows.
    """
    try:
        if op == Op.INSERT:
            return RowImages({}, _inserted(handle, row))
        if op == Op.DELETE:
            return RowImages(_once(row, 0), {})
        return _updated(row)
    except IndexError:
        raise Corruption(f"the row ends within a value, after {len(row)} bytes") from None


def _inserted(handle: HandleLayout, row: bytes) -> Datums:
    at = 0
    firsts: list[tuple[KeyPart, bytes]] = []
    for part in handle.parts:
        end = _after_datum(row, at)
        firsts.append((part, row[at:end]))
        at = end
    found = _once(row, at)
    if handle.of_integer:
        raw = firsts[0][1]
        found[handle.of_integer] = encode_uint(to_unsigned(as_integer(take_datum(Cursor(raw))))) if handle.unsigned else raw
    else:
        for part, raw in firsts:
            if part.whole:
                found.setdefault(part.id, raw)
    return found


def _once(row: bytes, at: int) -> dict[int, bytes]:
    """The datums of one image that fills the row from ``at`` on."""
    found: dict[int, bytes] = {}
    if row[at:] == EMPTY_ROW:
        return found
    end = len(row)
    while at < end:
        column_id, at = _column_id(row, at)
        begin, at = at, _after_datum(row, at)
        if column_id in found:
            raise Corruption(f"column id {column_id} occurs twice in the row")
        found[column_id] = row[begin:at]
    return found


def _updated(row: bytes) -> RowImages:
    """The halves have no separator: a column's second datum is its new value."""
    old: dict[int, bytes] = {}
    new: dict[int, bytes] = {}
    at, end = 0, len(row)
    while at < end:
        column_id, at = _column_id(row, at)
        begin, at = at, _after_datum(row, at)
        half = new if column_id in old else old
        if column_id in half:
            raise Corruption(f"column id {column_id} occurs three times in the row")
        half[column_id] = row[begin:at]
    return RowImages(old, new)


def _column_id(row: bytes, at: int) -> tuple[int, int]:
    if row[at] != Flag.VARINT:
        raise Corruption(f"a column id with flag {row[at]:#04x} at byte {at}")
    second = row[at + 1]
    if second < 0x80:
        return second >> 1 ^ -(second & 1), at + 2
    value, at = decode_uvarint(row, at + 1)
    return value >> 1 ^ -(value & 1), at


def _after_datum(row: bytes, at: int) -> int:
    """The offset after the datum at ``at``."""
    flag = row[at]
    if flag in _VARINTS:
        at += 1
        while row[at] >= 0x80:
            at += 1
        return at + 1
    if flag == Flag.NULL:
        return at + 1
    if flag == Flag.BYTES:
        length, begin = decode_uvarint(row, at + 1)
        end = begin + (length >> 1)
        if length & 1:
            raise Corruption(f"a string of negative length at byte {at}")
    elif flag in _FIXED:
        end = at + 1 + FIXED_SIZE
    elif flag == Flag.DECIMAL:
        end = at + 1 + mydecimal.HEADER + mydecimal.size_of(row[at + 1], row[at + 2])
    else:
        cursor = Cursor(row[at:])
        take_datum(cursor)
        end = at + cursor.pos
    if end > len(row):
        raise Corruption(f"a value of {end - at} bytes at byte {at} of {len(row)}")
    return end
