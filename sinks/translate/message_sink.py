"""A target that takes whole transactions as messages, in the order of commit_ts: the common part of the file and the Kafka sink (``sinks.sink``).

Promises: those of the contract. A step is written to the outlet, made durable there, and then recorded (``local_record``). At ``open``, what the outlet holds
beyond the record is removed, or not written again. After an error the sink refuses further steps: the next life begins at the record.

* The rows of a step become one message per transaction. A DDL is a message of its own, at the commit_ts of its step: its binlog's commit_ts, or, if rows
  need the job before its binlog, one less than theirs.
* What is not replicated is left out (``sinks.engine.choice``). No DDL is refused, so no table is frozen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink, TargetProgress
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, name_of
from pyspark_tidb_binlog.sinks.translate.local_record import SAVEPOINT, LocalProgress, LocalRecord, TargetPlace
from pyspark_tidb_binlog.sinks.translate.translation import Message, Translation, messages_in_order


@dataclass(frozen=True, slots=True)
class LastBinlog:
    """The last binlog that an outlet holds, whoever put it there."""

    where: str
    """The outlet's name."""
    commit_ts: int
    """0: it is not there any more."""


class Outlet(Protocol):
    """A place for messages. One thread at a time."""

    def open(self, progress: LocalProgress | None, commit_ts: int) -> None:
        """Get ready to continue after ``commit_ts``: the first ``put`` removes what is there beyond ``progress``, or what is there is not written again.

        Raises:
            LeaseHeld: another process writes there.
            ApplyError: what is there does not fit the record; with ``progress`` None, anything is there beyond ``commit_ts``.
        """

    def put(self, messages: Iterable[Message]) -> int:
        """Write ``messages``, ascending by commit_ts; how many row changes they hold. Durable when it returns."""

    def last(self) -> LastBinlog | None:
        """The last binlog there; None: there never was one. Between ``open`` and the first ``put``."""

    @property
    def place(self) -> TargetPlace:
        """The end of what was put."""

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried."""

    def close(self) -> None:
        """Release what ``open`` took; safe to call twice, or without ``open``."""


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """The settings of both sinks."""

    record_dir: Path
    """The directory of the record: the Drainer's ``data-dir``."""
    cluster_id: int
    sync_ddl: bool = True
    """False: DDLs are not put, as with a real Drainer."""
    ignored_ts: frozenset[int] = frozenset()
    """``ignore-txn-commit-ts``: DDLs with such a commit_ts are not written; rows with such a commit_ts never come."""
    from_now: bool = False
    """``initial-commit-ts = -1``: a stream without a record begins at the upstream's time of its start."""


