"""Splits complete transactions into events: the step between pairing and decoding. Pure; needs no schema history.

Promises: a row change becomes one ``ROW_EVENT``, in execution order (``seq``). A DDL binlog becomes one ``DDL_EVENT``, a control row one
``CONTROL``. An invalid binlog raises ``Corruption`` with its commit_ts. The usual small transactions are handled together, as columns, if there are many.
DDLs, unusual binlogs and those that contradict themselves are parsed one by one, and tests compare both ways.
Source of the rules: rows.md 1 (``sequence`` interleaves three row lists), wire.md 2.1 (``Binlog``, ``PrewriteValue``, ``TableMutation``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT
from pyspark_tidb_binlog.schemas.wire_lockstep import FEWEST, HUGE, Buffer, Ints, LockstepFields, Mask, of_binaries, taken, walk

# Keys: field number and wire type. Fields with other keys mean nothing here, nor to a parser.
_PREWRITE_VALUE, _JOB_ID = 0x2A, 0x38
_SCHEMA_VERSION, _MUTATION = 0x08, 0x12
_TABLE_ID, _SEQUENCE, _PACKED_SEQUENCE = 0x08, 0x38, 0x3A
_BYTE = 1 << 8
_NO_LIST = -1
_OP_OF_LIST = np.full(_BYTE, _NO_LIST, np.int64)
"""By the key of a list of rows."""
_OP_OF_LIST[[0x12, 0x1A, 0x32]] = (Op.INSERT, Op.UPDATE, Op.DELETE)


@dataclass(frozen=True, slots=True)
class Exploded:
    """The events of some transactions, each frame in their order."""

    rows: pa.RecordBatch
    """Schema ``ROW_EVENT``."""
    ddls: pa.RecordBatch
    """Schema ``DDL_EVENT``."""
    controls: pa.RecordBatch
    """Schema ``CONTROL``."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Row events of some of a batch's transactions, in their order."""

    place: Ints
    """The number of each event's transaction in the batch."""
    events: pa.RecordBatch
    """Schema ``ROW_EVENT``."""


Run = tuple[int, int, int, int, int, int, int, int]
"""Rows of one list: commit_ts, operation, table id, schema version, the first one's seq, their number, the transaction's number, its start_ts."""


def explode(transactions: pa.RecordBatch) -> Exploded:
    """Return the events of ``transactions`` (schema ``TRANSACTION``), in their order.

    Raises:
        Corruption: a payload does not parse, or its sequence and its row lists disagree.
    """
    is_control = transactions.column("control").is_valid()
    controls = transactions.filter(is_control)
    commits = transactions.filter(pc.invert(is_control)) if controls.num_rows else transactions
    many, left = changes_of(commits) if commits.num_rows >= FEWEST else (None, np.arange(commits.num_rows))
    runs, images, ddls = list[Run](), list[bytes](), list[dict[str, Any]]()
    rest = commits.take(pa.array(left)) if len(left) < commits.num_rows else commits
    columns = (rest.column(name).to_pylist() for name in ("start_ts", "commit_ts", "first_seq", "payload"))
    for place, start_ts, commit_ts, first_seq, payload in zip(left.tolist(), *columns, strict=True):
        parsed, seq = _parsed(commit_ts, payload), first_seq or 0
        if isinstance(parsed, dict):
            ddls.append(parsed)
            continue
        for mutation in parsed.mutations:
            for op, rows_of in _lists(commit_ts, mutation):
                runs.append((commit_ts, op, mutation.table_id, parsed.schema_version, seq, len(rows_of), place, start_ts))
                images += rows_of
                seq += len(rows_of)
    changes = _changes(runs, images)
    rows = changes.events if many is None else _in_order(many, changes)
    frame = pa.RecordBatch.from_arrays([controls.column(name) for name in ("control", "start_ts", "commit_ts", "payload")], schema=CONTROL)
    return Exploded(rows, pa.RecordBatch.from_pylist(ddls, schema=DDL_EVENT), frame)


def _in_order(one: RowChanges, other: RowChanges) -> pa.RecordBatch:
    """Return the row events of both in the order of their transactions."""
    if not len(one.place) or not len(other.place):
        return one.events if len(one.place) else other.events
    order = np.argsort(np.concatenate([one.place, other.place]), kind="stable")
    return pa.concat_batches([one.events, other.events]).take(pa.array(order))


