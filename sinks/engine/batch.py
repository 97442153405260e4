"""A batch on the driver, before decoding: its events if they are few, its span, its DDLs, and which tables it touches at which schema version. Pure.

Promises: ``summarise`` may run on any split of the batch, and ``merge`` of the results gives the summary of the whole. So
executors summarise their partitions, and the driver receives only a few rows.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, SchemaMismatch
from pyspark_tidb_binlog.schemas.events import ControlType, as_time
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.packed import gathered, unpacked
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, ROW_SUMMARY, TRANSACTION
from pyspark_tidb_binlog.sinks.engine.choice import NOTHING_LEFT_OUT, LeftOut
from pyspark_tidb_binlog.sinks.engine.segments import DdlEvent, TableActivity

PARTIAL = ROW_SUMMARY.append(pa.field("interval", pa.int64(), nullable=False))
"""A summary of the row changes between two DDL binlogs; ``interval`` counts the DDL binlogs with a lower commit_ts."""
_SLICE = 2000
"""Transactions exploded at a time: a few megabytes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """All events of a batch."""

    rows: pa.Table
    """``ROW_EVENT``"""
    ddls: pa.Table
    """``DDL_EVENT``"""
    controls: pa.Table
    """``CONTROL``"""


def exploded_upto(values: pa.Table, events: int, size: int, left_out: LeftOut = NOTHING_LEFT_OUT) -> Collected | None:
    """The events of ``values`` (``TRANSACTIONS``); None if a value is empty, or they are more than one of the limits."""
    if pc.min(pc.binary_length(values.column("transactions"))).as_py() == 0:
        return None
    frames = [[schema.empty_table()] for schema in (ROW_EVENT, DDL_EVENT, CONTROL)]
    count = held = 0
    for piece in slices(values.to_batches()):
        exploded = explode(piece)
        rows, *others = (pa.Table.from_batches([frame]) for frame in (exploded.rows, exploded.ddls, exploded.controls))
        for tables, frame in zip(frames, (left_out.read(rows) if left_out.unread else rows, *others), strict=True):
            tables.append(frame)
            count, held = count + frame.num_rows, held + frame.nbytes
        if count > events or held > size:
            return None
    return Collected(*map(pa.concat_tables, frames))


def slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` (``stages.TRANSACTIONS``) as batches of ``TRANSACTION`` that are small enough to be exploded at once.

    Small values come together: those of a live stream have a hundred transactions each, and a round costs milliseconds.
    """
    values = chain.from_iterable(batch.column("transactions") for batch in batches)
    for few in gathered((unpacked([value], TRANSACTION) for value in values), most_rows=_SLICE):
        yield from pa.concat_tables(few).combine_chunks().to_batches(max_chunksize=_SLICE)


@dataclass(frozen=True, slots=True)
class Controls:
    """The punctuation and the DDL binlogs of a batch: its span (after_ts, upto_ts] and its DDLs by commit_ts."""

    after_ts: int
    upto_ts: int
    ddls: tuple[DdlEvent, ...]
    findings: tuple[Finding, ...] = ()
    """Lost binlogs: those that the Pumps no longer hold."""

    @property
    def barriers(self) -> list[int]:
        """commit_ts of the DDLs that rows are applied before, ascending."""
        return [d.commit_ts for d in self.ddls if not d.is_setval]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The row changes of a batch: which tables they touch, by first commit_ts, and its numbers of row events and transactions."""

    tables: tuple[TableActivity, ...]
    events: int
    bytes: int
    """Size of the row images."""
    transactions: int


def controls_of(controls: pa.Table, ddls: pa.Table) -> Controls:
    """Read ``controls`` (schema ``CONTROL``) and ``ddls`` (``DDL_EVENT``) of a batch.

    Raises:
        ProtocolViolation: the batch carries no punctuation, or punctuations of different spans.
    """
    spans: set[tuple[int, int]] = set()
    findings: list[Finding] = []
    for control in controls.to_pylist():
        if control["control"] == ControlType.RESOLVED:
            spans.add((control["after_ts"], control["upto_ts"]))
        else:
            findings.append(Finding(FindingKind.LOST, _text(control["text"]), commit_ts=control["upto_ts"]))
    if len(spans) != 1:
        raise ProtocolViolation(f"a batch must carry exactly one span of resolved_ts, but this one carries {sorted(spans)}")
    after_ts, upto_ts = next(iter(spans))
    # Keyed by commit_ts, because two Pumps may deliver the same DDL.
    events = {d["commit_ts"]: DdlEvent(d["commit_ts"], d["job_id"], _text(d["query"]), d["schema_state"]) for d in ddls.to_pylist()}
    return Controls(after_ts, upto_ts, tuple(events[ts] for ts in sorted(events)), tuple(findings))


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def summarise(rows: pa.Table, ddl_ts: Sequence[int]) -> pa.Table:
    """Return the ``PARTIAL`` summary of ``rows`` (schema ``ROW_EVENT``); ``ddl_ts`` ascending."""
    if rows.num_rows == 0:
        return PARTIAL.empty_table()
    commit_ts, table_id, version = (rows.column(name).to_numpy() for name in ("commit_ts", "table_id", "schema_version"))
    interval = np.searchsorted(np.array(ddl_ts, dtype=np.int64), commit_ts, side="left")
    # Most rows are like the one before them: runs of those are grouped instead of rows.
    changes = np.logical_or.reduce([values[1:] != values[:-1] for values in (interval, table_id, version)])
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    sums = {
        "transactions": rows.column("seq").to_numpy() == 0,
        "events": np.ones(len(commit_ts), np.int64),
        "bytes": pc.binary_length(rows.column("row")).to_numpy(),
    }
    runs = pa.table(
        {
            "interval": interval[starts],
            "table_id": table_id[starts],
            "schema_version": version[starts],
            "first_ts": np.minimum.reduceat(commit_ts, starts),
            "last_ts": np.maximum.reduceat(commit_ts, starts),
            **{name: np.add.reduceat(values, starts, dtype=np.int64) for name, values in sums.items()},
        }
    )
    totals = [("first_ts", "min"), ("last_ts", "max"), *((name, "sum") for name in sums)]
    grouped = runs.group_by(["interval", "table_id", "schema_version"]).aggregate(totals)
    summary = grouped.rename_columns([name.removesuffix("_min").removesuffix("_max").removesuffix("_sum") for name in grouped.column_names])
    return summary.select(PARTIAL.names).cast(PARTIAL)


def placed(summaries: pa.Table, after_ts: int, ddl_ts: Sequence[int]) -> pa.Table | None:
    """Return ``summaries`` (``ROW_SUMMARY``) of what lies after ``after_ts``, as ``PARTIAL``; None when one spans a DDL or ``after_ts``."""
    kept = []
    for summary in summaries.to_pylist():
        interval = bisect_left(ddl_ts, summary["first_ts"])
        if interval != bisect_left(ddl_ts, summary["last_ts"]) or summary["first_ts"] <= after_ts < summary["last_ts"]:
            return None
        if summary["first_ts"] > after_ts:
            kept.append(summary | {"interval": interval})
    return pa.Table.from_pylist(kept, schema=PARTIAL)


def merge(partials: pa.Table) -> RowSummary:
    """Return the summary of the whole batch from the concatenated partial summaries."""
    activity: dict[tuple[int, int, int], TableActivity] = {}
    for part in partials.to_pylist():
        key = part["interval"], part["table_id"], part["schema_version"]
        table = TableActivity(*key[1:], part["first_ts"], part["events"], part["last_ts"], part["bytes"])
        activity[key] = table.joined(activity[key]) if key in activity else table
    tables = tuple(sorted(activity.values(), key=attrgetter("first_commit_ts", "schema_version")))
    transactions = sum(partials.column("transactions").to_pylist())
    return RowSummary(tables, sum(t.events for t in tables), sum(t.bytes for t in tables), transactions)


def rows_between(rows: pa.Table, after_ts: int, upto_ts: int) -> pa.Table:
    """Return the row changes with ``after_ts < commit_ts <= upto_ts``."""
    commit_ts = rows.column("commit_ts")
    return rows.filter(pc.and_(pc.greater(commit_ts, after_ts), pc.less_equal(commit_ts, upto_ts)))


def without(rows: pa.Table, name: str, values: Collection[int]) -> pa.Table:
    """Return ``rows`` except those whose column ``name`` has one of ``values``."""
    if not values:
        return rows
    return rows.filter(pa.array(~np.isin(rows.column(name).to_numpy(), list(values))))


def wanted(rows: pa.Table, gone: Collection[int], left_out: Collection[tuple[int, int]]) -> pa.Table:
    """Return ``rows`` without the tables ``gone``, and without the pairs (table id, operation) of ``left_out``."""
    rows = without(rows, "table_id", gone)
    if not left_out:
        return rows
    table_ids, ops = rows.column("table_id").to_numpy(), rows.column("op").to_numpy()
    omitted = np.zeros(rows.num_rows, dtype=bool)
    for op in {op for _, op in left_out}:
        omitted |= (ops == op) & np.isin(table_ids, [table_id for table_id, kind in left_out if kind == op])
    return rows.filter(pa.array(~omitted))


def with_rows(events: pa.Table, tables: Mapping[int, TableAt]) -> pa.Table:
    """Return the row events of tables that have rows on the target.

    Raises:
        SchemaMismatch: an event's table is not among ``tables``.
    """
    gone = []
    for table_id in pc.unique(events["table_id"]).to_pylist():
        table = tables.get(table_id)
        if table is None:
            here = events.filter(pc.equal(events["table_id"], table_id))
            first, version = pc.min(here["commit_ts"]).as_py(), pc.max(here["schema_version"]).as_py()
            raise SchemaMismatch(
                f"table id {table_id}: {here.num_rows} row events from commit_ts {first} on (schema version {version}), but the DDL history has "
                "no such table at that version. Check that spark.tidb-status is the history of this cluster. If it does not reach back to the table's "
                "CREATE TABLE, set syncer.load-schema-snapshot = true"
            )
        if not table.has_rows:
            gone.append(table_id)
    return without(events, "table_id", gone)


def gap_text(after_ts: int, commit_ts: int, checkpoint_dir: str) -> str:
    """Return the error text for when Spark's checkpoint is ahead of the target's, and what to do."""
    return (
        f"the stream would continue after {after_ts} ({as_time(after_ts)}), but the target's checkpoint is {commit_ts} "
        f"({as_time(commit_ts)}): the binlogs in between would be lost. Was the target restored from a backup, including its checkpoint row? "
        f"Then delete Spark's checkpoint directory {checkpoint_dir}: the stream then reads from the target's checkpoint, if the Pumps "
        "still hold those binlogs. If they do not, restore a newer backup. Was only the checkpoint row changed? Then restore its value"
    )
