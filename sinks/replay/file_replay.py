"""Applies records of files to a MySQL-protocol target, on one connection: those of a file sink (Reparo) and of a relay log. [db]

    records, in the order of commit_ts -> chunks of named rows between DDLs -> the one plan -> one transaction with the place of the chunk's end

    (20: 3 rows) (21: 9,000 rows) (22: DDL), chunks of 4,000 rows
    transaction 1   rows 1 to 3 of 20, 1 to 3,997 of 21    the place: everything up to 20, and 3,997 operations of 21
    transaction 2   3,998 to 7,997 of 21                   everything up to 20, and 7,997 operations of 21
    transaction 3   7,998 to 9,000 of 21                   everything up to 20, and 9,000 operations of 21
    the DDL         begun, executed, recorded

Promises:

* A chunk and the place of its end commit together. So a replay that was killed knows exactly what is in the target, also amid a large transaction, rows
  without a unique key included. The digest of the open transaction shows that the records are the same.
* A chunk is its net change: one row is written once, whatever the records do to it. Its deletes come before its writes. In safe mode any part of it may be in the
  target: afterwards every row that has a unique key without NULL is as the records say. Tables without such a key are named.
* When a DDL begins, everything before it is committed and nothing after it is begun. Tables are as the target has them.
* A difference between the target and the records is a finding, and the row is then as the records say.
* Every transaction checks the lease. A target that lacks what it had answered is noticed before the next commit (``ReplayRecord``).

This module knows no checkpoint and no range: a ``ReplayRecord`` keeps the place, and decides about DDLs that may have been executed.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.schemas.findings import in_words
from pyspark_tidb_binlog.sinks.mysql.checked import CheckedWriter
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.safe_plan import cannot_tell_apart
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, connect
from pyspark_tidb_binlog.sinks.mysql.state_table import CommitsLost
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable, read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import without_transactions
from pyspark_tidb_binlog.sinks.replay.file_records import FileDdl, FileRecord
from pyspark_tidb_binlog.sinks.replay.named_rows import FileColumn, FileRow, FileTable, NamedRow, file_table, plan_of
from pyspark_tidb_binlog.sinks.replay.plain_text import DdlUnrecorded, WaitingViews, execute_text
from pyspark_tidb_binlog.sinks.replay.replay_record import PlaceKind, ReplayPlace, ReplayRecord
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack

_log = logging.getLogger(__name__)

_BYTES = 16 << 20
"""Of the rows of a chunk, about."""
_NO_SUCH_TABLE = 1146


@dataclass(slots=True)
class Replayed:
    """What a replay did."""

    commit_ts: int = 0
    """Of a relay log: the target is consistent here."""
    transactions: int = 0
    operations: int = 0
    ddls: int = 0
    so_already: int = 0
    """DDLs that the target says were executed before."""
    passed_over: int = 0
    """Binlogs that a Drainer, started again, had written twice."""
    keyless: set[str] = field(default_factory=set)
    """Tables with rows that cannot be told apart."""
    findings: Counter[str] = field(default_factory=Counter)
    """Number of findings by table."""
    left_out: dict[str, set[str]] = field(default_factory=dict)
    """Columns of the files, by table, that the target lacks: their values are not there."""


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Where records come from, and in words how a row is left out; ``{ts}`` stands for its commit_ts, ``{before}`` and ``{behind}`` for ts - 1 and ts + 1."""

    name: str
    leave_out: str
    """A table that the target lacks."""
    way_out: str
    """A row that the target refuses."""


@dataclass(frozen=True, slots=True)
class _RowChunk:
    """Rows that are applied together."""

    begin: ReplayPlace
    rows: Sequence[NamedRow]
    end: ReplayPlace


