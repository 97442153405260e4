"""Converts the bytes of PullBinlogs responses to columns of records. Pure.

``PullBinlogResp {entity = 1}`` and ``PullBinlogBatch {repeated entity = 1}`` have the same encoding for one entity, so one parser handles
both. ``Records`` holds a run of messages as columns. ``raw_rows`` and ``sorted_rows`` convert it to ``stages.RAW``, ``packed_rows``
converts that to ``stages.PACKED``.

Promises: bytes that are not such a message, or a payload that is not a binlog, raise ``ProtocolViolation`` naming the Pump.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from pyspark_tidb_binlog.binlog_source.source.buckets import buckets
from pyspark_tidb_binlog.schemas.errors import Corruption, ProtocolViolation
from pyspark_tidb_binlog.schemas.events import TSO_LOGICAL_BITS, BinlogType, ControlType
from pyspark_tidb_binlog.schemas.packed import gathered, packed
from pyspark_tidb_binlog.schemas.pieces import PIECE_BYTES, pieces
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2
from pyspark_tidb_binlog.schemas.stages import PACKED, RAW
from pyspark_tidb_binlog.schemas.wire import fields

_MAX_INT32 = (1 << 31) - 1
_BIG = 16 << 20
"""Payloads of a response larger than this, in bytes, are not copied."""
_ENTITY, _PAYLOAD = 1, 2
_TP_TAG = 0x08
"""Key of ``Binlog.tp``: field 1, varint. TiDB and Pump always write it first."""


@dataclass(frozen=True, slots=True)
class Records:
    """Messages of one Pump in the order received. ``types``: the binlog type in each payload (-1: no payload)."""

    types: NDArray[np.int32]
    start_ts: NDArray[np.int64]
    commit_ts: NDArray[np.int64]
    suffixes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    first_seqs: NDArray[np.int32]
    """The number of the first row change in a piece of a huge binlog (``schemas.pieces``); else 0."""
    more: NDArray[np.bool_]
    """Another piece of the same binlog follows; the position of this one has no meaning."""
    payloads: Sequence[bytes | memoryview]

    def __len__(self) -> int:
        return len(self.payloads)

    def cut(self, begin: int, end: int) -> "Records":
        """The messages from ``begin`` (inclusive) to ``end`` (exclusive)."""
        part = slice(begin, end)
        return Records(
            self.types[part],
            self.start_ts[part],
            self.commit_ts[part],
            self.suffixes[part],
            self.offsets[part],
            self.first_seqs[part],
            self.more[part],
            self.payloads[part],
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(map(len, self.payloads))


def joined(runs: Sequence[Records]) -> Records:
    """Several runs as one."""
    if len(runs) == 1:
        return runs[0]
    return Records(
        np.concatenate([run.types for run in runs]),
        np.concatenate([run.start_ts for run in runs]),
        np.concatenate([run.commit_ts for run in runs]),
        np.concatenate([run.suffixes for run in runs]),
        np.concatenate([run.offsets for run in runs]),
        np.concatenate([run.first_seqs for run in runs]),
        np.concatenate([run.more for run in runs]),
        [payload for run in runs for payload in run.payloads],
    )


def in_pieces(records: Records, limit: int = PIECE_BYTES) -> Iterator[Records]:
    """``records`` in runs in which no binlog is larger than ``limit``, unless a single row is: larger ones are cut into pieces, lazily.

    Raises:
        Corruption: a binlog to be cut is malformed.
    """
    begin = 0
    for place in [i for i, payload in enumerate(records.payloads) if len(payload) > limit]:
        if begin < place:
            yield records.cut(begin, place)
        yield from _pieces_of(records.cut(place, place + 1), limit)
        begin = place + 1
    if begin < len(records):
        yield records.cut(begin, len(records))


def _pieces_of(record: Records, limit: int) -> Iterator[Records]:
    if record.more[0] or record.first_seqs[0]:
        # Already a piece; a single row makes it this large.
        yield record
        return
    for piece in pieces(record.payloads[0], limit):
        yield replace(
            record, first_seqs=np.array([piece.first_seq], np.int32), more=np.array([piece.more], np.bool_), payloads=[piece.payload]
        )


def parse(data: bytes, pump: str) -> Records:
    """The messages in one response of ``pump``.

    Raises:
        ProtocolViolation: ``data`` or a payload in it does not parse.
    """
    try:
        entities, payloads = _walked(data) if len(data) > _BIG else _parsed(data)
        metas = [_meta(e, p) for e, p in zip(entities, payloads, strict=True)]
        types = [p[1] if len(p) > 1 and p[0] == _TP_TAG else _type(p) for p in payloads]
    except (DecodeError, Corruption) as error:
        raise ProtocolViolation(
            f"Pump {pump} answered {len(data)} bytes that are no PullBinlogs message ({error}): check that a Pump serves this address"
        ) from error
    columns = np.array(metas, dtype=np.int64).reshape(-1, 6)
    return Records(
        np.array(types, dtype=np.int32),
        columns[:, 0],
        columns[:, 1],
        columns[:, 2],
        columns[:, 3],
        columns[:, 4].astype(np.int32),
        columns[:, 5] != 0,
        payloads,
    )


def _parsed(data: bytes) -> tuple[Sequence[pump_pb2.Entity], list[bytes | memoryview]]:
    entities = list(pump_pb2.PullBinlogBatch.FromString(data).entity)
    return entities, [e.payload for e in entities]


def _walked(data: bytes) -> tuple[Sequence[pump_pb2.Entity], list[bytes | memoryview]]:
    """Like ``_parsed``, but the payloads, of which at least one is huge, are views of ``data`` instead of being copied twice."""
    view = memoryview(data)
    entities: list[pump_pb2.Entity] = []
    payloads: list[bytes | memoryview] = []
    for message in fields(view, 0, len(view)):
        rest, payload = b"", view[:0]
        for part in fields(view, message.value, message.end) if message.number == _ENTITY else ():
            if part.number == _PAYLOAD:
                payload = view[part.value : part.end]
            else:
                rest += view[part.begin : part.end]
        entities.append(pump_pb2.Entity.FromString(rest))
        payloads.append(payload)
    return entities, payloads


def _meta(entity: pump_pb2.Entity, payload: bytes | memoryview) -> tuple[int, int, int, int, int, bool]:
    meta, pos = entity.meta, entity.pos
    start_ts, commit_ts = meta.startTs, meta.commitTs
    if not start_ts and not commit_ts and payload:
        binlog = binlog_pb2.Binlog.FromString(bytes(payload))
        start_ts, commit_ts = binlog.start_ts, binlog.commit_ts
    return start_ts, commit_ts, pos.suffix, pos.offset, entity.first_seq, entity.more


def _type(payload: bytes | memoryview) -> int:
    return int(binlog_pb2.Binlog.FromString(bytes(payload)).tp) if payload else -1


def raw_rows(records: Records, pump: str, bucket_ids: Sequence[int]) -> pa.RecordBatch:
    """``records`` of raw delivery as ``stages.RAW``; fakes and synthetic messages are left out.

    Raises:
        ProtocolViolation: a record is neither Prewrite, Commit nor Rollback.
    """
    types = records.types
    unknown = (types < BinlogType.PREWRITE) | (types > BinlogType.ROLLBACK)
    if unknown.any():
        place = int(np.argmax(unknown))
        raise ProtocolViolation(
            f"Pump {pump} delivered a record of type {int(types[place])} at start_ts {int(records.start_ts[place])}, commit_ts "
            f"{int(records.commit_ts[place])}, but raw delivery has only the types Prewrite 0, Commit 1 and Rollback 2"
        )
    real = records.start_ts != records.commit_ts
    return _rows(records, real, types, pump, buckets(records.start_ts, bucket_ids))


def sorted_rows(records: Records, pump: str) -> pa.RecordBatch:
    """``records`` of sorted delivery as ``stages.RAW``: complete Commits; fakes are left out."""
    count = len(records)
    real = records.start_ts != records.commit_ts
    return _rows(records, real, np.full(count, BinlogType.COMMIT, np.int32), pump, np.zeros(count, np.int32))


def _rows(records: Records, keep: NDArray[np.bool_], types: NDArray[np.int32], pump: str, bucket: NDArray[np.int32]) -> pa.RecordBatch:
    chosen = np.flatnonzero(keep)
    commit_ts = records.commit_ts[chosen]
    times = (commit_ts >> TSO_LOGICAL_BITS) * 1000
    payloads = records.payloads if len(chosen) == len(records) else [records.payloads[i] for i in chosen.tolist()]
    columns: list[Any] = [
        _repeated(pump, len(chosen)),
        pa.array(types[chosen], pa.int32()),
        pa.nulls(len(chosen), pa.int8()),
        pa.array(records.start_ts[chosen], pa.int64()),
        pa.array(commit_ts, pa.int64()),
        pa.array(bucket[chosen], pa.int32()),
        pa.array(times, RAW.field("event_time").type, mask=commit_ts == 0),
        pa.array(records.first_seqs[chosen], mask=~(records.more | (records.first_seqs > 0))[chosen]),
        _binaries(payloads, pump),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def _binaries(values: Sequence[bytes | memoryview], pump: str) -> pa.BinaryArray:
    """``values`` as an Arrow array, copied only once: a growing builder costs twice as much."""
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    if ends[-1] > _MAX_INT32:
        raise ProtocolViolation(f"Pump {pump} delivered {ends[-1]} bytes in one run; an Arrow array holds at most 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def packed_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` (``stages.RAW``) as ``stages.PACKED``: one value per bucket for every few megabytes, in order."""
    yield from map(_by_bucket, gathered(filter(len, batches)))


