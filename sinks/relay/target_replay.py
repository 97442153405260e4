"""Replays the relay log on a MySQL-protocol target whose checkpoint is not consistent, while the upstream is away. [db]

    half applied span (C, U], consistent false -> all records with a commit_ts above C, in their order, in safe mode -> consistent true

Promises:

* Afterwards every row that has a unique key without NULL is as upstream at the consistent point: the end of our open span, or the last record of
  a real Drainer's log. Tables without such a key in a half applied span are named. Rows of any other span do not change.
* A kill at any moment, and a repetition, end in the same state. The first transaction replaces our marks of the open span by a mark of the replay, with the
  number of operations done; each later one moves it. The number counts only for the same records, otherwise the replay begins again. When the upstream is
  back, the stream continues in safe mode up to the end of the log, which is kept until then.
* Nothing is changed unless the log holds the span and all its records are readable.
* A DDL that may have been executed, and must not be executed twice, is left to a person (``ddl_in_doubt``). If a real Drainer may have executed it, the replay
  stops before it changes anything; otherwise when the target has everything before the DDL.
"""

import hashlib
import itertools
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.binlogfile import BinlogRecord, BinlogWriter, walk
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, in_words
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.sinks.engine.causality import keys_of
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp, operations_named
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.opening import LEAST_OPEN, Doubt
from pyspark_tidb_binlog.sinks.mysql.record import RELAYED, TABLE, Begun, OpenLanes, Reason, SafeBounds, State
from pyspark_tidb_binlog.sinks.mysql.rows.file_tables import FileTables
from pyspark_tidb_binlog.sinks.mysql.rows.op_chunks import OpPiece, chunks_of
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.rows.row_lanes import LaneWriter
from pyspark_tidb_binlog.sinks.mysql.safe_plan import cannot_tell_apart
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.text_ddl.plain_text import CommitsLost, DdlUnrecorded, TextRecord, WaitingViews, execute_text
from pyspark_tidb_binlog.sinks.relay.ddl_in_doubt import added_columns, why_not_rows, why_not_twice
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayStream, noted_cover, read_cover, told
from pyspark_tidb_binlog.sinks.relay.relayed_rows import binlog_of, operations_in, signature, table_of, worded
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.process_zone import ReadBack

_log = logging.getLogger(__name__)

