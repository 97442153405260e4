"""Kafka's batches of records (magic 2), and the reading of older message sets (magic 0 and 1). Pure.

Promises: every broker since 0.11 accepts a batch that is written here. What is read is checked against its checksum. Control records are left out, and
so is a batch that the end of a fetch has cut off.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import google_crc32c
import pyarrow as pa

from pyspark_tidb_binlog.schemas.errors import Corruption

_PREFIX = struct.Struct(">qi")
"""Offset of the first record, bytes that follow."""
_HEAD = struct.Struct(">ibI")
"""Leader epoch, magic, checksum of what follows."""
_BODY = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and last time, producer id and epoch, first sequence number, count."""
_MAGIC_AT = _PREFIX.size + 4
_COMPRESSION, _CONTROL = 0x07, 0x20
_XERIAL = b"\x82SNAPPY\x00"


@dataclass(frozen=True, slots=True)
class Producer:
    """Who sends: what a broker recognises a repeated batch by."""

    id: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record of a partition."""

    offset: int
    value: bytes


def record_batch(messages: Sequence[bytes], producer: Producer, sequence: int, time_ms: int) -> bytes:
    """``messages`` without keys as one batch; ``sequence``: the number of the first one among all that ``producer`` sends."""
    records = b"".join(_record(delta, message) for delta, message in enumerate(messages))
    last = len(messages) - 1
    body = _BODY.pack(0, last, time_ms, time_ms, producer.id, producer.epoch, sequence, len(messages)) + records
    rest = _HEAD.pack(-1, 2, google_crc32c.value(body)) + body
    return _PREFIX.pack(0, len(rest)) + rest


def records_of(data: bytes) -> Iterator[StoredRecord]:
    """The records in what a fetch returned, in order. They may begin before the offset that was asked for.

    Raises:
        Corruption: a checksum is wrong, or a format is unknown.
    """
    at = 0
    while at + _MAGIC_AT < len(data):
        offset, length = _PREFIX.unpack_from(data, at)
        end = at + _PREFIX.size + length
        if end > len(data):
            return
        if data[at + _MAGIC_AT] == 2:
            yield from _in_batch(data[at + _PREFIX.size : end], offset)
        else:
            yield from _in_message(data[at + _PREFIX.size : end], offset)
        at = end


def _in_batch(batch: bytes, offset: int) -> Iterator[StoredRecord]:
    _, _, checksum = _HEAD.unpack_from(batch)
    if google_crc32c.value(batch[_HEAD.size :]) != checksum:
        raise Corruption(f"the checksum of the batch of records at offset {offset} is wrong")
    attributes, _, _, _, _, _, _, count = _BODY.unpack_from(batch, _HEAD.size)
    if attributes & _CONTROL:
        return
    records, at = _uncompressed(batch[_HEAD.size + _BODY.size :], attributes, offset), 0
    for _ in range(count):
        length, at = _varint(records, at)
        end = at + length
        _, at = _varint(records, at + 1)
        delta, at = _varint(records, at)
        key, at = _varint(records, at)
        size, at = _varint(records, at + max(key, 0))
        yield StoredRecord(offset + delta, records[at : at + max(size, 0)])
        at = end


def _in_message(message: bytes, offset: int) -> Iterator[StoredRecord]:
    """A message of magic 0 or 1; a compressed one holds others."""
    checksum, magic, attributes = struct.unpack_from(">IBB", message)
    if magic > 1:
        raise Corruption(f"the record at offset {offset} has the unknown format {magic}")
    if zlib.crc32(message[4:]) != checksum:
        raise Corruption(f"the checksum of the message at offset {offset} is wrong")
    at = 6 + 8 * magic
    (key,) = struct.unpack_from(">i", message, at)
    at += 4 + max(key, 0)
    (size,) = struct.unpack_from(">i", message, at)
    value = message[at + 4 : at + 4 + max(size, 0)]
    if not attributes & _COMPRESSION:
        yield StoredRecord(offset, value)
        return
    inner = list(records_of(_uncompressed(value, attributes, offset)))
    # The offset of the whole is that of its last message; since magic 1 those within count from 0.
    shift = offset - inner[-1].offset if magic == 1 and inner else 0
    yield from (StoredRecord(one.offset + shift, one.value) for one in inner)


def _record(delta: int, message: bytes) -> bytes:
    body = b"".join((b"\x00\x00", _zigzag(delta), b"\x01", _zigzag(len(message)), message, b"\x00"))
    return _zigzag(len(body)) + body


def _zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _uncompressed(data: bytes, attributes: int, offset: int) -> bytes:
    code = attributes & _COMPRESSION
    if not code:
        return data
    if code not in _CODECS:
        raise Corruption(f"the records at offset {offset} are compressed by an unknown codec, {code}")
    return _CODECS[code](data)


def _gunzipped(data: bytes) -> bytes:
    return zlib.decompress(data, 31)


def _streamed(codec: str) -> Callable[[bytes], bytes]:
    def read(data: bytes) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            return bytes(stream.read())

    return read


def _unsnapped(data: bytes) -> bytes:
    """Java's framing: blocks, each behind its length; or one block as it is."""
    if not data.startswith(_XERIAL):
        return _snappy_block(data)
    at, blocks = len(_XERIAL) + 8, []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        blocks.append(_snappy_block(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(blocks)


def _snappy_block(data: bytes) -> bytes:
    size = shift = at = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))


_CODECS: Mapping[int, Callable[[bytes], bytes]] = {1: _gunzipped, 2: _unsnapped, 3: _streamed("lz4"), 4: _streamed("zstd")}
"""By the number in a batch's attributes."""
