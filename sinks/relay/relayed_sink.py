"""A target in front of which the relay log is written (``sinks.sink``, drainer.md 8).

Promises: those of the contract, and of the sink behind it. If a step may be half applied when the process dies, all its transactions are
durable in the relay log before it begins. These steps are: every step in parts; with ``every_step`` (``net-change = false``) every step; and every step of a
life that has found the checkpoint not consistent. A step that is one transaction with its checkpoint needs no log: the target has all of it or nothing.
So whenever the checkpoint says ``consistent`` false, the log holds what is missing. If the log cannot be written, nothing is applied.

The log has the target's names and columns, as rows are written there (``spark.route``). The executors translate the rows of a step in parts,
and the driver writes them in the order of commit_ts, a few megabytes at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import LeaseLost
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch_report import Stage, StageClock, Written
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables, hit
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep, RowsStep, SetVal
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, lease_of
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate
from pyspark_tidb_binlog.sinks.sink import DdlResult, Opened, Sink
from pyspark_tidb_binlog.sinks.translate.binlog_format import BinlogFormat, name_of
from pyspark_tidb_binlog.sinks.translate.translation import Message, Translation, messages_in_order


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Which steps are written."""

    every_step: bool
    """Also those of few rows, and DDLs."""
    ddls: bool = True
    """False: no DDLs, as their texts have the upstream's names, and the target has others."""
    ignored_ts: frozenset[int] = frozenset()
    """``ignore-txn-commit-ts``: DDLs with such a commit_ts are not written; rows with such a commit_ts never come."""


class RelayedSink(Sink):
    """One target of one stream, and its relay log."""

    def __init__(self, behind: Sink, log: RelayLog, form: BinlogFormat, settings: RelaySettings) -> None:
        """``behind``: the target itself; nothing is opened."""
        self._behind = behind
        self._log = log
        self._form = form
        self._settings = settings
        self._every_step = settings.every_step
        self._open_upto = 0
        """End of the span that was open at ``open``."""

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Open the target, and then the log, which follows it (``Sink.open``)."""
        opened = self._behind.open(begin, history)
        found = opened.progress
        self._log.begin(found)
        if found.unfinished is not None:
            self._open_upto = found.unfinished.upto_ts
        if not found.consistent and (found.unfinished is None or found.unfinished.relayed):
            self._every_step = True
        return opened

    def defer(self, note: Callable[[int, int], None]) -> None:
        """As the target does (``Sink.defer``): a step in which nothing is applied needs no log."""
        self._behind.defer(note)

    def set_sequences(self, setvals: Sequence[SetVal]) -> Sequence[Finding]:
        """As the target does; the log does not have them (``Sink.set_sequences``)."""
        return self._behind.set_sequences(setvals)

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """Write the log where the step may end half applied, then the target (``Sink.apply``)."""
        if rows.num_rows and (self._every_step or step.after_ts < self._open_upto):
            with clock.timed(Stage.APPLY, "relay"):
                self._write(step, self._translation(step).messages(rows))
        written = self._behind.apply(rows, step, clock)
        self._log.passed(step.upto_ts)
        return written

    def apply_parts(self, events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """Write the log, then the target (``Sink.apply_parts``)."""
        with clock.timed(Stage.APPLY, "relay"):
            self._write(step, messages_in_order(events, step, self._translation(step), skipped_ts))
        written = self._behind.apply_parts(events, step, skipped_ts, clock)
        self._log.passed(step.upto_ts)
        return written

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        """Write the log where every step is written, then the target (``Sink.apply_ddl``)."""
        if self._every_step:
            self._log.write_ddl(step.commit_ts, self._ddl(step, history, frozen))
        done = self._behind.apply_ddl(step, history, frozen)
        self._log.passed(step.commit_ts)
        return done

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """Those of the target (``Sink.silent_losses``)."""
        return self._behind.silent_losses(history, after_version, upto_version)

    def close(self) -> None:
        """Release the lease, then the log (``Sink.close``)."""
        try:
            self._behind.close()
        finally:
            self._log.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target."""
        return self._behind.commit_ts

    @property
    def target(self) -> str:
        """The identity of the target; available after ``open``."""
        return self._behind.target

    @property
    def lease(self) -> Lease:
        """That of the target."""
        return lease_of(self._behind)

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing more may be written."""
        return self._behind.lost

    @property
    def waiting_for(self) -> object | None:
        """The target's transient error while it is being retried."""
        return self._behind.waiting_for

    def _translation(self, step: RowsStep) -> Translation:
        return Translation.of(step, self._form)

    def _write(self, step: RowsStep, messages: Iterable[Message]) -> None:
        self._log.write(step.after_ts, step.upto_ts, messages)
        failpoints.point("after-relay-write")

    def _ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> Iterator[Message]:
        unwanted = step.decision.fate in (DdlFate.FILTERED, DdlFate.LEFT_OUT) or hit(step.job, history, frozen)
        if self._settings.ddls and not unwanted and step.skip_ts not in self._settings.ignored_ts:
            yield Message(step.commit_ts, self._form.ddl(step.commit_ts, name_of(step.job, history), step.restored), 0)
