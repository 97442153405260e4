"""The state of a pairing bucket between batches: a small index, and chunks. Pure except for access to the chunks.

The *index* is one value, read and written by every batch that changes it: the records that the next batch needs (``transitions.KEPT``), an entry
per chunk, and up to ``INDEX_BYTES`` of payloads. Anything beyond goes into *chunks* of about ``CHUNK_BYTES``, written once and read when needed:

- *due* chunks hold closed transactions, ascending by ``due``. A chunk is read when R reaches its first transaction, and removed when R has
  reached its last. So a batch that releases nothing only adds chunks.
- a *stash* holds the payloads of open Prewrites; their records refer to it (``stash``). It is read when the outcomes arrive, and removed when
  less than half of its rows are referred to: these rows then move elsewhere.

A Prewrite that is too large for one value (``schemas.pieces``) is one record here, without its rows. Its pieces are stored as they arrive
(``PieceStore``), listed in the index (``bodies``), and read one by one at the release.

A Prewrite without an outcome may be a copy of a closed transaction. The due chunks that could hold that are searched once, and the outcome is
kept beside the copy.

Form of the index (format version 2): an Arrow stream of the records. Its schema's metadata has ``version``, ``next`` (the number of the
next chunk), ``wake_ms``, ``chunks``, ``bodies`` and, if there are any, ``waits`` (JSON). A chunk: ``schemas.packed`` of records.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import WaitingTimes
from pyspark_tidb_binlog.binlog_source.pairing.transitions import KEPT, ResolvedSpan
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import BinlogType
from pyspark_tidb_binlog.schemas.packed import packed, unpacked
from pyspark_tidb_binlog.schemas.wire import fields

INDEX_BYTES = 256 << 10
CHUNK_BYTES = 1 << 20
_ROW_BYTES = 64
"""Approximate size of a record without its payload."""
_VERSION = b"2"
_PREWRITE_VALUE = 5
"""Field ``Binlog.prewrite_value``."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The index's entry for a chunk. ``last_due`` 0: a stash."""

    number: int
    stored: int
    """Bytes of its packed value."""
    rows: int
    low_start: int
    high_start: int
    first_due: int = 0
    """The lowest ``due`` in it that R has not reached."""
    last_due: int = 0

    def may_hold(self, starts: NDArray[np.int64]) -> bool:
        """Whether one of ``starts`` (ascending) may be a transaction in it."""
        return bool(np.searchsorted(starts, self.low_start, "left") < np.searchsorted(starts, self.high_start, "right"))


@dataclass(frozen=True, slots=True)
class Index:
    """A bucket's index. ``wake_ms``: when the timer that is set fires, by the watermark; 0 = no timer is set."""

    records: pa.Table
    chunks: tuple[Chunk, ...] = ()
    next_number: int = 1
    wake_ms: int = 0
    pieces: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """start_ts of each Prewrite in pieces -> the ``first_seq`` of each piece, ascending."""
    waits: WaitingTimes = WaitingTimes()
    """Since when each orphan has been observed waiting."""

    @property
    def empty(self) -> bool:
        """Whether nothing needs to be stored."""
        return not (self.records.num_rows or self.chunks or self.wake_ms or self.pieces)


class PieceStore(Protocol):
    """Storage for the pieces of huge Prewrites. A piece that is put again has the same bytes."""

    def get(self, start_ts: int, first_seq: int) -> bytes:
        """The payload of a stored piece."""

    def put(self, start_ts: int, first_seq: int, payload: bytes) -> None:
        """Store a piece."""

    def remove(self, start_ts: int, first_seq: int) -> None:
        """Remove a piece."""


class Chunks(Protocol):
    """Storage for chunks: Spark's state store, or a dict in tests."""

    def get(self, chunk: Chunk) -> bytes:
        """The value of a stored chunk."""

    def put(self, chunk: Chunk, value: bytes) -> None:
        """Store a new chunk."""

    def remove(self, chunk: Chunk) -> None:
        """Remove a chunk."""


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """What a step works on: ``records``, with those of ``due`` chunks between the former and the new R; and the stashes read."""

    records: pa.Table
    due: tuple[tuple[Chunk, int], ...]
    """Due chunks that were read, each with its first ``due`` beyond the new R; 0 = none."""
    stashes: frozenset[int]


