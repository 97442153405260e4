"""Splits a huge binlog into pieces. A piece is a binlog with a run of the row changes. Pure.

A Prewrite or a complete Commit may hold a gigabyte of rows in ONE message. No step after the reader can hold that as one value, so the
reader splits the message first. A piece has the binlog's type, timestamps and key, and the row changes from ``first_seq`` on, in
execution order. The exploded pieces together give the same row events as the whole.

Promises: the split depends only on the bytes and the limit, so a repeated read gives the same pieces. Each piece is copied once, when it
is yielded; nothing else is copied. A row larger than the limit is a piece by itself. DDL binlogs are never split.
Source of the layout: wire.md 2.1 (``Binlog``, ``PrewriteValue``, ``TableMutation``), rows.md 1 (``sequence`` interleaves the row lists).
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.wire import BYTES, VARINT, Field, fields, key, varint

PIECE_BYTES = 4 << 20
"""Approximate bytes of rows per piece."""

_PREWRITE_VALUE = 5
_SCHEMA_VERSION, _MUTATIONS = 1, 2
_TABLE_ID, _SEQUENCE = 1, 7
_ROW_FIELDS = {2: Op.INSERT, 3: Op.UPDATE, 6: Op.DELETE}

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a binlog, or all of a small one."""

    first_seq: int
    """0-based position of its first row change in the transaction."""
    more: bool
    """Another piece of the same binlog follows."""
    payload: bytes | memoryview


def pieces(payload: bytes | memoryview, limit: int = PIECE_BYTES) -> Iterator[Piece]:
    """``payload`` (a ``Binlog`` message) as pieces of about ``limit`` bytes; unchanged when it is not larger.

    Raises:
        Corruption: it is larger and not a valid binlog.
    """
    if len(payload) <= limit:
        yield Piece(0, False, payload)
        return
    data = memoryview(payload)
    parts = list(fields(data, 0, len(data)))
    found = [f for f in parts if f.number == _PREWRITE_VALUE]
    if len(found) != 1 or found[0].kind != BYTES:
        yield Piece(0, False, payload)
        return
    before = b"".join(data[f.begin : f.end] for f in parts if f.number < _PREWRITE_VALUE)
    after = b"".join(data[f.begin : f.end] for f in parts if f.number > _PREWRITE_VALUE)
    waiting: tuple[int, list[Any], int] | None = None
    for first_seq, mutations, version in _groups(data, found[0], limit):
        if waiting is not None:
            yield Piece(waiting[0], True, _binlog(before, waiting[1], waiting[2], after))
        waiting = first_seq, mutations, version
    if waiting is None:
        yield Piece(0, False, payload)
    else:
        yield Piece(waiting[0], False, _binlog(before, waiting[1], waiting[2], after))


def _groups(data: memoryview, prewrite_value: Field, limit: int) -> Iterator[tuple[int, list[Any], int]]:
    """(first_seq, the mutations of a piece as parts of bytes, schema_version)."""
    version, seq, first_seq, size = 0, 0, 0, 0
    group: list[Any] = []
    mutations = []
    for field in fields(data, prewrite_value.value, prewrite_value.end):
        if field.number == _SCHEMA_VERSION and field.kind == VARINT:
            version = decode_uvarint(data, field.value)[0]
        elif field.number == _MUTATIONS and field.kind == BYTES:
            mutations.append(field)
    for field in mutations:
        for parts, rows, length in _Mutation(data, field).cut(limit):
            if group and size + length > limit:
                yield first_seq, group, version
                group, size, first_seq = [], 0, seq
            group += [key(_MUTATIONS, BYTES), varint(length), *parts]
            size += length
            seq += rows
    if group:
        yield first_seq, group, version


def _binlog(before: bytes, mutations: Sequence[Any], version: int, after: bytes) -> bytes:
    head = key(_SCHEMA_VERSION, VARINT) + varint(version)
    length = len(head) + sum(map(len, mutations))
    return b"".join((before, key(_PREWRITE_VALUE, BYTES), varint(length), head, *mutations, after))


class _Mutation:
    """One ``TableMutation``: where its rows lie and in which order they were changed."""

    def __init__(self, data: memoryview, field: Field) -> None:
        self._data = data
        self._table = b""
        begins = {number: array("q") for number in _ROW_FIELDS}
        ends = {number: array("q") for number in _ROW_FIELDS}
        sequence = array("q")
        for inner in fields(data, field.value, field.end):
            if inner.number in _ROW_FIELDS:
                begins[inner.number].append(inner.begin)
                ends[inner.number].append(inner.end)
            elif inner.number == _SEQUENCE and inner.kind == VARINT:
                sequence.append(decode_uvarint(data, inner.value)[0])
            elif inner.number == _SEQUENCE:
                sequence.extend(_packed_varints(data, inner))
            elif inner.number == _TABLE_ID:
                self._table = bytes(data[inner.begin : inner.end])
        self._rows = {int(op): (np.array(begins[number], np.int64), np.array(ends[number], np.int64)) for number, op in _ROW_FIELDS.items()}
        self._sequence = np.array(sequence, np.int64)
        self._require_whole()

    def cut(self, limit: int) -> Iterator[tuple[list[Any], int, int]]:
        """The mutation in runs of about ``limit`` bytes, each (its message as a list of bytes, number of row changes, size in bytes)."""
        sizes = np.zeros(len(self._sequence), np.int64)
        for op, (begins, ends) in self._rows.items():
            sizes[self._sequence == op] = ends - begins
        reach = np.cumsum(sizes)
        first = 0
        cursors = dict.fromkeys(self._rows, 0)
        while first < len(sizes):
            behind = int(reach[first - 1]) if first else 0
            end = max(int(np.searchsorted(reach, behind + limit, side="right")), first + 1)
            run = self._sequence[first:end]
            parts: list[Any] = [self._table]
            for op, (begins, ends) in self._rows.items():
                count = int(np.count_nonzero(run == op))
                parts += _joined(self._data, begins[cursors[op] : cursors[op] + count], ends[cursors[op] : cursors[op] + count])
                cursors[op] += count
            parts.append(_sequence_field(run))
            yield parts, end - first, sum(map(len, parts))
            first = end

    def _require_whole(self) -> None:
        counts = {op: int(np.count_nonzero(self._sequence == op)) for op in self._rows}
        if any(counts[op] != len(begins) for op, (begins, _) in self._rows.items()) or sum(counts.values()) != len(self._sequence):
            held = sum(len(begins) for begins, _ in self._rows.values())
            raise Corruption(f"a mutation's sequence names {len(self._sequence)} operations, its row lists hold {held}")


def _joined(data: memoryview, begins: Offsets, ends: Offsets) -> list[Any]:
    """The fields at these places; adjacent ones as one slice."""
    if not len(begins):
        return []
    cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    starts = np.concatenate(([0], cuts))
    lasts = np.concatenate((cuts - 1, [len(begins) - 1]))
    return [data[int(begins[a]) : int(ends[b])] for a, b in zip(starts.tolist(), lasts.tolist(), strict=True)]


def _sequence_field(run: NDArray[np.int64]) -> bytes:
    """``sequence``, each entry with its key, as TiDB writes it."""
    out = np.empty((len(run), 2), np.uint8)
    out[:, 0] = _SEQUENCE << 3 | VARINT
    out[:, 1] = run
    return out.tobytes()


def _packed_varints(data: memoryview, field: Field) -> Iterator[int]:
    at = field.value
    while at < field.end:
        value, at = decode_uvarint(data, at)
        yield value