def _by_bucket(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    bucket = table.column("bucket").to_numpy()
    if bucket.min() != bucket.max():
        order = np.argsort(bucket, kind="stable")
        table, bucket = table.take(pa.array(order)), bucket[order]
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    values = [packed(table.slice(a, b - a)) for a, b in zip(starts, [*starts[1:], len(bucket)], strict=True)]
    return packed_values(bucket[starts], values, [None] * len(values))


def clock_row(clock_ts: int) -> pa.RecordBatch:
    """A row of ``stages.PACKED`` that advances the watermark. It holds no records, because Spark may drop it as late."""
    return packed_values([0], [packed(RAW.empty_table())], [(clock_ts >> TSO_LOGICAL_BITS) * 1000])


def packed_values(bucket: Any, values: list[bytes], times: Sequence[int | None]) -> pa.RecordBatch:
    """``values`` as ``stages.PACKED``, with their ``bucket`` and ``event_time``."""
    columns = [pa.array(bucket, pa.int32()), pa.array(values, pa.binary()), pa.array(times, PACKED.field("event_time").type)]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def punctuation(pump: str, after_ts: int, upto_ts: int, bucket_ids: Iterable[int], clock_ts: int = 0, left_out: int = 0) -> pa.RecordBatch:
    """The control rows of a batch (after_ts, upto_ts], one per bucket; ``clock_ts``: the watermark's source, 0 = none.

    ``left_out``: pairing drops what committed up to this ts, although the span begins earlier; 0 = nothing. It is the payload, as text.
    """
    ids = list(bucket_ids)
    count = len(ids)
    clock = (clock_ts >> TSO_LOGICAL_BITS) * 1000 if clock_ts else None
    columns: list[Any] = [
        _repeated(pump, count),
        pa.nulls(count, pa.int32()),
        pa.array([int(ControlType.RESOLVED)] * count, pa.int8()),
        pa.array([after_ts] * count, pa.int64()),
        pa.array([upto_ts] * count, pa.int64()),
        pa.array(ids, pa.int32()),
        pa.array([clock] * count, RAW.field("event_time").type),
        pa.nulls(count, pa.int32()),
        pa.array([b"%d" % left_out if left_out else None] * count, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def loss(pump: str, wanted_ts: int, oldest_ts: int, text: str) -> pa.RecordBatch:
    """The control row that records that the span (wanted_ts, oldest_ts] of ``pump`` is lost."""
    columns: list[Any] = [
        pa.array([pump]),
        pa.nulls(1, pa.int32()),
        pa.array([int(ControlType.LOST)], pa.int8()),
        pa.array([wanted_ts], pa.int64()),
        pa.array([oldest_ts], pa.int64()),
        pa.array([0], pa.int32()),
        pa.nulls(1, RAW.field("event_time").type),
        pa.nulls(1, pa.int32()),
        pa.array([text.encode()], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def _repeated(text: str, count: int) -> Any:
    return pa.array([text] * count, pa.string())
