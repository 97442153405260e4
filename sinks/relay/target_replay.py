"""Replays the relay log on a MySQL-protocol target whose checkpoint is not consistent, while the upstream is away. [db]

    half applied span (C, U], consistent false -> all records with a commit_ts above C, in their order, in safe mode -> consistent true

Promises:

* Afterwards every row that has a unique key without NULL is as upstream at the consistent point: the end of our open span, or, of a real Drainer's,
  the last record. Rows without such a key cannot be told apart in a span that was half applied: their tables are named. No row of any other span
  is touched.
* A kill at any moment, and a repetition, leave the same: the first transaction replaces our marks of the open span by one of the replay's, with the
  number of operations that are done, which each later transaction moves. With the upstream back, the stream finishes such a span in safe mode.
* Nothing is changed unless the log holds the span and all its records are readable. The lease is required as by every other writer.

One connection applies everything in order, so that nothing needs to be known of which operations are in conflict.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.schemas.binlogfile import BinlogRecord, BinlogWriter, walk
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, LeaseLost
from pyspark_tidb_binlog.schemas.findings import Finding, in_words
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.sinks.engine.causality import keys_of
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp, operations_named
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql import lease, progress
from pyspark_tidb_binlog.sinks.mysql.ddl.plain_text import execute_text
from pyspark_tidb_binlog.sinks.mysql.opening import Doubt
from pyspark_tidb_binlog.sinks.mysql.rows import row_progress
from pyspark_tidb_binlog.sinks.mysql.rows.file_tables import FileTables
from pyspark_tidb_binlog.sinks.mysql.rows.lane_plan import identifies_rows
from pyspark_tidb_binlog.sinks.mysql.rows.op_chunks import OpPiece, chunks_of
from pyspark_tidb_binlog.sinks.mysql.rows.row_lanes import LaneRecord, RowWriter
from pyspark_tidb_binlog.sinks.mysql.rows.row_sink import RowSettings, RowSink
from pyspark_tidb_binlog.sinks.mysql.rows.row_sql import OpStatements
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayStream, noted_cover, read_cover, told
from pyspark_tidb_binlog.sinks.relay.relayed_rows import binlog_of, operations_in, signature, table_of
from pyspark_tidb_binlog.sinks.sink import TargetProgress
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.process_zone import ReadBack

_log = logging.getLogger(__name__)

PLAN = "relay"
"""The fingerprint, in ``spark_rows``, of a span that is being replayed; no plan of the stream has it."""
_OPERATIONS = 2000
"""Of one transaction, at most."""
_BYTES = 8 << 20
"""Of the records of one transaction, about."""


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


class RelayReplay(RowSink):
    """One target, to which the relay log is applied."""

    def __init__(self, config: DrainerConfig, cluster_id: int, stream: RelayStream, how: ReadBack, pause: Callable[[float], None]) -> None:
        """``cluster_id`` 0: the only one of which the target has a record. ``stream``: what would be written now."""
        super().__init__(config, cluster_id, RowSettings(), pause)
        self._stream = stream
        self._read_back = how
        self._directory = Path(config.relay.log_dir)
        self._file_tables = FileTables("the relay log", "leave the transaction out with syncer.ignore-txn-commit-ts = [{commit_ts}]")
        self._schema_version = 0
        self._ddl_ts: tuple[int, ...] = ()
        """commit_ts of the DDLs to be replayed."""

    def start(self) -> TargetProgress:
        """Take the lease and read the target's progress.

        Raises:
            LeaseHeld: another running Drainer writes for this cluster.
        """

        def begin(_: str, commit_ts: int | None) -> int:
            if commit_ts is None:
                raise ApplyError("the target has no checkpoint: there is nothing that a relay log could complete")
            return commit_ts

        found = self.open(begin, SchemaHistory).progress
        self._schema_version, self._record.consistent = found.schema_version, found.consistent
        return found

    def _doubt(self, found: TargetProgress, session: Session) -> Doubt:
        """None about a Drainer that has crashed: its relay log holds all that it had begun, and all of that is replayed."""
        doubt = super()._doubt(found, session)
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
        for ddl, records in itertools.groupby(self._records(), key=lambda r: _is_ddl(r.payload)):
            if ddl:
                for record in records:
                    self._replay_ddl(self._parsed(record), done)
            else:
                self._replay_rows(records, done)
        self._finish(done)
        return done

    # What there is.

    def _consistent_point(self, found: TargetProgress) -> int:
        """Where the target will be consistent; every record is read once, so that a damaged one is found before anything is changed."""
        stamps = [(commit_ts_of(r.payload), _is_ddl(r.payload)) for r in self._records()]
        self._ddl_ts = tuple(ts for ts, ddl in stamps if ddl)
        last_ts = max((ts for ts, _ in stamps), default=0)
        cover, own, left = read_cover(self._directory), found.unfinished, self._open_lanes
        noted = noted_cover(self._directory)
        self._require(noted.upto_ts if noted else 0, noted is None or noted.after_ts <= found.commit_ts)
        covered_ts = cover.upto_ts if cover is not None and self._stream.takes(cover.stream) else 0
        if left is not None and left.plan == PLAN:
            self._require(left.upto_ts, max(last_ts, covered_ts) >= left.upto_ts)
        elif own is not None:
            self._require(own.upto_ts, cover is not None and covered_ts > 0 and cover.holds(found.commit_ts, own.upto_ts))
        point = max(found.commit_ts, last_ts, covered_ts if own is not None else 0)
        # An earlier life has begun to bring on what another Drainer had left, whose log this is not.
        self._require(self._safe.until_ts, not self._safe.open_at(point))
        return point

    def _require(self, upto_ts: int, covered: bool) -> None:
        if not covered:
            raise ApplyError(
                f"a part of what follows {self.commit_ts} is in the target, and the relay log in {self._directory} does not hold all of it, up to "
                f"{upto_ts}: it was switched on later, is of other filters or another ignore-txn-commit-ts, files were removed, or the target was "
                "restored. Start again when the upstream is back"
            )

    def _records(self) -> Iterator[BinlogRecord]:
        """The records that the target may lack, in their order. Between two of them a stop request ends the replay."""
        ignored, last_ts = self._settings.ignore_txn_commit_ts, self.commit_ts
        for record in walk(self._directory):
            self._retry_policy.pause(0.0)
            commit_ts = commit_ts_of(record.payload)
            # A real Drainer that was started again has written again what was there; an early DDL shares its commit_ts with a transaction.
            again = commit_ts < last_ts if _is_ddl(record.payload) else commit_ts <= last_ts
            if commit_ts > self.commit_ts and not again:
                last_ts = commit_ts
                if commit_ts not in ignored:
                    yield record

    def _parsed(self, record: BinlogRecord) -> slave.Binlog:
        return binlog_of(record.payload, f"{self._directory}: file {record.end.index}, before offset {record.end.offset}")

    # Rows.

    def _replay_rows(self, records: Iterator[BinlogRecord], done: Replayed) -> None:
        upto_ts = next((ts - 1 for ts in self._ddl_ts if ts > self.commit_ts), done.commit_ts)
        record = LaneRecord(self._cluster_id, upto_ts, self._settings.checkpoint_schema)
        position, at = self._begin(upto_ts), 0
        for chunk in chunks_of(self._pieces_of(records, done), _OPERATIONS, _BYTES):
            skipped = min(max(position - at, 0), len(chunk.ops))
            at += len(chunk.ops)
            if skipped < len(chunk.ops):
                self._write(chunk.ops[skipped:], chunk.tables, record.guard(0, at - len(chunk.ops) + skipped, at), done)
        done.operations += at

    def _begin(self, upto_ts: int) -> int:
        """Replace the marks of the open span by the replay's; how many operations a replay before has done."""
        left = self._open_lanes
        if left is not None and left.plan == PLAN and (left.after_ts, left.upto_ts) == (self.commit_ts, upto_ts):
            return left.done[0]
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id

        def begin(session: Session) -> None:
            self._record.locked_ts(session, self.commit_ts, self.commit_ts)
            progress.finish_span(session, cluster_id, self.commit_ts, upto_ts, schema)
            row_progress.begin(session, cluster_id, (self.commit_ts, upto_ts), PLAN, 1, schema, safe=True)
            self._record.save(session, self.commit_ts, AppliedJobs(self._schema_version), consistent=False)
            failpoints.point("before-downstream-commit")

        self._leased.transact(begin)
        return 0

    def _pieces_of(self, records: Iterator[BinlogRecord], done: Replayed) -> Iterator[OpPiece]:
        made: dict[tuple[str, str], tuple[object, TableAt]] = {}
        for record in records:
            binlog = self._parsed(record)
            done.transactions += 1
            for table in binlog.dml_data.tables:
                name, columns = (table.schema_name, table.table_name), signature(table)
                if name not in made or made[name][0] != columns:
                    made[name] = columns, self._table_at(table, binlog.commit_ts, done)
                ops = operations_in(table, made[name][1], binlog.commit_ts, self._read_back)
                while piece := list(itertools.islice(ops, _OPERATIONS)):
                    yield OpPiece(made[name][1], piece, len(record.payload) // len(table.mutations))

    def _table_at(self, table: slave.Table, commit_ts: int, done: Replayed) -> TableAt:
        def read(session: Session) -> TableAt:
            return table_of(table, self._file_tables.of(session, table.schema_name, table.table_name, commit_ts))

        made = self._leased.ask(read)
        if not identifies_rows(made.info):
            done.keyless.add(f"{made.schema}.{made.name}")
        return made

    def _write(
        self, ops: Sequence[RowOp], tables: dict[tuple[str, str], TableAt], guard: Callable[[Session], bool], done: Replayed
    ) -> None:
        batch = operations_named(ops, tables)
        statements = OpStatements(batch, self._limits, self._flavour, safe=True)
        writer = RowWriter(statements, keys_of(batch).lists(), self._settings, self._leased.lease)
        found = writer.write(range(len(batch)), self._leased.sessions.use, self._retry_policy, guard, lambda session: None)
        for finding in found:
            _log.warning("finding: %s", in_words(finding, self._settings.log_row_data))
        done.findings += found

    # DDLs: only a real Drainer's log has them within a span that is open.

    def _replay_ddl(self, binlog: slave.Binlog, done: Replayed) -> None:
        query = binlog.ddl_data.ddl_query.decode("utf-8", "replace")
        self._schema_version = 0
        self._move(binlog.commit_ts - 1, done, consistent=False)

        database = binlog.ddl_data.schema_name
        try:
            already_so = execute_text(self._ddl_sessions.use, self._retry_policy, database, query, self._flavour, self._check)
        except LeaseLost:
            raise
        except ApplyError as error:
            raise DdlRefused(
                f"the target refuses the DDL of commit_ts {binlog.commit_ts} in the relay log: {error}. Execute it by hand in a form that the target "
                f"takes, leave it out with syncer.ignore-txn-commit-ts = [{binlog.commit_ts}], and start again",
                error.errno,
                error.words,
            ) from error
        if already_so is not None:
            _log.warning("DDL of commit_ts %d: the target says that it is so already: %s", binlog.commit_ts, already_so)
        self._file_tables.forget()
        done.ddls += 1
        self._move(binlog.commit_ts, done, consistent=False)

    def _check(self, session: Session) -> None:
        lease.check_unlocked(session, self._leased.lease)

    # The record.

    def _finish(self, done: Replayed) -> None:
        self._move(done.commit_ts, done, consistent=True)

    def _move(self, commit_ts: int, done: Replayed, *, consistent: bool) -> None:
        """Record that everything up to ``commit_ts`` is applied, and remove the marks of the replay."""
        schema, cluster_id = self._settings.checkpoint_schema, self._cluster_id

        def move(session: Session) -> None:
            self._record.locked_ts(session, self.commit_ts, commit_ts)
            progress.finish_span(session, cluster_id, self.commit_ts, done.commit_ts, schema)
            row_progress.finish(session, cluster_id, schema)
            self._record.save(session, commit_ts, AppliedJobs(self._schema_version), consistent=consistent)
            failpoints.point("before-downstream-commit")

        if commit_ts > self.commit_ts or consistent:
            self._leased.transact(move)
            self._record.commit_ts, self._record.consistent, self._open_lanes = commit_ts, consistent, None


def _is_ddl(payload: bytes) -> bool:
    """Whether a record is a DDL, without parsing it: its type comes first, in both writers."""
    return payload[:2] == b"\x08\x01"
