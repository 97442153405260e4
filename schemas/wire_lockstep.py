"""Many small protobuf messages in one buffer, walked side by side: the first field of each, then the second of each, … Pure.

A parser makes an object of every value. Here the fields of all messages are columns of offsets, and nothing is copied. A step costs as much
for one message as for some hundred, so the walk ends when few messages are left.

Promises: ``LockstepFields.whole`` marks the messages that were walked exactly. Every other message is left to a parser: it is invalid,
longer than most, or has what our writers never write (groups, fixed-width fields, field numbers above 15).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST = 64
"""Messages at a step; fewer are left to a parser."""
HUGE = -1
"""The value of a varint of more than seven bytes: at least 2**49, or negative."""

_WORD = 8
_VARINT, _BYTES = 0, 2
_LONGEST_VARINT = 9
"""Bytes of a number that is not negative."""
_ENDS = np.uint64(0x0080808080808080)
"""The bit of each byte after the key that is clear in a varint's last byte."""
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_GROUPS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
"""Joins the seven bits of neighbouring bytes, then the fourteen of neighbouring pairs, then the halves."""


@dataclass(frozen=True, slots=True)
class LockstepFields:
    """The fields of those messages that are ``whole``, in the order of messages and fields."""

    message: Ints
    """The message that each field is of."""
    key: Ints
    """Field number and wire type, as they are written."""
    value: Ints
    """What a varint says (``HUGE``); the length of bytes."""
    begin: Ints
    """Where the content begins."""
    end: Ints
    whole: Mask
    """Per message: it was walked to its end, or to the field at which to stop."""
    rest: Ints
    """Per message: where the walk has ended."""


class Buffer:
    """The bytes that messages lie in."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.bytes = data
        self._last = len(data) - _WORD
        if self._last >= 0:
            # an unaligned view: the little-endian word that begins at each byte
            self._words = np.lib.stride_tricks.as_strided(data[:_WORD].view("<u8"), shape=(self._last + 1,), strides=(1,), writeable=False)

    def __bool__(self) -> bool:
        return self._last >= 0

    def words(self, at: Ints) -> NDArray[np.uint64]:
        """The eight bytes at each of ``at``, the first one lowest; zeros after the end of the data."""
        beyond = at - self._last
        if not (beyond > 0).any():
            return self._words[at]
        missing = 8 * np.maximum(beyond, 0).astype(np.uint64)
        return self._words[np.minimum(at, self._last)] >> missing


def of_binaries(values: pa.BinaryArray) -> tuple[Buffer, Ints, Ints]:
    """The buffer of ``values``, and where each of them begins and ends in it; null is empty."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Buffer(held), ends[:-1], ends[1:]


def walk(buffer: Buffer, begin: Ints, end: Ints, stop: int = 0) -> LockstepFields:
    """The fields of the messages at ``begin`` to ``end``; ``stop``: the key before which the walk of a message ends."""
    whole, rest, counts = begin == end, begin.copy(), np.zeros(len(begin), np.int64)
    steps: list[tuple[Ints, ...]] = []
    message = np.flatnonzero(~whole) if buffer else np.zeros(0, np.int64)
    at, upto = begin[message], end[message]
    while len(message) >= FEWEST:
        key, value, content, after = _step(buffer, at)
        if stop and (stopped := key == stop).any():
            whole[message[stopped]] = True
            message, upto, key, value, content, after = (a[~stopped] for a in (message, upto, key, value, content, after))
        if not (fits := (after <= upto) & (after > 0)).all():
            message, upto, key, value, content, after = (a[fits] for a in (message, upto, key, value, content, after))
        steps.append((message, key, value, content, after))
        counts[message] = len(steps)
        rest[message] = after
        more = after < upto
        if not more.all():
            whole[message[~more]] = True
            message, upto, after = message[more], upto[more], after[more]
        at = after
    return _placed(steps, counts, whole, rest)


def _step(buffer: Buffer, at: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Key, value, begin and end of the field at each of ``at``; its end is 0 where it is none that is known here."""
    word = buffer.words(at)
    key = (word & np.uint64(0xFF)).view(np.int64)
    kind = key & 7
    rest = word >> np.uint64(8)
    last = ~rest & _ENDS
    # All bits below the lowest that is set; with none set, all.
    below = (last & (~last + _ONE)) - _ONE
    size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
    value = _number(rest & below).view(np.int64)
    is_bytes, is_long = kind == _BYTES, size > _SEVEN
    if is_long.any():
        value = np.where(is_long, HUGE, value)
        size = np.where(is_long, _long_size(buffer, at), size)
    content = at + 1 + np.where(is_bytes, size, 0)
    after = at + 1 + size + np.where(is_bytes, value, 0)
    known = (is_bytes & ~is_long | (kind == _VARINT)) & (key < 0x80) & (key > _SEVEN) & (size <= _LONGEST_VARINT)
    return key, value, content, after if known.all() else np.where(known, after, 0)


def _number(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers whose varints are the bytes of ``word``."""
    word = word & np.uint64(0x7F7F7F7F7F7F7F7F)
    for low, high, shift in _GROUPS:
        word = (word & low) | ((word & high) >> shift)
    return word


def _long_size(buffer: Buffer, at: Ints) -> Ints:
    """How many bytes the varints after the keys have whose first seven do not end them; more than ten: none does."""
    last = ~buffer.words(at + _WORD) & np.uint64(0x8080808080808080)
    below = (last & (~last + _ONE)) - _ONE
    return 7 + ((np.bitwise_count(below).astype(np.int64) + 1) >> 3)


def _placed(steps: list[tuple[Ints, ...]], counts: Ints, whole: Mask, rest: Ints) -> LockstepFields:
    """The fields of all steps, sorted: a message has one field in each step that it took part in, so that each has its place."""
    counts = np.where(whole, counts, 0)
    first = np.cumsum(counts) - counts
    columns = [np.zeros(int(counts.sum()), np.int64) for _ in range(5)]
    for rank, fields in enumerate(steps):
        kept = whole[fields[0]]
        places = first[fields[0]] + rank
        for column, field in zip(columns, fields, strict=True):
            column[places if kept.all() else places[kept]] = field if kept.all() else field[kept]
    message, key, value, begin, end = columns
    return LockstepFields(message, key, value, begin, end, whole, rest)


def taken(buffer: Buffer, begin: Ints, end: Ints, order: Ints) -> pa.BinaryArray:
    """The bytes from ``begin`` to ``end``, which ascend and do not overlap, in another ``order``: copied once, without a loop."""
    borders = np.empty(2 * len(begin), np.int32)
    borders[0::2], borders[1::2] = begin, end
    if not len(begin):
        return pa.array([], pa.binary())
    # Every second value lies between two that are wanted.
    values = pa.Array.from_buffers(pa.binary(), 2 * len(begin) - 1, [None, pa.py_buffer(borders), pa.py_buffer(buffer.bytes)])
    return values.take(pa.array(2 * order))
