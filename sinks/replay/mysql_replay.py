"""Applies a file sink's binlogs to a MySQL-protocol target, as Reparo does (drainer.md 14). [db]

    binlogs, in the order of commit_ts -> chunks of row operations between DDLs -> lanes (``worker-count``) -> transactions of ``txn-batch`` operations

Promises:

* When a DDL begins, everything before it is committed and nothing after it is begun. Row operations that share a key keep their order.
  Tables are as the target has them.
* One replay writes at a time: every transaction checks the lease of ``CLUSTER`` in ``tidb_binlog.spark_lease``.
* There is no checkpoint, but ``spark_state`` records, in the transactions of the rows, where a replay stopped: what of the open chunk is done, which
  chunks of its span come before, and the last DDL. A replay that begins with the same operations continues exactly there, keyless rows included. Any
  other beginning is refused without safe mode.
* A DDL that an interrupted replay had begun is executed again. A DDL that would undo itself (EXCHANGE PARTITION, names that change places) is left to
  a person.
* In safe mode any part may have been applied before: afterwards every row that has a unique key without NULL is as the files say. Tables without such
  a key are named.
* A difference between the target and the files is a finding, and the row is then as the files say.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused, LeaseHeld, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, in_words
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, keys_of
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch, RowOp, operations_named
from pyspark_tidb_binlog.sinks.file.event_rows import FileColumn, columns_in, operation_of
from pyspark_tidb_binlog.sinks.file.replayed import ColumnChange, DdlParts, columns_of, ddl_parts
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.leased_target import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.record import TABLE, OpenLanes, Record
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.rows.file_tables import FileTables, WrittenColumn, table_there
from pyspark_tidb_binlog.sinks.mysql.rows.lane_plan import AT_ITS_BEGIN, LanePlan, SpanPlace, operations_before
from pyspark_tidb_binlog.sinks.mysql.rows.op_chunks import OpChunk, OpPiece, chunks_of
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.rows.row_lanes import Lanes, LaneWriter
from pyspark_tidb_binlog.sinks.mysql.safe_plan import cannot_tell_apart
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import TargetTable
from pyspark_tidb_binlog.sinks.mysql.text_ddl.plain_text import CommitsLost, DdlUnrecorded, TextRecord, WaitingViews, execute_text
from pyspark_tidb_binlog.sinks.mysql.text_ddl.repeated import undoes_itself
from pyspark_tidb_binlog.sinks.replay.ddl_mark import DdlMark, DdlState
from pyspark_tidb_binlog.sinks.translate.process_zone import ReadBack

_log = logging.getLogger(__name__)

CLUSTER = 0
"""The cluster id of a replay's lease and record: no cluster has it."""
_REST = ""
"""The fingerprint of a span that is left open behind the end of a range: a part of it may be in the target."""
_OPERATIONS = 4000
"""Of a chunk, at most. From half of it on, a chunk ends with its transaction."""
_BYTES = 16 << 20
"""Of the rows of a chunk, about."""
_PIECE = 1000
"""Operations on one table that are handed on together."""
_NO_DATABASE = 1049
_WAY_OUT = (
    "leave its table out with [[replicate-ignore-table]]. Or replay up to this transaction and then behind it: -safe-mode -stop-tso {before}, "
    "then -safe-mode -start-tso {behind}"
)


@dataclass(slots=True)
class FilesReplayed:
    """What a replay did."""

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
    """Columns of the binlogs, by table, that the target lacks: their values are not there."""


@dataclass(frozen=True, slots=True)
class _KnownTable:
    """A table at the target, and what it is to events with certain columns."""

    there: TargetTable
    by_columns: dict[tuple[FileColumn, ...], TableAt] = field(default_factory=dict)

    @property
    def written(self) -> frozenset[str]:
        """The columns that are written, in lower case."""
        return frozenset(c.name.lower() for c in self.there.columns if not c.generated)


