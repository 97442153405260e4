"""Applies a span too big for one transaction in parts, on the executors: plan, delete, write. [spark]

Promises: each part and phase is ONE target transaction that includes its marker: a part whose marker exists is skipped, so a task that
Spark runs twice, or a span that is replayed, has no effect the second time. All deletes of a span are committed before its first write.
Which rows form a part: ``sinks.engine.keyed``.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.engine.blocks import unpack
from pyspark_tidb_binlog.sinks.engine.fold import Mask, ends_of, part_numbers
from pyspark_tidb_binlog.sinks.engine.keyed import KEYED, KeyedEvents, Span
from pyspark_tidb_binlog.sinks.engine.spool import IN_MEMORY, RowSpool, Spool
from pyspark_tidb_binlog.sinks.mysql import lease, progress
from pyspark_tidb_binlog.sinks.mysql.checked import Effects, checked
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import kept_sessions
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits, plan_rows
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import Session, run_transaction
from pyspark_tidb_binlog.sinks.mysql.statements import Phase, Statement
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter

PLANNED = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("sql", pa.binary(), nullable=False),
        pa.field("detail", pa.binary(), nullable=False),
    ]
)
"""Phase ``write``: one write of one part, with its text and the rest of its ``Statement`` pickled. Phase ``delete``: the part's deletes are
done; ``rows`` is their number, ``sql`` is empty, ``detail`` holds the pickled findings."""

DONE = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("detail", pa.binary(), nullable=False),
    ]
)
"""The number of rows that one part wrote in one phase, and the pickled findings."""


@dataclass(frozen=True, slots=True)
class PartTarget:
    """What an executor needs to write a part. Picklable."""

    target: ShippedTarget
    apply: ApplyConfig
    lease: Lease
    after_ts: int
    upto_ts: int
    parts: int


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How executors plan a part. Picklable."""

    span: Span
    tables: Mapping[int, TableAt]
    flavour: Flavour
    table_filter: TableFilter
    limits: PlanLimits
    skipped_ts: frozenset[int]
    """commit_ts of the transactions to skip."""
    gone: frozenset[int]
    """Ids of tables whose rows are not written."""

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` that are to be planned."""
        inside = without(rows_between(rows, *self.span), "table_id", self.gone)
        return without(inside, "commit_ts", self.skipped_ts)


def planned(events: KeyedEvents, how: PartPlan, to: PartTarget) -> DataFrame:
    """The writes of each part (``PLANNED``), from keyed events between two barriers. Computing them also runs the part's deletes."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with RowSpool(KEYED) as spool:
            whole = spool.extend(how.chosen(unpack([batch], KEYED)) for batch in batches).table()
            numbers = whole.column("part").to_numpy()
            for part in np.unique(numbers).tolist():
                yield from _planned_part(part, _only(whole, numbers == part), how, to)

    return events.overlapping(how.span).mapInArrow(run, ddl_of(PLANNED))


def _planned_part(part: int, rows: pa.Table, how: PartPlan, to: PartTarget) -> Iterator[pa.RecordBatch]:
    """Runs one part's deletes and yields its writes (``PLANNED``). A part too big for memory is planned in subsets by key."""
    with Spool[Statement]() as deletes, Spool[Statement]() as writes:
        for subset in _subsets(rows):
            keys = subset.column("key").combine_chunks()
            plan = plan_rows(
                subset.select(ROW_EVENT.names), how.tables, how.limits, keys, flavour=how.flavour, table_filter=how.table_filter
            )
            deletes.extend(plan.deletes)
            writes.extend(plan.writes)
        deleted = _write_part(to, part, Phase.DELETE, deletes) if len(deletes) else Written()
        yield _row(PLANNED, part, Phase.DELETE.value, deleted.rows, b"", pickle.dumps(deleted.findings))
        for statement in writes:
            detail = pickle.dumps(replace(statement, sql=b""))
            yield _row(PLANNED, part, Phase.WRITE.value, statement.rows, statement.sql, detail)


def _subsets(rows: pa.Table) -> Iterator[pa.Table]:
    """``rows`` in subsets of about ``IN_MEMORY`` bytes, split by key; if several, with only the first and the last event of each row."""
    count = -(-rows.nbytes // IN_MEMORY)
    keys = rows.column("key").combine_chunks()
    if keys.null_count:
        raise _keyless_rows(rows)
    if count <= 1:
        yield rows.combine_chunks()
        return
    needed = ends_of(rows.select(["commit_ts", "seq", "op", "table_id", "key"]))
    # The part is a remainder of the same hash, so use its higher bits, which are independent of that.
    spread = part_numbers(rows.column("table_id").to_numpy(), keys, np.zeros(len(keys), np.bool_), 1 << 30) >> 12
    for number in range(count):
        yield _only(rows, needed & (spread % count == number)).combine_chunks()


def _only(rows: pa.Table, mask: Mask) -> pa.Table:
    """The rows selected by ``mask``, filtered batch by batch: filtering the whole table would first combine it into one array."""
    if bool(mask.all()):
        return rows
    found, at = [], 0
    for batch in rows.to_batches():
        found.append(batch.filter(pa.array(mask[at : at + batch.num_rows])))
        at += batch.num_rows
    return pa.Table.from_batches(found, rows.schema)


def _keyless_rows(rows: pa.Table) -> SchemaMismatch:
    first = rows.drop_columns(["row"]).filter(pc.is_null(rows.column("key"))).slice(0, 1).to_pylist()[0]
    return SchemaMismatch(
        f"table id {first['table_id']}: a row event at commit_ts {first['commit_ts']} (schema version {first['schema_version']}) has no "
        "identity, because the DDL history has no such table at that version; check that ddl-history is the history of this cluster and "
        "reaches back to the table's CREATE TABLE"
    )


def _row(schema: pa.Schema, *values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


def delete(plans: DataFrame) -> Written:
    """Plan every part and commit its deletes. ``plans`` (persisted) then holds the writes."""
    return _together(plans.filter(F.col("phase") == Phase.DELETE.value).select("rows", "detail").toArrow())


def _together(done: pa.Table) -> Written:
    findings = [finding for detail in done.column("detail").to_pylist() for finding in pickle.loads(detail)]
    return Written(sum(done.column("rows").to_pylist()), tuple(findings))


def write(plans: DataFrame, to: PartTarget) -> Written:
    """Run the writes of every part. Blocks until all are committed."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        planned = (row for batch in batches for row in batch.to_pylist())
        for part, rows in groupby(planned, key=itemgetter("part")):
            with Spool[Statement]() as spool:
                spool.extend(replace(pickle.loads(row["detail"]), sql=row["sql"]) for row in rows)
                done = _write_part(to, part, Phase.WRITE, spool)
            yield _row(DONE, part, done.rows, pickle.dumps(done.findings))

    return _together(plans.filter(F.col("phase") == Phase.WRITE.value).mapInArrow(run, ddl_of(DONE)).toArrow())


def _write_part(to: PartTarget, part: int, phase: Phase, statements: Iterable[Statement]) -> Written:
    """One transaction: check the lease, write the marker and the data. Does nothing when the marker exists."""
    mark = (to.lease.cluster_id, to.after_ts, to.upto_ts, part, to.parts, phase.value, to.apply.checkpoint_schema)

    def write_once(session: Session, effects: Effects) -> int:
        lease.check(session, to.lease)
        if not progress.claim_part(session, *mark):
            return 0
        rows = effects.run(statements)
        failpoints.point(f"before-part-{phase.value}-commit")
        return rows

    def work(session: Session) -> Written:
        return Written(*checked(session, to.apply, partial(write_once, session)))

    sessions = kept_sessions(to.target.target(), to.apply).use
    done = run_transaction(sessions, work, RetryPolicy(to.apply.retries, to.apply.retry_seconds))
    failpoints.point(f"after-part-{phase.value}")
    return done
