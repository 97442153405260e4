"""Records where a replay of files is: the row ``place`` of ``spark_state``. [db]

    rows    rows, 3 done -> rows, 9 done    in the transaction of the rows
    a DDL   … -> ddl                        before the DDL is executed
            ddl -> ddl-executed             by the connection that has executed it

Promises: a transaction moves the place only from where this replay has left it. So nothing is applied twice after a lost answer, and nothing to a target that
lacks what it had answered.
"""

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import PLACE, ROWS, TABLE, Row, State, StateTable, as_value, commits_lost
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord, FileRows


class PlaceKind(enum.StrEnum):
    """What is open."""

    ROWS = ROWS
    """A transaction."""
    DDL = "ddl"
    """A DDL that may have been executed."""
    EXECUTED = "ddl-executed"
    REFUSED = "ddl-refused"
    """By the target: the DDL was not executed."""
    PERSON = "ddl-person"
    """A DDL that a person executes, who then moves the checkpoint to it."""
    REST = "rest"
    """Nothing, but an earlier replay had come further: a part of what follows may be in the target."""
    ENDED = "ended"
    """Nothing: the replay has finished its range."""


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Everything before one record is in the target, and of that record the first operations.

    A transaction stays open when all its operations are done: an early DDL may follow it with the same commit_ts.
    """

    after_ts: int
    """Everything up to it is in the target. A replay goes on with what comes behind."""
    upto_ts: int
    """Up to here a part of what follows may be in the target."""
    kind: PlaceKind
    commit_ts: int
    """Of the open record."""
    digest: str = ""
    """Of the open record."""
    done: int = 0
    """Number of its operations in the target."""
    safe: bool = False
    """Whether only safe mode may go on."""

    @classmethod
    def at(cls, record: FileRecord, after_ts: int, kind: PlaceKind) -> Self:
        """The place at the begin of ``record``, or behind the operations of it that are done."""
        done = record.done if isinstance(record, FileRows) else 0
        return cls(after_ts, record.commit_ts, kind, record.commit_ts, record.digest, done)

    @classmethod
    def read(cls, state: State) -> Self | None:
        """The place that is recorded."""
        row = state.row(PLACE)
        if row is None:
            return None
        value = json.loads(row.value)
        return cls(row.after_ts, row.upto_ts, PlaceKind(value.pop("kind")), **value)

    @property
    def row(self) -> Row:
        """The row that records it."""
        value = {"kind": self.kind, "commit_ts": self.commit_ts, "digest": self.digest, "done": self.done, "safe": self.safe}
        return Row(PLACE, self.after_ts, self.upto_ts, as_value(value))

    def is_at(self, record: FileRecord) -> bool:
        """Whether ``record`` is the open one."""
        rows = self.kind is PlaceKind.ROWS
        return (self.commit_ts, self.digest, rows) == (record.commit_ts, record.digest, isinstance(record, FileRows))


class ReplayRecord(ABC):
    """The place of one replay. Where nothing may be written, its methods raise ``LeaseLost`` or ``CommitsLost``."""

    def __init__(self, leased: LeasedTarget, table: StateTable, way_on: str, *, safe: bool) -> None:
        """``way_on``: what to do about lost commits; ``safe``: whether rows are written in safe mode."""
        self.safe = safe
        self._leased = leased
        self._table = table
        self._way_on = way_on
        self._left: ReplayPlace | None = None
        """Where an earlier replay has stopped."""
        self._held: ReplayPlace | None = None
        """Where the target must be; None: this replay has recorded nothing."""

    def as_recorded(self, place: ReplayPlace) -> ReplayPlace:
        """``place`` with what an earlier replay may have applied behind it."""
        return place

    def move(self, session: Session, to: ReplayPlace) -> bool:
        """Record in the open transaction that the replay is at ``to``; False: it is, because the answer to that commit was lost."""
        if self._table.swap(session, self._held.row if self._held is not None else None, to.row):
            return True
        self._locked(session, [to])
        return False

    def moved_to(self, place: ReplayPlace) -> None:
        """The target's record says so."""
        self._held = place

    def begin(self, place: ReplayPlace) -> None:
        """Record the place before the first rows of this replay."""
        if self._held is None:
            self._save(place)

    def _save(self, place: ReplayPlace) -> None:
        if place == self._held:
            return
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self.move(session, place)
                failpoints.point("before-downstream-commit")
        self.moved_to(place)

    def _locked(self, session: Session, known: Collection[ReplayPlace | None]) -> ReplayPlace | None:
        """The recorded place, locked until the transaction ends; ``known``: what it may be."""
        found = ReplayPlace.read(self._table.read(session, lock=True))
        if found not in known:
            raise commits_lost(f"{self._table.schema}.{TABLE} does not have the place that this replay had recorded", self._way_on)
        return found

    # DDLs.

    def begin_ddl(self, ddl: FileDdl, after_ts: int, kind: PlaceKind = PlaceKind.DDL) -> bool:
        """Record that everything before a DDL is in the target, and that the DDL is begun; False: it was executed.

        Raises:
            DdlRefused: a person must look whether it was.
        """
        left = self._left
        if left is not None and left == self._held and left.kind is PlaceKind.EXECUTED and left.is_at(ddl):
            return False
        self._save(self.as_recorded(ReplayPlace.at(ddl, after_ts, kind)))
        return True

    def has_executed(self, session: Session) -> bool:
        """Whether the record says that the DDL was executed, as when the answer to ``note_executed`` was lost; called before each attempt."""
        lease.check_unlocked(session, self._leased.lease)
        return self._locked(session, [self._held, self._executed]) == self._executed

    def note_executed(self, session: Session) -> None:
        """Record in the open transaction that the DDL was executed; a second call changes nothing."""
        lease.check(session, self._leased.lease)
        self.move(session, self._executed)

    def end_ddl(self) -> None:
        """The target's record says that the DDL was executed."""
        self.moved_to(self._executed)

    @abstractmethod
    def refused(self, ddl: FileDdl, error: ApplyError) -> DdlRefused:
        """What to do about a DDL that the target refuses."""

    @abstractmethod
    def left_to_a_person(self, ddl: FileDdl, why: str) -> DdlRefused:
        """What to do about a DDL that may have been executed, and may not be executed again."""

    @property
    def _executed(self) -> ReplayPlace:
        assert self._held is not None
        return replace(self._held, kind=PlaceKind.EXECUTED)