NOTHING = Index(KEPT.empty_table())


def take_up(index: Index, chunks: Chunks, records: pa.Table, span: ResolvedSpan) -> WorkingSet:
    """The kept records that the step over ``span`` needs when ``records`` (``transitions.RECORD``) arrive."""
    if not index.chunks:
        return WorkingSet(index.records, (), frozenset())
    lone = _lone_prewrites(index.records, records)
    tables, read = [], []
    for chunk in [chunk for chunk in index.chunks if chunk.last_due]:
        is_due, may_hold = chunk.first_due <= span.upto_ts, chunk.last_due > span.upto_ts and chunk.may_hold(lone)
        if not (is_due or may_hold):
            continue
        table = _rows_of(chunk, chunks)
        dues = table.column("due").to_numpy()
        begin, end = np.searchsorted(dues, [span.after_ts, span.upto_ts], "right").tolist()
        if is_due:
            tables.append(table.slice(begin, end - begin))
            read.append((chunk, int(dues[end]) if end < len(dues) else 0))
        if may_hold:
            tables.append(_outcomes(table.slice(end), lone))
    there, stashes = _unstashed(index, chunks, records, span)
    return WorkingSet(pa.concat_tables([*tables, there]), tuple(read), stashes)


def put_away(index: Index, working: WorkingSet, kept: pa.Table, chunks: Chunks) -> Index:
    """The index after a step that worked on ``working`` and keeps ``kept``; chunks are written and removed accordingly."""
    lines = {chunk.number: chunk for chunk in index.chunks}
    for chunk, next_due in working.due:
        if next_due:
            lines[chunk.number] = replace(chunk, first_due=next_due)
        else:
            chunks.remove(lines.pop(chunk.number))
    kept = _named(kept, working, lines, chunks)
    writer = _Writer(chunks, index.next_number, lines)
    if _size(kept) > INDEX_BYTES:
        closed = pc.greater(kept.column("due"), 0)
        writer.due(kept.filter(closed).sort_by("due"))
        kept = kept.filter(pc.invert(closed))
        if _size(kept) > INDEX_BYTES:
            kept = writer.stash(kept)
    return replace(index, records=kept.combine_chunks(), chunks=tuple(lines.values()), next_number=writer.number)


def _named(kept: pa.Table, working: WorkingSet, lines: dict[int, Chunk], chunks: Chunks) -> pa.Table:
    """``kept`` with its payloads, except those that stay in a stash; stashes that are no longer worth keeping are removed."""
    stash, due = kept.column("stash").to_numpy(), kept.column("due").to_numpy()
    named = np.where(due == 0, stash, 0)
    numbers, counts = np.unique(named[named > 0], return_counts=True)
    uses = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    for chunk in [line for line in lines.values() if not line.last_due]:
        used = uses.get(chunk.number, 0)
        if used == 0 or (chunk.number in working.stashes and 2 * used < chunk.rows):
            chunks.remove(lines.pop(chunk.number))
            named = np.where(named == chunk.number, 0, named)
    if not stash.any():
        return kept
    bare = np.isin(named, list(working.stashes)) & (named > 0)
    return _with(kept, _bared(kept, bare), named)


