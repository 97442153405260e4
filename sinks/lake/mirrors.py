"""The mirrors of a lake: each upstream table as a Delta table, which follows the ledger.

Promises: at a published moment every table that is mirrored equals its mirror, and all of them are at the same time of the upstream. A crash at any
point costs a repetition: a mirror's version counts once ``snapshots`` names it. An error of one table marks that table as stale, at once or if it does not pass; the others go on. The
ledger, and with it the stream, never waits.

A round reads the ledger's rows since the last moment, merges each table's net changes, follows the DDLs between them, and publishes all of it in one
commit. Between two rows of a table in ``snapshots`` there is never a DDL of that table: a DDL adds the row before and the row after itself.
It holds some ``PIECE_BYTES`` of rows a few times over, whatever the size of a transaction. Between two rounds ``upkeep`` go, and tables whose rows
the ledger does not have from the beginning are loaded. A table that is to be loaded is ``LOADING`` in ``snapshots``, and rounds pass over its rows. When all
mirrors are at a moment, it is read from the upstream as it was at this moment, into a new directory. So the ledger goes on from there, as for any mirror.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import LeaseLost, Stopped
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.lake.commit_log import is_local
from pyspark_tidb_binlog.sinks.lake.lake_table import WrittenPart
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger, ledger_ddls, of_ledger
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.mirror_round import (
    NOT_FROM_THE_BEGINNING,
    LoadLater,
    OpenMirrors,
    Round,
    RoundFailed,
    aside,
    require_own_rowids,
)
from pyspark_tidb_binlog.sinks.lake.mirror_table import is_error
from pyspark_tidb_binlog.sinks.lake.moments import LOADING, MIRRORED, NO_JOBS, STALE, MirrorState, Moment, Snapshots
from pyspark_tidb_binlog.sinks.lake.net_changes import NEEDED, PIECE_BYTES, RowPieces, held, mirror_schema
from pyspark_tidb_binlog.sinks.lake.power_loss import put_back_mirrors
from pyspark_tidb_binlog.sinks.lake.upkeep import OldVersions
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.sink import KeptTable

_log = logging.getLogger(__name__)

MUCH = 100_000
"""Row changes after which a moment is published before its time."""
_DDL_SHARE = 3
"""Into how many parts a DDL divides the time between two moments, unless the moment before had one: until a DDL is followed, readers stop before it."""
_REPLACED_BYTES = 16 << 20
"""Of files of mirrors that a round replaces, for which an interval is waited. They are kept for hours."""
_LONGEST = 3600.0
"""Seconds that are waited at most."""
_ROUND_BYTES = 64 << 20
"""Of the ledger's files, which are compressed, in one round."""
_RETRY_SECONDS = 5.0
_SLICE = 0.1
_PATIENCE = 5.0
"""Seconds that the end waits for an answer of the upstream."""
_OF_DDL = ("commit_ts", "seq", "schema_version", "job_id", "early", "job")
_CHANGES = of_ledger(NEEDED)


