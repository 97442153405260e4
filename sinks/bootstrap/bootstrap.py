"""Copies tables from the upstream at one snapshot, range by range, on the executors. A later life continues where this one was killed. [spark]

Promises: when ``run`` returns, every table holds exactly its replicated rows at the snapshot, and the record says so. Only these
tables and ``spark_bootstrap`` are written; the caller writes the checkpoint. Every write requires the lease.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, RetryableApplyError, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.stages import ddl_of
from pyspark_tidb_binlog.sinks.bootstrap import copy_record
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import (
    CopiedRange,
    CopiedTable,
    CopyHead,
    CopyKind,
    CopyProgress,
    CopyRecord,
    CopyState,
)
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, require_same
from pyspark_tidb_binlog.sinks.bootstrap.table_copy import CopyPlace, CopyPlan, copy_range
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables, WantedTable, not_empty, require_up_to_date
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of
from pyspark_tidb_binlog.sinks.engine.conditions import Condition, hidden_places, require
from pyspark_tidb_binlog.sinks.engine.segments import SetVal
from pyspark_tidb_binlog.sinks.mysql.ddl.attempt import view_waits
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import LEFT_OUT, ensure_ddl_table, note_copied
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import is_empty
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.leased_target import fenced
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, connect, kept_sessions, session_for
from pyspark_tidb_binlog.sinks.mysql.structure import databases_of, kinds_of
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_log = logging.getLogger(__name__)

T = TypeVar("T")

COPIED = pa.schema([pa.field("place", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
"""What a task did."""
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
        self._record = (held.cluster_id, held.schema)
        self._upstream = upstream
        self._history = history
        self._version = version
        self._stop = stop
        self._selection = Selection.of(config.apply)
        self._sessions = KeptSessions(lambda: connect(config.target, config.apply), config.apply.lease_timeout)
        self._ddl_sessions = KeptSessions(lambda: connect(config.target, config.apply, for_ddls=True), config.apply.lease_timeout)
        self._policy = patient(config.apply.retry_seconds, self._pause)
        self._shipped = ShippedTarget.of(config.target, spark.sparkContext.broadcast)
        self._sources: KeptSessions | None = None
        self.copied: CopyProgress | None = None
        """The progress, for any thread to look at; None = not known yet."""

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
        try:
            record = self._recorded(head, tables)
            _log.info("copying %d tables at %d (%s) from %s", len(record.tables), head.ts, as_time(head.ts), self._upstream.where)
            by_name = {(t.schema, t.name): t for t in tables}
            with self._watched(record):
                self._drop_stale(record)
                if head.kind is CopyKind.FIRST:
                    self._make_databases()
                for group in _groups([t for t in record.tables if t.state is not CopyState.DONE]):
                    self._copy_group(head, [(t, by_name[t.schema, t.name]) for t in group])
                made = self._make_others(head, others)
            failpoints.point("before-bootstrap-record")
            self._note_all_done(head, record, made)
            rows = sum(t.rows for t in self._load().tables if (t.schema, t.name) in by_name)
            return Copied(len(record.tables), rows, time.monotonic() - begun)
        finally:
            self._sessions.close()
            self._ddl_sessions.close()
            if self._sources is not None:
                self._sources.close()

    def _recorded(self, head: CopyHead, tables: Sequence[TableAt]) -> CopyRecord:
        """The record of this copy, begun if it is not yet."""
        for attempt in retrying(self._policy):
            with attempt, self._session(attempt) as session:
                copy_record.ensure_table(session, self._lease.schema)
                found = copy_record.load(session, *self._record)
        known, mine = ({(t.schema, t.name) for t in some} for some in (found.tables if found else (), tables))
        # Filters leave it out, and it is half done: whoever takes it in again has it copied.
        left_out = [t for t in found.unfinished if (t.schema, t.name) not in mine and not self._keeps(t)] if found else []
        goes_on = found is not None and not self._removes and found.goes_on_at(head)
        fresh = [t for t in tables if not goes_on or (t.schema, t.name) not in known]
        if goes_on and found is not None:
            for attempt in retrying(self._policy):
                with attempt, self._session(attempt) as session:
                    copied = [t for t in found.tables if (t.schema, t.name) in mine]
                    TargetTables(session, self._apply, self._lease).require_still_there(copied)
        given_up = self._given_up(found, head) if found is not None and not goes_on else ()
        planned = self._planned(head, fresh, given_up)
        stale = self._left_behind(mine, given_up, found is not None and found.joined) if head.kind is CopyKind.FIRST else []
        for attempt in retrying(self._policy):
            with attempt, self._transaction(attempt) as session:
                if not goes_on:
                    copy_record.begin(session, *self._record, head, [*planned, *map(_anew, left_out), *stale])
                elif planned:
                    copy_record.add_tables(session, *self._record, head, planned)
                    copy_record.set_state(session, *self._record, copy_record.WHOLE, CopyState.PLANNED)
        if not goes_on:
            failpoints.point("after-bootstrap-begin")
        return self._checked(head, tables, self._load())

    def _planned(self, head: CopyHead, fresh: Sequence[TableAt], given_up: Sequence[CopiedTable]) -> list[CopiedTable]:
        """The record of tables that nothing was copied of; ``given_up``: of a copy that is not continued."""
        sizes = self._looked_at(head, fresh) if fresh else []
        # What is there under another name, which a route gives it since, is somebody's.
        again = {(t.schema, t.name, t.to): t for t in given_up if t.state is not CopyState.PLANNED or t.made}
        before = [again.get((t.schema, t.name, self._to(t))) for t in fresh]
        if head.kind is CopyKind.FIRST:
            self._require_empty([t for t, old in zip(fresh, before, strict=True) if old is None])
        else:
            # What a copy made itself, and is given up, is dropped.
            kept = [t for t, old in zip(fresh, before, strict=True) if old is None or not old.made]
            for attempt in retrying(self._policy):
                with attempt, self._session(attempt) as session:
                    require_up_to_date(session, self._apply, self._lease, self._history, kept)
        return [
            CopiedTable(
                t.schema, t.name, CopyState.AGAIN if old else CopyState.PLANNED, rows, self._to(t), made=old is not None and old.made
            )
            for t, old, rows in zip(fresh, before, sizes, strict=True)
        ]

    def _left_behind(self, mine: set[tuple[str, str]], given_up: Sequence[CopiedTable], joined: bool) -> list[CopiedTable]:
        """The objects that a copy that was given up has made and nobody wants any more; ``joined``: the stream has begun behind it."""
        left = [t for t in given_up if (t.schema, t.name) not in mine and self._keeps(t)]
        # The stream may have dropped it, and somebody else may have made one of that name since.
        strange = [t for t in left if not t.made or (joined and t.state is not CopyState.MADE)]
        self._require_gone([t for t in strange if t.state is not CopyState.PLANNED])
        return [replace(t, state=CopyState.STALE) for t in left if t.made]

    def _checked(self, head: CopyHead, tables: Sequence[TableAt], record: CopyRecord) -> CopyRecord:
        """The record with the tables that are copied, which is about the same tables, and routes, as now."""
        mine = {(t.schema, t.name) for t in tables}
        gone = [f"{t.schema}.{t.name}" for t in record.tables if (t.schema, t.name) not in mine and self._keeps(t)]
        if gone:
            raise BootstrapRefused(
                f"{', '.join(gone[:5])}: a copy of this table began at {head.ts}, but the DDL history does not have the table. Start with --bootstrap-restart"
            )
        to = {(t.schema, t.name): self._to(t) for t in tables}
        here = tuple(t for t in record.tables if (t.schema, t.name) in mine)
        # What is to be emptied, or was made, has the name that it had then: under another one is somebody's.
        moved = [f"{t.schema}.{t.name}" for t in here if (t.state is not CopyState.PLANNED or t.made) and t.to != to[t.schema, t.name]]
        if moved:
            raise BootstrapRefused(
                f"{', '.join(moved[:5])}: copied, wholly or in part, at {head.ts} with another [[spark.route]] (name, columns or where). Restore that route. Or start "
                "with --bootstrap-restart; unless it is a first load, name the tables again with --bootstrap"
            )
        return replace(record, tables=here)

    def _to(self, table: TableAt) -> str:
        """The table as the routes make it, for the record."""
        routes = self._selection.routes
        target = routes.target(table.schema, table.name)
        return json.dumps([target.schema, target.name, sorted(routes.columns_of(table)), routes.condition_of(table)])

    def _at(self, head: CopyHead) -> AbstractContextManager[Session]:
        """The upstream at the snapshot, by one session for all tables."""
        return self._upstream.at(head.ts, self._sources_at(head))

    def _sources_at(self, head: CopyHead) -> KeptSessions:
        if self._sources is None:
            self._sources = self._upstream.sessions_at(head.ts)
        return self._sources

    def _keeps(self, table: CopiedTable) -> bool:
        return self._selection.tables.keeps(table.schema, table.name)

    def _load(self) -> CopyRecord:
        for attempt in retrying(self._policy):
            with attempt, self._session(attempt) as session:
                found = copy_record.load(session, *self._record)
        if found is None:
            raise BootstrapRefused(f"{self._lease.schema}.{copy_record.TABLE} has lost its rows; start with --bootstrap-restart")
        return found

    def _looked_at(self, head: CopyHead, tables: Sequence[TableAt]) -> list[int]:
        """About how many rows each table has, which is as the history says."""
        with self._at(head) as source:
            ids = self._upstream.table_ids(source)
            for table in tables:
                require_same(table, self._upstream.columns(source, table), ids.get((table.schema.lower(), table.name.lower()), 0))
            return [self._upstream.size(source, table)[0] for table in tables]

    def _given_up(self, found: CopyRecord, head: CopyHead) -> Sequence[CopiedTable]:
        """The objects at the target of a copy that is not continued. Tables that are done and joined belong to the stream, unless they are to be removed."""
        removes = self._removes and found.head.kind is CopyKind.FIRST and head.kind is CopyKind.FIRST
        if not (found.begun or removes):
            return ()
        if found.head.kind is CopyKind.TABLES and head.kind is CopyKind.TABLES:
            # A table of a stream that is done has been the stream's since: it is emptied, and keeps what the target has added to it.
            return [*found.unfinished, *found.others]
        return [*found.tables, *found.others]

    def _require_empty(self, tables: Sequence[TableAt]) -> None:
        if filled := self._filled([(t.schema, t.name) for t in map(self._selection.routes.moved, tables)]):
            raise BootstrapRefused(not_empty(filled))

    def _require_gone(self, tables: Sequence[CopiedTable]) -> None:
        names = [self._selection.routes.target(t.schema, t.name) for t in tables if self._keeps(t)]
        if filled := self._filled([(n.schema, n.name) for n in names]):
            raise BootstrapRefused(
                f"{', '.join(filled[:5])}: the copy that is given up wrote rows to this table, and the upstream no longer has the table. Drop the table at the target, "
                "and start again with --bootstrap-restart"
            )

    def _filled(self, names: list[tuple[str, str]]) -> list[str]:
        """The tables of the target, among ``names``, that have rows."""
        for attempt in retrying(self._policy):
            with attempt, self._session(attempt) as session:
                filled = TargetTables(session, self._apply, self._lease).rows_in(names)
        return filled

    # One group of tables.

    def _copy_group(self, head: CopyHead, group: Sequence[tuple[CopiedTable, TableAt]]) -> None:
        work: list[tuple[CopyPlan, CopiedRange]] = []
        for copied, table in group:
            self._raise_if_stopped()
            plan = CopyPlan(table, self._selection.routes.moved(table), self._selection.routes.condition_of(table))
            if copied.state in (CopyState.PLANNED, CopyState.AGAIN):
                self._prepare(head, copied, plan)
            for attempt in retrying(self._policy):
                with attempt, self._tables(attempt) as tables:
                    plan = tables.as_made(plan)
                    ranges = copy_record.load_ranges(tables.session, *self._record, copied)
            failpoints.point("after-bootstrap-empty")
            work += [(plan, part) for part in ranges if not part.done]
        self._copy_by_executors(head, [(plan, part) for plan, part in work if not plan.where])
        self._copy_conditioned(head, [(plan, part) for plan, part in work if plan.where])
        for copied, _ in group:
            for attempt in retrying(self._policy):
                with attempt, self._transaction(attempt) as session:
                    rows = copy_record.note_done(session, *self._record, copied)
            _log.info("copied %s.%s: %d rows", copied.schema, copied.name, rows)
            failpoints.point("after-bootstrap-table")
        self._raise_if_stopped()

    def _prepare(self, head: CopyHead, copied: CopiedTable, plan: CopyPlan) -> None:
        """Make a table ready, and record its ranges. An attempt goes on from the record as a later life would."""
        lasting = not plan.source.info.temp_table_type
        with self._at(head) as source:
            wanted = self._wanted(source, plan.source)
            ranges = self._upstream.ranges(source, plan.source) if lasting else ()
        name = (wanted.target.schema, wanted.target.name)
        for attempt in retrying(self._policy):
            with attempt, self._tables(attempt) as tables:
                with self._transaction(attempt) as session:
                    copied = copy_record.lock_table(session, *self._record, (copied.schema, copied.name))
                may_empty = head.kind is CopyKind.TABLES or copied.state is CopyState.AGAIN
                copied = self._cleared(tables, attempt, copied, name)
                try:
                    losses = tables.make_ready(wanted, may_empty=may_empty)
                except ApplyError as error:
                    if not isinstance(error, RetryableApplyError) and not tables.is_there(*name):
                        # Refused: whoever makes it by hand now has a table of their own.
                        with self._transaction(attempt) as session:
                            copy_record.set_made(session, *self._record, copied, made=False)
                    raise
                if losses:
                    ensure_ddl_table(tables.session, self._apply)
                with self._transaction(attempt) as session:
                    # In its transaction: what the server has of the record, it also has of the DDLs before.
                    if lasting and not is_empty(session, *name):
                        raise copy_record.lost(f"{wanted.label} does not exist or has rows, although the copy made or emptied it")
                    copy_record.note_empty(session, *self._record, copied, head.ts, head.kind, ranges)
                    if losses:
                        note_copied(session, self._apply, self._lease.cluster_id, head.ts, plan.source, "derived", losses)

    def _cleared(self, tables: TargetTables, attempt: Attempt, copied: CopiedTable, name: tuple[str, str]) -> CopiedTable:
        """Drop what a copy has begun of the table, or record that this one makes it. Returns the table as it is then recorded."""
        if copied.made and (copied.state is CopyState.AGAIN or is_empty(tables.session, *name)):
            # A death may have come amid its making. Or it is as at the snapshot of the copy that was given up, and no DDL since then will come.
            tables.drop(*name)
            with self._transaction(attempt) as session:
                self._require_dropped(copied, session)
                copy_record.set_state(session, *self._record, (copied.schema, copied.name), CopyState.PLANNED)
            return replace(copied, state=CopyState.PLANNED)
        if not copied.made and not tables.is_there(*name):
            with self._transaction(attempt) as session:
                copy_record.set_made(session, *self._record, copied, made=True)
            return replace(copied, made=True)
        return copied

    def _require_dropped(self, old: CopiedTable, session: Session) -> None:
        schema, name = old.place
        if kinds_of(session, schema, name):
            raise copy_record.lost(f"{schema}.{name} is there, although it was dropped")

    def _note_all_done(self, head: CopyHead, record: CopyRecord, made: Sequence[WantedTable]) -> None:
        """Record the end of the copy. ``made``: the views and sequences that the target has accepted."""
        for attempt in retrying(self._policy):
            with attempt, self._transaction(attempt) as session:
                missing = [w.label for w in made if not kinds_of(session, w.target.schema, w.target.name)]
                if head.kind is CopyKind.FIRST:
                    databases = databases_of(session)
                    missing += [schema for schema, _ in self._databases() if schema.lower() not in databases]
                if missing:
                    raise copy_record.lost(f"{', '.join(missing[:5])}: not at the target, although the copy made it")
                copy_record.note_all_done(session, *self._record, record.tables)

    def _wanted(self, source: Session, table: TableAt) -> WantedTable:
        database = self._history.schema_at(table.schema, self._version)
        return WantedTable(table, self._selection.routes.moved(table), self._upstream.create_text(source, table), database)

    def _make_databases(self) -> None:
        """Make the databases, also those without a table: DDLs will come for them."""
        for attempt in retrying(self._policy):
            with attempt, self._tables(attempt) as tables:
                for schema, info in self._databases():
                    tables.make_database(schema, info)

    def _databases(self) -> Sequence[tuple[str, DbInfo]]:
        """The replicated databases, by their names at the target."""
        infos = [self._history.schema_at(schema_id, self._version) for schema_id in self._history.schemas]
        return [(self._selection.routes.database(i.name), i) for i in infos if i is not None and self._selection.tables.keeps(i.name)]

    def _drop_stale(self, record: CopyRecord) -> None:
        """Remove what a copy that was given up has made, and this one does not make again in its place."""
        for old in (one for one in record.others if one.state is CopyState.STALE):
            for attempt in retrying(self._policy):
                with attempt, self._tables(attempt) as tables:
                    tables.drop(*old.place)
                    with self._transaction(attempt) as session:
                        self._require_dropped(old, session)
                        copy_record.forget(session, *self._record, (old.schema, old.name))
            _log.info("%s.%s is removed: the copy that is given up had made it", *old.place)

    def _make_others(self, head: CopyHead, others: Sequence[TableAt]) -> Sequence[WantedTable]:
        """Views and sequences, as often as it takes: one view may need another. Those that the target has then."""
        if not others:
            return ()
        made_before = {(t.schema, t.name) for t in self._load().others}
        with self._at(head) as source:
            waiting = [self._wanted(source, table) for table in others]
            given = {w.label: self._upstream.numbers_given(source, w.source) for w in waiting if w.source.info.is_sequence}
        for wanted in [w for w in waiting if (w.source.schema, w.source.name) not in made_before]:
            recorded = CopiedTable(wanted.source.schema, wanted.source.name, CopyState.MADE, 0, self._to(wanted.source), made=True)
            for attempt in retrying(self._policy):
                with attempt, self._tables(attempt) as tables:
                    theirs = tables.is_there(wanted.target.schema, wanted.target.name)
            if theirs:
                _log.warning("%s was at the target before the copy, and stays as it is", wanted.label)
                waiting.remove(wanted)
                continue
            for attempt in retrying(self._policy):
                with attempt, self._transaction(attempt) as session:
                    copy_record.add_tables(session, *self._record, head, [recorded])
        accepted: list[WantedTable] = []
        while waiting:
            for attempt in retrying(self._policy):
                with attempt, self._tables(attempt) as tables:
                    why = {w.label: tables.make_other(w, self._history) for w in waiting}
                    made = [w for w in waiting if not why[w.label]]
                    accepted_now = [w for w in made if tables.has_statement(w)]
            accepted += accepted_now
            waiting = [w for w in waiting if why[w.label]]
            if not made:
                self._give_up(head, waiting, why)
                break
        setvals = [SetVal(w.target.schema, w.target.name, last) for w in accepted if (last := given.get(w.label)) is not None]
        for attempt in retrying(self._policy):
            with attempt, self._transaction(attempt) as session:
                findings = set_sequences(session, setvals) if setvals else ()
        for finding in findings:
            _log.warning("%s: %s", finding.table, finding.words)
        return accepted

    def _give_up(self, head: CopyHead, refused: Sequence[WantedTable], why: Mapping[str, str]) -> None:
        """Record views and sequences that the target refuses; the stream tries a view again."""
        _log.warning("the target refuses these views or sequences; create them there by hand: %s", ", ".join(w.label for w in refused))
        for attempt in retrying(self._policy):
            with attempt, self._session(attempt) as plain:
                ensure_ddl_table(plain, self._apply)
                with self._transaction(attempt) as session:
                    for wanted in refused:
                        copy_record.forget(session, *self._record, (wanted.source.schema, wanted.source.name))
                        if wanted.source.info.is_view:
                            words = [view_waits(wanted.label, why[wanted.label])]
                            note_copied(session, self._apply, self._lease.cluster_id, head.ts, wanted.source, LEFT_OUT, words)

    def _copy_by_executors(self, head: CopyHead, work: Sequence[tuple[CopyPlan, CopiedRange]]) -> None:
        if not work:
            return
        target, apply = self._shipped, self._apply
        place = self._place(head)
        todo = tuple(work)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            sources = place.upstream.sessions_of_process(place.ts)
            sessions, policy = kept_sessions(target.target(), apply), patient(apply.retry_seconds)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    plan, part = todo[number]
                    rows = sum(copy_range(place, plan, part, sources, sessions.use, policy))
                    yield pa.RecordBatch.from_pylist([{"place": number, "rows": rows}], schema=COPIED)

        frame = self._spark.range(0, len(todo), 1, len(todo)).mapInArrow(run, ddl_of(COPIED))
        try:
            unless_stopped(self._spark, self._stop.is_set, frame.toArrow)
        except PySparkException:
            self._raise_if_stopped()
            raise

    def _copy_conditioned(self, head: CopyHead, work: Sequence[tuple[CopyPlan, CopiedRange]]) -> None:
        """Copy ranges from the driver: a condition is Spark's to evaluate, and a chunk is one transaction."""
        place = self._place(head)
        for plan, part in work:
            condition = Condition(plan.source, plan.where)
            require(self._spark, condition)

            def hidden(read: Columns, plan: CopyPlan = plan, condition: Condition = condition) -> frozenset[int]:
                return hidden_places(self._spark, arrow_of(plan.read, read), condition)

            for _ in copy_range(place, plan, part, self._sources_at(head), self._sessions.use, self._policy, hidden):
                self._raise_if_stopped()

    def _place(self, head: CopyHead) -> CopyPlace:
        for attempt in retrying(self._policy):
            with attempt, self._session(attempt) as session:
                limits = PlanLimits().within(session.max_allowed_packet)
        return CopyPlace(self._upstream, head.ts, self._apply, self._lease, limits)

    # Progress.

    @contextmanager
    def _watched(self, record: CopyRecord) -> Iterator[None]:
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=[record, over], name="progress of the copy", daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()

    def _look(self, record: CopyRecord, over: threading.Event) -> None:
        sessions = KeptSessions(lambda: connect(self._config.target, self._apply), self._apply.lease_timeout)
        expected = sum(t.rows for t in record.tables)
        begun, first = time.monotonic(), -1
        try:
            while not over.wait(_LOOK_SECONDS):
                try:
                    with sessions.use() as session:
                        found = copy_record.load(session, *self._record)
                        here = sum(copy_record.counted_by_table(session, *self._record).values())
                except ApplyError as error:
                    _log.debug("the progress of the copy cannot be read: %s", error)
                    continue
                tables = found.tables if found else ()
                done = [t for t in tables if t.state is CopyState.DONE]
                rows = here + sum(t.rows for t in done)
                first = rows if first < 0 else first
                rate = (rows - first) / max(time.monotonic() - begun, 0.1)
                self.copied = CopyProgress(len(tables), len(done), rows, max(expected, rows) if expected else 0, rate)
        finally:
            sessions.close()

    # The target.

    def _session(self, attempt: Attempt) -> AbstractContextManager[Session]:
        return session_for(self._sessions.use, attempt)

    def _transaction(self, attempt: Attempt) -> AbstractContextManager[Session]:
        return fenced(self._sessions.use, self._lease, attempt)

    @contextmanager
    def _tables(self, attempt: Attempt) -> Iterator[TargetTables]:
        with session_for(self._ddl_sessions.use, attempt) as session:
            yield TargetTables(session, self._apply, self._lease)

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


def _anew(table: CopiedTable) -> CopiedTable:
    """Half done, and to be copied from its beginning."""
    return table if table.state is CopyState.PLANNED else replace(table, state=CopyState.AGAIN)


def _groups(tables: Sequence[CopiedTable]) -> Iterator[Sequence[CopiedTable]]:
    """Tables whose ranges go to Spark together, so that small ones do not wait for each other."""
    for begin in range(0, len(tables), _TABLES_AT_ONCE):
        yield tables[begin : begin + _TABLES_AT_ONCE]
