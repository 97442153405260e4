"""A span too big for one transaction, applied by the executors in parts: key, shuffle, plan, delete, write. [spark]

Promises: the part of a row is a fixed function of its table and key, so a replay with the same number of parts finds the same
rows in the same part. Each part and phase is ONE target transaction that also holds its marker: a part whose marker is there
is passed over, so a task that Spark runs twice, or a span that is replayed, changes nothing twice.
All deletes of a span are committed before its first write.

The parts are those of clustered tables by key; a table whose rows are found by ``_tidb_rowid`` lies wholly in one part,
because it may have no key in the target, and two connections deleting from it would wait for each other.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf import faults
from conf.model import ApplyConfig
from schemas.errors import SchemaMismatch
from schemas.explode import explode
from schemas.findings import Finding
from schemas.history import SchemaHistory, TableAt
from schemas.stages import ROW_EVENT, ddl_of
from sinks.engine.batch import PARTIAL, control_mask, rows_between, summarise, summary_rows, without
from sinks.engine.blocks import BLOCK, CONTROLS, ROWS, pack, slices, unpack
from sinks.engine.fold import ends_of, part_numbers
from sinks.engine.spool import IN_MEMORY, RowSpool, Spool
from sinks.mysql import lease, progress
from sinks.mysql.checked import Effects, checked
from sinks.mysql.dialect import Flavour
from sinks.mysql.lease import Lease
from sinks.mysql.password import ShippedTarget
from sinks.mysql.patience import Patience
from sinks.mysql.plan import PlanLimits, plan_rows, row_identities
from sinks.mysql.session import Session, connect, run_transaction
from sinks.mysql.statements import Phase, Statement
from sinks.routing.route import Route

KEYED = ROW_EVENT.append(pa.field("key", pa.binary())).append(pa.field("part", pa.int32(), nullable=False))
"""A row event with its row's identity and its part. ``key`` is null for a table that the history does not know."""

PLANNED = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("sql", pa.binary(), nullable=False),
        pa.field("detail", pa.binary(), nullable=False),
    ]
)
"""One write of one part: its text and, pickled, the rest of its ``Statement``. And, of phase ``delete``, that the part's deletes are done:
their ``rows``, no ``sql``, and pickled what was found."""

Span = tuple[int, int]
"""(after_ts exclusive, upto_ts inclusive)."""

DONE = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("detail", pa.binary(), nullable=False),
    ]
)
"""What one part wrote in one phase, and pickled what was found."""


@dataclass(frozen=True, slots=True)
class Written:
    """What parts did in one phase."""

    rows: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class PartTarget:
    """What an executor needs to write a part: picklable."""

    target: ShippedTarget
    apply: ApplyConfig
    lease: Lease
    from_ts: int
    to_ts: int
    parts: int


def exploded_upto(transactions: DataFrame, rows: int, size: int) -> DataFrame:
    """Blocks of row events, but each partition stops soon after ``rows`` of them or ``size`` bytes: enough to see that the batch is bigger than that."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen_rows = seen_bytes = 0
        for piece in slices(batches):
            events = explode(piece)
            seen_rows, seen_bytes = seen_rows + events.num_rows, seen_bytes + events.nbytes
            yield from pack(ROWS, 0, pa.Table.from_batches([events]))
            if seen_rows > rows or seen_bytes > size:
                break
        # The rest is still to be taken: the JVM waits for a reader.
        for _ in batches:
            pass

    return transactions.mapInArrow(run, ddl_of(BLOCK))


def keyed(transactions: DataFrame, history: Broadcast[SchemaHistory], parts: int) -> DataFrame:
    """Blocks of row events with keys, each part in the Spark partition of its number; and blocks of controls with their summaries."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in slices(batches):
            events = pa.Table.from_batches([explode(piece)])
            is_control = control_mask(events)
            yield from pack(CONTROLS, 0, pa.concat_tables([events.filter(is_control), summary_rows(events)]))
            rows = with_keys(events.filter(pc.invert(is_control)).combine_chunks(), history.value, parts)
            for part in range(parts):
                yield from pack(ROWS, part, rows.filter(pc.equal(rows.column("part"), part)))

    return transactions.mapInArrow(run, ddl_of(BLOCK)).repartitionById(parts, "part")


