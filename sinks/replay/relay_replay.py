"""Replays the relay log on a MySQL-protocol target whose checkpoint is not consistent, while the upstream is away. [db]

    half applied span (C, U], consistent false -> all records with a commit_ts above C, in their order, in safe mode -> consistent true

Promises, besides those of ``FileReplay``:

* Afterwards every row that has a unique key without NULL is as upstream at the consistent point: the end of our open span, or the last record of
  a real Drainer's log. Tables without such a key in a half applied span are named. Rows of any other span do not change.
* A kill at any moment, and a repetition, end in the same state. The first transaction replaces our marks of the open span by a mark of the replay. Each chunk moves the
  checkpoint, which stays not consistent, and the place in ``spark_state``. The place counts only for the same transaction, otherwise the replay begins
  again at the checkpoint. When the upstream is back, the stream continues in safe mode up to the end of the log, which is kept until then.
* Nothing is changed unless the log holds the span and all its records are readable.
* The first DDL behind a real Drainer's checkpoint may have been executed. It is left to a person if rows of its table come before it, or if it would undo
  itself: the replay stops before it changes anything. A DDL that a replay had begun is executed again, unless it would undo itself.
"""

import itertools
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter, walk
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, rename_pairs
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.opening import LEAST_OPEN
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import Reason, SafeBounds
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayStream, noted_cover, read_cover, told
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord, FileRows, of_relay_log
from pyspark_tidb_binlog.sinks.replay.file_replay import FileReplay, Replayed, ReplaySource
from pyspark_tidb_binlog.sinks.replay.repeated import undoes_itself
from pyspark_tidb_binlog.sinks.replay.replay_record import PlaceKind, ReplayPlace, ReplayRecord
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack

_log = logging.getLogger(__name__)

_OPERATIONS = 2000
"""Of one transaction, at most."""
_SOURCE = ReplaySource(
    "the relay log",
    "leave the transaction out with syncer.ignore-txn-commit-ts = [{ts}]",
    "skip the transaction with syncer.ignore-txn-commit-ts = [{ts}]",
)
_AGAIN = "Start the recovery again: it continues from what the target has"
_BEGUN = PlaceKind.DDL, PlaceKind.PERSON
_SAID = "by the settings it was not executed before, and a person decides about it"


@dataclass(slots=True)
class _Log:
    """What the log holds behind the checkpoint."""

    first_ts: int = 0
    last_ts: int = 0
    first_ddl: FileDdl | None = None
    changed: set[tuple[str, str]] = field(default_factory=set)
    """Tables that have rows before that DDL."""