_OPERATIONS = 2000
"""Of one transaction, at most."""
_BYTES = 8 << 20
"""Of the records of one transaction, about."""
_SAID = "by the settings it was not executed before, and a person decides about it"


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What is remembered of a record."""

    commit_ts: int
    ddl: bool
    checksum: int


@dataclass(slots=True)
class Replayed:
    """What a replay did."""

    commit_ts: int
    """The target is consistent here."""
    transactions: int = 0
    operations: int = 0
    ddls: int = 0
    keyless: set[str] = field(default_factory=set)
    """Tables with rows that cannot be told apart."""
    findings: list[Finding] = field(default_factory=list)


class RelayReplay(MySQLSink):
    """One target, to which the relay log is applied."""

    def __init__(self, config: DrainerConfig, cluster_id: int, stream: RelayStream, how: ReadBack, pause: Callable[[float], None]) -> None:
        """``cluster_id`` 0: the only cluster of which the target has a record. ``stream``: what would be written now."""
        super().__init__(config, cluster_id, pause)
        self._stream = stream
        self._read_back = how
        self._directory = Path(config.relay.log_dir)
        self._file_tables = FileTables("the relay log", "leave the transaction out with syncer.ignore-txn-commit-ts = [{commit_ts}]")
        self._schema_version = 0
        self._stamps: tuple[_Stamp, ...] = ()
        """Of the records to be replayed."""
        self._log_end_ts = 0
        """commit_ts of the log's last record, wherever the checkpoint is."""
        self._since_ts = 0
        """The checkpoint at which the first replay of this log began."""
        self._not_executed = 0
        """commit_ts of a DDL that a person says was not executed, and that must not be executed twice: the replay ends in front of it."""
        self._not_yet: dict[tuple[str, str], frozenset[str]] = {}
        """By table: columns that the DDL of ``_first_ddl_ts`` adds, and that rows before it do not have."""
        self._end: tuple[OpenLanes, int] | None = None
        """How many operations of the open span were done last."""
        self._first_ddl_ts = 0
        self._views = WaitingViews(self._ddl_sessions.use, self._retry_policy)

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
        self._schema_version, self._record.consistent = found.schema_version, found.consistent
        return found

    def _doubt(self, found: TargetProgress, state: State) -> Doubt:
        """None about a Drainer that has crashed: its relay log holds all that it had begun, and all of that is replayed."""
        doubt = super()._doubt(found, state)
        # Its schema-version stays as it is: without the upstream there is no history to look it up in.
        return replace(doubt, crashed=False, ours=True, upto_ts=0, why="") if doubt.crashed else doubt

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
                return self._replay(Replayed(self._consistent_point(found)))
            finally:
                lock.close()

    def _replay(self, done: Replayed) -> Replayed:
        for ddl, records in itertools.groupby(self._wanted(), key=lambda r: _is_ddl(r.payload)):
            if ddl:
                for record in records:
                    self._replay_ddl(self._parsed(record), done)
            else:
                self._replay_rows(records, done)
        self._finish(done)
        return done

    # What there is.

    def _consistent_point(self, found: TargetProgress) -> int:
        """Where the target will be consistent. It reads every record once, so that a damaged record is found before anything is changed."""
        behind = [_Stamp(commit_ts_of(r.payload), _is_ddl(r.payload), zlib.crc32(r.payload)) for r in self._records()]
        last_ts = max((s.commit_ts for s in behind), default=0)
        cover, own, left = read_cover(self._directory), found.unfinished, self._lanes.open
        noted = noted_cover(self._directory)
        self._require(noted.upto_ts if noted else 0, noted is None or noted.after_ts <= found.commit_ts)
        covered_ts = cover.upto_ts if cover is not None and self._stream.takes(cover.stream) else 0
        begun = self._safe.bounds.reason is Reason.RELAY and self._safe.open_at(found.commit_ts)
        self._since_ts = self._safe.bounds.begin_ts if begun else found.commit_ts
        if left is not None and left.relayed:
            self._require(left.upto_ts, max(last_ts, covered_ts) >= left.upto_ts)
        elif own is not None:
            self._require(own.upto_ts, cover is not None and covered_ts > 0 and cover.holds(found.commit_ts, own.upto_ts))
        elif not begun:
            self._require_followed(found.commit_ts, [s.commit_ts for s in behind])
        if own is None or own.relayed:
            self._look_at_first_ddl(behind)
        self._stamps = tuple(s for s in behind if self._is_wanted(s.commit_ts))
        point = max(found.commit_ts, last_ts, covered_ts if own is not None else 0)
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

    def _require_followed(self, commit_ts: int, behind: Sequence[int]) -> None:
        """Check that a log without ``relay.spark`` follows the checkpoint of the Drainer that left the target.

        A real Drainer writes to its log what it is about to apply, and deletes only files of which everything is applied. Its checkpoint trails by seconds.
        So between the checkpoint and the first record there may be a gap, but only a short one.
        """
        if behind and behind[0] <= commit_ts + LEAST_OPEN or self._log_end_ts == commit_ts:
            return
        what = f"continues only at {behind[0]} ({as_time(behind[0])})" if behind else f"ends at {self._log_end_ts}"
        raise ApplyError(
            f"another Drainer has left the target. By its checkpoint {commit_ts} ({as_time(commit_ts)}) some later binlogs may be in the target. "
            f"The relay log in {self._directory} {what}, so it does not hold all of them. It belongs to another Drainer, or was switched off, or files were "
            "removed, or the target was restored. Start again when the upstream is back"
        )

    def _records(self) -> Iterator[BinlogRecord]:
        """The records behind the checkpoint, in their order. Between two of them a stop request ends the replay."""
        last_ts, last_ddl_ts = self.commit_ts, 0
        for record in walk(self._directory):
            self._retry_policy.pause(0.0)
            commit_ts, ddl = commit_ts_of(record.payload), _is_ddl(record.payload)
            self._log_end_ts = max(self._log_end_ts, commit_ts)
            # A real Drainer that was started again has written again what was there; an early DDL shares its commit_ts with a transaction.
            again = commit_ts < last_ts or commit_ts == last_ddl_ts if ddl else commit_ts <= last_ts
            if commit_ts > self.commit_ts and not again:
                last_ts = commit_ts
                last_ddl_ts = commit_ts if ddl else last_ddl_ts
                yield record

    def _wanted(self) -> Iterator[BinlogRecord]:
        """Those that are to be replayed."""
        return (record for record in self._records() if self._is_wanted(commit_ts_of(record.payload)))

    def _is_wanted(self, commit_ts: int) -> bool:
        return commit_ts not in self._settings.ignore_txn_commit_ts or commit_ts == self._not_executed

    def _parsed(self, record: BinlogRecord) -> slave.Binlog:
        return binlog_of(record.payload, f"{self._directory}: file {record.end.index}, before offset {record.end.offset}")

    # Rows.

    def _replay_rows(self, records: Iterator[BinlogRecord], done: Replayed) -> None:
        upto_ts = next((s.commit_ts - 1 for s in self._stamps if s.ddl and s.commit_ts > self.commit_ts), done.commit_ts)
        plan = self._plan_of(upto_ts)
        lanes = OpenLanes(self.commit_ts, upto_ts, plan, True, (0,))
        position, at = self._begin(upto_ts, plan, done.commit_ts), 0
        for chunk in chunks_of(self._pieces_of(records, done), _OPERATIONS, _BYTES):
            skipped = min(max(position - at, 0), len(chunk.ops))
            at += len(chunk.ops)
            if skipped < len(chunk.ops):
                self._write(chunk.ops[skipped:], chunk.tables, lanes, at - len(chunk.ops) + skipped, done)
                self._end = lanes, at
        done.operations += at

    def _begin(self, upto_ts: int, plan: str, point: int) -> int:
        """Replace the marks of the open span by the replay's; how many operations a replay before has done."""
        left = self._lanes.open
        if left is not None and (left.after_ts, left.upto_ts, left.plan) == (self.commit_ts, upto_ts, plan):
            return left.done[0]
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._record.locked_ts(session, self.commit_ts, self.commit_ts)
                self._mark(session, point)
                self._record.rows.begin_lanes(session, OpenLanes(self.commit_ts, upto_ts, plan, True, (0,)))
                self._record.save(session, self.commit_ts, AppliedJobs(self._schema_version), consistent=False)
                failpoints.point("before-downstream-commit")
        return 0

    def _plan_of(self, upto_ts: int) -> str:
        """The fingerprint of the records up to there: what a number of operations is a number of."""
        found = hashlib.sha256()
        for stamp in self._stamps:
            if not stamp.ddl and self.commit_ts < stamp.commit_ts <= upto_ts:
                found.update(b"%d:%d " % (stamp.commit_ts, stamp.checksum))
        return f"{RELAYED}-{found.hexdigest()[:32]}"

    def _mark(self, session: Session, point: int) -> None:
        """Forget the marks of what is replayed. Until then the next life does not know what of the log up to ``point`` is in the target."""
        self._record.rows.forget_upto(session, point)
        self._record.rows.begin_safe(session, SafeBounds(self._since_ts, point, Reason.RELAY))

    def _pieces_of(self, records: Iterator[BinlogRecord], done: Replayed) -> Iterator[OpPiece]:
        made: dict[tuple[str, str], tuple[object, TableAt]] = {}
        for record in records:
            binlog = self._parsed(record)
            done.transactions += 1
            for table in binlog.dml_data.tables:
                name = table.schema_name, table.table_name
                columns = signature(table), binlog.commit_ts < self._first_ddl_ts
                if name not in made or made[name][0] != columns:
                    made[name] = columns, self._table_at(table, binlog.commit_ts, done)
                ops = operations_in(table, made[name][1], binlog.commit_ts, self._read_back)
                while piece := list(itertools.islice(ops, _OPERATIONS)):
                    yield OpPiece(made[name][1], piece, len(record.payload) // len(table.mutations))

    def _table_at(self, table: slave.Table, commit_ts: int, done: Replayed) -> TableAt:
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                there = self._file_tables.of(session, table.schema_name, table.table_name, commit_ts)
        not_yet = self._not_yet.get(_named(table.schema_name, table.table_name), ()) if commit_ts < self._first_ddl_ts else ()
        made = table_of(table, there, not_yet)
        if cannot_tell_apart(made.info):
            done.keyless.add(f"{made.schema}.{made.name}")
        return made

    def _write(self, ops: Sequence[RowOp], tables: dict[tuple[str, str], TableAt], lanes: OpenLanes, before: int, done: Replayed) -> None:
        batch = operations_named(ops, tables)
        plan = OpPlan(batch, keys_of(batch), self._row_target.limits, self._row_target.flavour, safe=True)
        writer = LaneWriter(plan, self._record.rows, lanes, self._settings, self._leased.lease)
        found = writer.write(range(len(batch)), self._leased.sessions.use, self._retry_policy, before=before)
        for finding in found:
            _log.warning("finding: %s", in_words(finding, self._settings.log_row_data))
        done.findings += found

    # DDLs: only a real Drainer's log has them within a span that is open.

    def _look_at_first_ddl(self, behind: Sequence[_Stamp]) -> None:
        """Only the first one may have been executed by a real Drainer, or by a replay that was killed.

        Raises:
            DdlRefused: a person must look whether it was.
        """
        at = next((place for place, s in enumerate(behind) if s.ddl), len(behind))
        if at == len(behind):
            return
        ddl_ts = behind[at].commit_ts
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                begun = self._record.rows.read(session).ddl_begun(ddl_ts)
        if self.commit_ts > self._since_ts and begun is None:
            return  # A replay has moved on from the first one, and says so before it executes another.
        worded_before: dict[tuple[str, str], frozenset[str]] = {}
        for record in self._records():
            binlog = self._parsed(record)
            if _is_ddl(record.payload):
                break
            for table in binlog.dml_data.tables:
                name = _named(table.schema_name, table.table_name)
                worded_before[name] = worded_before.get(name, frozenset()) | worded(table)
        data, query = binlog.ddl_data, _query(binlog)
        name = _named(data.schema_name, data.table_name)
        if begun is Begun.PERSON:
            raise self._left_to_a_person(ddl_ts, query, _SAID)
        why = why_not_twice(query)
        if why and (begun is not None or not at):
            raise self._left_to_a_person(ddl_ts, query, why)
        if why := why or (why_not_rows(query, worded_before[name]) if name in worded_before else ""):
            if ddl_ts not in self._settings.ignore_txn_commit_ts:
                raise DdlRefused(
                    f"the first DDL in the relay log in {self._directory}, of commit_ts {ddl_ts}, may have been executed before its Drainer was killed, "
                    f"and {why}: {query}. Look at the target. (1) If the DDL was executed, so was everything before it: execute {self._set_to(ddl_ts)}, and start again. (2) "
                    f"If not, start with syncer.ignore-txn-commit-ts = [{ddl_ts}]: the start replays what comes before the DDL, and the next message says what to do"
                )
            self._not_executed = ddl_ts
        self._not_yet, self._first_ddl_ts = {name: added_columns(query)}, ddl_ts

    def _left_to_a_person(self, ddl_ts: int, query: str, why: str) -> DdlRefused:
        return DdlRefused(
            f"the target has everything before the DDL of commit_ts {ddl_ts} in the relay log, and perhaps the DDL itself, and {why}: {query}. Look at the target. If "
            f"the DDL was not executed, execute it by hand. Then execute {self._set_to(ddl_ts)}, and start again"
        )

    def _set_to(self, ddl_ts: int) -> str:
        table = f"{quote_name(self._settings.checkpoint_schema)}.{quote_name(self._record.table)}"
        return f"UPDATE {table} SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {ddl_ts}) WHERE clusterID = {self._cluster_id}"

    def _replay_ddl(self, binlog: slave.Binlog, done: Replayed) -> None:
        query, commit_ts = _query(binlog), binlog.commit_ts
        self._schema_version = 0
        by = Begun.PERSON if commit_ts == self._not_executed else Begun.HERE
        self._move(commit_ts - 1, done, next_ddl=(commit_ts, by))
        if by is Begun.PERSON:
            raise self._left_to_a_person(commit_ts, query, _SAID)
        failpoints.point("before-relayed-ddl")

        database = binlog.ddl_data.schema_name
        try:
            record = TextRecord(
                lambda session: self._has_executed(session, commit_ts), lambda session, _: self._note_executed(session, commit_ts, done)
            )
            already_so = execute_text(self._ddl_sessions.use, self._retry_policy, database, query, self._row_target.flavour, record)
        except (LeaseLost, CommitsLost, RetryableApplyError):
            raise
        except DdlUnrecorded as error:
            raise self._left_to_a_person(commit_ts, query, str(error)) from error
        except ApplyError as error:
            raise DdlRefused(
                f"the target refuses the DDL of commit_ts {binlog.commit_ts} in the relay log: {error}. Execute it by hand in a form that the target "
                f"accepts, leave it out with syncer.ignore-txn-commit-ts = [{binlog.commit_ts}], and start again",
                error.errno,
                error.words,
            ) from error
        if not self._views.after(commit_ts, database, query, already_so) and already_so is not None:
            _log.warning("DDL of commit_ts %d: the target says that it was executed before: %s", binlog.commit_ts, already_so)
        failpoints.point("after-relayed-ddl-record")
        self._file_tables.forget()
        done.ddls += 1
        self._is_at(commit_ts, done)

    # The record.

    def _finish(self, done: Replayed) -> None:
        self._move(done.commit_ts, done)

    def _move(self, commit_ts: int, done: Replayed, next_ddl: tuple[int, Begun] | None = None) -> None:
        """Record that everything up to ``commit_ts`` is applied, and with its end that the target is consistent; ``next_ddl``: what comes next."""
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                self._note(session, commit_ts, done, next_ddl)
        self._is_at(commit_ts, done)

    def _note(self, session: Session, commit_ts: int, done: Replayed, next_ddl: tuple[int, Begun] | None = None) -> None:
        """What ``_move`` records, in the transaction that is open."""
        consistent = commit_ts == done.commit_ts
        stored_ts = self._record.locked_ts(session, self.commit_ts, commit_ts)
        if self._end is not None and stored_ts != commit_ts:
            lanes, end = self._end
            self._record.rows.require_done(session, lanes, (end,))
        if consistent:
            self._record.rows.forget_upto(session, commit_ts)
        else:
            self._mark(session, done.commit_ts)
        if next_ddl is not None:
            self._record.rows.begin_ddl(session, *next_ddl)
        self._record.rows.end_lanes(session)
        self._record.save(session, commit_ts, AppliedJobs(self._schema_version), consistent=consistent)
        failpoints.point("before-downstream-commit")

    def _is_at(self, commit_ts: int, done: Replayed) -> None:
        """The target's record says so."""
        self._end = None
        self._record.commit_ts, self._record.consistent, self._lanes.open = commit_ts, commit_ts == done.commit_ts, None

    def _note_executed(self, session: Session, commit_ts: int, done: Replayed) -> None:
        """In the transaction that is open: the DDL of ``commit_ts``, before which the target stands, was executed."""
        lease.check(session, self._leased.lease)
        failpoints.point("after-relayed-ddl")
        self._note(session, commit_ts, done)

    def _has_executed(self, session: Session, commit_ts: int) -> bool:
        """Whether the record says that the DDL of ``commit_ts`` was executed.

        Raises:
            LeaseLost: nothing may be written any more.
            CommitsLost: it does not say that it was begun either.
        """
        lease.check_unlocked(session, self._leased.lease)
        try:
            if self._record.locked_ts(session, self.commit_ts, commit_ts) == commit_ts:
                return True
        except RetryableApplyError:
            raise
        except ApplyError as error:
            raise CommitsLost(str(error)) from error
        if self._record.rows.read(session).ddl_begun(commit_ts) is None:
            raise CommitsLost(
                f"the target has lost transactions that it had committed: {self._settings.checkpoint_schema}.{TABLE} does not record the begin of the "
                f"DDL of commit_ts {commit_ts}. Did the server crash with innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind "
                "taken its place? Start the recovery again: it continues from what the target has"
            )
        return False


def _named(schema: str, table: str) -> tuple[str, str]:
    """Of a table, as a key."""
    return schema.lower(), table.lower()


def _query(binlog: slave.Binlog) -> str:
    return binlog.ddl_data.ddl_query.decode("utf-8", "replace")


def _is_ddl(payload: bytes) -> bool:
    """Whether a record is a DDL, without parsing it: its type comes first, in both writers."""
    return payload[:2] == b"\x08\x01"
