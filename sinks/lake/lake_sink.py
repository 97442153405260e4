"""The lake as a target (``db-type = "lake"``): every change and DDL of the stream, a row each, in one Delta table (``ledger_rows``), which the
``mirrors`` follow.

Promises: those of the contract. A step is one commit, which holds its rows and the record of its end, so no span is ever unfinished. A reader needs
no TiDB: each DDL's row has the whole job.

Fence: a start commits the next epoch. Every commit is compare-and-swap on the version that this sink knows (``ledger``). One that loses the race
reads again: a higher epoch is ``LeaseLost``; its own commit, whose answer was lost, is done; after that of another program, such as a
compaction, the step is judged anew. A writer that was suspended for any time therefore writes nothing once another one has begun.

A start is refused while another writer lives: one that has not ended, and commits within ``lease-timeout``. A thread commits the record every third
part of that time if nothing else was committed, also while executors write the files of a big step.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld, LeaseLost
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, without
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, unpack
from pyspark_tidb_binlog.sinks.engine.late_record import LateRecord, Note
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.lake.commit_log import NotForced
from pyspark_tidb_binlog.sinks.lake.lake_table import PARTS, LiveFile, RecordReplaced, WrittenPart, parts_in, row_of, without_logs
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.ledger import NO_ROWS, LakeState, LakeWriter, Ledger, LedgerWrite, written_part
from pyspark_tidb_binlog.sinks.lake.ledger_rows import Doubled, ddl_row, ledger_rows
from pyspark_tidb_binlog.sinks.lake.mirrors import Mirrors, TableLoads
from pyspark_tidb_binlog.sinks.lake.power_loss import put_back, reaches
from pyspark_tidb_binlog.sinks.lake.upkeep import Upkeep, old_changes
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.sink import DdlResult, KeptTable, Opened, Sink, TargetProgress
from pyspark_tidb_binlog.sinks.translate.binlog_format import name_of

_log = logging.getLogger(__name__)

_BEATS = 3
"""Commits of an idle stream per ``lease_timeout``."""
_LOOKS = 10
"""Looks for a sign of life of another writer in that time."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The settings of a lake."""

    directory: str
    """Path or URI."""
    cluster_id: int
    drainer: str = "drainer"
    lease_timeout: float = 30.0
    """Seconds."""
    ignored_ts: frozenset[int] = frozenset()
    """``ignore-txn-commit-ts``."""
    selection: Selection = Selection()
    mirror_interval: float | None = None
    """Seconds between moments of the mirrors; 0: as soon as there is something. None: no mirrors."""
    retention: float = 7 * 86_400.0
    """Seconds before the newest moment for which moments are kept."""
    json_variants: bool = False
    """Whether JSON columns of new mirrors are VARIANT; else they are texts."""
    days: int = 0
    """Before the newest moment, for which row changes of the ledger are kept, as far as no moment needs older ones; 0: all are."""


