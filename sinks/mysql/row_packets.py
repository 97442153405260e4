"""Converts the bytes of a server's result set into columns, without an object for each cell. Pure.

A row is a packet: three bytes of length, one of sequence, then its values as text, each after its length; NULL is one byte. The beginnings of rows are
read packet by packet, everything else a column at a time over all rows of a block.

Promises: values are the server's bytes, in the order of the rows. A block has about ``block_bytes``, or one row.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

Columns = list[pa.BinaryArray]
"""Some rows of a result set, a column each."""

_HEADER = 4
_LENGTH = Struct("<I").unpack_from
_WHOLE_PACKET = 0xFFFFFF
"""A payload of this length continues in the next packet."""
_NULL, _TWO, _THREE, _EIGHT = 0xFB, 0xFC, 0xFD, 0xFE
_ERROR, _END = 0xFF, 0xFE
_SHORTEST_ROW = 9
"""Bytes of a row whose first value needs eight bytes for its length; a shorter packet with that first byte is the end."""
_LONG = 128
"""Bytes of a value, on average, from which copying each is faster than an index of all bytes."""


class RowPackets:
    """Takes what was read, gives the rows of whole packets."""

    def __init__(self, columns: int, block_bytes: int = 1024 * 1024, block_rows: int = 2000) -> None:
        self._columns = columns
        self._block_bytes = block_bytes
        self._block_rows = block_rows
        self._read = bytearray()
        self._starts: list[int] = []
        """Where the payloads of the rows of the next block begin, as far as they were seen."""
        self._at = 0
        """Where the last of them ends."""
        self.ended = False
        """Whether the last row was given."""
        self.refused = b""
        """The payload of the server's error, if that ended the rows."""

    def feed(self, data: bytes) -> Iterator[Columns]:
        """The blocks that are complete with ``data``; at the end also the last one."""
        self._read += data
        while not self.ended:
            big = self._scan()
            full = len(self._starts) >= self._block_rows or self._at >= self._block_bytes
            if self._starts and (full or big or self.ended):
                yield columns_of(self._taken(self._at), self._starts, self._columns)
                self._starts, self._at = [], 0
            elif not big and not self.ended:
                return
            if big:
                yield columns_of(self._join(), [0], self._columns)

    def _scan(self) -> bool:
        """Look for the next rows; returns whether a row of several complete packets comes next."""
        read, at, starts = self._read, self._at, self._starts
        size = len(read)
        while at + _HEADER < size and len(starts) < self._block_rows and at < self._block_bytes:
            length = _LENGTH(read, at)[0] & _WHOLE_PACKET
            end = at + _HEADER + length
            if end > size:
                break
            if length == _WHOLE_PACKET:
                self._at = at
                return self._joined_end(at) > 0
            first = read[at + _HEADER]
            if first == _ERROR or (first == _END and length < _SHORTEST_ROW):
                self.ended = True
                self.refused = bytes(read[at + _HEADER : end]) if first == _ERROR else b""
                break
            starts.append(at + _HEADER)
            at = end
        self._at = at
        return False

    def _taken(self, size: int) -> bytes:
        """The first bytes of what was read, which is shorter then."""
        found = bytes(memoryview(self._read)[:size])
        del self._read[:size]
        return found

    def _joined_end(self, at: int) -> int:
        """Where the last packet of a row that begins at ``at`` ends; 0: it is not there yet."""
        while at + _HEADER <= len(self._read):
            length = _LENGTH(self._read, at)[0] & _WHOLE_PACKET
            at += _HEADER + length
            if length < _WHOLE_PACKET:
                return at if at <= len(self._read) else 0
        return 0

    def _join(self) -> bytes:
        """The payload of the row of several packets that comes next, which is taken."""
        end, at, parts = self._joined_end(0), 0, []
        while at < end:
            length = _LENGTH(self._read, at)[0] & _WHOLE_PACKET
            parts.append(bytes(memoryview(self._read)[at + _HEADER : at + _HEADER + length]))
            at += _HEADER + length
        del self._read[:end]
        return b"".join(parts)


def columns_of(data: bytes, starts: Sequence[int], count: int) -> Columns:
    """The ``count`` columns of the rows whose payloads begin at ``starts`` in ``data``."""
    buffer = np.frombuffer(data, dtype=np.uint8)
    at = np.array(starts, dtype=np.int64)
    found = []
    for _ in range(count):
        first = buffer[at]
        lengths, widths = first.astype(np.int64), np.ones(len(at), dtype=np.int64)
        null = first == _NULL
        lengths[null] = 0
        for code, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
            longer = np.flatnonzero(first == code)
            if len(longer):
                places = at[longer]
                lengths[longer] = sum(buffer[places + 1 + i].astype(np.int64) << (8 * i) for i in range(width))
                widths[longer] = 1 + width
        begins = at + widths
        found.append(_array(data, buffer, begins, lengths, null))
        at = begins + lengths
    return found


def _array(data: bytes, buffer: Any, begins: Any, lengths: Any, null: Any) -> pa.BinaryArray:
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    offsets[1:] = ends
    if total >= _LONG * len(lengths):
        values = b"".join(data[begin : begin + length] for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True))
    else:
        values = buffer[np.arange(total) + np.repeat(begins - offsets[:-1], lengths)].tobytes()
    nulls = int(null.sum())
    valid = pa.py_buffer(np.packbits(~null, bitorder="little").tobytes()) if nulls else None
    return pa.Array.from_buffers(pa.binary(), len(lengths), [valid, pa.py_buffer(offsets.tobytes()), pa.py_buffer(values)], nulls)
