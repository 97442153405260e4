"""The contract of a target: what ``sinks.apply`` calls, step by step. No SQL, and no Spark except the type of keyed events.

Promises of every implementation:

* ``commit_ts`` is recorded in the target, in the same commit as the data. The target has every transaction up to commit_ts and
  none above it, except while a span is ``unfinished``: that span is applied again with the same number of parts.
* ``apply``, ``apply_parts`` and ``apply_ddl`` return when their step is durable and ``commit_ts`` has moved to the step's end. After
  ``defer``, the record in the target may follow later if a step applied nothing.
* A process may be killed at any point. A later life that makes the same call with the same step leaves the target as if the call had run once.
* Every write requires the lease; a process that has lost it raises ``LeaseLost``.
* Transient errors of the target are retried; ``waiting_for`` is set meanwhile.

Called by one thread at a time, except ``close`` and the properties.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import LeaseLost
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, RowsStep, SetVal

if TYPE_CHECKING:  # the record at a target is also read where there is no PySpark
    from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents


@dataclass(frozen=True, slots=True)
class UnfinishedSpan:
    """A span begun in parts whose end was never recorded: to be replayed exactly, with this many parts."""

    after_ts: int
    """Exclusive."""
    upto_ts: int
    """Inclusive."""
    parts: int
    done: frozenset[tuple[int, str]]
    """(part, phase) pairs that are in the target."""
    relayed: bool = False
    """Whether a replay of the relay log has begun it: the log, which may be a real Drainer's, holds it."""


@dataclass(frozen=True, slots=True)
class TargetProgress:
    """The target's progress."""

    commit_ts: int
    """Everything up to here, inclusive, is in the target."""
    consistent: bool
    schema_version: int
    unfinished: UnfinishedSpan | None
    known: bool = True
    """Whether the target has a checkpoint row."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of the target when it was opened."""

    progress: TargetProgress
    applied: AppliedJobs
    """The DDL jobs that were executed on it."""
    frozen: FrozenTables


@dataclass(frozen=True, slots=True)
class DdlResult:
    """The fate of a DDL."""

    losses: tuple[str, ...] = ()
    """The parts that the target cannot represent, for people."""
    frozen: FrozenTables = field(default_factory=dict)
    """The tables that are frozen from here on, because it was not executed."""
    fate: str = "executed"
    """The fate in a word or two, for people."""


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table that a sink keeps by itself."""

    name: str
    bytes: int | None
    """Size of its files; None: not known yet."""
    merged_ts: int
    """It has all of its changes up to here; 0: none yet."""
    state: str
    why: str = ""
    """Why it does not follow."""


class Sink(Protocol):
    """One target of one stream."""

    def open(self, begin: Callable[[str, int | None], int], history: Callable[[], SchemaHistory]) -> Opened:
        """Take the lease, create missing tables and load the recorded progress.

        Args:
            begin: receives the target's identity and the commit_ts that it records (None = nothing is recorded) and returns the commit_ts
                after which the stream begins; it may raise where a person must decide. Where nothing was recorded, or an earlier one
                (``defer``), its answer becomes the record.
            history: returns the DDL history; called once the lease is held. ``begin`` may change with what it begins.

        Raises:
            LeaseHeld: another running Drainer writes for this cluster.
        """

    def defer(self, note: Callable[[int, int], None]) -> None:
        """Permit, before ``open``, that the target records the end of a step in which nothing was applied some seconds later.

        ``note`` is called first and must make durable what it receives: the commit_ts of the target's record, and the commit_ts up to which
        the target has everything nevertheless. If a start reads this record, ``begin`` answers with the second commit_ts. Without this
        call, or in a sink that does not need it, nothing is put off.
        """
        return

    def load(self, tables: Sequence[Job], *, absent: bool = False) -> None:
        """Have tables of the upstream read beside the stream, each as ``table_as_job`` at ``commit_ts``; ``absent``: of them, those that are not there.

        For a sink that keeps tables by itself (``sinks.lake``). Others are given none.
        """
        return

    def kept(self) -> Sequence[KeptTable]:
        """The tables that the sink keeps by itself, as they were last; quick, from any thread. Others have none."""
        return ()

    def set_sequences(self, setvals: Sequence[SetVal]) -> Sequence[Finding]:
        """Have sequences give no number that the upstream has given; called before the step of ``setvals``, and again if that step is repeated.

        A target without sequences does nothing. What is not done becomes a finding, once.
        """
        return ()

    def apply(self, rows: pa.Table, step: RowsStep, clock: StageClock) -> Written:
        """``rows`` (``ROW_EVENT``, all of ``step``) and the record of the step's end, in one commit."""

    def apply_parts(self, events: "KeyedEvents", step: RowsStep, skipped_ts: frozenset[int], clock: StageClock) -> Written:
        """The rows of ``step`` among ``events`` but for the transactions ``skipped_ts``, by the executors, in ``events.parts`` parts.

        A span that an earlier life has begun with other ``skipped_ts`` is finished with these; what it has written by then stays.
        """

    def apply_ddl(self, step: DdlStep, history: SchemaHistory, frozen: FrozenTables) -> DdlResult:
        """One DDL, and the record of its commit_ts.

        Raises:
            DdlRefused: the target refuses it, and the policy is to stop.
        """

    def silent_losses(self, history: SchemaHistory, after_version: int, upto_version: int) -> Sequence[str]:
        """Return, in words, what the target cannot hold of DDL jobs with a version in (after_version, upto_version] for which no statement ran."""

    def close(self) -> None:
        """Release the lease: nothing more is applied. Safe to call twice."""

    @property
    def commit_ts(self) -> int:
        """Everything up to and including this commit_ts is in the target; 0 before ``open``."""

    @property
    def target(self) -> str:
        """The identity of the target; available after ``open``. Another one after it was rebuilt."""

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing more may be written; set even before a step has failed on it."""

    @property
    def waiting_for(self) -> object | None:
        """The transient error of the target that is being retried; its ``str`` is for people."""