def with_keys(rows: pa.Table, history: SchemaHistory, parts: int) -> pa.Table:
    """Row changes (``ROW_EVENT``) as ``KEYED``; pure. The identity of a row does not depend on the schema version."""
    versions = rows.column("schema_version").to_numpy()
    table_ids = rows.column("table_id").to_numpy()
    tables: dict[int, TableAt] = {}
    for table_id in np.unique(table_ids).tolist():
        newest = int(versions[table_ids == table_id].max())
        if (found := history.table_at(table_id, newest)) is not None:
            tables[table_id] = found
    known = np.isin(table_ids, list(tables))
    with_key, without = rows.filter(pa.array(known)), rows.filter(pa.array(~known))
    keys = row_identities(with_key, tables)
    unclustered = [i for i, t in tables.items() if not (t.info.pk_is_handle or t.info.is_common_handle)]
    numbers = part_numbers(table_ids[known], keys, np.isin(table_ids[known], unclustered), parts)
    with_key = with_key.append_column("key", keys).append_column("part", pa.array(numbers))
    nothing = pa.nulls(without.num_rows, pa.binary())
    without = without.append_column("key", nothing).append_column("part", pa.array(np.zeros(without.num_rows, np.int32)))
    return pa.concat_tables([with_key, without]).cast(KEYED)


def collected(blocks: DataFrame) -> pa.Table:
    """The events of ``blocks`` (``ROW_EVENT``) on the driver; runs one Spark job."""
    return unpack(blocks.toArrow().to_batches(), ROW_EVENT)


def controls(blocks: DataFrame) -> pa.Table:
    """The DDLs, the punctuation and the summaries of what came with them; runs one Spark job."""
    return collected(blocks.filter(F.col("kind") == CONTROLS))


def summaries(blocks: DataFrame, span: Span, ddl_ts: Sequence[int]) -> pa.Table:
    """The partial summaries of the row changes in ``span``; runs one Spark job."""
    bounds = list(ddl_ts)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from summarise(rows_between(unpack([batch], ROW_EVENT), *span), bounds).to_batches()

    return _overlapping(blocks, span).mapInArrow(run, ddl_of(PARTIAL)).toArrow()


def rows_in(blocks: DataFrame, span: Span) -> pa.Table:
    """The row changes in ``span`` (``ROW_EVENT``) on the driver; runs one Spark job."""
    return rows_between(collected(_overlapping(blocks, span)), *span)


def _overlapping(blocks: DataFrame, span: Span) -> DataFrame:
    after_ts, upto_ts = span
    return blocks.filter((F.col("kind") == ROWS) & (F.col("last_ts") > after_ts) & (F.col("first_ts") <= upto_ts))


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How executors plan a part: picklable."""

    span: Span
    tables: Mapping[int, TableAt]
    flavour: Flavour
    route: Route
    limits: PlanLimits
    skipped_ts: frozenset[int]
    """Transactions that are passed over."""
    gone: frozenset[int]
    """Tables whose rows have nowhere to go."""

    def chosen(self, rows: pa.Table) -> pa.Table:
        """What of ``rows`` is to be planned."""
        inside = without(rows_between(rows, *self.span), "table_id", self.gone)
        return without(inside, "commit_ts", self.skipped_ts)


def planned(blocks: DataFrame, how: PartPlan, to: PartTarget) -> DataFrame:
    """The writes of each part (``PLANNED``), from keyed blocks between two barriers. Making a part's row runs its deletes, in their own transaction."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with RowSpool(KEYED) as spool:
            whole = spool.extend(how.chosen(unpack([batch], KEYED)) for batch in batches).table()
            numbers = whole.column("part").to_numpy()
            for part in np.unique(numbers).tolist():
                yield from _planned_part(part, _only(whole, numbers == part), how, to)

    return _overlapping(blocks, how.span).mapInArrow(run, ddl_of(PLANNED))


