"""Copies tables from the upstream at one snapshot, range by range, on the executors. A later life continues where this one was killed. [spark]

Promises: when ``run`` returns, every table holds exactly its replicated rows at the snapshot, and the record says so. Only these
tables and ``spark_bootstrap`` are written; the caller writes the checkpoint. Every write requires the lease.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.stages import ddl_of
from pyspark_tidb_binlog.sinks.bootstrap import copy_record
from pyspark_tidb_binlog.sinks.bootstrap.copy_progress import CopyProgress
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopiedRange, CopiedTable, CopyHead, CopyKind, CopyRecord, CopyState
from pyspark_tidb_binlog.sinks.bootstrap.passed_ddls import require_up_to_date
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.bootstrap.table_copy import CopyPlace, CopyPlan, copy_range
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables, WantedTable, not_empty
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of, shows
from pyspark_tidb_binlog.sinks.engine.conditions import Condition, hidden_places, require
from pyspark_tidb_binlog.sinks.engine.segments import SetVal
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import LEFT_OUT, ensure_ddl_table, note_copied
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.ddl.views import view_waits
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions, kept_sessions
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.leased_target import fenced
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.retry_policy import patient, retrying
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns
from pyspark_tidb_binlog.sinks.mysql.sequences import set_sequences
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect, session_for
from pyspark_tidb_binlog.sinks.mysql.structure import databases_of
from pyspark_tidb_binlog.sinks.routing.replicated import Selection

_log = logging.getLogger(__name__)

T = TypeVar("T")

COPIED = pa.schema([pa.field("place", pa.int64(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
"""What a task did."""
_TABLES_AT_ONCE = 32
_LOOK_SECONDS = 1.0


class SchemaMoves(BootstrapRefused):
    """At the snapshot the upstream's tables are not those of the DDL history: a DDL is under way."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has done, for the log."""

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
        self._schema = held.schema
        self._upstream = upstream
        self._history = history
        self._version = version
        self._stop = stop
        self._selection = Selection.of(config.apply)
        self._sessions = KeptSessions(lambda: connect(config.target, config.apply), config.apply.lease_timeout)
        self._ddl_sessions = KeptSessions(lambda: connect(config.target, config.apply, for_ddls=True), config.apply.lease_timeout)
        self._policy = patient(config.apply.retry_seconds, self._pause)
        self._shipped: ShippedTarget | None = None
        self._sources: KeptSessions | None = None
        self._lock = threading.Lock()
        self._progress: CopyProgress | None = None

    @property
    def words(self) -> str:
        """How far it is, for people; quick, from any thread."""
        with self._lock:
            return self._progress.words() if self._progress is not None else "looking at the tables that are to be copied"

    @property
    def copied(self) -> CopyProgress | None:
        """How far the copy is; None = not known yet."""
        with self._lock:
            return self._progress

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
            self._transact(lambda session: self._note_all_done(session, head, record, made))
            rows = sum(t.rows for t in self._load().tables if (t.schema, t.name) in by_name)
            return Copied(len(record.tables), rows, time.monotonic() - begun)
        finally:
            self._sessions.close()
            self._ddl_sessions.close()
            if self._sources is not None:
                self._sources.close()

    def _recorded(self, head: CopyHead, tables: Sequence[TableAt]) -> CopyRecord:
        """The record of this copy, begun if it is not yet."""
        cluster_id, schema = self._lease.cluster_id, self._schema
        self._ask(lambda session: copy_record.ensure_table(session, schema))
        found = self._ask(lambda session: copy_record.load(session, cluster_id, schema))
        known, mine = ({(t.schema, t.name) for t in some} for some in (found.tables if found else (), tables))
        # Filters leave it out, and it is half done: whoever takes it in again has it copied.
        left_out = [t for t in found.unfinished if (t.schema, t.name) not in mine and not self._keeps(t)] if found else []
        goes_on = found is not None and not self._removes and goes_on_at(found, head)
        fresh = [t for t in tables if not goes_on or (t.schema, t.name) not in known]
        if goes_on and found is not None:
            require_still_there(self._ask, self._apply, self._lease, [t for t in found.tables if (t.schema, t.name) in mine])
        given_up = self._given_up(found, head) if found is not None and not goes_on else ()
        planned = self._planned(head, fresh, given_up)
        if not goes_on:
            joined = found is not None and found.joined
            stale = self._left_behind(mine, given_up, joined) if head.kind is CopyKind.FIRST else []
            recorded = [*planned, *map(_anew, left_out), *stale]
            self._transact(lambda session: copy_record.begin(session, cluster_id, schema, head, recorded))
            failpoints.point("after-bootstrap-begin")
        elif planned:

            def add(session: Session) -> None:
                copy_record.add_tables(session, cluster_id, schema, head, planned)
                copy_record.note_planned(session, cluster_id, schema)

            self._transact(add)
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
            self._ask(lambda session: require_up_to_date(session, self._apply, self._lease, self._history, kept))
        return [
            CopiedTable(
                t.schema, t.name, CopyState.AGAIN if old else CopyState.PLANNED, rows, self._to(t), made=old is not None and old.made
            )
            for t, old, rows in zip(fresh, before, sizes, strict=True)
        ]

    def _left_behind(self, mine: set[tuple[str, str]], given_up: Sequence[CopiedTable], joined: bool) -> list[CopiedTable]:
        """What a copy that was given up has made and nobody wants any more; ``joined``: the stream has begun behind it."""
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
        """What the routes make of it."""
        routes = self._selection.routes
        target = routes.target(table.schema, table.name)
        return json.dumps([target.schema, target.name, sorted(routes.columns_of(table)), routes.condition_of(table)])

    @contextmanager
    def _at(self, head: CopyHead) -> Iterator[Session]:
        """The upstream at the snapshot, by one session for all tables."""
        with self._upstream.at(head.ts, self._sources_at(head)) as session:
            yield session

    def _sources_at(self, head: CopyHead) -> KeptSessions:
        if self._sources is None:
            self._sources = self._upstream.sessions_at(head.ts)
        return self._sources

    def _keeps(self, table: CopiedTable) -> bool:
        return self._selection.tables.keeps(table.schema, table.name)

    def _load(self) -> CopyRecord:
        found = self._ask(lambda session: copy_record.load(session, self._lease.cluster_id, self._schema))
        if found is None:
            raise BootstrapRefused(f"{self._schema}.{copy_record.TABLE} has lost its rows; start with --bootstrap-restart")
        return found

    def _looked_at(self, head: CopyHead, tables: Sequence[TableAt]) -> list[int]:
        """About how many rows each table has, which is as the history says."""
        with self._at(head) as source:
            ids = self._upstream.table_ids(source)
            for table in tables:
                require_same(table, self._upstream.columns(source, table), ids.get((table.schema.lower(), table.name.lower()), 0))
            return [self._upstream.size(source, table)[0] for table in tables]

    def _given_up(self, found: CopyRecord, head: CopyHead) -> Sequence[CopiedTable]:
        """What the target has of a copy that is not continued. Tables that are done and joined belong to the stream, unless they are to be removed."""
        removes = self._removes and found.head.kind is CopyKind.FIRST and head.kind is CopyKind.FIRST
        if not (found.begun or removes):
            return ()
        if found.head.kind is CopyKind.TABLES and head.kind is CopyKind.TABLES:
            # A table of a stream that is done has been the stream's since: it is emptied, and keeps what the target has added to it.
            return [*found.unfinished, *found.others]
        return [*found.tables, *found.others]

    def _ask(self, question: Callable[[Session], T], sessions: KeptSessions | None = None) -> T:
        for attempt in retrying(self._policy):
            with attempt, session_for((sessions or self._sessions).use, attempt) as session:
                answer = question(session)
        return answer

    def _require_empty(self, tables: Sequence[TableAt]) -> None:
        names = [(t.schema, t.name) for t in map(self._selection.routes.moved, tables)]
        filled = self._ask(lambda session: self._target_tables(session).rows_in(names))
        if filled:
            raise BootstrapRefused(not_empty(filled))

    def _require_gone(self, tables: Sequence[CopiedTable]) -> None:
        names = [self._selection.routes.target(t.schema, t.name) for t in tables if self._keeps(t)]
        filled = self._ask(lambda session: self._target_tables(session).rows_in([(n.schema, n.name) for n in names]))
        if filled:
            raise BootstrapRefused(
                f"{', '.join(filled[:5])}: the copy that is given up wrote rows to this table, and the upstream no longer has the table. Drop the table at the target, "
                "and start again with --bootstrap-restart"
            )

    # One group of tables.

    def _copy_group(self, head: CopyHead, group: Sequence[tuple[CopiedTable, TableAt]]) -> None:
        work: list[tuple[CopyPlan, CopiedRange]] = []
        for copied, table in group:
            self._raise_if_stopped()
            plan = CopyPlan(table, self._selection.routes.moved(table), self._selection.routes.condition_of(table))
            ranges = self._ranges(head, copied, plan)
            plan = self._with_tables(lambda tables, plan=plan: tables.as_made(plan))  # type: ignore[misc]
            failpoints.point("after-bootstrap-empty")
            work += [(plan, part) for part in ranges if not part.done]
        self._copy_by_executors(head, [(plan, part) for plan, part in work if not plan.where])
        self._copy_conditioned(head, [(plan, part) for plan, part in work if plan.where])
        for copied, _ in group:
            rows = self._transact(partial(self._note_done, copied))
            _log.info("copied %s.%s: %d rows", copied.schema, copied.name, rows)
            failpoints.point("after-bootstrap-table")
        self._raise_if_stopped()

    def _ranges(self, head: CopyHead, copied: CopiedTable, plan: CopyPlan) -> tuple[CopiedRange, ...]:
        """The ranges of a table, which is made ready before they are recorded."""
        cluster_id, schema = self._lease.cluster_id, self._schema
        if copied.state in (CopyState.PLANNED, CopyState.AGAIN):
            with self._at(head) as source:
                wanted = self._wanted(source, plan.source)
                ranges = () if plan.source.info.temp_table_type else self._upstream.ranges(source, plan.source)
            empties = head.kind is CopyKind.TABLES or copied.state is CopyState.AGAIN
            name = (wanted.target.schema, wanted.target.name)
            begun = copied.made and self._with_tables(lambda tables: is_empty(tables.session, *name))
            if copied.made and (begun or copied.state is CopyState.AGAIN):
                # A death may have come amid its making. Or it is as at the snapshot of the copy that was given up, and no DDL since then will come.
                self._with_tables(lambda tables: tables.drop(*name))
                self._transact(partial(self._note_dropped, copied))
                copied = replace(copied, state=CopyState.PLANNED)
            elif not copied.made and not self._with_tables(lambda tables: tables.is_there(*name)):
                self._transact(lambda session: copy_record.note_made(session, cluster_id, schema, copied))
                copied = replace(copied, made=True)
            try:
                losses = self._with_tables(lambda tables: tables.make_ready(wanted, may_empty=empties))
            except ApplyError:
                if not self._with_tables(lambda tables: tables.is_there(*name)):
                    # Refused: whoever makes it by hand now has a table of their own.
                    self._transact(lambda session: copy_record.note_refused(session, cluster_id, schema, copied))
                raise

            def note_empty(session: Session) -> None:
                # In its transaction: what the server has of the record, it also has of the DDLs before.
                if not plan.source.info.temp_table_type and not is_empty(session, *name):
                    raise copy_record.lost(f"{wanted.label} does not exist or has rows, although the copy made or emptied it")
                copy_record.note_empty(session, cluster_id, schema, copied, head.ts, head.kind, ranges)
                if losses:
                    note_copied(session, self._apply, cluster_id, head.ts, plan.source, "derived", losses)

            if losses:
                self._ask(lambda session: ensure_ddl_table(session, self._apply))
            self._transact(note_empty)
        return self._ask(lambda session: copy_record.load_ranges(session, cluster_id, schema, copied))

    def _note_dropped(self, copied: CopiedTable, session: Session) -> None:
        self._require_dropped(copied, session)
        copy_record.note_dropped(session, self._lease.cluster_id, self._schema, copied)

    def _note_removed(self, old: CopiedTable, session: Session) -> None:
        self._require_dropped(old, session)
        copy_record.forget(session, self._lease.cluster_id, self._schema, old)

    def _require_dropped(self, old: CopiedTable, session: Session) -> None:
        schema, name = place_of(old)
        if self._target_tables(session).is_listed(schema, name):
            raise copy_record.lost(f"{schema}.{name} is there, although it was dropped")

    def _note_all_done(self, session: Session, head: CopyHead, record: CopyRecord, made: Sequence[WantedTable]) -> None:
        """``made``: the views and sequences that the target has accepted."""
        there = self._target_tables(session)
        missing = [w.label for w in made if not there.is_listed(w.target.schema, w.target.name)]
        if head.kind is CopyKind.FIRST:
            databases = databases_of(session)
            missing += [schema for schema, _ in self._databases() if schema.lower() not in databases]
        if missing:
            raise copy_record.lost(f"{', '.join(missing[:5])}: not at the target, although the copy made it")
        copy_record.note_all_done(session, self._lease.cluster_id, self._schema, record.tables)

    def _note_done(self, copied: CopiedTable, session: Session) -> int:
        return copy_record.note_done(session, self._lease.cluster_id, self._schema, copied)

    def _wanted(self, source: Session, table: TableAt) -> WantedTable:
        database = self._history.schema_at(table.schema, self._version)
        return WantedTable(table, self._selection.routes.moved(table), self._upstream.create_text(source, table), database)

    def _make_databases(self) -> None:
        """Also those without a table: DDLs will come for them."""
        for schema, info in self._databases():
            self._with_tables(lambda tables, schema=schema, info=info: tables.make_database(schema, info))  # type: ignore[misc]

    def _databases(self) -> Sequence[tuple[str, DbInfo]]:
        """Those that are replicated, by their names at the target."""
        infos = [self._history.schema_at(schema_id, self._version) for schema_id in self._history.schemas]
        return [(self._selection.routes.database(i.name), i) for i in infos if i is not None and self._selection.tables.keeps(i.name)]

    def _drop_stale(self, record: CopyRecord) -> None:
        """Remove what a copy that was given up has made, and this one does not make again in its place."""
        for old in record.others:
            if old.state is CopyState.STALE:
                self._with_tables(lambda tables, old=old: tables.drop(*place_of(old)))  # type: ignore[misc]
                _log.info("%s.%s is removed: the copy that is given up had made it", *place_of(old))
                self._transact(partial(self._note_removed, old))

    def _make_others(self, head: CopyHead, others: Sequence[TableAt]) -> Sequence[WantedTable]:
        """Views and sequences, as often as it takes: one view may need another. Those that the target has then."""
        if not others:
            return ()
        made_before = {(t.schema, t.name) for t in self._load().others}
        with self._at(head) as source:
            waiting = [self._wanted(source, table) for table in others]
            given = {w.label: self._upstream.numbers_given(source, w.source) for w in waiting if w.source.info.is_sequence}
        for wanted in list(waiting):
            name = (wanted.source.schema, wanted.source.name)
            if name in made_before:
                continue
            if self._with_tables(lambda tables, wanted=wanted: tables.is_there(wanted.target.schema, wanted.target.name)):  # type: ignore[misc]
                _log.warning("%s was at the target before the copy, and stays as it is", wanted.label)
                waiting.remove(wanted)
                continue
            recorded = CopiedTable(*name, CopyState.MADE, 0, self._to(wanted.source), made=True)
            self._transact(
                partial(copy_record.add_tables, cluster_id=self._lease.cluster_id, schema=self._schema, head=head, tables=[recorded])
            )
        accepted: list[WantedTable] = []
        while waiting:
            why = {w.label: self._with_tables(lambda tables, wanted=w: tables.make_other(wanted, self._history)) for w in waiting}  # type: ignore[misc]
            made = [w for w in waiting if not why[w.label]]
            waiting = [w for w in waiting if why[w.label]]
            accepted += [w for w in made if self._with_tables(lambda tables, wanted=w: tables.has_statement(wanted))]  # type: ignore[misc]
            if not made:
                names = ", ".join(w.label for w in waiting)
                _log.warning("the target refuses these views or sequences; create them there by hand: %s", names)
                self._ask(lambda session: ensure_ddl_table(session, self._apply))
                for wanted in waiting:
                    self._transact(partial(self._give_up, head, wanted, why[wanted.label]))
                break
        setvals = [SetVal(w.target.schema, w.target.name, last) for w in accepted if (last := given.get(w.label)) is not None]
        for finding in self._transact(partial(set_sequences, setvals=setvals)) if setvals else ():
            _log.warning("%s: %s", finding.table, finding.words)
        return accepted

    def _give_up(self, head: CopyHead, wanted: WantedTable, why: str, session: Session) -> None:
        """A view or sequence that the target refuses; the stream tries a view again."""
        refused = CopiedTable(wanted.source.schema, wanted.source.name, CopyState.MADE)
        copy_record.forget(session, self._lease.cluster_id, self._schema, refused)
        if wanted.source.info.is_view:
            words = [view_waits(wanted.label, why)]
            note_copied(session, self._apply, self._lease.cluster_id, head.ts, wanted.source, LEFT_OUT, words)

    def _copy_by_executors(self, head: CopyHead, work: Sequence[tuple[CopyPlan, CopiedRange]]) -> None:
        if not work:
            return
        target, apply = self._ship(), self._apply
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
        """From the driver: a condition is Spark's to evaluate, and a chunk is one transaction."""
        place = self._place(head)
        for plan, part in work:
            condition = Condition(plan.source, plan.where)
            require(self._spark, condition)

            def hidden(read: Columns, plan: CopyPlan = plan, condition: Condition = condition) -> frozenset[int]:
                return hidden_places(self._spark, arrow_of(plan.read, read), condition)

            for _ in copy_range(place, plan, part, self._sources_at(head), self._sessions.use, self._policy, hidden):
                self._raise_if_stopped()

    def _place(self, head: CopyHead) -> CopyPlace:
        return CopyPlace(self._upstream, head.ts, self._apply, self._lease, self._limits())

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
                        found = copy_record.load(session, self._lease.cluster_id, self._schema)
                        here, _ = copy_record.counted(session, self._lease.cluster_id, self._schema)
                except ApplyError as error:
                    _log.debug("the progress of the copy cannot be read: %s", error)
                    continue
                tables = found.tables if found else ()
                done = [t for t in tables if t.state is CopyState.DONE]
                rows = here + sum(t.rows for t in done)
                first = rows if first < 0 else first
                rate = (rows - first) / max(time.monotonic() - begun, 0.1)
                with self._lock:
                    self._progress = CopyProgress(len(tables), len(done), rows, max(expected, rows) if expected else 0, rate)
        finally:
            sessions.close()

    # The target.

    def _ship(self) -> ShippedTarget:
        if self._shipped is None:
            self._shipped = ShippedTarget.of(self._config.target, self._spark.sparkContext.broadcast)
        return self._shipped

    def _limits(self) -> PlanLimits:
        return PlanLimits().within(self._ask(lambda session: session.max_allowed_packet))

    def _target_tables(self, session: Session) -> TargetTables:
        return TargetTables(session, self._apply, self._lease)

    def _with_tables(self, work: Callable[[TargetTables], T]) -> T:
        return self._ask(lambda session: work(self._target_tables(session)), self._ddl_sessions)

    def _transact(self, work: Callable[[Session], T]) -> T:
        for attempt in retrying(self._policy):
            with attempt, fenced(self._sessions.use, self._lease, attempt) as session:
                done = work(session)
        return done

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