class MessageSink(Sink):
    """One stream into one outlet."""

    def __init__(self, settings: MessageSettings, form: BinlogFormat, outlet: Outlet) -> None:
        """Nothing is read or written before ``open``."""
        self._settings = settings
        self._format = form
        self._outlet = outlet
        self._record = LocalRecord(settings.record_dir, settings.cluster_id)
        self._commit_ts = 0
        self._failed: Exception | None = None

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Lock the record, load it, and bring the outlet to where it says (``Sink.open``)."""
        self._record.open()
        recorded = self._record.progress
        self._commit_ts = begin(self._record.target, recorded.commit_ts if recorded else None)
        if recorded is not None and recorded.commit_ts != self._commit_ts:
            raise ApplyError(f"the stream would begin at {self._commit_ts}, but {self._settings.record_dir} records {recorded.commit_ts}")
        applied = AppliedJobs(recorded.schema_version, recorded.early, since=recorded.since_ts) if recorded else AppliedJobs(0)
        if recorded is None or not recorded.ours:
            # A row has the version of a job only after the job's binlog has committed, so a Drainer's version is never ahead of its DDLs; but it has
            # none before the first binlog, and the jobs' FinishedTS misses one whose binlog committed just before.
            applied = AppliedJobs(max(applied.version, history().version_at(self._commit_ts)), since=self._commit_ts)
        self._outlet.open(recorded, self._commit_ts)
        if recorded is None and self._settings.from_now:
            self._require_empty()
        self._save(self._commit_ts, applied)
        return Opened(TargetProgress(self._commit_ts, True, applied.version, None, known=recorded is not None), applied, {})

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Translate and write from the driver (``Sink.apply``)."""
        with clock.timed(Stage.PLAN):
            messages = list(Translation.of(step, self._format).messages(rows)) if rows.num_rows else []
        with clock.timed(Stage.APPLY, "write"):
            return self._write(step, messages)

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """The executors translate, the driver writes in order (``Sink.apply_parts``)."""
        with clock.timed(Stage.APPLY, "write"):
            return self._write(step, messages_in_order(events, step, Translation.of(step, self._format), skipped_ts))

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        """The DDL's message (``Sink.apply_ddl``)."""
        progress = self._held()
        if step.job not in AppliedJobs(progress.schema_version, progress.early, behind=step.before.behind):
            if step.commit_ts < progress.commit_ts:
                raise ApplyError(f"cannot write DDL job {step.job.id} at {step.commit_ts}: the target is already at {progress.commit_ts}")
            self._put(self._ddl(step, history), step.commit_ts, step.applied)
        self._commit_ts = max(step.commit_ts, progress.commit_ts)
        return DdlResult(fate="handed on")

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """None: DDLs are handed on, not executed."""
        return ()

    def close(self) -> None:
        """Record the end and release everything (``Sink.close``)."""
        try:
            self._outlet.close()
        finally:
            self._record.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target."""
        return self._commit_ts

    @property
    def target(self) -> str:
        """The identity of the target; available after ``open``."""
        return self._record.target

    @property
    def lost(self) -> LeaseLost | None:
        """Set once the sink is closed: the lock on the record is the lease, and nobody can take it away."""
        return None if self._record.held else LeaseLost(f"this Drainer has released {self._settings.record_dir}")

    @property
    def waiting_for(self) -> object | None:
        """The outlet's transient error while it is being retried."""
        return self._outlet.waiting_for

    def _require_empty(self) -> None:
        """Refuse a stream that begins now where binlogs exist: what was committed after the last of them would be missing for ever."""
        last, record_dir = self._outlet.last(), self._settings.record_dir.absolute()
        if last is None:
            return
        upto, ts = "which are no longer there,", "TS"
        if last.commit_ts:
            upto, ts = f"up to commit_ts {last.commit_ts} ({as_time(last.commit_ts)}),", str(last.commit_ts)
        raise ApplyError(
            f"{last.where} holds binlogs {upto} but {record_dir} has no record of a stream. With initial-commit-ts = -1 this stream would begin now, and "
            f"everything in between would be missing. data-dir was lost, or is another directory (a relative path depends on where the Drainer is started). "
            f"Restore it. Or continue after the last binlog: write the lines consistent = true and commitTS = {ts} into {record_dir / SAVEPOINT}. To accept "
            "the gap, set initial-commit-ts to where to begin. For another stream, name an empty target"
        )

    def _ddl(self, step: DdlStep, history: SchemaHistory) -> Iterator[Message]:
        name = name_of(step.job, history)
        settings = self._settings
        if settings.sync_ddl and not step.decision.unwanted and step.skip_ts not in settings.ignored_ts:
            yield Message(step.commit_ts, self._format.ddl(step.commit_ts, name, step.restored), 0)

    def _write(self, step: RowsStep, messages: Iterable[Message]) -> Written:
        progress = self._held()
        if progress.commit_ts not in (step.after_ts, step.upto_ts):
            raise ApplyError(f"cannot apply ({step.after_ts}, {step.upto_ts}]: the target is at {progress.commit_ts}")
        done = 0
        if progress.commit_ts == step.after_ts < step.upto_ts:
            done = self._put(messages, step.upto_ts, step.applied)
        self._commit_ts = step.upto_ts
        return Written(done)

    def _put(self, messages: Iterable[Message], upto_ts: int, applied: AppliedJobs) -> int:
        try:
            failpoints.point("before-deletes")
            done = self._outlet.put(messages)
            failpoints.point("before-downstream-commit")
            self._save(upto_ts, applied)
        except BaseException as error:
            self._failed = error if isinstance(error, Exception) else ApplyError("interrupted")
            if isinstance(error, OSError):
                raise ApplyError(f"cannot write up to {upto_ts}: {error}. The next start continues from {self._commit_ts}") from error
            raise
        failpoints.point("after-downstream-commit")
        return done

    def _save(self, commit_ts: int, applied: AppliedJobs) -> None:
        self._record.save(LocalProgress(commit_ts, applied.version, applied.early, self._outlet.place, since_ts=applied.since))

    def _held(self) -> LocalProgress:
        if self.lost is not None:
            raise self.lost
        if self._failed is not None or self._record.progress is None:
            raise ApplyError(f"this sink has failed, and must be opened again: {self._failed}")
        return self._record.progress
