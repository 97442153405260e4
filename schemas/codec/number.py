"""Numbers as Go and TiDB write them: LEB128 varints, and the memcomparable forms of integers and floats (rows.md 3); the cursor that reads bytes.

Promises: pure; every ``encode_*`` has its ``decode_*`` beside it (``Cursor.varint`` is that of ``encode_varint``). ``Cursor`` is the only part of the codec
that advances a read position. Reading past the end, or a varint of more than 64 bits, raises ``Corruption``; lengths are checked before anything is copied.
"""

import struct

from pyspark_tidb_binlog.schemas.errors import Corruption

_VARINT_BITS = 64
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_SHIFTS = tuple(range(0, 70, 7))
"""Of the seven bits in each byte of a varint, which has ten at most."""


def encode_uvarint(value: int) -> bytes:
    """LEB128 of an unsigned 64-bit number."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The LEB128 number at ``at``, and where it ends. It has at most ten bytes, so that a wrong one may exceed 64 bits.

    Raises:
        Corruption: it does not end within them, or within ``data``.
    """
    value = 0
    # no check of the length for each byte: this runs for every record of a log
    try:
        for shift in _SHIFTS:
            byte = data[at]
            at += 1
            if byte < 0x80:
                return value | byte << shift, at
            value |= (byte & 0x7F) << shift
    except IndexError:
        raise Corruption(f"the value ends at byte {at}, where one more byte is needed") from None
    raise Corruption(f"the varint that ends at byte {at} has more than {len(_SHIFTS)} bytes")


class Cursor:
    """A read position in ``data``; every read advances it."""

    __slots__ = ("_data", "end", "pos")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pos = 0
        """Number of bytes read so far."""
        self.end = len(data)
        """Number of all bytes."""

    def byte(self) -> int:
        """The next byte."""
        if self.pos >= self.end:
            raise Corruption(f"the value ends at byte {self.pos}, where one more byte is needed")
        self.pos += 1
        return self._data[self.pos - 1]

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        left = self.end - self.pos
        if not 0 <= size <= left:
            raise Corruption(f"{size} bytes are needed at byte {self.pos}, but {left} are left")
        self.pos += size
        return self._data[self.pos - size : self.pos]

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, or fewer at the end, without advancing."""
        return self._data[self.pos : self.pos + size]

    def uvarint(self) -> int:
        """A LEB128 number of at most 64 bits."""
        value, self.pos = decode_uvarint(self._data, self.pos)
        if value >> _VARINT_BITS:
            raise self._too_long()
        return value

    def varint(self) -> int:
        """A zig-zag LEB128 number."""
        value, self.pos = decode_uvarint(self._data, self.pos)
        if value >> _VARINT_BITS:
            raise self._too_long()
        return (value >> 1) ^ -(value & 1)

    def _too_long(self) -> Corruption:
        return Corruption(f"the varint that ends at byte {self.pos} exceeds {_VARINT_BITS} bits")


def encode_varint(value: int) -> bytes:
    """Zig-zag LEB128 of a signed 64-bit number."""
    return encode_uvarint((value << 1 ^ value >> 63) & _MASK)


def to_signed(value: int) -> int:
    """The low 64 bits of ``value`` read as two's complement."""
    return ((value + _SIGN) & _MASK) - _SIGN


def to_unsigned(value: int) -> int:
    """The low 64 bits of ``value``."""
    return value & _MASK


def decode_comparable_int(body: bytes) -> int:
    """The signed number of 8 bytes that sort in the order of the numbers."""
    return to_signed(int.from_bytes(body, "big") ^ _SIGN)


def encode_comparable_float(value: float) -> bytes:
    """8 bytes that sort in the order of the floats."""
    bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    return ((bits | _SIGN) if value >= 0 else (~bits & _MASK)).to_bytes(8, "big")


def decode_comparable_float(body: bytes) -> float:
    """Inverse of ``encode_comparable_float``; ``Corruption`` for NaN and infinities."""
    bits = int.from_bytes(body, "big")
    bits = bits ^ _SIGN if bits & _SIGN else ~bits & _MASK
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    if value != value or value in (float("inf"), float("-inf")):
        raise Corruption(f"the float is {value}, which no column can hold")
    return value


def round_to_float32(value: float) -> float:
    """The nearest 32-bit float; ``Corruption`` when ``value`` is out of range."""
    try:
        rounded: float = struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError as error:
        raise Corruption(f"{value} is out of range for a 32-bit FLOAT") from error
    return rounded