def require_same(table: TableAt, there: Sequence[tuple[str, str]] | None, table_id: int) -> None:
    """Check that the upstream's table is the table of the history. ``there``: its columns' names and types; ``table_id``: TiDB's, 0 = unknown.

    Raises:
        SchemaMoves: it is another table, or has other columns, so its values would be read wrongly.
    """
    if there is not None and table_id not in (0, table.table_id):
        raise SchemaMoves(
            f"{table.schema}.{table.name} has the id {table_id} in the upstream's snapshot, and {table.table_id} in the DDL history. Either a RENAME or TRUNCATE is "
            "running: start again when it has ended. Or spark.upstream is not the cluster whose binlogs come: correct it"
        )
    wanted = visible(table.info)
    if there is None:
        raise SchemaMoves(f"{table.schema}.{table.name} is not in the upstream's snapshot, although the DDL history has it")
    if [name.lower() for name, _ in there] != [c.name.lower() for c in wanted]:
        raise SchemaMoves(
            f"{table.schema}.{table.name} has the columns {', '.join(name for name, _ in there)} in the upstream's snapshot, and "
            f"{', '.join(c.name for c in wanted)} in the DDL history: a DDL is running. Start again when it has ended"
        )
    others = [f"{c.name} {kind} instead of {column_type(c)}" for (_, kind), c in zip(there, wanted, strict=True) if not shows(kind, c)]
    if others:
        raise SchemaMoves(
            f"{table.schema}.{table.name} has other types in the upstream's snapshot than in the DDL history: {', '.join(others[:5])}. A DDL is running. "
            "Start again when it has ended"
        )


