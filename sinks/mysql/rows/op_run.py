"""Runs the statements of row operations in a transaction, and checks the effect of each. [db]

Promises: a transaction whose statements have their expected effects is run once, without extra queries. Otherwise the caller rolls it back
and runs its operations one by one (``closely``), so that every finding and every refusal names its row. With ``on-finding = stop`` a
finding raises ``FindingError`` before anything is committed. With ``record`` the operation's new row is written whatever is there. In safe
mode a missing or existing row is no finding; a changed value is.
"""

from collections.abc import Iterable

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.mysql.checked import DUPLICATE, NOT_COMPARABLE, SKIPPING, StatementSender, at_ts, stop_at_findings
from pyspark_tidb_binlog.sinks.mysql.effects import (
    StatementResult,
    changed_values,
    finding,
    judge,
    matched,
    noted,
    refused_by_another,
    removed_another,
)
from pyspark_tidb_binlog.sinks.mysql.rows.row_sql import JoinedOps, OpStatements, OpText
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Statement
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT


def as_expected(session: Session, statements: Iterable[JoinedOps]) -> bool:
    """Run the statements; False, at the first one that is refused or does not have its expected effect: roll back, and run ``closely``."""
    for statement in statements:
        sql = statement.sql
        if session.too_large(sql):
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


def closely(session: Session, settings: ApplyConfig, operations: OpStatements, places: Iterable[int]) -> tuple[Finding, ...]:
    """Run the operations one by one; returns the findings.

    Raises:
        FindingError: there are findings, and ``on-finding`` is ``stop``; the transaction must not be committed.
        ApplyError: the target refuses a row, or a row is too big for the server.
    """
    run = _Closely(session, settings, operations)
    for place in places:
        run.operation(place)
    stop_at_findings(run.findings, settings)
    return tuple(run.findings)


def _fulfilled(statement: JoinedOps, answer: StatementResult) -> bool:
    if answer.warning_count:
        return False
    if statement.form.updates:
        return matched(answer) == 1
    return statement.form.effect is None or answer.affected == len(statement.texts)


class _Closely:
    def __init__(self, session: Session, settings: ApplyConfig, operations: OpStatements) -> None:
        self._settings = settings
        self._sender = StatementSender(session, settings)
        self._operations = operations
        self.findings: list[Finding] = []

    def operation(self, place: int) -> None:
        for one in self._operations.texts(place):
            statement = self._operations.single(place, one)
            try:
                answer = self._sender.send(statement, statement.sql)
            except RetryableApplyError:
                raise
            except ApplyError as error:
                self._refused(place, one, statement, error)
            else:
                self._judge(place, one, statement, answer)
        self.findings += noted(statement)

    def _judge(self, place: int, one: OpText, statement: Statement, answer: StatementResult) -> None:
        missing = 1 - matched(answer) if one.form.updates else None
        found = judge(statement, answer, missing)
        if one.form.effect is None:
            found = tuple(f for f in found if f.kind is FindingKind.VALUE)
        self.findings += found
        if missing and (removed := self._mend(place, statement)):
            words = removed_another(statement, "it had a value of the row that is written", 1 + removed)
            self.findings += [finding(statement, FindingKind.ROWS, words, 0)] if words else []

    def _refused(self, place: int, one: OpText, statement: Statement, error: ApplyError) -> None:
        op = self._operations.at(place)[0].op
        if error.errno in NOT_COMPARABLE and statement.effect is not Effect.ADDS:
            verb = "deleted" if op is Op.DELETE else "changed"
            words = f"the row to be {verb} cannot exist in the target: {error.words}"
            if one.form.updates:
                self._mend(place, statement)
        elif error.errno in ABSENT:
            words = f"the target has no such table, so the row is not written: {error.words}"
        elif error.errno == DUPLICATE and op is not Op.DELETE and one.form.effect is not None:
            verb = "insert" if op is Op.INSERT else "change"
            words = refused_by_another(statement, f"another row has the key of a row that the binlogs {verb}", error.words)
            self._mend(place, statement)
        else:
            raise self._refusal(statement, error) from (error if self._settings.log_row_data else None)
        self.findings.append(finding(statement, FindingKind.ROWS, words, 0))

    def _mend(self, place: int, statement: Statement) -> int:
        """Write the row whatever is there, and find what the server makes of its values; how many rows were removed for it."""
        removed = 0
        for sql in self._operations.mended(place):
            answer = self._sender.send(statement, sql)
            removed += answer.affected
            if sql.startswith(b"REPLACE"):
                removed -= 1
                self.findings += changed_values(statement, answer)
        return removed

    def _refusal(self, statement: Statement, error: ApplyError) -> ApplyError:
        return self._sender.refusal(statement, error, f", or {at_ts(SKIPPING, statement.newest_ts)}")