class LakeSink(Sink):
    """One stream into one lake."""

    def __init__(
        self,
        settings: LakeSettings,
        pause: Callable[[float], None] = time.sleep,
        loads: TableLoads | None = None,
        large: LargeMirrors | None = None,
    ) -> None:
        """Nothing is read or written before ``open``. ``pause``: waits for so many seconds, or raises to end the wait. ``loads``, ``large``: of ``Mirrors``."""
        self._settings = settings
        self._loads = loads
        self._pause = pause
        self._ledger = Ledger(settings.directory)
        every = settings.mirror_interval
        self._mirrors = (
            Mirrors(settings.directory, every, settings.retention, settings.selection, loads, large, settings.json_variants)
            if every is not None
            else None
        )
        self._late = LateRecord()
        self._lock = threading.Lock()
        """Held while the ledger is used."""
        self._writing = threading.Lock()
        """Held by a step from before its first file to behind its commit."""
        outdated = partial(old_changes, settings.directory, settings.days)
        self._upkeep = Upkeep(Ledger(settings.directory), self._swap, self._settled, outdated)
        self._state = LakeState("", settings.cluster_id)
        """What the ledger records."""
        self._committed_at = 0.0
        self._commit_ts = 0
        self._lost: LeaseLost | None = LeaseLost("the lake is not open")
        self._ended = threading.Event()
        self._beat: threading.Thread | None = None

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, and load or begin the record (``Sink.open``)."""
        self._take()
        self._beat = threading.Thread(target=self._beats, name="lake-lease", daemon=True)
        self._beat.start()
        self._upkeep.start()
        found = self._state
        begun = found.commit_ts
        if begun is None and self._mirrors is not None and (first := self._mirrors.published()) is not None:
            # A first load publishes its moment before the ledger records it.
            begun = first.resolved_ts or None
        start = begin(found.target, begun)
        if found.commit_ts is not None and start < found.commit_ts:
            raise ApplyError(f"the stream would begin at {start}, but {self._ledger.uri} records {found.commit_ts}")
        applied = found.applied if found.commit_ts is not None else AppliedJobs(history().version_at(start), since=start)
        if begun is None and self._mirrors is not None and self._loads is not None:
            if tables := self._loads.first(history(), applied.version):
                self._mirrors.begin(self._state.epoch, start, tables)
            failpoints.point("after-load-begin")
        if start != found.commit_ts:
            self._commit(start, applied)
        self._commit_ts = start
        self._late.found(start, applied)
        if self._mirrors is not None:
            self._mirrors.start(self._state.epoch)
        return Opened(TargetProgress(start, True, applied.version, None, known=found.commit_ts is not None), applied, {})

    def load(self, tables: Sequence[Job], *, absent: bool = False) -> None:
        """Have the mirrors load tables at a moment to come (``Sink.load``)."""
        if self._mirrors is not None:
            # The stream may be further by steps without rows, which are recorded together.
            self._mirrors.load(tables, self._state.commit_ts or 0, absent=absent)

    def kept(self) -> Sequence[KeptTable]:
        """The mirrors (``Sink.kept``)."""
        return self._mirrors.kept if self._mirrors is not None else ()

    def defer(self, note: Note) -> None:
        """Record the end of steps without rows at most every few seconds (``Sink.defer``)."""
        self._late.note = note

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Commit a step from the driver (``Sink.apply``)."""
        if not self._is_next(step):
            return Written()
        with clock.timed(Stage.PLAN):
            batches = list(ledger_rows(wanted(rows, step.gone, step.left_out), step.tables, step.upto_ts, Doubled()))
        with clock.timed(Stage.APPLY, "write"):
            return self._write(step, sum(map(len, batches)), LedgerWrite(batches))

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """The executors write files, and the driver commits them together (``Sink.apply_parts``)."""
        if not self._is_next(step):
            return Written()
        with clock.timed(Stage.APPLY, "write"), self._writing:
            failpoints.point("before-deletes")
            parts = _parts_of(events, step, skipped_ts, self._settings.directory)
            done = self._write(step, sum(p.rows for p in parts), LedgerWrite(parts=parts))
            without_logs(self._ledger.uri, parts)
        return done

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        """The DDL's row, and its record (``Sink.apply_ddl``)."""
        self._require_held()
        fate = "already there"
        if step.job not in replace(self._state.applied, behind=step.before.behind):
            if step.commit_ts < self._commit_ts:
                raise ApplyError(f"cannot record DDL job {step.job.id} at {step.commit_ts}: the lake stands at {self._commit_ts}")
            unwanted = step.decision.fate in (DdlFate.FILTERED, DdlFate.LEFT_OUT) or step.skip_ts in self._settings.ignored_ts
            name = name_of(step.job, history)
            to = self._settings.selection.routes.target(name.schema, name.name)
            rows = [] if unwanted else [ddl_row(step, (to.schema, to.name))]
            self._step(step.commit_ts, step.applied, LedgerWrite(rows), len(rows), ddl=True)
            fate = "recorded"
        self._commit_ts = max(self._commit_ts, step.commit_ts)
        return DdlResult(fate=fate)

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """None: DDLs are kept as they are."""
        return ()

    def close(self) -> None:
        """Publish the last moment, and end the epoch (``Sink.close``)."""
        if self._mirrors is not None:
            self._mirrors.close()
        self._ended.set()
        if self._beat is not None:
            self._beat.join()
        self._upkeep.end()
        if self._lost is None:
            try:
                begun = self._state.commit_ts is not None
                self._commit(self._commit_ts if begun else None, self._state.applied, held=False)
            except ApplyError as error:
                _log.warning("the lease on %s is not released: the next start waits for it: %s", self._ledger.uri, error)
            self._lost = LeaseLost(f"this Drainer has released {self._ledger.uri}")

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the lake."""
        return self._commit_ts

    @property
    def target(self) -> str:
        """The identity of the lake; available after ``open``."""
        return self._state.target

    @property
    def lost(self) -> LeaseLost | None:
        """Set once another writer has begun, or this one has ended."""
        return self._lost

    @property
    def waiting_for(self) -> None:
        """delta-rs repeats requests to a store itself; a local file system's errors are not retried."""
        return

    # Steps.

    def _is_next(self, step: RowsStep) -> bool:
        """Whether a step is to be applied; False: it is in the lake."""
        self._require_held()
        if self._commit_ts not in (step.after_ts, step.upto_ts):
            raise ApplyError(f"cannot apply ({step.after_ts}, {step.upto_ts}]: the lake stands at {self._commit_ts}")
        return self._commit_ts == step.after_ts < step.upto_ts

    def _write(self, step: RowsStep, count: int, added: LedgerWrite) -> Written:
        if count or not self._late.put_off(step):
            self._step(step.upto_ts, step.applied, added, count)
        self._commit_ts = step.upto_ts
        return Written(count)

    # The ledger.

    def _step(self, commit_ts: int, applied: AppliedJobs, added: LedgerWrite, changes: int, *, ddl: bool = False) -> None:
        failpoints.point("before-downstream-commit")
        self._commit(commit_ts, applied, added)
        if self._mirrors is not None and changes:
            self._mirrors.note(changes, ddl=ddl)
        failpoints.point("after-downstream-commit")

    def _commit(self, commit_ts: int | None, applied: AppliedJobs, added: LedgerWrite = NO_ROWS, *, held: bool = True) -> None:
        with self._lock:
            self._require_held()
            fresh = replace(
                self._state,
                number=self._state.number + 1,
                held=held,
                commit_ts=commit_ts,
                schema_version=applied.version,
                early=applied.early,
                since_ts=applied.since,
            )
            self._commit_state(fresh, added)
            self._upkeep.committed(len(added.parts))
            if commit_ts is not None:
                self._late.saved(commit_ts, applied)

    def _swap(self, parts: Sequence[WrittenPart], gone: Sequence[LiveFile], begin_ts: int | None = None) -> None:
        """Commit a compaction, between two steps. It carries the state, as each commit does. ``begin_ts``: of the ledger from now on."""
        with self._lock:
            self._require_held()
            begin_ts = self._state.begin_ts if begin_ts is None else begin_ts
            fresh = replace(self._state, number=self._state.number + 1, begin_ts=begin_ts)
            self._commit_state(fresh, LedgerWrite(parts=parts, gone=gone))

    def _settled(self) -> None:
        with self._writing, self._lock:
            self._require_held()

    def _commit_state(self, fresh: LakeState, added: LedgerWrite = NO_ROWS) -> None:
        """Commit ``fresh`` behind the state of this sink, whatever other programs have committed meanwhile."""
        try:
            self._ledger.commit(self._state, fresh, added)
        except RecordReplaced as error:
            found, uri = error.found, self._ledger.uri
            if found is not None and found.epoch > self._state.epoch:
                self._lost = LeaseLost(f"{found.holder} has taken over {uri}: this Drainer writes nothing more")
            else:
                self._lost = LeaseLost(f"{uri} does not hold what this Drainer has committed last: it was restored or replaced")
            raise self._lost from error
        except NotForced as error:
            # Whether the commit stays is not known, so nothing is to follow it.
            self._lost = LeaseLost(f"{error}: this Drainer writes nothing more. Start it again when the disk is well")
            raise self._lost from error
        self._state, self._committed_at = fresh, time.monotonic()

    def _require_held(self) -> None:
        if self._lost is not None:
            raise self._lost

    # The lease.

    def _take(self) -> None:
        """Commit the next epoch, once no other writer lives."""
        me = LakeWriter.here(self._settings.drainer)
        put_back(self._settings.directory)
        # Before the ledger, which is always ahead of it.
        published = self._mirrors.published() if self._mirrors is not None else None
        while True:
            found = self._ledger.load()
            if published is not None and not reaches(found, published):
                raise ApplyError(
                    f"{self._settings.directory} has parts of different moments: its snapshots are of {as_time(published.resolved_ts)} "
                    f"({published.resolved_ts}, epoch {published.epoch}), and its changes are not. Restore all of it from one backup; or remove "
                    "snapshots and tables: they are made again from changes, and tables that were loaded are loaded again when asked"
                )
            if found is None:
                first = LakeState(str(uuid.uuid4()), self._settings.cluster_id, 1, 0, me, True)
                if not self._ledger.create(first):
                    continue
                self._state = first
                break
            if found.cluster_id != self._settings.cluster_id and found.cluster_id and self._settings.cluster_id:
                raise ApplyError(
                    f"{self._ledger.uri} is the ledger of cluster {found.cluster_id}, this is cluster {self._settings.cluster_id}: each needs a lake of its own"
                )
            if found.held and not found.holder.is_gone:
                found = self._waited_for(found)
            fresh = replace(found, epoch=found.epoch + 1, number=0, holder=me, held=True)
            try:
                self._ledger.commit(found, fresh)
            except RecordReplaced:
                continue
            self._state = fresh
            break
        self._lost, self._committed_at = None, time.monotonic()

    def _waited_for(self, found: LakeState) -> LakeState:
        """The newest state, once that is an ended writer's, or has been ``found`` for ``lease_timeout``."""
        slice_, begun = self._settings.lease_timeout / _LOOKS, time.monotonic()
        _log.warning("waiting up to %g s for a sign of life of %s, which has not ended", self._settings.lease_timeout, found.holder)
        while time.monotonic() - begun < self._settings.lease_timeout:
            self._pause(slice_)
            newest = self._ledger.load()
            if newest is not None and newest != found:
                if not newest.held:
                    return newest
                raise LeaseHeld(f"{newest.holder} writes to {self._ledger.uri}; stop it first")
        return found

    def _beats(self) -> None:
        """Show that this writer lives, until it ends."""
        every = self._settings.lease_timeout / _BEATS
        while not self._ended.wait(max(0.0, every - (time.monotonic() - self._committed_at)) or every):
            if self._lost is not None or time.monotonic() - self._committed_at < every or not self._lock.acquire(blocking=False):
                continue
            try:
                self._commit_state(replace(self._state, number=self._state.number + 1))
                self._upkeep.committed(0)
            except ApplyError as error:
                _log.warning("the lease on %s could not be shown: %s", self._ledger.uri, error)
            finally:
                self._lock.release()


def _parts_of(events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], lake: str) -> list[WrittenPart]:
    """The files with the rows of ``step`` but for the transactions ``skipped_ts``; runs a Spark job."""
    span, tables, gone, left_out = (step.after_ts, step.upto_ts), dict(step.tables), step.gone, step.left_out

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        doubled = Doubled()

        def changes() -> Iterator[pa.RecordBatch]:
            # Of a block at a time. All events of a row, and so both of a doubled one, are in this part.
            for block in (batch.slice(place, 1) for batch in batches for place in range(batch.num_rows)):
                rows = wanted(rows_between(unpack([block], ROW_EVENT), *span), gone, left_out)
                yield from ledger_rows(without(rows, "commit_ts", skipped_ts), tables, span[1], doubled)

        for part in written_part(lake, changes()):
            yield row_of(part)
        failpoints.point("after-part-write")

    return parts_in(events.overlapping(span).mapInArrow(run, ddl_of(PARTS)).toArrow())