def require_still_there(
    ask: Callable[[Callable[[Session], Any]], Any], apply: ApplyConfig, held: Lease, tables: Iterable[CopiedTable]
) -> None:
    """What is recorded as copied is at the target; ``ask`` has a session answer.

    Raises:
        BootstrapRefused: somebody has emptied or dropped it since.
    """
    counts = ask(lambda session: copy_record.counted_by_table(session, held.cluster_id, held.schema))
    copied = [
        (place_of(t), t.rows if t.state is CopyState.DONE else counts.get((t.schema, t.name), 0))
        for t in tables
        if t.to and t.state in (CopyState.EMPTY, CopyState.DONE)
    ]
    lost = ask(lambda session: TargetTables(session, apply, held).without_rows(copied))
    if lost:
        raise BootstrapRefused(
            f"{', '.join(lost[:5])}: {held.schema}.{copy_record.TABLE} records this table as copied, but at the target it is empty or does not exist. If the "
            "target was rebuilt or the table emptied, start with --bootstrap-restart, which copies everything again"
        )


def goes_on_at(found: CopyRecord, head: CopyHead) -> bool:
    """Whether the recorded copy is this copy, and continues. A first load that is done but not joined adds tables that filters have let in since."""
    unjoined = found.begun or (head.kind is CopyKind.FIRST and not found.joined)
    return unjoined and (found.head.kind, found.head.ts) == (head.kind, head.ts)


def place_of(table: CopiedTable) -> tuple[str, str]:
    """Its database and name at the target."""
    schema, name, *_ = json.loads(table.to)
    return schema, name


def _anew(table: CopiedTable) -> CopiedTable:
    """Half done, and to be copied from its beginning."""
    return table if table.state is CopyState.PLANNED else replace(table, state=CopyState.AGAIN)


def _groups(tables: Sequence[CopiedTable]) -> Iterator[Sequence[CopiedTable]]:
    """Tables whose ranges go to Spark together, so that small ones do not wait for each other."""
    for begin in range(0, len(tables), _TABLES_AT_ONCE):
        yield tables[begin : begin + _TABLES_AT_ONCE]
