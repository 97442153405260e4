"""Complete transactions to row events: the step between pairing and decoding. Pure; needs no schema history.

Promises: one ``ROW_EVENT`` per row change in execution order (``seq``), one per DDL binlog, and the punctuation passed
through; an invalid binlog raises ``Corruption`` naming its commit_ts. Only protobuf parsing and list concatenation run per
transaction; the columns are built as a whole.
Source of the rules: rows.md 1 (``sequence`` interleaves three row lists), wire.md 2.1.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from schemas.errors import Corruption
from schemas.events import Op
from schemas.proto import binlog_pb2 as pb
from schemas.stages import ROW_EVENT


class _Runs:
    """Row events as runs of equal (commit_ts, op, table_id, schema_version); one run per list of rows."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int, int, int, int, int]] = []
        self.rows: list[bytes | None] = []

    def add(self, commit_ts: int, op: int, table_id: int, version: int, first_seq: int, rows: Iterable[bytes | None]) -> int:
        before = len(self.rows)
        self.rows.extend(rows)
        count = len(self.rows) - before
        self.runs.append((commit_ts, op, table_id, version, first_seq, count))
        return first_seq + count

    def batch(self) -> pa.RecordBatch:
        runs = np.array(self.runs, dtype=np.int64).reshape(-1, 6)
        counts = runs[:, 5]
        starts = np.cumsum(counts) - counts
        commit_ts, op, table_id, version = (np.repeat(runs[:, i], counts) for i in range(4))
        seq = np.arange(len(self.rows), dtype=np.int64) - np.repeat(starts, counts) + np.repeat(runs[:, 4], counts)
        columns: list[Any] = [
            pa.array(commit_ts),
            pa.array(seq.astype(np.int32)),
            pa.array(op.astype(np.int32)),
            pa.array(table_id),
            pa.array(version),
            pa.array(self.rows, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROW_EVENT)


def explode(transactions: pa.RecordBatch) -> pa.RecordBatch:
    """Row events of ``transactions`` (schema ``TRANSACTION``), in their order.

    Raises:
        Corruption: a payload does not parse, or its sequence and its row lists disagree.
    """
    out = _Runs()
    starts = transactions.column("start_ts").to_pylist()
    commits = transactions.column("commit_ts").to_pylist()
    types = transactions.column("tp").to_pylist()
    firsts = transactions.column("first_seq").to_pylist()
    payloads = transactions.column("payload").to_pylist()
    for tp, start_ts, commit_ts, first_seq, payload in zip(types, starts, commits, firsts, payloads, strict=True):
        if tp in (Op.RESOLVED, Op.LOST):
            out.add(commit_ts, tp, 0, start_ts, 0, (payload,))
        else:
            _explode_one(out, commit_ts, first_seq or 0, payload)
    return out.batch()


def _explode_one(out: _Runs, commit_ts: int, seq: int, payload: bytes | None) -> None:
    try:
        binlog = pb.Binlog.FromString(payload or b"")
        if binlog.ddl_job_id > 0:
            out.add(commit_ts, Op.DDL, binlog.ddl_job_id, binlog.ddl_schema_state, 0, (binlog.ddl_query,))
            return
        value = pb.PrewriteValue.FromString(binlog.prewrite_value)
    except DecodeError as error:
        raise Corruption(f"the binlog of commit_ts {commit_ts} does not parse as protobuf: {error}") from error
    for mutation in value.mutations:
        seq = _explode_mutation(out, commit_ts, value.schema_version, mutation, seq)


def _explode_mutation(out: _Runs, commit_ts: int, version: int, mutation: pb.TableMutation, seq: int) -> int:
    lists = {Op.INSERT: mutation.inserted_rows, Op.UPDATE: mutation.updated_rows, Op.DELETE: mutation.deleted_rows}
    used = [op for op, rows in lists.items() if rows]
    total = sum(len(lists[op]) for op in used)
    if total != len(mutation.sequence):
        raise Corruption(
            f"table {mutation.table_id} at commit_ts {commit_ts}: sequence names {len(mutation.sequence)} operations, the row lists hold {total}"
        )
    if len(used) == 1 and set(mutation.sequence) == {int(used[0])}:
        return out.add(commit_ts, used[0], mutation.table_id, version, seq, lists[used[0]])
    cursors: dict[int, Iterator[bytes]] = {int(op): iter(rows) for op, rows in lists.items()}
    for kind in mutation.sequence:
        row = next(cursors.get(kind, iter(())), None)
        if row is None:
            raise Corruption(
                f"table {mutation.table_id} at commit_ts {commit_ts}: sequence names operation {kind} more often than there are rows of it"
            )
        seq = out.add(commit_ts, kind, mutation.table_id, version, seq, (row,))
    return seq
