"""Copies tables from the upstream at one snapshot, range by range, on the executors. A later life continues where this one was killed. [spark]

Promises: when ``run`` returns, every table holds exactly its replicated rows at the snapshot, and the record says so. Only these
tables and ``spark_bootstrap`` are written; the caller writes the checkpoint. Every write requires the lease.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import (
    CopiedRange,
    CopiedTable,
    CopyHead,
    CopyKind,
    CopyProgress,
    CopyRecord,
    CopyState,
    lost,
)
from pyspark_tidb_binlog.sinks.bootstrap.copy_start import CopyStart, CopyTarget
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.bootstrap.table_copy import CopyPlace, CopyPlan, RangeCopy
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables, WantedTable
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of
from pyspark_tidb_binlog.sinks.engine.conditions import Condition, hidden_places, require
from pyspark_tidb_binlog.sinks.engine.segments import SetVal
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import LEFT_OUT, ensure_ddl_table, note_copied
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import is_empty
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.retry_policy import patient
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, connect, kept_sessions
from pyspark_tidb_binlog.sinks.mysql.structure import databases_of, kinds_of
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_log = logging.getLogger(__name__)

T = TypeVar("T")

_TABLES_AT_ONCE = 32
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy, for the log."""

    tables: int
    rows: int
    seconds: float


