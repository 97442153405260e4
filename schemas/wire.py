"""Protobuf's wire format without the protobuf library: varints and fields, for places where a parsed message would copy too much. Pure.

Promises: nothing is copied. An invalid message raises ``Corruption``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint, encode_uvarint, to_signed, to_unsigned
from pyspark_tidb_binlog.schemas.errors import Corruption

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


class Field(NamedTuple):
    """Offsets of a field: ``begin`` of its key, ``value`` of its content, ``end`` after it."""

    number: int
    kind: int
    begin: int
    value: int
    end: int


def varint(value: int) -> bytes:
    """An int64 as protobuf's varint."""
    return encode_uvarint(to_unsigned(value))


def int64_of(encoded: bytes) -> int:
    """The int64 whose ``varint`` is ``encoded``."""
    return to_signed(decode_uvarint(encoded, 0)[0])


def key(number: int, kind: int) -> bytes:
    """The key (number and wire type) that begins a field."""
    return varint(number << 3 | kind)


def fields(data: bytes | memoryview, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[at:end]``."""
    while at < end:
        begin = at
        tag, value = decode_uvarint(data, at)
        kind = tag & 7
        if kind == VARINT:
            at = decode_uvarint(data, value)[1]
        elif kind == BYTES:
            length, value = decode_uvarint(data, value)
            at = value + length
        elif kind in (FIXED64, FIXED32):
            at = value + (8 if kind == FIXED64 else 4)
        else:
            raise Corruption(f"unknown wire type {kind} at byte {begin} of a message")
        if at > end:
            raise Corruption(f"a field at byte {begin} extends {at - end} bytes past the end of its message")
        yield Field(tag >> 3, kind, begin, value, at)