def _parsed(commit_ts: int, payload: bytes | None) -> dict[str, Any] | pb.PrewriteValue:
    """A DDL as a row of ``DDL_EVENT``, or the row changes."""
    try:
        binlog = pb.Binlog.FromString(payload or b"")
        if binlog.ddl_job_id > 0:
            named = {"job_id": binlog.ddl_job_id, "schema_state": binlog.ddl_schema_state, "query": binlog.ddl_query}
            return {"commit_ts": commit_ts, **named}
        return pb.PrewriteValue.FromString(binlog.prewrite_value)
    except DecodeError as error:
        raise Corruption(f"the binlog of commit_ts {commit_ts} does not parse as protobuf: {error}") from error


def _lists(commit_ts: int, mutation: pb.TableMutation) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Operations and their rows in the order of execution: a list as a whole where the mutation has only one."""
    # Slices are lists, which are made many times faster than the fields' iterators run.
    lists = {int(Op.INSERT): mutation.inserted_rows[:], int(Op.UPDATE): mutation.updated_rows[:], int(Op.DELETE): mutation.deleted_rows[:]}
    used = [op for op, rows in lists.items() if rows]
    sequence: Sequence[int] = mutation.sequence[:]
    total = sum(map(len, lists.values()))
    if total != len(sequence):
        raise Corruption(
            f"table {mutation.table_id} at commit_ts {commit_ts}: sequence names {len(sequence)} operations, the row lists hold {total}"
        )
    if len(used) == 1 and sequence.count(used[0]) == total:
        yield used[0], lists[used[0]]
        return
    cursors = {op: iter(rows) for op, rows in lists.items()}
    for kind in sequence:
        row = next(cursors.get(kind, iter(())), None)
        if row is None:
            raise Corruption(
                f"table {mutation.table_id} at commit_ts {commit_ts}: sequence names operation {kind} more often than there are rows of it"
            )
        yield kind, (row,)


def _changes(runs: Sequence[Run], images: Sequence[bytes]) -> RowChanges:
    columns = np.array(runs, dtype=np.int64).reshape(-1, 8)
    counts = columns[:, 5]
    starts = np.cumsum(counts) - counts
    commit_ts, op, table_id, version, place, start_ts = (np.repeat(columns[:, i], counts) for i in (0, 1, 2, 3, 6, 7))
    seq = np.arange(len(images), dtype=np.int64) - np.repeat(starts - columns[:, 4], counts)
    return RowChanges(place, row_events((commit_ts, start_ts), seq, op, table_id, version, pa.array(images, pa.binary())))


def row_events(ts: tuple[Ints, Ints], seq: Ints, op: Ints, table_id: Ints, version: Ints, rows: pa.BinaryArray) -> pa.RecordBatch:
    """These columns as ``ROW_EVENT``; ``ts``: commit_ts and start_ts."""
    commit_ts, start_ts = ts
    numbers = (commit_ts, seq.astype(np.int32), op.astype(np.int32), table_id, version)
    return pa.RecordBatch.from_arrays([*map(pa.array, numbers), rows, pa.array(start_ts)], schema=ROW_EVENT)


# Many usual transactions at once.


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of many mutations and what their sequences say, both in the order of the buffer."""

    mutation: Ints
    op: Ints
    begin: Ints
    end: Ints
    sequence_of: Ints
    """The mutation of each operation in a sequence."""
    sequence: Ints


def changes_of(commits: pa.RecordBatch) -> tuple[RowChanges, Ints]:
    """Return the row changes of ``commits`` (``TRANSACTION``, no control rows), and the numbers of the transactions that are left to a parser."""
    count = commits.num_rows
    buffer, begin, end = of_binaries(commits.column("payload"))
    usual = np.ones(count, np.bool_)
    binlogs = _walked(buffer, begin, end, np.arange(count), usual)
    values = _prewrite_values(binlogs, usual)
    parts = _walked(buffer, binlogs.begin[values], binlogs.end[values], binlogs.message[values], usual)
    version, mutations = _mutations(parts, binlogs.message[values], usual)
    binlog = binlogs.message[values][parts.message[mutations]]
    lists = _walked(buffer, parts.begin[mutations], parts.end[mutations], binlog, usual, _SEQUENCE)
    table_id, rows = _rows(buffer, lists, parts.end[mutations], binlog, usual)
    order = _in_sequence(rows)
    if order is None:
        return RowChanges(np.zeros(0, np.int64), pa.RecordBatch.from_pylist([], schema=ROW_EVENT)), np.arange(count)
    commit_ts, start_ts, first_seq = (
        commits.column(n).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) for n in ("commit_ts", "start_ts", "first_seq")
    )
    place = binlog[rows.mutation]
    counts = np.bincount(place, minlength=count)
    seq = np.arange(len(place)) - (np.cumsum(counts) - counts - first_seq)[place]
    images = taken(buffer, rows.begin, rows.end, order)
    events = row_events((commit_ts[place], start_ts[place]), seq, rows.sequence, table_id[rows.mutation], version[place], images)
    return RowChanges(place, events), np.flatnonzero(~usual)


