"""The datums that only TiDB writes, from plain Python values: DECIMAL (rows.md 4), binary JSON (rows.md 5) and the TIME of a handle.

Promises: pure; a value that no datum can hold raises ``ValueError``. ``schemas.codec`` describes the bytes and decodes them.
"""

import decimal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from pyspark_tidb_binlog.schemas.codec.datum import Flag
from pyspark_tidb_binlog.schemas.codec.decimal import BYTES_OF_DIGITS, MAX_PRECISION, groups_of
from pyspark_tidb_binlog.schemas.codec.json_binary import HEADER, KEY_ENTRY, TEMPORAL_FSP, VALUE_ENTRY, JsonType
from pyspark_tidb_binlog.schemas.codec.number import encode_uvarint
from pyspark_tidb_binlog.schemas.codec.temporal import pack_datetime

_WIDE = decimal.Context(prec=2 * MAX_PRECISION, rounding=decimal.ROUND_HALF_UP)
_DURATION, _DECIMAL, _JSON = bytes((Flag.DURATION,)), bytes((Flag.DECIMAL,)), bytes((Flag.JSON,))
# looking up an enum's member costs as much as encoding a number
_OBJECT, _ARRAY, _LITERAL, _INT, _STRING = map(int, (JsonType.OBJECT, JsonType.ARRAY, JsonType.LITERAL, JsonType.INT, JsonType.STRING))


@dataclass(frozen=True, slots=True)
class JsonNull:
    """JSON null as a whole value (Python's None is SQL NULL there; inside arrays and objects None stands for JSON null)."""


@dataclass(frozen=True, slots=True)
class JsonOpaque:
    """Bytes with a MySQL type code: the result of CAST(binary AS JSON)."""

    tp: int
    data: bytes


@dataclass(frozen=True, slots=True)
class JsonTime:
    """A DATE, DATETIME or TIMESTAMP inside JSON; ``text`` as in SQL."""

    tp: JsonType
    text: str


@dataclass(frozen=True, slots=True)
class JsonDuration:
    """A TIME inside JSON."""

    nanoseconds: int


JsonScalar: TypeAlias = bool | int | float | str | JsonNull | JsonOpaque | JsonTime | JsonDuration | None
JsonValue: TypeAlias = JsonScalar | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def encode_comparable_int(value: int) -> bytes:
    """8 bytes that sort in the order of the signed numbers."""
    return (value + (1 << 63)).to_bytes(8, "big")


def duration_datum(nanoseconds: int) -> bytes:
    """A TIME as stored in the handle of an insert row."""
    return _DURATION + encode_comparable_int(nanoseconds)


def decimal_datum(value: decimal.Decimal | str | int, precision: int, scale: int) -> bytes:
    """A DECIMAL(precision, scale)."""
    return _DECIMAL + encode_decimal(value, precision, scale)


def json_datum(value: JsonValue) -> bytes:
    """A JSON value."""
    return _JSON + encode_json(value)


def encode_decimal(value: decimal.Decimal | str | int, precision: int, scale: int) -> bytes:
    """The datum body of a number, rounded half up to ``scale``; ``ValueError`` when it does not fit."""
    last, limit, words, sign = _layout(precision, scale)
    number = int(decimal.Decimal(value).quantize(last, context=_WIDE).scaleb(scale, _WIDE))
    size = abs(number)
    if size >= limit:
        raise ValueError(f"{value} does not fit DECIMAL({precision},{scale})")
    bits = 0
    for unit, count, width in words:
        bits = bits << width | size // unit % count
    # the first bit is inverted, and all of them are again in a negative number
    bits ^= sign - 1 if number < 0 else sign
    return bytes((precision, scale)) + bits.to_bytes(sign.bit_length() // 8, "big")


@cache
def _layout(precision: int, scale: int) -> tuple[decimal.Decimal, int, tuple[tuple[int, int, int], ...], int]:
    """The last digit's 1; the first number that does not fit; each group's (unit, count of its numbers, bits); the value of the first bit."""
    words, left, width = [], precision, 0
    for digits in groups_of(precision, scale):
        left -= digits
        words.append((10**left, 10**digits, 8 * BYTES_OF_DIGITS[digits]))
        width += words[-1][2]
    return decimal.Decimal(1).scaleb(-scale), 10**precision, tuple(words), 1 << width - 1


def encode_json(value: JsonValue) -> bytes:
    """One whole JSON value, type byte first, as TiDB lays it out."""
    tp, body = _encode(value)
    return bytes((tp,)) + body


def _encode(value: JsonValue) -> tuple[int, bytes]:
    match value:
        case str():
            raw = value.encode()
            return _STRING, encode_uvarint(len(raw)) + raw
        case bool():
            return _LITERAL, b"\x01" if value else b"\x02"
        case int():
            return (_INT, struct.pack("<q", value)) if value < 1 << 63 else (JsonType.UINT, struct.pack("<Q", value))
        case float():
            return JsonType.FLOAT, struct.pack("<d", value)
        case None | JsonNull():
            return _LITERAL, b"\x00"
        case JsonOpaque(tp, data):
            return JsonType.OPAQUE, bytes((tp,)) + encode_uvarint(len(data)) + data
        case JsonTime(tp, text):
            return tp, struct.pack("<Q", _core_time(text))
        case JsonDuration(nanoseconds):
            return JsonType.DURATION, struct.pack("<qI", nanoseconds, TEMPORAL_FSP)
        case Mapping():
            names = {k.encode(): v for k, v in value.items()}
            return _OBJECT, _encode_container([names[k] for k in sorted(names)], sorted(names))
        case _:
            return _ARRAY, _encode_container(value, ())


def _encode_container(values: Sequence[JsonValue], keys: Sequence[bytes]) -> bytes:
    at = HEADER + len(values) * VALUE_ENTRY + len(keys) * KEY_ENTRY
    entries, tail = [], list(keys)
    for key in keys:
        entries.append(struct.pack("<IH", at, len(key)))
        at += len(key)
    for tp, body in map(_encode, values):
        if tp == _LITERAL:
            entries.append(struct.pack("<BI", tp, body[0]))
        else:
            entries.append(struct.pack("<BI", tp, at))
            tail.append(body)
            at += len(body)
    return b"".join((struct.pack("<II", len(values), at), *entries, *tail))


def _core_time(text: str) -> int:
    packed = pack_datetime(text)
    ymd, hms, micro = packed >> 41, (packed >> 24) & 0x1FFFF, packed & 0xFFFFFF
    year, month = divmod(ymd >> 5, 13)
    date = year << 50 | month << 46 | (ymd & 31) << 41
    return date | (hms >> 12) << 36 | ((hms >> 6) & 63) << 30 | (hms & 63) << 24 | micro << 4