def _unstashed(index: Index, chunks: Chunks, records: pa.Table, span: ResolvedSpan) -> tuple[pa.Table, frozenset[int]]:
    """The index's records, with whole payloads where the step may need them, and the stashes that these came from."""
    there = index.records
    stash = there.column("stash").to_numpy()
    if not stash.any():
        return there, frozenset()
    starts, commits, tp = (there.column(name).to_numpy() for name in ("start_ts", "commit_ts", "tp"))
    ripe = starts[(tp == BinlogType.COMMIT) & (commits <= span.upto_ts)]
    wanted = (stash > 0) & np.isin(starts, np.concatenate([ripe, records.column("start_ts").to_numpy()]))
    numbers = frozenset(np.unique(stash[wanted]).tolist())
    if not numbers:
        return there, numbers
    whole = pa.concat_tables([_rows_of(chunk, chunks) for chunk in index.chunks if chunk.number in numbers])
    places = {key: row for row, key in enumerate(_keys(whole))}
    take = [places.get(key, -1) if number in numbers else -1 for key, number in zip(_keys(there), stash.tolist(), strict=True)]
    found = np.array(take)
    payload = whole.column("payload").take(pa.array(found, mask=found < 0))
    return _with(there, pc.if_else(pa.array(found >= 0), payload, there.column("payload")), stash), numbers


def _lone_prewrites(there: pa.Table, records: pa.Table) -> NDArray[np.int64]:
    """The start_ts of new Prewrites without an outcome in ``there`` or ``records``, ascending."""
    starts, tp = records.column("start_ts").to_numpy(), records.column("tp").to_numpy()
    settled = [starts[tp != BinlogType.PREWRITE], there.column("start_ts").to_numpy()[there.column("tp").to_numpy() != BinlogType.PREWRITE]]
    lone: NDArray[np.int64] = np.setdiff1d(starts[tp == BinlogType.PREWRITE], np.concatenate(settled))
    return lone


def _outcomes(table: pa.Table, starts: NDArray[np.int64]) -> pa.Table:
    """The Commits and Rollbacks of ``starts``, as records that are not closed."""
    found = np.isin(table.column("start_ts").to_numpy(), starts) & (table.column("tp").to_numpy() != BinlogType.PREWRITE)
    rows = table.filter(pa.array(found))
    return rows.set_column(KEPT.get_field_index("due"), KEPT.field("due"), pa.array(np.zeros(rows.num_rows, np.int64)))


class _Writer:
    """Writes new chunks and their entries."""

    def __init__(self, chunks: Chunks, number: int, lines: dict[int, Chunk]) -> None:
        self.number = number
        self._chunks, self._lines = chunks, lines

    def due(self, closed: pa.Table) -> None:
        """Write closed transactions, ascending by due. One may span two chunks: both are due together."""
        closed = _with(closed, closed.column("payload"), np.zeros(closed.num_rows, np.int64))
        for part in _cut(closed):
            dues = part.column("due")
            self._put(part, dues[0].as_py(), dues[part.num_rows - 1].as_py())

    def stash(self, kept: pa.Table) -> pa.Table:
        """Write the payloads of open records that are in no stash yet; the records without them."""
        stash = kept.column("stash").to_numpy()
        moving = (stash == 0) & (kept.column("tp").to_numpy() == BinlogType.PREWRITE) & _lengths(kept).astype(bool)
        rows = np.flatnonzero(moving)
        begin, named = 0, stash.copy()
        for part in _cut(kept.take(pa.array(rows))):
            named[rows[begin : begin + part.num_rows]] = self.number
            begin += part.num_rows
            self._put(part, 0, 0)
        return _with(kept, _bared(kept, moving), named)

    def _put(self, part: pa.Table, first_due: int, last_due: int) -> None:
        starts, value = part.column("start_ts").to_numpy(), packed(part)
        line = Chunk(self.number, len(value), part.num_rows, int(starts.min()), int(starts.max()), first_due, last_due)
        self._chunks.put(line, value)
        self._lines[line.number] = line
        self.number += 1


def _cut(table: pa.Table) -> Iterable[pa.Table]:
    """Runs of rows of about ``CHUNK_BYTES``, at least one row each."""
    ends = np.cumsum(_lengths(table) + _ROW_BYTES)
    begin = 0
    while begin < table.num_rows:
        limit = CHUNK_BYTES + (ends[begin - 1] if begin else 0)
        end = max(begin + 1, int(np.searchsorted(ends, limit, "right")))
        yield table.slice(begin, end - begin)
        begin = end


