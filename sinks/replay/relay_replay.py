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
from dataclasses import replace
from pathlib import Path

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter, walk
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, rename_pairs
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.opening import LEAST_OPEN, Doubt
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.state_table import TABLE, Begun, CommitsLost, OpenLanes, Reason, SafeBounds, State
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayStream, noted_cover, read_cover, told
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord, FileRows, of_relay_log
from pyspark_tidb_binlog.sinks.replay.file_replay import FileReplay, Replayed, ReplayRecord, ReplaySource
from pyspark_tidb_binlog.sinks.replay.repeated import undoes_itself
from pyspark_tidb_binlog.sinks.replay.replay_place import PlaceKind, ReplayPlace
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack

_log = logging.getLogger(__name__)

_OPERATIONS = 2000
"""Of one transaction, at most."""
_SOURCE = ReplaySource(
    "the relay log",
    "leave the transaction out with syncer.ignore-txn-commit-ts = [{ts}]",
    "skip the transaction with syncer.ignore-txn-commit-ts = [{ts}]",
    PlaceKind.RELAYED,
)
_AGAIN = "Start the recovery again: it continues from what the target has"
_SAID = "by the settings it was not executed before, and a person decides about it"


class RelayReplay(MySQLSink, ReplayRecord):
    """One target, to which the relay log is applied, and its record."""

    def __init__(self, config: DrainerConfig, cluster_id: int, stream: RelayStream, how: ReadBack, pause: Callable[[float], None]) -> None:
        """``cluster_id`` 0: the only cluster of which the target has a record. ``stream``: what would be written now."""
        super().__init__(config, cluster_id, pause)
        self._stream = stream
        self._directory = Path(config.relay.log_dir)
        self._replay = FileReplay(self._leased, self._ddl_sessions, config.apply, _SOURCE, how, _OPERATIONS)
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
        self._begun_ddl = 0
        """commit_ts of a DDL before which the target has everything."""
        self._left: OpenLanes | None = None
        """What is open row by row."""
        self._held: OpenLanes | None = None
        """The place that the target must have; None: none is recorded."""

    def start(self) -> TargetProgress:
        """Take the lease and read the target's progress.

        Raises:
            LeaseHeld: another running Drainer writes for this cluster.
        """

        def begin(_: str, commit_ts: int | None) -> int:
            if commit_ts is None:
                raise ApplyError("the target has no checkpoint, so there is nothing that a relay log could complete")
            return commit_ts

        found = self.open(begin, SchemaHistory).progress
        self._left = self._lanes.open
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
                self._replay.run(self._behind_left(self._wanted()), self.commit_ts, self)
                self._move(self._point)
            finally:
                lock.close()
        return self._replay.done

    def _doubt(self, found: TargetProgress, state: State) -> Doubt:
        """None about a Drainer that has crashed: its relay log holds all that it had begun, and all of that is replayed."""
        doubt = super()._doubt(found, state)
        # Its schema-version stays as it is: without the upstream there is no history to look it up in.
        return replace(doubt, crashed=False, ours=True, upto_ts=0, why="") if doubt.crashed else doubt

    # What there is.

    def _consistent_point(self, found: TargetProgress) -> int:
        """Where the target will be consistent. It reads every record once, so that a damaged record is found before anything is changed."""
        begun = self._safe.bounds.reason is Reason.RELAY and self._safe.open_at(found.commit_ts)
        self._since_ts = self._safe.bounds.begin_ts if begun else found.commit_ts
        first_ts = last_ts = 0
        first_ddl: FileDdl | None = None
        changed: set[tuple[str, str]] = set()
        for record in self._records():
            first_ts, last_ts = first_ts or record.commit_ts, record.commit_ts
            if isinstance(record, FileDdl):
                first_ddl = first_ddl or record
            elif first_ddl is None:
                changed |= record.tables
        cover, left = read_cover(self._directory), self._left
        relayed = left if left is not None and left.relayed else None
        own = found.unfinished if relayed is None else None
        noted = noted_cover(self._directory)
        self._require(noted.upto_ts if noted else 0, noted is None or noted.after_ts <= found.commit_ts)
        covered_ts = cover.upto_ts if cover is not None and self._stream.takes(cover.stream) else 0
        if relayed is not None:
            self._require(relayed.upto_ts, max(last_ts, covered_ts) >= relayed.upto_ts)
        elif own is not None:
            self._require(own.upto_ts, cover is not None and covered_ts > 0 and cover.holds(found.commit_ts, own.upto_ts))
        elif not begun:
            self._require_followed(found.commit_ts, first_ts)
        if own is None and first_ddl is not None:
            self._look_at_first_ddl(first_ddl, changed)
        point = max(found.commit_ts, last_ts, covered_ts if own is not None or relayed else 0)
        # An earlier life has begun to bring on what another Drainer had left, whose log this is not.
        self._require(self._safe.until_ts, not self._safe.open_at(point))
        return point

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
        """The records behind the checkpoint of now. Between two of them a stop request ends the replay."""
        after_ts = self.commit_ts
        for record in self._replay.each_once(self._whole_log()):
            self._log_end_ts = max(self._log_end_ts, record.commit_ts)
            self._passed_ddl = self._passed_ddl or (isinstance(record, FileDdl) and self._since_ts < record.commit_ts <= after_ts)
            if record.commit_ts > after_ts:
                yield record

    def _whole_log(self) -> Iterator[FileRecord]:
        for record in walk(self._directory):
            self._retry_policy.pause(0.0)
            yield of_relay_log(record.payload, f"{self._directory}: file {record.end.index}, before offset {record.end.offset}")

    def _wanted(self) -> Iterator[FileRecord]:
        """What is to be replayed."""
        ignored = self._settings.ignore_txn_commit_ts
        return (r for r in self._records() if r.commit_ts not in ignored or r.commit_ts == self._not_executed)

    def _behind_left(self, records: Iterator[FileRecord]) -> Iterator[FileRecord]:
        """The same from the place on at which an earlier replay stopped; from the checkpoint on, if the first transaction is another one."""
        # A DDL may share its commit_ts with records before it, which are in the target.
        records = itertools.dropwhile(lambda r: r.commit_ts == self._begun_ddl and isinstance(r, FileRows), records)
        first, at = next(records, None), ReplayPlace.read(self._left) if self._left is not None else None
        if isinstance(first, FileRows) and at is not None and at.after_ts == self.commit_ts and at.is_at(first):
            self._held, first = self._left, replace(first, done=at.done)
        if first is not None:
            yield first
        yield from records

    # DDLs: only a real Drainer's log has them within a span that is open.

    def _look_at_first_ddl(self, ddl: FileDdl, changed: Collection[tuple[str, str]]) -> None:
        """Only the first one may have been executed by a real Drainer, or by a replay that was killed. ``changed``: tables that have rows before it.

        Raises:
            DdlRefused: a person must look whether it was.
        """
        ddl_ts = ddl.commit_ts
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                begun = self._record.rows.read(session).ddl_begun(ddl_ts)
        if self._passed_ddl and begun is None:
            return
        if begun is Begun.PERSON:
            raise self.left_to_a_person(ddl, _SAID)
        twice = undoes_itself(ddl.statement) or len(rename_pairs(ddl.statement)) > 1
        why = "executing it again could undo it" if twice else "rows of its table come before it" if ddl.table in changed else ""
        if twice and (begun is not None or not changed):
            raise self.left_to_a_person(ddl, why)
        if begun is not None:
            self._begun_ddl = ddl_ts
        elif why and ddl_ts not in self._settings.ignore_txn_commit_ts:
            raise DdlRefused(
                f"the first DDL in the relay log in {self._directory}, of commit_ts {ddl_ts}, may have been executed before its Drainer was killed, "
                f"and {why}: {ddl.statement}. Look at the target. (1) If the DDL was executed, so was everything before it: execute {self._set_to(ddl_ts)}, and start again. (2) "
                f"If not, start with syncer.ignore-txn-commit-ts = [{ddl_ts}]: the start replays what comes before the DDL, and the next message says what to do"
            )
        elif why:
            self._not_executed = ddl_ts

    def _set_to(self, ddl_ts: int) -> str:
        table = f"{quote_name(self._settings.checkpoint_schema)}.{quote_name(self._record.table)}"
        return f"UPDATE {table} SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {ddl_ts}) WHERE clusterID = {self._cluster_id}"

    def begin_ddl(self, ddl: FileDdl, after_ts: int) -> bool:
        """Record that everything before a DDL is in the target (``ReplayRecord.begin_ddl``)."""
        self._schema_version = 0
        by = Begun.PERSON if ddl.commit_ts == self._not_executed else Begun.HERE
        self._move(ddl.commit_ts - 1, next_ddl=(ddl.commit_ts, by))
        if by is Begun.PERSON:
            raise self.left_to_a_person(ddl, _SAID)
        failpoints.point("before-relayed-ddl")
        return True

    def has_executed(self, session: Session) -> bool:
        """Whether the record says that the DDL behind the checkpoint was executed (``TextRecord.has_executed``)."""
        lease.check_unlocked(session, self._leased.lease)
        ddl_ts = self.commit_ts + 1
        try:
            if self._record.locked_ts(session, self.commit_ts, ddl_ts) == ddl_ts:
                return True
        except RetryableApplyError:
            raise
        except ApplyError as error:
            raise CommitsLost(str(error)) from error
        if self._record.rows.read(session).ddl_begun(ddl_ts) is None:
            raise CommitsLost(
                f"the target has lost transactions that it had committed: {self._settings.checkpoint_schema}.{TABLE} does not record the begin of the "
                f"DDL of commit_ts {ddl_ts}. Did the server crash with innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind "
                f"taken its place? {_AGAIN}"
            )
        return False

    def note_executed(self, session: Session) -> None:
        """Record that the DDL behind the checkpoint was executed (``TextRecord.note_executed``)."""
        lease.check(session, self._leased.lease)
        self._note(session, self.commit_ts + 1)

    def end_ddl(self, ddl: FileDdl) -> None:
        """The record says so (``ReplayRecord.end_ddl``)."""
        self._is_at(ddl.commit_ts)

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

    def begin(self, place: ReplayPlace) -> bool:
        """Replace the marks of the open span by the replay's (``ReplayRecord.begin``)."""
        if self._held is None:
            held = place.recorded(safe=True)
            for attempt in self._leased.retrying():
                with attempt, self._leased.fenced(attempt) as session:
                    self._record.locked_ts(session, self.commit_ts, self.commit_ts)
                    self._mark(session)
                    self._record.rows.begin_lanes(session, held)
                    self._record.save(session, self.commit_ts, AppliedJobs(self._schema_version), consistent=False)
                    failpoints.point("before-downstream-commit")
            self._held = held
        return True

    def advance(self, session: Session, place: ReplayPlace) -> bool:
        """Move the checkpoint and the place (``ReplayRecord.advance``)."""
        assert self._held is not None
        self._record.locked_ts(session, self.commit_ts, place.after_ts)
        if not self._record.rows.move(session, self._held, place.recorded(safe=True), _AGAIN):
            return False
        self._record.save(session, place.after_ts, AppliedJobs(self._schema_version), consistent=False)
        return True

    def stands_at(self, place: ReplayPlace) -> None:
        """The target's record says so (``ReplayRecord.stands_at``)."""
        self._held, self._record.commit_ts = place.recorded(safe=True), place.after_ts

    def _mark(self, session: Session) -> None:
        """Forget the marks of what is replayed. Until the end the next life does not know what of the log is in the target."""
        self._record.rows.forget_upto(session, self._point)
        self._record.rows.begin_safe(session, SafeBounds(self._since_ts, self._point, Reason.RELAY))

    def _move(self, commit_ts: int, next_ddl: tuple[int, Begun] | None = None) -> None:
        """Record that everything up to ``commit_ts`` is applied, and with its end that the target is consistent; ``next_ddl``: what comes next."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._note(session, commit_ts, next_ddl)
        self._is_at(commit_ts)

    def _note(self, session: Session, commit_ts: int, next_ddl: tuple[int, Begun] | None = None) -> None:
        """What ``_move`` records, in the transaction that is open."""
        rows, consistent = self._record.rows, commit_ts == self._point
        stored_ts = self._record.locked_ts(session, self.commit_ts, commit_ts)
        answer_was_lost = stored_ts == commit_ts != self.commit_ts
        if self._held is not None and not answer_was_lost and rows.read(session, lock=True).lanes != self._held:
            raise rows.lost_commits(self._held, _AGAIN)
        if consistent:
            rows.forget_upto(session, commit_ts)
        else:
            self._mark(session)
        if next_ddl is not None:
            rows.begin_ddl(session, *next_ddl)
        rows.end_lanes(session)
        self._record.save(session, commit_ts, AppliedJobs(self._schema_version), consistent=consistent)
        failpoints.point("before-downstream-commit")

    def _is_at(self, commit_ts: int) -> None:
        """The target's record says so."""
        self._record.commit_ts, self._record.consistent, self._held = commit_ts, commit_ts == self._point, None
