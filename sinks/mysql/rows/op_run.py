"""Runs the statements of row operations in a transaction, and checks what each did. [db]

Promises: a transaction whose statements have their expected effects is run once, without extra queries. Otherwise the caller rolls it back
and runs its operations one by one (``closely``), so that every finding and every refusal names its row. With ``on-finding = stop`` a
finding raises ``FindingError`` before anything is committed; with ``record`` the operation's new row is written whatever is there. In safe
mode a row that is missing or there already is no finding; a changed value is.
"""

from collections.abc import Iterable

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import Op, as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.redaction import HIDDEN
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult, finding, judge, key_text, matched
from pyspark_tidb_binlog.sinks.mysql.rows.row_sql import JoinedOps, OpStatements, OpText
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Statement

SKIPPING = "skip the transaction with syncer.ignore-txn-commit-ts = [{ts}]"
_DUPLICATE = 1062
_NOT_COMPARABLE = 1267
_PACKET_TOO_LARGE = 1153
_NO_TABLE = frozenset({1049, 1146})


def as_expected(session: Session, statements: Iterable[JoinedOps]) -> bool:
    """Run the statements; False, at the first one that is refused or does not have its expected effect: roll back, and run ``closely``."""
    for statement in statements:
        sql = statement.sql
        if len(sql) + 1 > session.max_allowed_packet > 0:
            return False
        try:
            answer = session.answer(sql)
        except RetryableApplyError:
            raise
        except ApplyError:
            return False
        if not _fulfilled(statement, answer):
            return False
    return True


def closely(
    session: Session, settings: ApplyConfig, operations: OpStatements, places: Iterable[int], way_out: str = SKIPPING
) -> tuple[Finding, ...]:
    """Run the operations one by one; the findings. ``way_out``: how to go on without a row that the target refuses, with ``{ts}`` for its
    commit_ts, ``{before}`` and ``{behind}`` for the ones beside it.

    Raises:
        FindingError: there are findings, and ``on-finding`` is ``stop``; the transaction must not be committed.
        ApplyError: the target refuses a row, or a row is too big for the server.
    """
    run = _Closely(session, settings, operations, way_out)
    for place in places:
        run.operation(place)
    if run.findings and settings.on_finding == "stop":
        first = in_words(run.findings[0], settings.log_row_data)
        raise FindingError(
            f"the target is not as the binlogs say it must be, {len(run.findings)} findings, the first: {first}. Nothing of this transaction is "
            "committed. Compare the table with the upstream and repair it, then start again; or continue and record findings with "
            "syncer.on-finding = record"
        )
    return tuple(run.findings)


def _fulfilled(statement: JoinedOps, answer: StatementResult) -> bool:
    if answer.warning_count:
        return False
    if statement.form.updates:
        return matched(answer) == 1
    return statement.form.effect is None or answer.affected == len(statement.texts)


class _Closely:
    def __init__(self, session: Session, settings: ApplyConfig, operations: OpStatements, way_out: str) -> None:
        self._session = session
        self._settings = settings
        self._operations = operations
        self._way_out = way_out
        self.findings: list[Finding] = []

    def operation(self, place: int) -> None:
        for one in self._operations.texts(place):
            statement = self._operations.single(place, one)
            try:
                answer = self._send(statement, statement.sql)
            except RetryableApplyError:
                raise
            except ApplyError as error:
                self._refused(place, one, statement, error)
            else:
                self._judge(place, one, statement, answer)

    def _judge(self, place: int, one: OpText, statement: Statement, answer: StatementResult) -> None:
        missing = 1 - matched(answer) if one.form.updates else None
        found = judge(statement, answer, missing)
        if one.form.effect is None:
            found = tuple(f for f in found if f.kind is FindingKind.VALUE)
        self.findings += found
        if missing:
            self._mend(place, statement)

    def _refused(self, place: int, one: OpText, statement: Statement, error: ApplyError) -> None:
        op = self._operations.at(place)[0].op
        if error.errno == _NOT_COMPARABLE and statement.effect is not Effect.ADDS:
            verb = "deleted" if op is Op.DELETE else "changed"
            words = f"the row to be {verb} cannot exist in the target: {error.words}"
            if one.form.updates:
                self._mend(place, statement)
        elif error.errno in _NO_TABLE:
            words = f"the target has no such table, the row is not written: {error.words}"
        elif error.errno == _DUPLICATE and op is not Op.DELETE and one.form.effect is not None:
            verb = "insert" if op is Op.INSERT else "change"
            words = f"another row has a key of one that the binlogs {verb}: {error.words}"
            self._mend(place, statement)
        else:
            raise self._refusal(statement, error) from (error if self._settings.log_row_data else None)
        self.findings.append(finding(statement, FindingKind.ROWS, words, 0))

    def _mend(self, place: int, statement: Statement) -> None:
        for sql in self._operations.mended(place):
            self._send(statement, sql)

    def _send(self, statement: Statement, sql: bytes) -> StatementResult:
        # The limit includes one byte for the protocol command.
        if len(sql) + 1 > self._session.max_allowed_packet > 0:
            raise ApplyError(
                f"{self._place(statement)}: the row needs a statement of {len(sql):,} bytes, but the target's max_allowed_packet is "
                f"{self._session.max_allowed_packet:,}; raise it there (SET GLOBAL max_allowed_packet, up to 1 GiB) and start again",
                _PACKET_TOO_LARGE,
            )
        return self._session.answer(sql)

    def _refusal(self, statement: Statement, error: ApplyError) -> ApplyError:
        if error.errno == _PACKET_TOO_LARGE:
            return error
        ts = statement.newest_ts
        return ApplyError(
            f"{self._place(statement)}, schema version {statement.origin.schema_version}: {error}. Repair the target (its message says "
            f"what it rejects) and start again, or {self._way_out.format(ts=ts, before=ts - 1, behind=ts + 1)}",
            error.errno,
            error.words,
        )

    def _place(self, statement: Statement) -> str:
        key = key_text(statement) if self._settings.log_row_data else HIDDEN
        ts = statement.newest_ts
        return f"{statement.origin.table}, key {key}, commit_ts {ts} ({as_time(ts)})"