class MySQLReplay:
    """One target, to which the binlogs of one range are applied."""

    def __init__(
        self, target: TargetConfig, apply: ApplyConfig, after_ts: int, how: ReadBack, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """Does not access the target. ``after_ts``: the range begins behind it."""
        self.done = FilesReplayed()
        self._apply = apply
        self._record = Record(apply.checkpoint_schema, CLUSTER)
        self._how = how
        self._retry_policy = RetryPolicy(seconds=apply.retry_seconds, pause=pause)
        self._leased = LeasedTarget(lambda: connect(target, apply), apply, self._retry_policy)
        self._ddl_sessions = KeptSessions(lambda: connect(target, apply, for_ddls=True), apply.lease_timeout)
        self._views = WaitingViews(self._ddl_sessions.use, self._retry_policy)
        self._lanes = Lanes(lambda: connect(target, apply), apply, self._retry_policy)
        self._file_tables = FileTables("the directory of binlogs", "leave the table out with [[replicate-ignore-table]]")
        self._tables: dict[tuple[str, str], _KnownTable] = {}
        self._flavour = Flavour.MARIADB
        self._done_ts = after_ts
        """Everything up to it is in the target."""
        self._last_ts = after_ts
        """commit_ts of the last operation, or DDL, that is in the target."""
        self._left: OpenLanes | None = None
        """What a replay before has left open, until the first operations or DDL of this one."""
        self._open_upto = 0
        """Up to here an earlier replay may have applied something."""
        self._found_ddl: DdlMark | None = None
        """The DDL of the record that was found."""
        self._place = AT_ITS_BEGIN
        """Of the next chunk in the operations behind ``_done_ts``."""
        self._ends: tuple[OpenLanes, tuple[int, ...]] | None = None
        """Where the lanes must be, of what they did last."""
        self._written: tuple[int, int, str] | None = None
        """Span and plan of the record that this replay has written last."""
        self._go_on = after_ts + 1
        """Where a range begins that continues from here."""
        self._begun = False
        """Whether this replay has found its place, or applied anything."""
        self._had: dict[tuple[str, str], set[str]] = {}
        """Columns in lower case that tables have had at the target."""

    def take_all(self, binlogs: Iterable[pb.Binlog]) -> None:
        """Apply ``binlogs``.

        Raises:
            LeaseHeld: another replay writes to this target.
            Corruption: a binlog is damaged; nothing from it on was applied.
            ApplyError: the target refuses something, or a replay before has left a span open and this is not in safe mode.
        """
        self._start()
        for ddl, group in itertools.groupby(self._not_there(self._each_once(binlogs)), key=lambda b: b.tp == pb.DDL):
            if not ddl:
                for chunk in chunks_of(self._pieces_of(group), _OPERATIONS, _BYTES, _OPERATIONS // 2):
                    self._apply_rows(chunk)
            else:
                for binlog in group:
                    self._apply_ddl(binlog)
        self._finish()

    def close(self) -> None:
        """Release the lease; safe to call twice."""
        self._lanes.close()
        self._ddl_sessions.close()
        self._leased.close()

    @property
    def standing(self) -> str:
        """Where the replay is, and how to go on from there."""
        if not self._begun:
            return "nothing was applied"
        return (
            f"everything of the range up to commit_ts {self._done_ts} ({as_time(self._done_ts)}) is in the target. To continue: -start-tso {self._go_on}. "
            "With the same files, filters and end the replay continues exactly where this one stopped. Otherwise add -safe-mode"
        )

    # The range.

    def _start(self) -> None:
        try:
            self._leased.take(CLUSTER)
        except LeaseHeld as error:
            raise LeaseHeld(f"another replay writes to this target, but only one replay may write at a time: {error}") from error
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                self._flavour = session.flavour
                self._record.create(session)
                left = self._record.read(session).lanes
        self._found_ddl = DdlMark.read(left.plan) if left is not None else None
        if left is not None and self._found_ddl is not None and self._done_ts >= self._found_ddl.commit_ts:
            if self._found_ddl.state is not DdlState.EXECUTED:
                _log.warning(
                    "the DDL of commit_ts %d, at which an earlier replay stopped, is not executed: this range begins after it",
                    self._found_ddl.commit_ts,
                )
            # What an earlier one had left open may go on behind it.
            left = replace(left, after_ts=self._found_ddl.commit_ts, plan=_REST) if left.upto_ts > self._done_ts else None
        self._left = left
        if left is None:
            return
        self._open_upto = left.upto_ts
        if left.after_ts < self._done_ts:
            # Which rows of an open chunk are there nobody knows: it is brought to an end. The rest of a span is as whoever chose its ends wants it.
            if left.plan != _REST or not self._apply.safe_mode:
                raise self._open_span(left, f"this range begins only behind {self._done_ts}")
            _log.warning(
                "a part of (%d, %d] may be in the target, but this range begins only behind %d: the changes of that span before this range stay as they are",
                left.after_ts,
                left.upto_ts,
                self._done_ts,
            )

    def _each_once(self, binlogs: Iterable[pb.Binlog]) -> Iterator[pb.Binlog]:
        """Without what a Drainer that was started again has written a second time."""
        last_ts = 0
        ddls: set[bytes] = set()
        for binlog in binlogs:
            if binlog.commit_ts > last_ts:
                ddls.clear()
            # An early DDL shares its commit_ts with the transaction before it, and with other early DDLs.
            ddl = binlog.tp == pb.DDL
            again = binlog.commit_ts < last_ts or (binlog.commit_ts == last_ts and (not ddl or binlog.ddl_query in ddls))
            if again:
                self.done.passed_over += 1
                continue
            last_ts = binlog.commit_ts
            if ddl:
                ddls.add(binlog.ddl_query)
            yield binlog

    def _not_there(self, binlogs: Iterator[pb.Binlog]) -> Iterator[pb.Binlog]:
        """Without what has the commit_ts of the DDL at which a replay before stopped, and comes before it."""
        left, found = self._left, self._found_ddl
        if (
            left is None
            or found is None
            or left.after_ts < found.commit_ts
            or self._done_ts != found.commit_ts - 1
            or self._apply.safe_mode
        ):
            yield from binlogs
            return
        for binlog in binlogs:
            if binlog.commit_ts > found.commit_ts:
                yield binlog  # which is not what the record says
                break
            if found.names(binlog):
                self._last_ts = found.commit_ts
                yield binlog
                break
        yield from binlogs

    def _finish(self) -> None:
        if self._left is not None:
            if not self._apply.safe_mode:
                raise self._open_span(self._left, "this range holds nothing of that span")
            return
        self._done_ts, self._go_on = self._last_ts, self._last_ts + 1
        upto_ts = self._open_upto
        tried = False
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                found = self._record.read(session).lanes
                # If the answer to an attempt was lost, it may have ended the record.
                if not (tried and (found is None or found.plan == _REST)):
                    self._require_last(session)
                tried = True
                self._record.end_lanes(session)
                if upto_ts > self._done_ts:
                    self._record.begin_lanes(session, OpenLanes(self._done_ts, upto_ts, _REST, True, (0,)))
        if upto_ts > self._done_ts:
            _log.warning("the range ends at %d, within a span that an earlier replay began, up to %d", self._done_ts, upto_ts)

    def _open_span(self, left: OpenLanes, why: str) -> ApplyError:
        schema, found = self._apply.checkpoint_schema, self._found_ddl
        go_on, how = left.after_ts + 1, "with the files, filters and end of that replay, or with -safe-mode from there"
        what = f"within ({left.after_ts}, {left.upto_ts}] ({as_time(left.upto_ts)}): a part of that span is in the target"
        if left.plan == _REST:
            how = "and -safe-mode. Or begin behind the span, with -safe-mode, if the rows of the span are as you want them"
        elif found is not None:
            go_on = min(go_on, found.commit_ts)
            what = f"at the DDL of commit_ts {found.commit_ts} ({as_time(found.commit_ts)}): everything before it is in the target"
        return ApplyError(
            f"an earlier replay stopped {what}, and {why}. "
            f"To continue: -start-tso {go_on}, {how}. "
            f"If the target was emptied or restored since, delete the record: DELETE FROM {schema}.{TABLE} WHERE cluster_id = {CLUSTER}"
        )

    # Rows.

    def _pieces_of(self, binlogs: Iterator[pb.Binlog]) -> Iterator[OpPiece]:
        for binlog in binlogs:
            self.done.transactions += 1
            begins, ops, size = True, list[RowOp](), 0
            at: TableAt | None = None
            for event in binlog.dml_data.events:
                changes = tuple(columns_of(event))
                here = self._table_of(event, changes, binlog.commit_ts)
                if at is not None and (here is not at or len(ops) >= _PIECE):
                    yield OpPiece(at, ops, size // len(ops), begins)
                    begins, ops, size = False, [], 0
                at = here
                ops.append(operation_of(event, changes, at, binlog.commit_ts, self._how))
                size += event.ByteSize()
            if at is not None:
                yield OpPiece(at, ops, size // len(ops), begins)

    def _table_of(self, event: pb.Event, changes: Sequence[ColumnChange], commit_ts: int) -> TableAt:
        """The same object as long as events have the same columns of those that the target has."""
        name, columns = (event.schema_name, event.table_name), columns_in(changes)
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = _KnownTable(self._there(name, commit_ts))
            self._had.setdefault(name, set()).update(c.name.lower() for c in known.there.columns)
        if columns not in known.by_columns:
            there = known.written
            at_target = tuple(c for c in columns if c.name.lower() in there)
            if at_target not in known.by_columns:
                written = [WrittenColumn(c.name, c.tp, c.binary) for c in at_target]
                known.by_columns[at_target] = self._new_table(name, written, known.there)
            known.by_columns[columns] = known.by_columns[at_target]
            self._tell_of_missing(name, [c.name for c in columns if known.there.column(c.name) is None], commit_ts)
        return known.by_columns[columns]

    def _new_table(self, name: tuple[str, str], columns: Sequence[WrittenColumn], there: TargetTable) -> TableAt:
        made = table_there(*name, columns, there)
        if not made.info.columns:
            raise ApplyError(
                f"{'.'.join(name)}: the target's table has none of the columns that the binlogs have. Create it as it was at that time"
            )
        if cannot_tell_apart(made.info):
            self.done.keyless.add(".".join(name))
        return made

    def _there(self, name: tuple[str, str], commit_ts: int) -> TargetTable:
        for attempt in self._leased.retrying():
            with attempt, self._leased.session(attempt) as session:
                there = self._file_tables.of(session, *name, commit_ts)
        return there

    def _tell_of_missing(self, name: tuple[str, str], columns: Sequence[str], commit_ts: int) -> None:
        if columns:
            _log.warning(
                "%s.%s, commit_ts %d: the target lacks %s; these columns of the binlogs are left out", *name, commit_ts, ", ".join(columns)
            )
            # One that a DDL of this range has dropped is to be gone.
            if lost := {c for c in columns if c.lower() not in self._had[name]}:
                self.done.left_out.setdefault(".".join(name), set()).update(lost)

    def _apply_rows(self, chunk: OpChunk) -> None:
        self._passed(chunk.ops[0].commit_ts)
        last_ts = chunk.ops[-1].commit_ts
        batch = operations_named(chunk.ops, chunk.tables)
        place = self._place = self._place.behind(batch)
        if self._is_there(batch, place):
            self._last_ts = last_ts
            return
        keys = keys_of(batch)
        plan = self._plan(batch, keys, place, max(last_ts, self._open_upto))
        self._begun = True
        statements = OpPlan(batch, keys, PlanLimits(), self._flavour, safe=plan.safe)
        span = OpenLanes(self._done_ts, max(last_ts, self._open_upto), plan.text, plan.safe, (0,) * plan.lanes)
        writer = LaneWriter(statements, self._record, span, self._apply, self._leased.lease, _WAY_OUT)
        self._note(self._lanes.run(writer, plan.rounds(), plan.done or (0,) * plan.lanes))
        self._ends = span, plan.ends()
        self._last_ts = last_ts
        self.done.operations += len(batch)

    def _is_there(self, batch: RowBatch, place: SpanPlace) -> bool:
        """Whether a replay before has done all of these: its record is of a later chunk of the same transaction. That these are its operations the
        fingerprint of that chunk shows; until then nothing is written.
        """
        left = self._left
        if left is None or self._apply.safe_mode or left.after_ts != self._done_ts or place.upto > operations_before(left.plan):
            return False
        _log.warning("%d operations from commit_ts %d on are in the target already and are skipped", len(batch), int(batch.commit_ts[0]))
        return True

    def _plan(self, batch: RowBatch, keys: OpKeys, place: SpanPlace, upto_ts: int) -> LanePlan:
        """How the chunk is applied; it is recorded as begun."""
        left = self._taken_left()
        if left is not None and (left.after_ts, left.upto_ts) == (self._done_ts, upto_ts):
            plan = LanePlan.again(batch, keys, left, place)
            if plan is not None:
                _log.warning("the replay continues exactly where an earlier replay stopped, within (%d, %d]", left.after_ts, left.upto_ts)
                return plan
        self._require_safe(left)
        safe = self._apply.safe_mode or self._done_ts < self._open_upto
        plan = LanePlan.of(batch, keys, self._apply.worker_count, Conflict.GROUPS, self._apply.txn_batch, place, safe=safe)
        self._begin(upto_ts, plan.text, plan.lanes, safe=safe)
        return plan

    def _note(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            _log.warning("finding: %s", in_words(finding, self._apply.log_row_data))
            self.done.findings[finding.table] += 1

    # DDLs.

    def _apply_ddl(self, binlog: pb.Binlog) -> None:
        left, mark = self._taken_left(), DdlMark.of(binlog)
        known = self._found_ddl if self._found_ddl is not None and self._found_ddl.names(binlog) else None
        exact = left is not None and known is not None and left.plan == known.plan and left.after_ts == self._last_ts
        if not exact:
            self._require_safe(left)
        self._begun, self._done_ts, self._place = True, self._last_ts, AT_ITS_BEGIN
        self._go_on = min(self._done_ts + 1, binlog.commit_ts)
        parts = ddl_parts(binlog.ddl_query.decode("utf-8", "surrogateescape"))
        upto_ts = max(binlog.commit_ts, self._open_upto)
        there = exact and known is not None and known.state is DdlState.EXECUTED
        executed = mark.but(DdlState.EXECUTED).plan
        self._begin(upto_ts, executed if there else mark.plan, 1, safe=False)
        if there:
            _log.warning("an earlier replay executed the DDL of commit_ts %d; it is skipped", binlog.commit_ts)
            self._last_ts = binlog.commit_ts
            return
        # A range in safe mode may have begun before it, also because the target was made anew.
        if known is not None and known.state is not DdlState.REFUSED and undoes_itself(parts.statement):
            raise _left_to_a_person(
                binlog, parts, "it was being executed when an earlier replay ended, and executing it again would undo it"
            )
        try:
            record = self._record_of(upto_ts, executed, parts)
            already = execute_text(self._ddl_sessions.use, self._retry_policy, parts.database, parts.statement, self._flavour, record)
            self._written = (self._done_ts, upto_ts, executed)
        except (LeaseLost, CommitsLost, RetryableApplyError):
            raise
        except DdlUnrecorded as error:
            raise _left_to_a_person(binlog, parts, str(error)) from error
        except ApplyError as error:
            if error.errno:
                self._begin(upto_ts, mark.but(DdlState.REFUSED).plan, 1, safe=False)
            raise DdlRefused(
                f"the target refuses the DDL of commit_ts {binlog.commit_ts} ({as_time(binlog.commit_ts)}): {error}. Execute it by hand in a form that the "
                f"target accepts, and go on with -start-tso {binlog.commit_ts + 1}",
                error.errno,
                error.words,
            ) from error
        if not self._views.after(binlog.commit_ts, parts.database, parts.statement, already) and already is not None:
            self.done.so_already += 1
            _log.warning("DDL of commit_ts %d: the target says that it was executed before: %s", binlog.commit_ts, already)
        failpoints.point("after-ddl-record")
        self._file_tables.forget()
        self._tables.clear()
        self.done.ddls += 1
        self._last_ts = binlog.commit_ts

    # The record.

    def _passed(self, commit_ts: int) -> None:
        """What comes next is of ``commit_ts``: all transactions before it are complete."""
        if commit_ts > self._last_ts:
            self._done_ts, self._go_on, self._place = self._last_ts, self._last_ts + 1, AT_ITS_BEGIN

    def _taken_left(self) -> OpenLanes | None:
        left, self._left = self._left, None
        return left

    def _require_safe(self, left: OpenLanes | None) -> None:
        if left is not None and not self._apply.safe_mode:
            raise self._open_span(left, "this range does not begin with the changes with which that span began")

    def _begin(self, upto_ts: int, plan: str, lanes: int, *, safe: bool) -> None:
        span = (self._done_ts, upto_ts)
        for attempt in self._leased.retrying():
            with attempt, self._leased.fenced(attempt) as session:
                if not self._says(session, (*span, plan)):
                    self._require_last(session)
                self._record.begin_lanes(session, OpenLanes(*span, plan, safe, (0,) * lanes))
        self._ends, self._written = None, (*span, plan)

    def _record_of(self, upto_ts: int, plan: str, parts: DdlParts) -> TextRecord:
        """That of the DDL that was begun last; ``plan``: what it says when that was executed."""
        last = (self._done_ts, upto_ts, plan)

        def executed(session: Session) -> bool:
            lease.check_unlocked(session, self._leased.lease)
            if self._says(session, last):
                return True
            self._require_last(session)
            return False

        def note(session: Session, already: ApplyError | None) -> None:
            if already is not None and already.errno == _NO_DATABASE and not parts.drops:
                raise already
            lease.check(session, self._leased.lease)
            if not self._says(session, last):
                self._require_last(session)
                self._record.begin_lanes(session, OpenLanes(*last[:2], plan, False, (0,)))
            failpoints.point("after-ddl")

        return TextRecord(executed, note)

    def _says(self, session: Session, what: tuple[int, int, str]) -> bool:
        """Whether the record is of this span and plan."""
        found = self._record.read(session).lanes
        return found is not None and (found.after_ts, found.upto_ts, found.plan) == what

    def _require_last(self, session: Session) -> None:
        """Check that the target still has what this replay has done last.

        Raises:
            CommitsLost: it has lost transactions that it had answered.
        """
        if self._written is None:
            return
        schema = self._apply.checkpoint_schema
        if not self._says(session, self._written):
            begun = self._written[0] + 1
            raise CommitsLost(
                f"the target has lost transactions that it had committed: {schema}.{TABLE} does not have the span that begins at {begun}. Did the "
                "server crash with innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind taken its place? Start the replay again "
                "with the same options. If the target has no record, start it from the beginning with -safe-mode"
            )
        if self._ends is not None:
            lanes, ends = self._ends
            self._record.require_done(session, lanes, ends)


def _left_to_a_person(binlog: pb.Binlog, parts: DdlParts, why: str) -> DdlRefused:
    return DdlRefused(
        f"the DDL of commit_ts {binlog.commit_ts} ({as_time(binlog.commit_ts)}) was executed, or may have been: {why}: {parts.statement}. Look at its "
        f"tables. If it was not executed, execute it by hand. Then go on with -start-tso {binlog.commit_ts + 1}"
    )
