"""TiDB's binary JSON (rows.md 5), decoded to text.

    value  = type (1 byte) | body
    object = count u32 | size u32 | count * (key offset u32, key length u16) | count * (type u8, offset or inline u32) | keys | values
    array  = count u32 | size u32 | count * (type u8, offset or inline u32) | values

All numbers are little-endian. Offsets count from the ``count`` field. ``size`` includes the 8-byte header. Only literals are inlined.

Promises: pure. The text equals TiDB's byte for byte. Damaged bytes raise ``Corruption``. Time and output size are proportional to the
number of bytes, whatever the offsets are: all values together may not use more bytes than there are.
"""

import base64
import decimal
import re
import struct
from collections.abc import Callable
from enum import IntEnum

from pyspark_tidb_binlog.schemas.codec.number import Cursor, encode_uvarint, to_signed
from pyspark_tidb_binlog.schemas.codec.temporal import time_text
from pyspark_tidb_binlog.schemas.errors import Corruption

MAX_DEPTH = 100
HEADER = 8
KEY_ENTRY = 6
VALUE_ENTRY = 5
TEMPORAL_FSP = 6


class JsonType(IntEnum):
    """The type byte."""

    OBJECT = 0x01
    ARRAY = 0x03
    LITERAL = 0x04
    INT = 0x09
    UINT = 0x0A
    FLOAT = 0x0B
    STRING = 0x0C
    OPAQUE = 0x0D
    DATE = 0x0E
    DATETIME = 0x0F
    TIMESTAMP = 0x10
    DURATION = 0x11


FIXED_SIZES = {
    JsonType.LITERAL: 1,
    JsonType.INT: 8,
    JsonType.UINT: 8,
    JsonType.FLOAT: 8,
    JsonType.DATE: 8,
    JsonType.DATETIME: 8,
    JsonType.TIMESTAMP: 8,
    JsonType.DURATION: 12,
}
_LITERALS = {0: "null", 1: "true", 2: "false"}


def take_json(cursor: Cursor) -> bytes:
    """The next JSON value, type byte first, split off by its own size; its content is not validated."""
    tp = cursor.byte()
    head = bytes((tp,))
    if tp in (JsonType.OBJECT, JsonType.ARRAY):
        size = int.from_bytes(cursor.peek(HEADER)[4:], "little")
        if size < HEADER:
            raise Corruption(f"a JSON object or array of {size} bytes")
        return head + cursor.take(size)
    if tp == JsonType.OPAQUE:
        head += bytes((cursor.byte(),))
    elif tp != JsonType.STRING:
        if tp not in FIXED_SIZES:
            raise Corruption(f"unknown JSON type {tp:#04x}")
        return head + cursor.take(FIXED_SIZES[JsonType(tp)])
    size = cursor.uvarint()
    return head + encode_uvarint(size) + cursor.take(size)


def json_text(value: bytes) -> str:
    """The text of one whole JSON value, type byte first."""
    if not value:
        raise Corruption("an empty JSON value")
    return _JsonReader(value).text(value[0], 1, len(value), 0)


