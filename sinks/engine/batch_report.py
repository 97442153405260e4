"""What one batch did, how long each of its stages took, and what the stream is doing now. No Spark.

Promises: any thread may read a ``StageClock`` while the batch's thread moves it.
"""

import enum
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.findings import Finding


class Stage(enum.StrEnum):
    """The activity of the stream."""

    START = "start"
    """No batch has been applied yet."""
    READ = "read"
    HISTORY = "history"
    """Waiting until the DDL history holds what the batch needs."""
    PLAN = "plan"
    APPLY = "apply"
    DDL = "ddl"
    WAIT = "wait"
    """Between two batches."""


BETWEEN_BATCHES = frozenset({Stage.START, Stage.WAIT})
"""The stages in which no batch is being applied."""
REFUSED = "refused"


class StageClock:
    """The current stage, and the seconds spent in each part of a batch."""

    def __init__(self) -> None:
        self.stage = Stage.START
        self.counts = BatchCounts()
        """The counts of the batch under way, or of the newest."""
        self.seconds: dict[str, float] = {}
        """Wall-clock seconds since ``restart``, by name."""

    @property
    def between_batches(self) -> bool:
        """Whether no batch is being applied."""
        return self.stage in BETWEEN_BATCHES

    @contextmanager
    def timed(self, stage: Stage, name: str = "") -> Iterator[None]:
        """Enter ``stage`` and count the seconds of the block under ``name`` (default: its own). The stage lasts until the next one."""
        self.stage = stage
        begun = time.perf_counter()
        try:
            yield
        finally:
            name = name or stage.value
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def move(self, name: str, other: str, seconds: float) -> None:
        """Count ``seconds`` of those counted under ``name`` under ``other``."""
        self.seconds[name] = self.seconds.get(name, 0.0) - seconds
        self.seconds[other] = self.seconds.get(other, 0.0) + seconds

    def restart(self) -> None:
        """Count from zero for a new batch."""
        self.counts, self.seconds = BatchCounts(), {}


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch, for progress, the summary and the Delta checkpoint."""

    batch_id: int
    after_ts: int
    upto_ts: int
    schema_version: int
    transactions: int
    row_events: int
    row_bytes: int
    """Size of the row images."""
    rows_written: int
    ddls: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage: ``read`` (source to row events), ``plan`` (``plan+delete`` if applied in parts), ``relay``, ``write``, ``ddl``."""
    findings: tuple[Finding, ...] = ()
    """Deviations of the target or the Pumps from the binlogs."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Row events by table, ``DB.TABLE`` upstream."""


@dataclass(frozen=True, slots=True)
class DdlNote:
    """The fate of one DDL."""

    commit_ts: int
    query: str
    """The text as a binlog has it: strings have no escapes."""
    fate: str
    """``executed`` or another one of ``DdlResult.fate``; ``REFUSED``: the stream stops there."""
    words: str = ""
    """The part of the DDL that the target lacks, or why it was refused and what to do; may contain row data."""
    database: str = ""
    """The database upstream in which it was executed."""


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that were written, and the findings."""

    rows: int = 0
    findings: tuple[Finding, ...] = ()

    def plus(self, more: "Written") -> "Written":
        """Return both together."""
        return Written(self.rows + more.rows, self.findings + more.findings)


@dataclass(slots=True)
class BatchCounts:
    """Counters of the batch in progress."""

    transactions: int = 0
    row_events: int = 0
    row_bytes: int = 0
    rows_written: int = 0
    ddls: int = 0
    findings: list[Finding] = field(default_factory=list)
    tables: Mapping[str, int] = field(default_factory=dict)

    def add(self, done: Written) -> None:
        """Count rows that were written, and what was found."""
        self.rows_written += done.rows
        self.findings += done.findings