def without_rows(payload: bytes | pa.Buffer) -> bytes:
    """A Prewrite without its ``prewrite_value``: what the resolver needs, and little else. A payload that does not parse is unchanged."""
    view = memoryview(payload).cast("B")
    try:
        return b"".join(view[f.begin : f.end] for f in fields(view, 0, len(view)) if f.number != _PREWRITE_VALUE)
    except Corruption:
        return bytes(view)


def _bared(table: pa.Table, rows: NDArray[np.bool_]) -> pa.ChunkedArray:
    """The payloads, without their row changes where ``rows`` is true."""
    payload = table.column("payload")
    if not rows.any():
        return payload
    bare = [without_rows(payload[row].as_buffer()) if chosen else None for row, chosen in enumerate(rows.tolist())]
    return pc.if_else(pa.array(rows), pa.chunked_array([pa.array(bare, pa.large_binary())]), payload)


def _with(table: pa.Table, payload: Any, stash: NDArray[np.int64]) -> pa.Table:
    table = table.set_column(KEPT.get_field_index("payload"), KEPT.field("payload"), payload)
    return table.set_column(KEPT.get_field_index("stash"), KEPT.field("stash"), pa.array(stash, pa.int64()))


def _rows_of(chunk: Chunk, chunks: Chunks) -> pa.Table:
    return unpacked([pa.scalar(chunks.get(chunk), pa.large_binary())], KEPT)


def _keys(table: pa.Table) -> Sequence[tuple[int, int, str]]:
    return list(zip(*(table.column(name).to_pylist() for name in ("start_ts", "tp", "pump")), strict=True))


def _lengths(table: pa.Table) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(table.column("payload")), 0)
    found: NDArray[np.int64] = lengths.to_numpy().astype(np.int64)
    return found


def _size(table: pa.Table) -> int:
    return int(_lengths(table).sum() + _ROW_BYTES * table.num_rows)


def pack(index: Index) -> bytes:
    """The index as bytes."""
    chunks = json.dumps([astuple(chunk) for chunk in index.chunks], separators=(",", ":")).encode()
    pieces = json.dumps(list(index.pieces.items()), separators=(",", ":")).encode()
    numbers = {b"next": b"%d" % index.next_number, b"wake_ms": b"%d" % index.wake_ms}
    metadata = {b"version": _VERSION, b"chunks": chunks, b"bodies": pieces, **numbers}
    if index.waits.since_ms:
        metadata[b"waits"] = json.dumps([index.waits.clock, list(index.waits.since_ms.items())], separators=(",", ":")).encode()
    return packed(index.records.replace_schema_metadata(metadata))


def unpack(blob: bytes) -> Index:
    """The inverse of ``pack``.

    Raises:
        Corruption: the bytes are not an index of this version.
    """
    try:
        with pa.ipc.open_stream(blob) as reader:
            table = reader.read_all()
        metadata = table.schema.metadata or {}
        if metadata.get(b"version") != _VERSION:
            raise Corruption(
                f"the pairing state in Spark's checkpoint has version {metadata.get(b'version')!r}, but this program reads {_VERSION!r}: "
                "delete Spark's checkpoint directory. The stream then resumes from the target's checkpoint"
            )
        chunks = tuple(Chunk(*line) for line in json.loads(metadata[b"chunks"]))
        pieces = {start_ts: tuple(first_seqs) for start_ts, first_seqs in json.loads(metadata[b"bodies"])}
        records = table.replace_schema_metadata(None).cast(KEPT)
        clock, since = json.loads(metadata.get(b"waits", b'["",[]]'))
        return Index(records, chunks, int(metadata[b"next"]), int(metadata[b"wake_ms"]), pieces, WaitingTimes(str(clock), dict(since)))
    except (pa.ArrowInvalid, OSError, KeyError, ValueError, TypeError) as error:
        raise Corruption(
            f"the pairing state in Spark's checkpoint cannot be read ({error}): "
            "delete Spark's checkpoint directory. The stream then resumes from the target's checkpoint"
        ) from error
