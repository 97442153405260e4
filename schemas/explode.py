"""Splits complete transactions into events: the step between pairing and decoding. Pure; needs no schema history.

Promises: a row change becomes one ``ROW_EVENT``, in execution order (``seq``). A DDL binlog becomes one ``DDL_EVENT``, a control row one
``CONTROL``. An invalid binlog raises ``Corruption`` with its commit_ts. ``schemas.row_changes`` handles the usual small transactions
together; DDLs and unusual binlogs are parsed one by one.
Source of the rules: rows.md 1 (``sequence`` interleaves three row lists), wire.md 2.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.row_changes import RowChanges, changes_of, row_events
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT


@dataclass(frozen=True, slots=True)
class Exploded:
    """The events of some transactions, each frame in their order."""

    rows: pa.RecordBatch
    """Schema ``ROW_EVENT``."""
    ddls: pa.RecordBatch
    """Schema ``DDL_EVENT``."""
    controls: pa.RecordBatch
    """Schema ``CONTROL``."""

    @property
    def num_rows(self) -> int:
        """How many there are, of all kinds."""
        return sum(frame.num_rows for frame in (self.rows, self.ddls, self.controls))

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return sum(frame.nbytes for frame in (self.rows, self.ddls, self.controls))


class _Runs:
    """Row events as runs of equal (commit_ts, op, table_id, schema_version, start_ts); one run per list of rows."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int, int, int, int, int, int]] = []
        self.rows: list[bytes] = []
        self.place = 0
        """The transaction that is added."""
        self.start_ts = 0
        """Its start_ts."""

    def add(self, commit_ts: int, op: int, table_id: int, version: int, first_seq: int, rows: Sequence[bytes]) -> int:
        self.rows += rows
        self.runs.append((commit_ts, op, table_id, version, first_seq, len(rows), self.place, self.start_ts))
        return first_seq + len(rows)

    def changes(self) -> RowChanges:
        runs = np.array(self.runs, dtype=np.int64).reshape(-1, 8)
        counts = runs[:, 5]
        starts = np.cumsum(counts) - counts
        commit_ts, op, table_id, version, place, start_ts = (np.repeat(runs[:, i], counts) for i in (0, 1, 2, 3, 6, 7))
        seq = np.arange(len(self.rows), dtype=np.int64) - np.repeat(starts - runs[:, 4], counts)
        return RowChanges(place, row_events((commit_ts, start_ts), seq, op, table_id, version, pa.array(self.rows, pa.binary())))


class _Ddls:
    """DDL binlogs, collected row by row: there are few."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, commit_ts: int, binlog: pb.Binlog) -> None:
        named = {"job_id": binlog.ddl_job_id, "schema_state": binlog.ddl_schema_state, "query": binlog.ddl_query}
        self.rows.append({"commit_ts": commit_ts, **named})

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(self.rows, schema=DDL_EVENT)


def explode(transactions: pa.RecordBatch) -> Exploded:
    """The events of ``transactions`` (schema ``TRANSACTION``), in their order.

    Raises:
        Corruption: a payload does not parse, or its sequence and its row lists disagree.
    """
    is_control = transactions.column("control").is_valid()
    controls = transactions.filter(is_control)
    commits = transactions.filter(pc.invert(is_control)) if controls.num_rows else transactions
    many, left = changes_of(commits)
    singly, ddls = _Runs(), _Ddls()
    rest = commits.take(pa.array(left)) if len(left) < commits.num_rows else commits
    columns = (rest.column(name).to_pylist() for name in ("start_ts", "commit_ts", "first_seq", "payload"))
    for place, start_ts, commit_ts, first_seq, payload in zip(left.tolist(), *columns, strict=True):
        singly.place, singly.start_ts = place, start_ts
        _explode_one(singly, ddls, commit_ts, first_seq or 0, payload)
    return Exploded(_in_order(many, singly.changes()), ddls.batch(), _controls(controls))


def _in_order(one: RowChanges, other: RowChanges) -> pa.RecordBatch:
    """The row events of both in the order of their transactions."""
    if not len(one.place) or not len(other.place):
        return one.events if len(one.place) else other.events
    order = np.argsort(np.concatenate([one.place, other.place]), kind="stable")
    return pa.concat_batches([one.events, other.events]).take(pa.array(order))


def _controls(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([rows.column(name) for name in ("control", "start_ts", "commit_ts", "payload")], schema=CONTROL)


def _explode_one(rows: _Runs, ddls: _Ddls, commit_ts: int, seq: int, payload: bytes | None) -> None:
    try:
        binlog = pb.Binlog.FromString(payload or b"")
        if binlog.ddl_job_id > 0:
            ddls.add(commit_ts, binlog)
            return
        value = pb.PrewriteValue.FromString(binlog.prewrite_value)
    except DecodeError as error:
        raise Corruption(f"the binlog of commit_ts {commit_ts} does not parse as protobuf: {error}") from error
    for mutation in value.mutations:
        seq = _explode_mutation(rows, commit_ts, value.schema_version, mutation, seq)


def _explode_mutation(out: _Runs, commit_ts: int, version: int, mutation: pb.TableMutation, seq: int) -> int:
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
        return out.add(commit_ts, used[0], mutation.table_id, version, seq, lists[used[0]])
    cursors = {op: iter(rows) for op, rows in lists.items()}
    for kind in sequence:
        row = next(cursors.get(kind, iter(())), None)
        if row is None:
            raise Corruption(
                f"table {mutation.table_id} at commit_ts {commit_ts}: sequence names operation {kind} more often than there are rows of it"
            )
        seq = out.add(commit_ts, kind, mutation.table_id, version, seq, (row,))
    return seq