def _planned_part(part: int, rows: pa.Table, how: PartPlan, to: PartTarget) -> Iterator[pa.RecordBatch]:
    """One part's deletes run, its writes as rows of ``PLANNED``. A part too big for memory is planned subset by subset; a row's events stay together."""
    with Spool[Statement]() as deletes, Spool[Statement]() as writes:
        for subset in _subsets(rows):
            keys = subset.column("key").combine_chunks()
            plan = plan_rows(subset.select(ROW_EVENT.names), how.tables, how.limits, keys, flavour=how.flavour, route=how.route)
            deletes.extend(plan.deletes)
            writes.extend(plan.writes)
        deleted = _write_part(to, part, Phase.DELETE, deletes) if len(deletes) else Written()
        yield _row(PLANNED, part, Phase.DELETE.value, deleted.rows, b"", pickle.dumps(deleted.findings))
        for statement in writes:
            detail = pickle.dumps(replace(statement, sql=b""))
            yield _row(PLANNED, part, Phase.WRITE.value, statement.rows, statement.sql, detail)


def _subsets(rows: pa.Table) -> Iterator[pa.Table]:
    """``rows`` in subsets of about ``IN_MEMORY`` bytes, by their keys; of a row that is in many events only the first and the last one."""
    count = -(-rows.nbytes // IN_MEMORY)
    keys = rows.column("key").combine_chunks()
    if keys.null_count:
        raise _keyless_rows(rows)
    if count <= 1:
        yield rows.combine_chunks()
        return
    needed = ends_of(rows.select(["commit_ts", "seq", "op", "table_id", "key"]))
    # The part is a remainder of the same hash, which its upper bits do not depend on.
    spread = part_numbers(rows.column("table_id").to_numpy(), keys, np.zeros(len(keys), np.bool_), 1 << 30) >> 12
    for number in range(count):
        yield _only(rows, needed & (spread % count == number)).combine_chunks()


def _only(rows: pa.Table, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
    """The rows of ``mask``, batch by batch: a filter of the whole would first make one array of it."""
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
        f"table id {first['table_id']}: a row event at commit_ts {first['commit_ts']} (schema version {first['schema_version']}) has no identity, because "
        "the DDL history has no such table at that version; check that ddl-history is the history of this cluster and reaches back to the table's CREATE TABLE"
    )


def _row(schema: pa.Schema, *values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([v], f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


def delete(plans: DataFrame) -> Written:
    """Have every part planned and its deletes committed. ``plans`` (persisted) then holds the writes."""
    return _together(plans.filter(F.col("phase") == Phase.DELETE.value).select("rows", "detail").toArrow())


def _together(done: pa.Table) -> Written:
    findings = [finding for detail in done.column("detail").to_pylist() for finding in pickle.loads(detail)]
    return Written(sum(done.column("rows").to_pylist()), tuple(findings))


def write(plans: DataFrame, to: PartTarget) -> Written:
    """Run the writes, part by part. Blocks until every part is committed."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        planned = (row for batch in batches for row in batch.to_pylist())
        for part, rows in groupby(planned, key=itemgetter("part")):
            with Spool[Statement]() as spool:
                spool.extend(replace(pickle.loads(row["detail"]), sql=row["sql"]) for row in rows)
                done = _write_part(to, part, Phase.WRITE, spool)
            yield _row(DONE, part, done.rows, pickle.dumps(done.findings))

    return _together(plans.filter(F.col("phase") == Phase.WRITE.value).mapInArrow(run, ddl_of(DONE)).toArrow())


def _write_part(to: PartTarget, part: int, phase: Phase, statements: Iterable[Statement]) -> Written:
    """One transaction: the lease, the marker and the data. Nothing when the marker is there already."""
    mark = (to.lease.cluster_id, to.from_ts, to.to_ts, part, to.parts, phase.value, to.apply.checkpoint_schema)

    def write_once(session: Session, effects: Effects) -> int:
        lease.check(session, to.lease)
        if not progress.claim_part(session, *mark):
            return 0
        rows = effects.run(statements)
        faults.point(f"before-part-{phase.value}-commit")
        return rows

    def work(session: Session) -> Written:
        return Written(*checked(session, to.apply, partial(write_once, session)))

    done = run_transaction(lambda: connect(to.target.target(), to.apply), work, Patience(to.apply.retries, to.apply.retry_seconds))
    faults.point(f"after-part-{phase.value}")
    return done
