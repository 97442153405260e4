"""Where a replay of files is: the transaction or DDL that is open, as ``spark_state`` records it. Pure."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from pyspark_tidb_binlog.sinks.mysql.state_table import RELAYED, OpenLanes
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord


class PlaceKind(Enum):
    """What is open."""

    ROWS = "rows"
    """A transaction of a file sink."""
    RELAYED = RELAYED
    """A transaction of a relay log."""
    DDL = "ddl"
    """A DDL that may have been executed."""
    EXECUTED = "ddl-executed"
    REFUSED = "ddl-refused"
    """By the target: the DDL was not executed."""


_KINDS = {kind.value: kind for kind in PlaceKind}


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Everything before one record is in the target, and of that record the first operations.

    A transaction stays open when all its operations are done: an early DDL may follow it with the same commit_ts.
    """

    after_ts: int
    """Everything up to it is in the target. A replay goes on with what comes behind."""
    commit_ts: int
    """Of the open record."""
    digest: str
    """Of the open record."""
    kind: PlaceKind
    done: int = 0
    """Number of its operations in the target."""

    @classmethod
    def read(cls, found: OpenLanes) -> Self | None:
        """The place that was recorded; None: the record is another one."""
        head, _, digest = found.plan.rpartition("-")
        kind, _, commit_ts = head.rpartition("-")
        known = kind in _KINDS and commit_ts.isdigit()
        return cls(found.after_ts, int(commit_ts), digest, _KINDS[kind], found.done[0]) if known else None

    def recorded(self, upto_ts: int = 0, *, safe: bool = False) -> OpenLanes:
        """The record. ``upto_ts``: up to there a part of what follows may be in the target; ``safe``: so only safe mode may go on."""
        plan = f"{self.kind.value}-{self.commit_ts}-{self.digest}"
        return OpenLanes(self.after_ts, max(self.commit_ts, upto_ts), plan, safe, (self.done,))

    def is_at(self, record: FileRecord) -> bool:
        """Whether ``record`` is the open one."""
        rows = self.kind in (PlaceKind.ROWS, PlaceKind.RELAYED)
        return (self.commit_ts, self.digest, rows) == (record.commit_ts, record.digest, not isinstance(record, FileDdl))

    def further(self) -> Self:
        """One operation later."""
        return replace(self, done=self.done + 1)

    def but(self, kind: PlaceKind) -> Self:
        """The same DDL as another kind."""
        return replace(self, kind=kind)