def _walked(buffer: Buffer, begin: Ints, end: Ints, binlog: Ints, usual: Mask, stop: int = 0) -> LockstepFields:
    """The fields of messages that are parts of ``binlog``; binlogs that cannot be walked are no longer ``usual``."""
    found = walk(buffer, begin, end, stop)
    usual[binlog[~found.whole]] = False
    return found


def _refuse(usual: Mask, odd: Mask, binlog: Ints) -> None:
    """Binlogs with an ``odd`` field are no longer ``usual``."""
    if odd.any():
        usual[binlog[odd]] = False


def _prewrite_values(fields: LockstepFields, usual: Mask) -> Ints:
    """Which fields of binlogs are the Prewrite values of ``usual`` ones. DDLs are none, nor are those that have two."""
    message, key = fields.message, fields.key
    _refuse(usual, (key == _JOB_ID) & (fields.value != 0), message)
    is_value = key == _PREWRITE_VALUE
    usual &= np.bincount(message[is_value], minlength=len(usual)) <= 1
    return np.flatnonzero(is_value & usual[message])


def _mutations(fields: LockstepFields, binlog: Ints, usual: Mask) -> tuple[Ints, Ints]:
    """The schema version of each binlog, and which fields of Prewrite values are mutations of ``usual`` ones."""
    version = np.zeros(len(usual), np.int64)
    is_version = fields.key == _SCHEMA_VERSION
    of = binlog[fields.message]
    _refuse(usual, is_version & (fields.value == HUGE), of)
    version[of[is_version]] = fields.value[is_version]  # of two the last, like a parser
    return version, np.flatnonzero((fields.key == _MUTATION) & usual[of])


def _rows(buffer: Buffer, fields: LockstepFields, end: Ints, binlog: Ints, usual: Mask) -> tuple[Ints, _Rows]:
    """The table of each mutation, and the rows and sequences of those of ``usual`` binlogs."""
    table_id = np.zeros(len(binlog), np.int64)
    is_table = fields.key == _TABLE_ID
    _refuse(usual, (fields.key == _PACKED_SEQUENCE) | (is_table & (fields.value == HUGE)), binlog[fields.message])
    table_id[fields.message[is_table]] = fields.value[is_table]
    # What is left of a mutation is its sequence: a key and an operation, a byte each.
    size = np.where(fields.whole, end - fields.rest, 0)
    _refuse(usual, size % 2 != 0, binlog)
    counts = size // 2
    sequence_of = np.repeat(np.arange(len(binlog)), counts)
    at = 2 * np.arange(len(sequence_of)) + (fields.rest - 2 * (np.cumsum(counts) - counts))[sequence_of]
    sequence = buffer.bytes[at + 1].astype(np.int64)
    _refuse(usual, buffer.bytes[at] != _SEQUENCE, binlog[sequence_of])
    kept = usual[binlog]
    op = _OP_OF_LIST[fields.key]
    row = np.flatnonzero((op != _NO_LIST) & kept[fields.message])
    if not kept[sequence_of].all():
        sequence_of, sequence = (a[kept[sequence_of]] for a in (sequence_of, sequence))
    return table_id, _Rows(fields.message[row], op[row], fields.begin[row], fields.end[row], sequence_of, sequence)


def _in_sequence(rows: _Rows) -> Ints | None:
    """The numbers of the rows in the order of the sequences; None if a sequence disagrees with the lists of its mutation."""
    lists, sequence = (mutation * _BYTE + op for mutation, op in ((rows.mutation, rows.op), (rows.sequence_of, rows.sequence)))
    by_list, by_sequence = _sorted(lists), _sorted(sequence)
    if not np.array_equal(lists[by_list], sequence[by_sequence]):
        return None
    order = np.empty_like(by_list)
    order[by_sequence] = by_list
    return order


def _sorted(values: Ints) -> Ints:
    """The order in which ``values`` ascend, equal ones as they are."""
    return np.arange(len(values)) if bool((np.diff(values) >= 0).all()) else np.argsort(values, kind="stable")