class Bootstrap:
    """One copy at one snapshot, under one lease."""

    def __init__(
        self,
        spark: SparkSession,
        config: DrainerConfig,
        held: Lease,
        upstream: SnapshotSource,
        history: SchemaHistory,
        version: int,
        stop: threading.Event,
        *,
        removes: bool = False,
    ) -> None:
        """``history`` at ``version`` is the schema at the snapshot. ``stop``, when set, ends the copy. ``removes``: another first load begins in the place
        of one that was completed.
        """
        self._removes = removes
        self._spark = spark
        self._config = config
        self._apply = config.apply
        self._lease = held
        self._upstream = upstream
        self._history = history
        self._version = version
        self._stop = stop
        self._selection = Selection.of(config.apply)
        self._target = CopyTarget(config, held, self._pause)
        self._shipped = ShippedTarget.of(config.target, spark.sparkContext.broadcast)
        self._sources: KeptSessions | None = None
        self._looking = threading.Lock()
        self._looked: CopyProgress | None = None
        self._look_again = 0.0
        self._before: tuple[float, int, int] | None = None
        """When the copy began or went on, the rows that were copied then, and about how many there are."""

    def run(self, head: CopyHead, tables: Sequence[TableAt], others: Sequence[TableAt] = ()) -> Copied:
        """Copy ``tables`` at ``head.ts``, then create ``others``, views and sequences.

        If the record has an unfinished copy of the same kind and snapshot, that copy continues, with its own tables and ``tables``. Tables that the record
        has as half done, and that filters now leave out, stay half done.

        Raises:
            BootstrapRefused: before anything is changed: a table has rows that are not the stream's, or is not as the history says (``SchemaMoves``).
            SnapshotCollected: GC has passed the snapshot.
            Stopped: ``stop`` was set; the next life continues.
        """
        begun = time.monotonic()
        start = CopyStart(self._target, self._upstream, self._selection, self._history, head, tables, self._removes)
        try:
            for attempt in self._target.attempts():
                with attempt:
                    record = start.recorded()
                    self._before = begun, record.copied, sum(t.rows for t in record.tables)
            failpoints.point("after-bootstrap-begin")
            _log.info("copying %d tables at %d (%s) from %s", len(tables), head.ts, as_time(head.ts), self._upstream.where)
            for attempt in self._target.attempts():
                with attempt:
                    self._clear(start)
            for first in range(0, len(tables), _TABLES_AT_ONCE):
                self._copy_group(start, tables[first : first + _TABLES_AT_ONCE])
            for attempt in self._target.attempts():
                with attempt:
                    made = self._make_others(start, others)
            failpoints.point("before-bootstrap-record")
            for attempt in self._target.attempts():
                with attempt:
                    rows = self._note_all_done(start, made)
            return Copied(len(tables), rows, time.monotonic() - begun)
        finally:
            self._target.close()
            if self._sources is not None:
                self._sources.close()

    def _sources_at(self, ts: int) -> KeptSessions:
        """The upstream at the snapshot, by one session for all tables."""
        if self._sources is None:
            self._sources = self._upstream.sessions_at(ts)
        return self._sources

    def _at(self, head: CopyHead) -> AbstractContextManager[Session]:
        return self._upstream.at(head.ts, self._sources_at(head.ts))

    def _clear(self, start: CopyStart) -> None:
        """Remove what a copy that was given up has at the target and this one does not copy in its place, and make the databases."""
        record, mine = start.load(), {(t.schema, t.name) for t in start.tables}
        with self._target.tables() as there:
            for old in (t for t in (*record.tables, *record.others) if t.given_up and t.key not in mine and start.keeps(t)):
                self._cleared(start.head, there, old, forgotten=True)
                _log.info("%s.%s is %s: the copy that is given up had filled it", *old.place, "dropped" if old.made else "emptied")
            if start.head.kind is CopyKind.FIRST:
                for schema, info in self._databases():
                    there.make_database(schema, info)

    def _copy_group(self, start: CopyStart, group: Sequence[TableAt]) -> None:
        """Copy tables whose ranges go to Spark together, so that small ones do not wait for each other."""
        head = start.head
        for attempt in self._target.attempts():
            with attempt:
                recorded = {t.key: t for t in start.load().unfinished}
                left = [(recorded[t.schema, t.name], t) for t in group if (t.schema, t.name) in recorded]
                work = [part for copied, table in left for part in self._prepared(head, copied, table)]
                with self._target.record() as record:
                    limits = PlanLimits().within(record.session.max_allowed_packet)
        place = CopyPlace(self._upstream, head.ts, self._apply, self._lease, limits)
        self._copy_by_executors(place, [(plan, part) for plan, part in work if not plan.where])
        self._copy_conditioned(place, [(plan, part) for plan, part in work if plan.where])
        for copied, _ in left:
            for attempt in self._target.attempts():
                with attempt, self._target.transaction() as record:
                    rows = record.note_done(head, copied)
            _log.info("copied %s.%s: %d rows", *copied.key, rows)
            failpoints.point("after-bootstrap-table")
        self._raise_if_stopped()

    def _prepared(self, head: CopyHead, copied: CopiedTable, table: TableAt) -> list[tuple[CopyPlan, CopiedRange]]:
        """The ranges that are left of a table, which is ready for them."""
        self._raise_if_stopped()
        plan = CopyPlan(table, self._selection.routes.moved(table), self._selection.routes.condition_of(table))
        if copied.state is CopyState.PLANNED:
            self._prepare(head, copied, plan)
        with self._target.tables() as tables, self._target.record() as record:
            plan = tables.as_made(plan)
            ranges = record.ranges(copied)
        failpoints.point("after-bootstrap-empty")
        return [(plan, part) for part in ranges if not part.done]

    def _prepare(self, head: CopyHead, copied: CopiedTable, plan: CopyPlan) -> None:
        """Make a table ready, and record its ranges."""
        lasting = not plan.source.info.temp_table_type
        with self._at(head) as source:
            wanted = self._wanted(source, plan.source)
            ranges = self._upstream.ranges(source, plan.source) if lasting else ()
        with self._target.tables() as tables:
            # A table that is made, and empty: a death may have come amid its making.
            if copied.given_up or (copied.made and is_empty(tables.session, *copied.place)):
                copied = self._cleared(head, tables, copied)
            if not copied.made and not tables.is_there(*copied.place):
                copied = self._saved(head, replace(copied, made=True))
            try:
                losses = tables.make_ready(wanted, may_empty=head.kind is CopyKind.TABLES)
            except ApplyError as error:
                if not isinstance(error, RetryableApplyError) and not tables.is_there(*copied.place):
                    # Refused: whoever makes it by hand now has a table of their own.
                    self._saved(head, replace(copied, made=False))
                raise
            if losses:
                ensure_ddl_table(tables.session, self._apply)
        with self._target.transaction() as record:
            # In its transaction: what the server has of the record, it also has of the DDLs before.
            if lasting and not is_empty(record.session, *copied.place):
                raise lost(f"{wanted.target.label} does not exist or has rows, although the copy made or emptied it")
            record.note_empty(head, copied, ranges)
            if losses:
                note_copied(record.session, self._apply, self._lease.cluster_id, head.ts, plan.source, "derived", losses)

    def _saved(self, head: CopyHead, table: CopiedTable) -> CopiedTable:
        with self._target.transaction() as record:
            record.save(head, table)
        return table

    def _cleared(self, head: CopyHead, tables: TargetTables, old: CopiedTable, *, forgotten: bool = False) -> CopiedTable:
        """Drop what a copy has made, or empty what was there before it; the table as it is then recorded, unless it is ``forgotten``."""
        (tables.drop if old.made else tables.empty)(*old.place)
        cleared = replace(old, state=CopyState.PLANNED, made=False, given_up=False)
        with self._target.transaction() as record:
            if old.made and kinds_of(record.session, *old.place):
                raise lost(f"{'.'.join(old.place)} is there, although it was dropped")
            if forgotten:
                record.forget(old.key)
            else:
                record.save(head, cleared)
        return cleared

    def _note_all_done(self, start: CopyStart, made: Sequence[WantedTable]) -> int:
        """Record the end of the copy; the number of rows. ``made``: the views and sequences that the target has accepted."""
        names = {(t.schema, t.name) for t in start.tables}
        tables = [t for t in start.load().tables if t.key in names]
        with self._target.transaction() as record:
            missing = [w.target.label for w in made if not kinds_of(record.session, w.target.schema, w.target.name)]
            if start.head.kind is CopyKind.FIRST:
                databases = databases_of(record.session)
                missing += [schema for schema, _ in self._databases() if schema.lower() not in databases]
            if missing:
                raise lost(f"{', '.join(missing[:5])}: not at the target, although the copy made it")
            record.note_all_done(names)
        return sum(t.rows for t in tables)

    def _wanted(self, source: Session, table: TableAt) -> WantedTable:
        database = self._history.schema_at(table.schema, self._version)
        return WantedTable(table, self._selection.routes.moved(table), self._upstream.create_text(source, table), database)

    def _databases(self) -> Sequence[tuple[str, DbInfo]]:
        """The replicated databases, by their names at the target."""
        infos = [self._history.schema_at(schema_id, self._version) for schema_id in self._history.schemas]
        return [(self._selection.routes.database(i.name), i) for i in infos if i is not None and self._selection.tables.keeps(i.name)]

    def _make_others(self, start: CopyStart, others: Sequence[TableAt]) -> Sequence[WantedTable]:
        """Make views and sequences, as often as it takes: one view may need another. Returns those that the target has then."""
        if not others:
            return ()
        made_before = {t.key for t in start.load().others}
        with self._at(start.head) as source:
            waiting = [self._wanted(source, table) for table in others]
            given = {w.target.label: self._upstream.numbers_given(source, w.source) for w in waiting if w.source.info.is_sequence}
        fresh = [w for w in waiting if (w.source.schema, w.source.name) not in made_before]
        with self._target.tables() as tables:
            ensure_ddl_table(tables.session, self._apply)
            theirs = [w for w in fresh if tables.is_there(w.target.schema, w.target.name)]
            for wanted in (w for w in waiting if w not in fresh):
                tables.drop(wanted.target.schema, wanted.target.name)  # by a life that died before it recorded what is left out
        for wanted in theirs:
            _log.warning("%s was at the target before the copy, and stays as it is", wanted.target.label)
            waiting.remove(wanted)
        with self._target.transaction() as record:
            ours = (w.source for w in fresh if w not in theirs)
            record.add(start.head, [CopiedTable(t.schema, t.name, CopyState.MADE, to=start.destination(t), made=True) for t in ours])
        accepted, losses = list[WantedTable](), list[tuple[TableAt, tuple[str, ...]]]()
        while waiting:
            with self._target.tables() as tables:
                answers = [(w, *tables.make_other(w, self._history)) for w in waiting]
                made = [(w, lost) for w, why, lost in answers if not why]
                # MySQL has no sequences: that is a loss.
                accepted += [w for w, _ in made if kinds_of(tables.session, w.target.schema, w.target.name)]
            losses += [(w.source, lost) for w, lost in made if lost]
            waiting = [w for w, why, _ in answers if why]
            if not made:
                self._leave_out(start.head, waiting, {w.target.label: why for w, why, _ in answers})
                break
        setvals = [SetVal(w.target.schema, w.target.name, last) for w in accepted if (last := given.get(w.target.label)) is not None]
        with self._target.transaction() as record:
            findings = set_sequences(record.session, setvals)
            for table, lost in losses:
                note_copied(record.session, self._apply, self._lease.cluster_id, start.head.ts, table, "derived", lost)
        for finding in findings:
            _log.warning("%s: %s", finding.table, finding.words)
        return accepted

    def _leave_out(self, head: CopyHead, refused: Sequence[WantedTable], why: Mapping[str, str]) -> None:
        """Record views and sequences that the target refuses; the stream tries a view again."""
        _log.warning(
            "the target refuses these views or sequences; create them there by hand: %s", ", ".join(w.target.label for w in refused)
        )
        with self._target.transaction() as record:
            for wanted in refused:
                record.forget((wanted.source.schema, wanted.source.name))
                if wanted.source.info.is_view:
                    words = [view_waits(wanted.target.label, why[wanted.target.label])]
                    note_copied(record.session, self._apply, self._lease.cluster_id, head.ts, wanted.source, LEFT_OUT, words)

    def _copy_by_executors(self, place: CopyPlace, work: Sequence[tuple[CopyPlan, CopiedRange]]) -> None:
        if not work:
            return
        target, apply = self._shipped, self._apply

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            sources = place.upstream.sessions_of_process(place.ts)
            sessions, policy = kept_sessions(target.target(), apply), patient(apply.retry_seconds)
            for batch in batches:
                for plan, part in (work[number] for number in batch.column(0).to_pylist()):
                    for _ in RangeCopy(place, plan, sources).run(part, sessions.use, policy):
                        pass
                yield batch

        frame = self._spark.range(0, len(work), 1, len(work)).mapInArrow(run, "id long")
        try:
            unless_stopped(self._spark, self._stop.is_set, frame.toArrow)
        except PySparkException:
            self._raise_if_stopped()
            raise

    def _copy_conditioned(self, place: CopyPlace, work: Sequence[tuple[CopyPlan, CopiedRange]]) -> None:
        """Copy ranges from the driver: a condition is Spark's to evaluate, and a chunk is one transaction."""
        for plan, part in work:
            condition = Condition(plan.source, plan.where)
            require(self._spark, condition)

            def hidden(read: Columns, plan: CopyPlan = plan, condition: Condition = condition) -> frozenset[int]:
                return hidden_places(self._spark, arrow_of(plan.read, read), condition)

            for _ in RangeCopy(place, plan, self._sources_at(place.ts), hidden).run(part, self._target.sessions.use, self._target.policy):
                self._raise_if_stopped()

    @property
    def copied(self) -> CopyProgress | None:
        """The progress, for any thread: read from the target, at most once a second and by one thread; None = not known yet."""
        if self._before is not None and time.monotonic() >= self._look_again and self._looking.acquire(blocking=False):
            try:
                self._look_again = time.monotonic() + _LOOK_SECONDS
                self._looked = self._progress(*self._before)
            except ApplyError as error:
                _log.debug("the progress of the copy cannot be read: %s", error)
            finally:
                self._looking.release()
        return self._looked

    def _progress(self, since: float, before: int, expected: int) -> CopyProgress | None:
        with connect(self._config.target, self._apply) as session:
            found = CopyRecord(session, self._lease.cluster_id, self._lease.schema).load()
        if found is None:
            return None
        tables, rows = len(found.tables), found.copied
        rate = (rows - before) / max(time.monotonic() - since, 0.1)
        return CopyProgress(tables, tables - len(found.unfinished), rows, max(expected, rows) if expected else 0, rate)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped while tables were being copied; the next start continues the copy")


def unless_stopped(spark: SparkSession, stopped: Callable[[], bool], collect: Callable[[], T]) -> T:
    """Run a Spark job, cancelled when a stop is asked for; again and again, because it may not have begun when it is."""
    context, group, over = spark.sparkContext, f"reading the upstream, {uuid.uuid4()}", threading.Event()
    context.setJobGroup(group, "reading tables of the upstream", interruptOnCancel=True)

    def watch() -> None:
        while not over.wait(0.2):
            if stopped():
                context.cancelJobGroup(group)

    watching = threading.Thread(target=watch, name="stop of a read", daemon=True)
    watching.start()
    try:
        return collect()
    finally:
        over.set()
        watching.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
