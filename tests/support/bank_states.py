"""What the two tables of the recorded case ``bank`` held after every commit, taken from the binlogs alone. Pure.

Promises: independent of folding, planning and SQL: row changes are replayed one by one in commit order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase
from pyspark_tidb_binlog.schemas.events import BinlogType, Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.reference_decoder import new_images, old_images
from pyspark_tidb_binlog.schemas.stages import TRANSACTION

TOTAL = 400_000
"""``sum(checking.balance) + sum(savings.balance)`` once both tables are filled."""

Balances = dict[tuple[str, int], int]
"""(table, id) -> balance."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row: gone where ``balance`` is None."""

    commit_ts: int
    seq: int
    half: int
    """0 = the old image, 1 = the new one."""
    table: str
    id: int
    balance: int | None


def bank_changes(case: RecordedCase, history: SchemaHistory) -> list[Change]:
    """All changes of the case in order."""
    events = explode(_transactions(case)).rows
    found: list[Change] = []
    for table_id in pc.unique(events.column("table_id")).to_pylist():
        rows = events.filter(pc.equal(events.column("table_id"), table_id))
        versions = rows.column("schema_version").to_numpy()
        table = history.table_at(table_id, int(versions.max()))
        assert table is not None
        for half, images, absent in ((0, old_images, Op.INSERT), (1, new_images, Op.DELETE)):
            wanted = rows.filter(pc.not_equal(rows.column("op"), int(absent)))
            ops, payload = wanted.column("op").to_numpy(), wanted.column("row")
            image = images(table, ops, payload, wanted.column("schema_version").to_numpy())
            places = zip(wanted.column("commit_ts").to_pylist(), wanted.column("seq").to_pylist(), strict=True)
            values = zip(image.column("id").to_pylist(), image.column("balance").to_pylist(), strict=True)
            for (commit_ts, seq), (row_id, balance) in zip(places, values, strict=True):
                found.append(Change(commit_ts, seq, half, table.name, row_id, balance if half else None))
    return sorted(found, key=lambda change: (change.commit_ts, change.seq, change.half))


def states_at(changes: list[Change], ascending: Iterable[int]) -> Iterator[Balances]:
    """The content once everything up to each of these timestamps is in; the same dictionary each time."""
    rows: Balances = {}
    place = 0
    for commit_ts in ascending:
        while place < len(changes) and changes[place].commit_ts <= commit_ts:
            change = changes[place]
            if change.balance is None:
                del rows[change.table, change.id]
            else:
                rows[change.table, change.id] = change.balance
            place += 1
        yield rows


def _transactions(case: RecordedCase) -> pa.RecordBatch:
    binlogs = [b for log in case.pumps for b in map(binlog_pb2.Binlog.FromString, log)]
    rows = [
        {"start_ts": b.start_ts, "commit_ts": b.commit_ts, "payload": b.SerializeToString()}
        for b in sorted(binlogs, key=lambda b: b.commit_ts)
        if b.tp == BinlogType.COMMIT and not b.ddl_job_id and case.start_ts < b.commit_ts <= case.end_ts
    ]
    (batch,) = pa.Table.from_pylist(rows, schema=TRANSACTION).to_batches()
    return batch