class RelayReplay(ReplayRecord):
    """One target, to which the relay log is applied, and its record."""

    def __init__(self, config: DrainerConfig, cluster_id: int, stream: RelayStream, how: ReadBack, pause: Callable[[float], None]) -> None:
        """``cluster_id`` 0: the only cluster of which the target has a record. ``stream``: what would be written now."""
        self._sink = MySQLSink(config, cluster_id, pause, logged=True)
        target = self._sink.row_target
        super().__init__(target.leased, target.record.state, _AGAIN, safe=True)
        self._record, self._safe, self._settings = target.record, target.safe, config.apply
        self._stream = stream
        self._directory = Path(config.relay.log_dir)
        self._replay = FileReplay(target.leased, config.target, config.apply, _SOURCE, how, _OPERATIONS)
        self._schema_version = 0
        self._point = 0
        """Where the target will be consistent."""
        self._log_end_ts = 0
        """commit_ts of the log's last record, wherever the checkpoint is."""
        self._since_ts = 0
        """The checkpoint at which the first replay of this log began."""
        self._passed_ddl = False
        """Whether a replay has executed a DDL of this log: what it moved on from says that the next one was not executed."""
        self._not_executed = 0
        """commit_ts of a DDL that a person says was not executed, and that must not be executed twice: the replay ends in front of it."""
        self._marked = False
        """Whether the target's record says that this log is being replayed up to ``_point``."""

    def start(self) -> TargetProgress:
        """Take the lease and read the target's progress.

        Raises:
            LeaseHeld: another running Drainer writes for this cluster.
        """

        def begin(_: str, commit_ts: int | None) -> int:
            if commit_ts is None:
                raise ApplyError("the target has no checkpoint, so there is nothing that a relay log could complete")
            return commit_ts

        found = self._sink.open(begin, SchemaHistory).progress
        self._table = self._record.state
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                left = ReplayPlace.read(self._table.read(session))
        self._left = left if left is not None and left.after_ts == found.commit_ts else None
        self._schema_version, self._record.consistent = found.schema_version, found.consistent
        return found

    def replay(self, found: TargetProgress) -> Replayed:
        """Apply the log and record the consistent point; ``found``: what ``start`` returned, not consistent.

        Raises:
            Corruption: a record is damaged; nothing was applied.
            ApplyError: the log does not hold the span, or the target refuses something.
        """
        with told(self._directory):
            # Nobody may write there meanwhile.
            lock = BinlogWriter(self._directory)
            try:
                self._point = self._replay.done.commit_ts = self._consistent_point(found)
                self._replay.run(self._behind_left(), self.commit_ts, self)
                self._finish()
            finally:
                lock.close()
        return self._replay.done

    def close(self) -> None:
        """Release the lease; safe to call twice."""
        self._replay.close()
        self._sink.close()

    @property
    def commit_ts(self) -> int:
        """Everything up to it is in the target."""
        return self._record.commit_ts

    # What there is.

    def _consistent_point(self, found: TargetProgress) -> int:
        """Where the target will be consistent.

        Raises:
            ApplyError: the log does not hold all that may be in the target.
        """
        commit_ts, bounds = found.commit_ts, self._safe.bounds
        begun = bounds.reason is Reason.RELAY and self._safe.open_at(commit_ts)
        self._since_ts = bounds.begin_ts if begun else commit_ts
        log = self._read_through()
        noted, cover = noted_cover(self._directory), read_cover(self._directory)
        covered_ts = cover.upto_ts if cover is not None and self._stream.takes(cover.stream) else 0
        point = max(commit_ts, log.last_ts)
        self._require(noted.upto_ts if noted else 0, noted is None or noted.after_ts <= commit_ts)
        span = found.unfinished
        if span is not None:
            # A span of ours, or a transaction that an earlier recovery has begun: the log may be a real Drainer's then.
            point = max(point, covered_ts)
            whole = cover is not None and covered_ts > 0 and cover.holds(commit_ts, span.upto_ts)
            self._require(span.upto_ts, point >= span.upto_ts if span.relayed else whole)
        elif not begun:
            self._require_followed(commit_ts, log.first_ts)
        if log.first_ddl is not None and (span is None or span.relayed):
            self._look_at_first_ddl(log.first_ddl, log.changed)
        # An earlier life has begun to bring on what another Drainer had left, whose log this is not.
        self._require(self._safe.until_ts, not self._safe.open_at(point))
        return point

    def _read_through(self) -> _Log:
        """Read every record once, so that a damaged one is found before anything is changed. Of early DDLs with one commit_ts the begun one is the first."""
        log, left = _Log(), self._left
        for record in self._records():
            log.first_ts, log.last_ts = log.first_ts or record.commit_ts, record.commit_ts
            if isinstance(record, FileRows):
                log.changed |= record.tables if log.first_ddl is None else frozenset()
            elif log.first_ddl is None or (left is not None and left.is_at(record)):
                log.first_ddl = record
        if left is not None and left.kind in _BEGUN and (log.first_ddl is None or not left.is_at(log.first_ddl)):
            self._left = None
        return log

    def _require(self, upto_ts: int, covered: bool) -> None:
        if not covered:
            raise ApplyError(
                f"some binlogs after {self.commit_ts} are in the target, but the relay log in {self._directory} does not hold all of them up to "
                f"{upto_ts}. It was switched on later, or has other filters or another ignore-txn-commit-ts, or files were removed, or the target was "
                "restored. Start again when the upstream is back"
            )

    def _require_followed(self, commit_ts: int, first_ts: int) -> None:
        """Check that a log without ``relay.spark`` follows the checkpoint of the Drainer that left the target.

        A real Drainer writes to its log what it is about to apply, and deletes only files of which everything is applied. Its checkpoint trails by seconds.
        So between the checkpoint and the first record there may be a gap, but only a short one.
        """
        if 0 < first_ts <= commit_ts + LEAST_OPEN or self._log_end_ts == commit_ts:
            return
        what = f"continues only at {first_ts} ({as_time(first_ts)})" if first_ts else f"ends at {self._log_end_ts}"
        raise ApplyError(
            f"another Drainer has left the target. By its checkpoint {commit_ts} ({as_time(commit_ts)}) some later binlogs may be in the target. "
            f"The relay log in {self._directory} {what}, so it does not hold all of them. It belongs to another Drainer, or was switched off, or files were "
            "removed, or the target was restored. Start again when the upstream is back"
        )

    def _records(self) -> Iterator[FileRecord]:
        """The records behind the checkpoint of now. Between two of them a stop request ends the replay.

        Behind a DDL that was executed last, also early DDLs with its commit_ts.
        """
        after_ts, left, behind = self.commit_ts, self._left, False
        for record in self._replay.each_once(self._whole_log()):
            self._log_end_ts = max(self._log_end_ts, record.commit_ts)
            self._passed_ddl = self._passed_ddl or (isinstance(record, FileDdl) and self._since_ts < record.commit_ts <= after_ts)
            if record.commit_ts > after_ts or behind:
                yield record
            behind = behind or (left is not None and left.kind is PlaceKind.EXECUTED and left.is_at(record))

    def _whole_log(self) -> Iterator[FileRecord]:
        for record in walk(self._directory):
            self._leased.retry_policy.pause(0.0)
            yield of_relay_log(record.payload, f"{self._directory}: file {record.end.index}, before offset {record.end.offset}")

    def _behind_left(self) -> Iterator[FileRecord]:
        """What is to be replayed, from the place on at which an earlier replay stopped; from the checkpoint on, if what it names is not there."""
        ignored, left = self._settings.ignore_txn_commit_ts, self._left
        records: Iterator[FileRecord] = (r for r in self._records() if r.commit_ts not in ignored or r.commit_ts == self._not_executed)
        if left is not None and left.kind in _BEGUN:
            # A DDL may share its commit_ts with records before it, which are in the target.
            records = itertools.dropwhile(lambda r: r.commit_ts == left.commit_ts and not left.is_at(r), records)
        first = next(records, None)
        if first is not None and left is not None and left.is_at(first):
            self._held = left
            first = replace(first, done=left.done) if isinstance(first, FileRows) else first
        if first is not None:
            yield first
        yield from records

    # DDLs: only a real Drainer's log has them within a span that is open.

    def _look_at_first_ddl(self, ddl: FileDdl, changed: Collection[tuple[str, str]]) -> None:
        """Only the first one may have been executed by a real Drainer, or by a replay that was killed. ``changed``: tables that have rows before it.

        Raises:
            DdlRefused: a person must look whether it was.
        """
        ddl_ts, left = ddl.commit_ts, self._left
        begun = left is not None and left.is_at(ddl)
        if self._passed_ddl and not begun:
            return
        if begun and left is not None and left.kind is PlaceKind.PERSON:
            raise self.left_to_a_person(ddl, _SAID)
        twice = undoes_itself(ddl.statement) or len(rename_pairs(ddl.statement)) > 1
        why = "executing it again could undo it" if twice else "rows of its table come before it" if ddl.table in changed else ""
        if twice and (begun or not changed):
            raise self.left_to_a_person(ddl, why)
        if begun or not why:
            return
        if ddl_ts not in self._settings.ignore_txn_commit_ts:
            raise DdlRefused(
                f"the first DDL in the relay log in {self._directory}, of commit_ts {ddl_ts}, may have been executed before its Drainer was killed, "
                f"and {why}: {ddl.statement}. Look at the target. (1) If the DDL was executed, so was everything before it: execute {self._set_to(ddl_ts)}, and start again. (2) "
                f"If not, start with syncer.ignore-txn-commit-ts = [{ddl_ts}]: the start replays what comes before the DDL, and the next message says what to do"
            )
        self._not_executed = ddl_ts

    def _set_to(self, ddl_ts: int) -> str:
        table = f"{quote_name(self._settings.checkpoint_schema)}.{quote_name(self._record.table)}"
        return f"UPDATE {table} SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {ddl_ts}) WHERE clusterID = {self._leased.lease.cluster_id}"

    def begin_ddl(self, ddl: FileDdl, after_ts: int, kind: PlaceKind = PlaceKind.DDL) -> bool:
        """Record that everything before a DDL is in the target (``ReplayRecord.begin_ddl``)."""
        self._schema_version = 0
        by_person = ddl.commit_ts == self._not_executed
        super().begin_ddl(ddl, ddl.commit_ts - 1, PlaceKind.PERSON if by_person else kind)
        if by_person:
            raise self.left_to_a_person(ddl, _SAID)
        failpoints.point("before-relayed-ddl")
        return True

    @property
    def _executed(self) -> ReplayPlace:
        """The checkpoint moves to the DDL, so that the stream does not execute it."""
        executed = super()._executed
        return replace(executed, after_ts=executed.commit_ts)

    def refused(self, ddl: FileDdl, error: ApplyError) -> DdlRefused:
        """What to do about it (``ReplayRecord.refused``)."""
        return DdlRefused(
            f"the target refuses the DDL of commit_ts {ddl.commit_ts} in the relay log: {error}. Execute it by hand in a form that the target "
            f"accepts, leave it out with syncer.ignore-txn-commit-ts = [{ddl.commit_ts}], and start again",
            error.errno,
            error.words,
        )

    def left_to_a_person(self, ddl: FileDdl, why: str) -> DdlRefused:
        """What a person has to do (``ReplayRecord.left_to_a_person``)."""
        return DdlRefused(
            f"the target has everything before the DDL of commit_ts {ddl.commit_ts} in the relay log, and perhaps the DDL itself, and {why}: {ddl.statement}. Look at "
            f"the target. If the DDL was not executed, execute it by hand. Then execute {self._set_to(ddl.commit_ts)}, and start again"
        )

    # The record.

    def move(self, session: Session, to: ReplayPlace) -> bool:
        """Move the place, and the checkpoint with it (``ReplayRecord.move``)."""
        self._record.locked_ts(session, self.commit_ts, to.after_ts)
        if self._held is None:
            # The marks of the span that is replayed.
            self._table.forget_upto(session, self._point)
        if not self._marked:
            # Until the end the next life does not know what of the log is in the target.
            self._table.begin_safe(session, SafeBounds(self._since_ts, self._point, Reason.RELAY))
        if not super().move(session, to):
            return False
        self._record.save(session, to.after_ts, AppliedJobs(self._schema_version), consistent=False)
        return True

    def moved_to(self, place: ReplayPlace) -> None:
        """The target's record says so (``ReplayRecord.moved_to``)."""
        super().moved_to(place)
        self._record.commit_ts, self._marked = place.after_ts, True

    def _finish(self) -> None:
        """Record that the target is consistent."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                recorded = self._record.checkpoint.load(session, lock=True)
                ended = recorded is not None and recorded.consistent and recorded.commit_ts == self._point
                if not ended:
                    self._record.locked_ts(session, self.commit_ts, self._point)
                    if self._held is not None:
                        self._locked(session, [self._held])
                    self._table.forget_upto(session, self._point)
                    self._record.save(session, self._point, AppliedJobs(self._schema_version), consistent=True)
                failpoints.point("before-downstream-commit")
        self._record.commit_ts, self._record.consistent, self._held = self._point, True, None