class TablesThen(Protocol):
    """The upstream's tables as they were at one moment."""

    def files_of(self, table: TableAt, uri: str, stored: pa.Schema) -> Sequence[WrittenPart]:
        """All rows of ``table`` in files of the mirror at ``uri``, which has them as ``stored``. No commit knows the files yet.

        Raises:
            LoadLater: see there.
            Stopped: the stream ends.
            Exception: the table cannot be loaded, and why.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableLoads:
    """The tables that come from the upstream, and how they are read."""

    first: Callable[[SchemaHistory, int], Sequence[Job]]
    """Of a lake that begins at a schema version: those to be loaded, each as ``schema_snapshot.table_as_job``."""
    at: Callable[[int, Callable[[], bool]], AbstractContextManager[TablesThen]]
    """The tables at a ts, as long as they are read; the other argument: whether the stream ends. It raises ``LoadLater``, too."""
    again: float = 0.0
    """Seconds from the first load of a table that was set aside to the next one (``spark.reload-interval``); 0: a person asks for each."""


class Mirrors:
    """Follows the ledger in a thread of its own."""

    def __init__(
        self,
        lake: str,
        interval: float,
        retention: float,
        selection: Selection,
        loads: TableLoads | None = None,
        large: LargeMirrors | None = None,
        variants: bool = False,
    ) -> None:
        """``interval``: seconds between moments; 0: as soon as there is something. ``retention``: seconds, of ``Snapshots``. ``loads``: by which tables
        are loaded. ``large``: what writes large mirrors; None: delta-rs writes all. ``variants``: of ``OpenMirrors``.
        """
        self._lake = lake.rstrip("/")
        self._loads = loads
        self._asked: list[_Asked] = []
        """Tables that are to be loaded, and not marked yet."""
        self._again: dict[int, tuple[float, float]] = {}
        """By table id: when a table that was set aside was loaded by itself, by the monotonic clock, and for how many seconds it is not once more."""
        self._logged: set[str] = set()
        self._reading = False
        """Whether the upstream may be waited for."""
        self._interval = interval
        self._open = OpenMirrors(self._lake, selection, large, variants)
        self._ledger, self._snapshots = Ledger(lake), Snapshots(lake, retention)
        self._old_versions = OldVersions(self._lake, self._snapshots)
        self._wake = threading.Condition()
        self._changes, self._ddl, self._ending = 0, False, False
        self._thread: threading.Thread | None = None
        self._tables: dict[int, MirrorState] | None = None
        self._history = SchemaHistory()
        self.kept: tuple[KeptTable, ...] = ()
        """The tables after the last round, for any thread to look at."""

    def published(self) -> Moment | None:
        """The newest moment; None: nothing was published yet."""
        return self._snapshots.load()

    def begin(self, epoch: int, ts: int, tables: Sequence[Job]) -> None:
        """Publish the first moment, at which all that there is are ``tables`` (``table_as_job``), which are to be loaded.

        To be called before the ledger records that it begins at ``ts``: a start in between goes on from this moment.
        """
        self._open.epoch = epoch
        self._read_published()
        self._mark(ts, [_Asked(job, ts) for job in tables])

    def load(self, tables: Sequence[Job], ts: int, *, absent: bool = False) -> None:
        """Have ``tables`` loaded, which are so at ``ts``; ``absent``: those of them that have no mirror."""
        with self._wake:
            self._asked += [_Asked(job, ts, absent) for job in tables]
            self._changes += MUCH
            self._wake.notify()

    def start(self, epoch: int) -> None:
        """Follow the ledger as the writer of ``epoch``."""
        self._open.epoch = epoch
        # An earlier life may have left tables to be loaded.
        self._changes += MUCH
        self._thread = threading.Thread(target=self._follow, name="lake-mirrors", daemon=True)
        self._thread.start()

    def note(self, changes: int, *, ddl: bool = False) -> None:
        """Count row changes, or a DDL, that came to the ledger."""
        with self._wake:
            self._changes += changes
            self._ddl |= ddl
            self._wake.notify()

    def close(self) -> None:
        """Publish what the ledger holds, and end. A load is given up, also of an upstream that does not answer."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        asked_at = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_SLICE)
            if self._reading and time.monotonic() - asked_at > _PATIENCE:
                _log.warning("the upstream does not answer: the moment is not published, and the next start loads the table")
                return

    def _follow(self) -> None:
        begun, pause, had_ddl = 0.0, self._interval, False
        while True:
            with self._wake:
                while not self._ending and (left := self._seconds_left(begun, pause, had_ddl)) != 0.0:
                    self._wake.wait(left)
                had_ddl, ending, begun, pause = self._ddl, self._ending, time.monotonic(), self._interval
                self._changes, self._ddl = 0, False
            try:
                upto_ts = self.catch_up()
                later = upto_ts is not None and self._load_tables(upto_ts)
                self.kept = self._open.kept(self._tables or {}, self.kept)
                if later:
                    self._retry_soon()
                else:
                    pause = pause_after(self._open.replaced_bytes, self._interval)
                    self._open.replaced_bytes = 0
                if not ending:
                    self._old_versions.look()
            except LeaseLost as error:
                _log.warning("%s", error)
                return
            except RoundFailed:
                self.forget()
                self._retry_soon()
            except BaseException as error:
                if not is_error(error):
                    raise
                # The stream goes on; whatever it was, the next round begins with what is published.
                _log.exception("the mirrors of %s could not be brought up to date; they are tried again", self._lake)
                self.forget()
                self._retry_soon()
            if ending:
                return

    def _seconds_left(self, begun: float, pause: float, had_ddl: bool) -> float | None:
        """How long the next round waits; None: for a change. ``had_ddl``: whether the last one followed a DDL."""
        if not self._changes:
            return None
        due = begun + (min(pause, self._interval / _DDL_SHARE) if self._ddl and not had_ddl else pause)
        return 0.0 if self._changes >= MUCH else max(0.0, due - time.monotonic())

    def _retry_soon(self) -> None:
        with self._wake:
            self._changes += 1
            self._wake.wait_for(lambda: self._ending or self._changes > MUCH, _RETRY_SECONDS)

    def forget(self) -> None:
        """Begin the next round with what is published."""
        self._tables = None
        self._open.forget()

    def catch_up(self) -> int | None:
        """Rounds until the mirrors are where the ledger is, which is returned; None: the ledger has not begun."""
        state = self._ledger.load()
        # Where there is no ledger any more, ``take`` is not to begin ``snapshots`` anew.
        if self._tables is None and state is not None:
            self._read_published()
        while state is not None and state.commit_ts is not None:
            done = self._snapshots.moment
            span = self._ledger.span(done.resolved_ts, done.jobs, state.commit_ts, _ROUND_BYTES)
            ddls = span.ddls(_OF_DDL).sort_by(ORDER).to_pylist()
            rows = held(span.changes(NEEDED), _CHANGES, PIECE_BYTES)
            if rows is None:
                # Rows are not folded across a DDL, so pieces, which have rows of the whole span, end before it. A DDL that is not early has a commit_ts
                # of its own; an early one comes behind the rows of its commit_ts.
                span = span.upto(ddls[0]["commit_ts"]) if ddls else span
                ddls = [row for row in ddls if row["commit_ts"] == span.upto_ts]
                with RowPieces(span.changes(NEEDED), _CHANGES, self._lake if is_local(self._lake) else None) as pieces:
                    self._one(_CHANGES.empty_table(), ddls, span.upto_ts, state.begin_ts, pieces)
            elif rows.num_rows or ddls or span.upto_ts < state.commit_ts:
                self._one(rows, ddls, span.upto_ts, state.begin_ts)
            if span.upto_ts >= state.commit_ts:
                return state.commit_ts
        return None

    def _one(self, rows: pa.Table, ddls: list[dict[str, Any]], upto_ts: int, begin_ts: int, pieces: RowPieces | None = None) -> None:
        """A round."""
        assert self._tables is not None
        one = Round(self._open, dict(self._tables), self._history, begin_ts)
        one.run(rows, ddls, upto_ts, pieces)
        jobs = {row["job_id"] for row in ddls if row["commit_ts"] == upto_ts}
        if self._snapshots.moment.resolved_ts == upto_ts:
            jobs |= set(self._snapshots.moment.jobs)
        self._open.force(self._tables.values(), (table for _, table in one.published))
        self._snapshots.publish(upto_ts, sorted(jobs), one.published)
        self._tables, self._history = one.tables, one.history
        self._open.all_well(self._tables)

    def _read_published(self) -> None:
        """Read the published tables, and the DDLs up to there."""
        # Before a mirror is put back to its version: the newest writer's version it may be.
        self._snapshots.take(self._open.epoch)
        self._open.discard(set(self._snapshots.rows(["path"])["path"].to_pylist()))
        self._tables = self._snapshots.tables()
        put_back_mirrors(self._lake, self._tables.values())
        done = self._snapshots.moment
        self._history = followed_history(self._lake, self._snapshots, done)
        # By filters of another start than the rows before came by.
        newest = self._history.newest_version
        mirrored = [(t, self._history.table_at(t.table_id, newest)) for t in self._tables.values() if t.state == MIRRORED]
        if left := [aside(t, why) for t, at in mirrored if at is not None and (why := self._open.left_out(at))]:
            self._publish(done.resolved_ts, left)

    # Loads.

    def _load_tables(self, ts: int) -> bool:
        """Read what is to be loaded from the upstream as it was at ``ts``, where all mirrors are; whether some of it is left for later."""
        due = [asked for asked in list(self._asked) if asked.ts <= ts]
        self._mark(ts, [*due, *self._due_again(ts)])
        with self._wake:
            self._asked = [asked for asked in self._asked if asked not in due]
        assert self._tables is not None
        waiting = [table for table in self._tables.values() if table.state == LOADING]
        if self._loads is None or self._ending:
            return False
        if waiting:
            self._reading = True
            try:
                with self._loads.at(ts, lambda: self._ending) as upstream:
                    for table in waiting:
                        if self._ending:
                            break
                        self._load(table, upstream, ts)
            except LoadLater as error:
                self._log_once(f"{len(waiting)} tables wait to be loaded: {error}")
            except Stopped as error:
                _log.info("%s", error)
            finally:
                self._reading = False
        return bool(self._asked) or any(table.state == LOADING for table in self._tables.values())

    def _due_again(self, ts: int) -> list["_Asked"]:
        """The tables that were set aside and are loaded by themselves: at once, then after pauses, each twice the one before, until a load holds for its pause."""
        if self._loads is None or not self._loads.again or self._ending:
            return []
        assert self._tables is not None
        now, newest, due = time.monotonic(), self._history.newest_version, list[_Asked]()
        for table in self._tables.values():
            loaded_at, pause = self._again.get(table.table_id, (-math.inf, 0.0))
            at = self._history.table_at(table.table_id, newest)
            if now - loaded_at < pause or at is None:
                continue
            if table.state == MIRRORED:
                self._again.pop(table.table_id, None)
            elif table.state == STALE and table.why != NOT_FROM_THE_BEGINNING and not self._open.left_out(at):
                self._again[table.table_id] = now, max(2 * pause, self._loads.again)
                due.append(_Asked(table_as_job(at, self._history), ts))
        return due

    def _mark(self, ts: int, asked: Sequence["_Asked"]) -> None:
        """Publish that tables are to be loaded."""
        assert self._tables is not None
        unknown = {a.job.table_id: a.job for a in asked if a.job.table_id not in self._history.tracks}
        self._history = self._history.merged(unknown.values())
        marked: dict[int, MirrorState] = {}
        for a in asked:
            at, known = self._history.table_at(a.job.table_id, self._history.newest_version), self._tables.get(a.job.table_id)
            if at is None:
                _log.warning("%s.%s is not loaded: it was dropped meanwhile", a.job.schema_name, a.job.table_name)
            elif known is None or (known.state != LOADING and not (a.absent and known.state == MIRRORED)):
                database, name = self._open.named(at)
                marked[at.table_id] = MirrorState(at.table_id, database, name, schema_version=at.version, info=at.info, state=LOADING)
        if marked:
            _log.info("tables are to be loaded: %s", ", ".join(map(str, marked.values())))
            self._publish(ts, list(marked.values()), unknown)

    def _load(self, table: MirrorState, upstream: TablesThen, ts: int) -> None:
        """Load one table, or set it aside, or leave it for later."""
        try:
            made = self._open.tried(table, lambda table: self._loaded(table, upstream, ts))
        except LoadLater as error:
            self._log_once(f"table {table} waits to be loaded: {error}")
            return
        self._publish(ts, [made])

    def _loaded(self, table: MirrorState, upstream: TablesThen, ts: int) -> MirrorState:
        newest = self._history.newest_version
        at = self._history.table_at(table.table_id, newest)
        assert at is not None
        if late := [job for job in self._history.jobs_of_table(at.table_id, 0, newest) if job.finished_ts > ts]:
            # An early one: the upstream does not have it at ``ts``.
            raise LoadLater(f"DDL job {late[-1].id} has not ended upstream at the moment of the mirrors")
        self._open.require_kept(at)
        path, stamp = self._open.new_path(table), self._open.stamp(ts)
        mirror = self._open.created(path, self._open.new_schema(at.info), stamp)
        parts = upstream.files_of(at, mirror.uri, mirror.stored_schema(mirror_schema(at.info)))
        mirror.append_files(parts, stamp)
        require_own_rowids(at.info, mirror)
        self._open.keep(path, mirror)
        _log.info("table %s is loaded as of %d (%s): %d rows", table, ts, as_time(ts), sum(p.rows for p in parts))
        return replace(table, path=path, version=mirror.version, upto_ts=ts, info=at.info, state=MIRRORED)

    def _publish(self, ts: int, tables: Sequence[MirrorState], defined: Mapping[int, Job] = NO_JOBS) -> None:
        """Publish changed tables at ``ts``, where all mirrors are."""
        assert self._tables is not None
        moment = self._snapshots.moment
        self._open.force(self._tables.values(), tables)
        self._snapshots.publish(ts, moment.jobs if moment.resolved_ts == ts else (), [(ts, table) for table in tables], defined)
        self._tables |= {table.table_id: table for table in tables}
        self._open.all_well(self._tables)

    def _log_once(self, words: str) -> None:
        """A line in the log, once."""
        if words not in self._logged:
            self._logged.add(words)
            _log.warning("%s", words)


def followed_history(lake: str, snapshots: Snapshots, moment: Moment) -> SchemaHistory:
    """The definitions that the mirrors of a moment follow."""
    ddls = ledger_ddls(lake, moment.resolved_ts)
    known = [ddl.job for ddl in ddls if ddl.commit_ts < moment.resolved_ts or ddl.job.id in moment.jobs]
    return SchemaHistory.of([*snapshots.definitions(), *known])


def pause_after(replaced_bytes: int, interval: float) -> float:
    """Seconds from a round that has replaced so many bytes of files to the next one; pure."""
    return max(interval, min(_LONGEST, interval * replaced_bytes / _REPLACED_BYTES))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A table that is to be loaded."""

    job: Job
    """``table_as_job``, as it is at ``ts``."""
    ts: int
    absent: bool = False
    """Only if it has no mirror."""
