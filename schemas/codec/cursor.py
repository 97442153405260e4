"""A bounds-checked reader over bytes: the only part of the codec that advances a read position.

Promises: reading past the end, or a varint of more than 64 bits, raises ``Corruption``; lengths are checked before anything is copied.
"""

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint
from pyspark_tidb_binlog.schemas.errors import Corruption

_VARINT_BITS = 64


class Cursor:
    """A read position in ``data``; every read advances it."""

    __slots__ = ("_data", "_end", "_pos")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0
        self._end = len(data)

    @property
    def pos(self) -> int:
        """Number of bytes read so far."""
        return self._pos

    @property
    def left(self) -> int:
        """Number of bytes not read yet."""
        return self._end - self._pos

    def byte(self) -> int:
        """The next byte."""
        if self._pos >= self._end:
            raise Corruption(f"the value ends at byte {self._pos}, where one more byte is needed")
        self._pos += 1
        return self._data[self._pos - 1]

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if not 0 <= size <= self.left:
            raise Corruption(f"{size} bytes are needed at byte {self._pos}, but {self.left} are left")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, or fewer at the end, without advancing."""
        return self._data[self._pos : min(self._pos + size, self._end)]

    def uvarint(self) -> int:
        """A LEB128 number of at most 64 bits."""
        value, self._pos = decode_uvarint(self._data, self._pos)
        if value >> _VARINT_BITS:
            raise self._too_long()
        return value

    def varint(self) -> int:
        """A zig-zag LEB128 number."""
        value, self._pos = decode_uvarint(self._data, self._pos)
        if value >> _VARINT_BITS:
            raise self._too_long()
        return (value >> 1) ^ -(value & 1)

    def _too_long(self) -> Corruption:
        return Corruption(f"the varint that ends at byte {self._pos} exceeds {_VARINT_BITS} bits")
