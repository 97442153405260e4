"""The datum codec (rows.md 3): a flag byte, then a body. The flag and the body's first bytes give the body's size.

Promises: pure. ``take_datum`` splits off a datum without a look at its content. The ``as_*`` functions convert the datum to a value, or
raise ``Corruption``. Every flag is accepted at every place, and converted to what the column needs. That includes the comparable forms,
which TiDB writes only into keys and, for TIME, into the handle of an insert row.
"""

from dataclasses import dataclass
from enum import IntEnum

from pyspark_tidb_binlog.schemas.codec import decimal as mydecimal
from pyspark_tidb_binlog.schemas.codec import json_binary, number
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.errors import Corruption


class Flag(IntEnum):
    """The first byte of a datum."""

    NULL = 0x00
    COMPARABLE_BYTES = 0x01
    BYTES = 0x02
    COMPARABLE_INT = 0x03
    COMPARABLE_UINT = 0x04
    FLOAT = 0x05
    DECIMAL = 0x06
    DURATION = 0x07
    VARINT = 0x08
    UVARINT = 0x09
    JSON = 0x0A


FIXED_SIZE = 8
"""Bytes of the comparable integers, floats and durations."""

_GROUP = 8
_GROUP_FULL = 0xFF


@dataclass(frozen=True, slots=True)
class Datum:
    """A datum as stored in the row; the body of BYTES is the content without its length prefix."""

    flag: int
    body: bytes = b""
    integer: int | None = None
    """The value of the integer forms, which have no body; whether its 64 bits are signed depends on the column."""


def take_datum(cursor: Cursor) -> Datum:
    """The next datum."""
    flag = cursor.byte()
    match flag:
        case Flag.NULL:
            return Datum(flag)
        case Flag.BYTES:
            return Datum(flag, cursor.take(cursor.varint()))
        case Flag.VARINT:
            return Datum(flag, integer=cursor.varint())
        case Flag.UVARINT:
            return Datum(flag, integer=cursor.uvarint())
        case Flag.COMPARABLE_INT | Flag.DURATION:
            return Datum(flag, integer=number.decode_comparable_int(cursor.take(FIXED_SIZE)))
        case Flag.COMPARABLE_UINT:
            return Datum(flag, integer=int.from_bytes(cursor.take(FIXED_SIZE), "big"))
        case Flag.FLOAT:
            return Datum(flag, cursor.take(FIXED_SIZE))
        case Flag.DECIMAL:
            head = cursor.take(mydecimal.HEADER)
            return Datum(flag, head + cursor.take(mydecimal.size_of(head[0], head[1])))
        case Flag.JSON:
            return Datum(flag, json_binary.take_json(cursor))
        case Flag.COMPARABLE_BYTES:
            return Datum(flag, _take_comparable_bytes(cursor))
        case _:
            raise Corruption(f"unknown datum flag {flag:#04x} before byte {cursor.pos}")


def as_integer(datum: Datum) -> int:
    """The integer in any integer form; whether its 64 bits are signed depends on the column."""
    if datum.integer is None:
        raise _misfit(datum, "an integer")
    return datum.integer


def as_float(datum: Datum) -> float:
    """A finite float."""
    if datum.flag != Flag.FLOAT:
        raise _misfit(datum, "a float")
    return number.decode_comparable_float(datum.body)


def as_decimal(datum: Datum, scale: int) -> str:
    """Plain decimal text with at least ``scale`` fraction digits."""
    if datum.flag != Flag.DECIMAL:
        raise _misfit(datum, "a decimal")
    return mydecimal.decode_decimal(datum.body, scale)


def as_bytes(datum: Datum) -> bytes:
    """The bytes of a string."""
    if datum.flag not in (Flag.BYTES, Flag.COMPARABLE_BYTES):
        raise _misfit(datum, "bytes")
    return datum.body


def as_json(datum: Datum) -> str:
    """The text of a JSON value."""
    if datum.flag != Flag.JSON:
        raise _misfit(datum, "JSON")
    return json_binary.json_text(datum.body)


def _misfit(datum: Datum, wanted: str) -> Corruption:
    return Corruption(f"a datum with flag {datum.flag:#04x} where {wanted} is expected")


def _take_comparable_bytes(cursor: Cursor) -> bytes:
    out = bytearray()
    while True:
        group = cursor.take(_GROUP + 1)
        padding = _GROUP_FULL - group[_GROUP]
        if padding > _GROUP or any(group[_GROUP - padding : _GROUP]):
            raise Corruption(f"a group of comparable bytes ends in {group[_GROUP]:#04x} before byte {cursor.pos}")
        out += group[: _GROUP - padding]
        if padding:
            return bytes(out)


NULL = bytes((Flag.NULL,))
"""The datum NULL."""
# looking up an enum's member costs more than encoding a number
_VARINT, _UVARINT, _FLOAT, _BYTES = bytes((Flag.VARINT,)), bytes((Flag.UVARINT,)), bytes((Flag.FLOAT,)), bytes((Flag.BYTES,))


def encode_int(value: int) -> bytes:
    """A signed integer as stored in rows."""
    return _VARINT + number.encode_varint(value)


def encode_uint(value: int) -> bytes:
    """An unsigned integer, packed time, ENUM, SET or BIT."""
    return _UVARINT + number.encode_uvarint(value)


def encode_float(value: float) -> bytes:
    """A float."""
    return _FLOAT + number.encode_comparable_float(value)


def encode_bytes(value: bytes) -> bytes:
    """A string."""
    return _BYTES + number.encode_uvarint(len(value) << 1) + value