class FileReplay:
    """One target, to which records are applied."""

    def __init__(
        self, leased: LeasedTarget, target: TargetConfig, apply: ApplyConfig, source: ReplaySource, how: ReadBack, most: int
    ) -> None:
        """Accesses nothing. ``most``: operations of a chunk. From half of it on, a chunk ends with its transaction."""
        self.done = Replayed()
        self._leased = leased
        self._ddl_sessions = KeptSessions(lambda: connect(target, apply, for_ddls=True), apply.lease_timeout)
        """Sessions of their own, because a DDL chooses a current database, which cannot be undone."""
        self._apply = apply
        self._source = source
        self._how = how
        self._most = most
        self._views = WaitingViews(self._ddl_sessions.use, leased.retry_policy)
        self._flavour, self._limits = Flavour.MARIADB, PlanLimits()
        self._there: dict[tuple[str, str], TargetTable] = {}
        self._tables: dict[tuple[tuple[str, str], tuple[FileColumn, ...]], FileTable] = {}
        """By name and columns."""
        self._numbers = itertools.count(1)
        self._had: dict[tuple[str, str], set[str]] = {}
        """Columns in lower case that tables have had at the target."""
        self.last_ts = 0
        """commit_ts of the last record that is in the target."""

    def run(self, records: Iterator[FileRecord], after_ts: int, record: ReplayRecord) -> None:
        """Apply ``records``; everything up to ``after_ts`` is in the target.

        Raises:
            Corruption: a record is damaged; nothing from it on was applied.
            ApplyError: the target refuses something.
        """
        self.last_ts = after_ts
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                self._flavour, self._limits = session.flavour, PlanLimits().within(session.max_allowed_packet)
        for piece in self._pieces(records, after_ts):
            if isinstance(piece, _RowChunk):
                self._write(piece, record)
            else:
                self._execute(piece, record)

    def each_once(self, records: Iterable[FileRecord]) -> Iterator[FileRecord]:
        """Without what a Drainer that was started again has written a second time. DDLs of one commit_ts that have one text get different digests."""
        last_ts, ddls = 0, list[str]()
        for record in records:
            if record.commit_ts > last_ts:
                ddls.clear()
            # Early DDLs share the commit_ts of the transaction before them. Only our files have them, and our files hold each record once.
            ddl = isinstance(record, FileDdl)
            if record.commit_ts < last_ts or (record.commit_ts == last_ts and (not ddl or record.digest in ddls[-1:])):
                self.done.passed_over += 1
                continue
            last_ts = record.commit_ts
            if ddl:
                ddls.append(record.digest)
            yield replace(record, digest=record.digest + "+" * (ddls.count(record.digest) - 1)) if ddl else record

    def close(self) -> None:
        """Close the sessions for DDLs; safe to call twice."""
        self._ddl_sessions.close()

    # Rows.

    def _pieces(self, records: Iterator[FileRecord], after_ts: int) -> Iterator[_RowChunk | FileDdl]:
        """Chunks and DDLs. In a chunk no table changes."""
        rows: list[NamedRow] = []
        begin = end = ReplayPlace(after_ts, after_ts, PlaceKind.ROWS, after_ts)
        tables: dict[tuple[str, str], FileTable] = {}
        size, open_ts = 0, after_ts
        for record in records:
            after_ts, open_ts = (open_ts, record.commit_ts) if record.commit_ts > open_ts else (after_ts, open_ts)
            ddl = isinstance(record, FileDdl)
            if rows and (ddl or len(rows) >= (self._most + 1) // 2):
                yield _RowChunk(begin, rows, end)
                rows, tables, size = [], {}, 0
            if isinstance(record, FileDdl):
                yield record
                continue
            self.done.transactions += 1
            here = ReplayPlace.at(record, after_ts, PlaceKind.ROWS)
            for row in itertools.islice(record.rows, record.done, None):
                table = self._table_of(row, record.commit_ts)
                name = row.schema, row.table
                if rows and (len(rows) >= self._most or size >= _BYTES or tables.get(name, table) is not table):
                    yield _RowChunk(begin, rows, end)
                    rows, tables, size = [], {}, 0
                if not rows:
                    begin = here
                rows.append(table.read(row, record.commit_ts, self._how))
                tables[name] = table
                size += row.size
                end = here = replace(here, done=here.done + 1)
            if not rows:
                self.last_ts = record.commit_ts
        if rows:
            yield _RowChunk(begin, rows, end)

    def _write(self, chunk: _RowChunk, record: ReplayRecord) -> None:
        plan = plan_of(chunk.rows, self._limits, self._flavour, safe=record.safe)
        record.begin(record.as_recorded(chunk.begin))
        end, leased = record.as_recorded(chunk.end), self._leased
        writer = CheckedWriter(leased.lease, self._apply, leased.sessions.use, leased.retry_policy, self._source.way_out)
        phases = ("before-deletes", plan.deletes), ("between-phases", plan.writes), ("before-rows-commit", ())
        findings = writer.write(partial(record.move, to=end), phases)
        failpoints.point("after-rows-commit")
        record.moved_to(end)
        self.last_ts = chunk.end.commit_ts
        self.done.operations += len(chunk.rows)
        for finding in findings:
            _log.warning("finding: %s", in_words(finding, self._apply.log_row_data))
            self.done.findings[finding.table] += 1

    # Tables.

    def _table_of(self, row: FileRow, commit_ts: int) -> FileTable:
        name = row.schema, row.table
        found = self._tables.get((name, row.columns))
        if found is None:
            there = self._target_table(name, commit_ts)
            found = self._tables[name, row.columns] = file_table(next(self._numbers), name, row.columns, there)
            if not found.columns:
                raise ApplyError(
                    f"{'.'.join(name)}: the target's table has none of the columns that the binlogs have. Create it as it was at that time"
                )
            if cannot_tell_apart(found.at.info):
                self.done.keyless.add(".".join(name))
            self._tell_of_missing(name, [c.name for c in row.columns if there.column(c.name) is None], commit_ts)
        return found

    def _target_table(self, name: tuple[str, str], commit_ts: int) -> TargetTable:
        """A table as it is at the target, of which the transaction ``commit_ts`` has rows.

        Raises:
            ApplyError: the target has no such table, or one without transactions.
        """
        if name not in self._there:
            for attempt in self._leased.retrying():
                with attempt, self._leased.session(attempt) as session:
                    found = read_tables(session, [name]).get(name)
            what = f"{self._source.name} has rows of {'.'.join(name)} at commit_ts {commit_ts}, but the target"
            if found is None:
                way_out = self._source.leave_out.format(ts=commit_ts)
                raise ApplyError(
                    f"{what} has no such table. Create it as it was at that time, or {way_out}, and start again", _NO_SUCH_TABLE
                )
            if why := without_transactions(table_name(found.schema, found.name), found):
                raise ApplyError(f"{what}'s table cannot take them: {why}")
            self._there[name] = found
            self._had.setdefault(name, set()).update(c.name.lower() for c in found.columns)
        return self._there[name]

    def _tell_of_missing(self, name: tuple[str, str], columns: Sequence[str], commit_ts: int) -> None:
        if columns:
            _log.warning(
                "%s.%s, commit_ts %d: the target lacks %s; these columns of the binlogs are left out", *name, commit_ts, ", ".join(columns)
            )
            # One that a DDL of the records has dropped is to be gone.
            if lost := {c for c in columns if c.lower() not in self._had[name]}:
                self.done.left_out.setdefault(".".join(name), set()).update(lost)

    # DDLs.

    def _execute(self, ddl: FileDdl, record: ReplayRecord) -> None:
        if not record.begin_ddl(ddl, min(self.last_ts, ddl.commit_ts - 1)):
            _log.warning("an earlier replay executed the DDL of commit_ts %d; it is skipped", ddl.commit_ts)
            self.last_ts = ddl.commit_ts
            return
        try:
            sessions, policy = self._ddl_sessions.use, self._leased.retry_policy
            already = execute_text(sessions, policy, ddl.database, ddl.statement, self._flavour, record)
        except (LeaseLost, CommitsLost, RetryableApplyError):
            raise
        except DdlUnrecorded as error:
            raise record.left_to_a_person(ddl, str(error)) from error
        except ApplyError as error:
            raise record.refused(ddl, error) from error
        record.end_ddl()
        if not self._views.after(ddl.commit_ts, ddl.database, ddl.statement, already) and already is not None:
            self.done.so_already += 1
            _log.warning("DDL of commit_ts %d: the target says that it was executed before: %s", ddl.commit_ts, already)
        failpoints.point("after-ddl-record")
        self._there.clear()
        self._tables.clear()
        self.done.ddls += 1
        self.last_ts = ddl.commit_ts