class _JsonReader:
    """Reads one value; ``_budget`` limits the total number of bytes that the values inside may use."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = len(data)

    def text(self, tp: int, start: int, end: int, depth: int) -> str:
        """The text of the value whose body starts at ``start`` and must end by ``end``."""
        if tp == JsonType.OBJECT or tp == JsonType.ARRAY:
            return self._container(tp, start, end, depth + 1)
        cursor = Cursor(self._data[start:end])
        text = _scalar_text(tp, cursor)
        self._claim(cursor.pos)
        return text

    def _claim(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise Corruption("JSON values overlap")

    def _container(self, tp: int, start: int, end: int, depth: int) -> str:
        data = self._data
        if depth > MAX_DEPTH or end - start < HEADER:
            raise Corruption(f"JSON deeper than {MAX_DEPTH}, or {end - start} bytes for an object or array")
        count, size = struct.unpack_from("<II", data, start)
        keys = HEADER + (count * KEY_ENTRY if tp == JsonType.OBJECT else 0)
        head = keys + count * VALUE_ENTRY
        if not head <= size <= end - start:
            raise Corruption(f"a JSON object or array of {count} elements and {size} bytes where {end - start} are left")
        self._claim(head)
        end = start + size
        values = [self._element(start, start + keys + i * VALUE_ENTRY, head, end, depth) for i in range(count)]
        if tp == JsonType.ARRAY:
            return f"[{', '.join(values)}]"
        names = [self._key(start, start + HEADER + i * KEY_ENTRY, head, end) for i in range(count)]
        return "{" + ", ".join(f"{n}: {v}" for n, v in zip(names, values, strict=True)) + "}"

    def _element(self, start: int, entry: int, head: int, end: int, depth: int) -> str:
        tp, offset = struct.unpack_from("<BI", self._data, entry)
        if tp == JsonType.LITERAL:
            return _literal(offset & 0xFF)
        if not head <= offset <= end - start:
            raise Corruption(f"a JSON value at offset {offset} of {end - start}")
        return self.text(tp, start + offset, end, depth)

    def _key(self, start: int, entry: int, head: int, end: int) -> str:
        offset, size = struct.unpack_from("<IH", self._data, entry)
        if not head <= offset <= end - start - size:
            raise Corruption(f"a JSON key of {size} bytes at offset {offset} of {end - start}")
        self._claim(size)
        return quote(self._data[start + offset : start + offset + size])


def _literal(code: int) -> str:
    if code not in _LITERALS:
        raise Corruption(f"unknown JSON literal {code}")
    return _LITERALS[code]


def _scalar_text(tp: int, cursor: Cursor) -> str:
    read = _SCALARS.get(tp)
    if read is None:
        raise Corruption(f"unknown JSON type {tp:#04x}")
    return read(cursor)


def _opaque_text(cursor: Cursor) -> str:
    tp = cursor.byte()
    data = cursor.take(cursor.uvarint())
    return f'"base64:type{tp}:{base64.b64encode(data).decode()}"'


def _core_text(cursor: Cursor, size: int) -> str:
    """Core time (rows.md 5): the fields of a time, packed differently than in a row."""
    core = int.from_bytes(cursor.take(8), "little")
    year, month, day = core >> 50, (core >> 46) & 15, (core >> 41) & 31
    hour, minute, second, micro = (core >> 36) & 31, (core >> 30) & 63, (core >> 24) & 63, (core >> 4) & 0xFFFFF
    if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
        raise Corruption(f"the JSON time {core:#x} has a field out of range")
    return f'"{f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micro:06}"[:size]}"'


def _duration_text(cursor: Cursor) -> str:
    nanoseconds = to_signed(int.from_bytes(cursor.take(8), "little"))
    cursor.take(4)
    return f'"{time_text(nanoseconds, TEMPORAL_FSP)}"'


_SCALARS: dict[int, Callable[[Cursor], str]] = {
    JsonType.LITERAL: lambda c: _literal(c.byte()),
    JsonType.INT: lambda c: str(to_signed(int.from_bytes(c.take(8), "little"))),
    JsonType.UINT: lambda c: str(int.from_bytes(c.take(8), "little")),
    JsonType.FLOAT: lambda c: float_text(struct.unpack("<d", c.take(8))[0]),
    JsonType.STRING: lambda c: quote(c.take(c.uvarint())),
    JsonType.OPAQUE: _opaque_text,
    JsonType.DATE: lambda c: _core_text(c, 10),
    JsonType.DATETIME: lambda c: _core_text(c, 26),
    JsonType.TIMESTAMP: lambda c: _core_text(c, 26),
    JsonType.DURATION: _duration_text,
}


def float_text(value: float) -> str:
    """A float as Go's encoding/json writes it: the shortest digits that round-trip, an exponent only below 1e-6 and from 1e21 on."""
    if value != value or value in (float("inf"), float("-inf")):
        raise Corruption(f"a JSON number is {value}, which JSON cannot represent")
    size = abs(value)
    if size and (size < 1e-6 or size >= 1e21):
        mantissa, _, exponent = repr(value).partition("e")
        return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
    plain = format(decimal.Decimal(repr(value)), "f")
    return plain.removesuffix(".0")


_ESCAPED = re.compile('["\\\\\x00-\x1f\ufffd\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(raw: bytes) -> str:
    """A JSON string as Go writes it without HTML escaping: each byte that is not valid UTF-8 becomes U+FFFD, escaped."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f'"{"".join(_escape_invalid(raw))}"'
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return char if char == "\ufffd" else _SHORT.get(char) or f"\\u{ord(char):04x}"


def _escape_invalid(raw: bytes) -> list[str]:
    text = raw.decode(errors="surrogateescape")
    return ["\\ufffd" if "\udc80" <= c <= "\udcff" else _ESCAPED.sub(_escape, c) for c in text]
