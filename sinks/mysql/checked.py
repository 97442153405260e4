"""Runs the statements of one transaction, checks the effect of each, and runs a statement again row by row where its effect is not the expected one.

    INSERT of 2,000 rows: refused, or another effect than expected  ->  ROLLBACK TO SAVEPOINT, 2,000 INSERTs

Promises: a statement that has its expected effect costs a SAVEPOINT, and no query. Otherwise each of its findings and each rejected row is identified;
rows to update that seemed to be missing are counted reliably. With ``on-finding = stop`` a finding raises ``FindingError`` before anything is
committed; with ``record`` the row is written nevertheless. Keys and the server's words, which may hold row data, are shown only with ``log-row-data``.

A TiDB that writes binlogs has no savepoints, MyRocks none behind changes, and an error that ended the whole transaction has taken them away. Then the transaction is
rolled back and run again, with the doubtful statements row by row.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.entry import comparing
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.schemas.redaction import HIDDEN
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.effects import (
    NO_PARTITION,
    changed_values,
    finding,
    judge,
    key_text,
    noted,
    refused_by_another,
    removed_another,
)
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.session import PACKET_TOO_LARGE, Session, Sessions, transaction
from pyspark_tidb_binlog.sinks.mysql.statements import Ahead, Effect, Statement

_log = logging.getLogger(__name__)

_SAVEPOINT = "tidb_binlog_statement"
CLOSER_ROWS = 10_000
"""Maximum rows of a transaction that are run one by one to identify the rows with a finding; beyond it only the statement is identified."""
_DUPLICATE = 1062
_NOT_COMPARABLE = frozenset({1267, 1525, 3854})
"""A text is compared with a column whose charset cannot represent it, so no row has that value: MariaDB's error and MySQL 8's;
or a date with one that MySQL does not take for a date."""


SKIPPING = "skip the transaction with syncer.ignore-txn-commit-ts = [{ts}]"


class Effects:
    """Runs the statements of one transaction and collects the findings."""

    def __init__(self, session: Session, apply: ApplyConfig, doubted: Mapping[int, bool], way_out: str, *, savepoints: bool) -> None:
        """``doubted``: the numbers of the statements that earlier runs of the transaction have doubted; True: the target refused the statement."""
        self._session = session
        self._settings = apply
        self._doubted = doubted
        self._savepoints = savepoints
        self._number = 0
        self._way_out = way_out
        self._closer = CLOSER_ROWS
        self._meanwhile: Callable[[], None] | None = None
        """Called while the server executes a statement."""
        self.news: dict[int, bool] = {}
        """Statements that this run doubts, and that could not be rolled back by themselves: the transaction is to be run again."""
        self.findings: list[Finding] = []

    def run(self, statements: Iterable[Statement]) -> int:
        """Run the statements in order; returns their number of row images. One that is still to be planned is planned while the server
        executes the one before it.

        Raises:
            ApplyError: the target rejected a row, or a row is too big for the server.
        """
        rows = 0
        self._meanwhile = None
        if not isinstance(statements, Sequence):
            statements = Ahead(statements)
            self._meanwhile = statements.prepare
        for statement in statements:
            rows += statement.rows
            self.findings += self._effects(statement)
            if statement.noted:
                self.findings += noted(statement)
            self._number += 1
        return rows

    def _effects(self, statement: Statement) -> Iterable[Finding]:
        if self._number in self._doubted:
            return self._looked_at(statement, refused=self._doubted[self._number])
        if statement.single and statement.effect is not Effect.CHANGES:
            return self._row(statement, closely=False)
        if self._savepoints:
            self._session.execute(f"SAVEPOINT {_SAVEPOINT}")
        found = self._tried(statement, closely=False)
        if found == ():
            return ()
        refused = isinstance(found, ApplyError)
        return self._looked_at(statement, refused=refused) if self._taken_back(refused=refused) else ()

    def _looked_at(self, statement: Statement, *, refused: bool) -> Iterable[Finding]:
        """Run the statement row by row, or, beyond ``CLOSER_ROWS``, as a whole unless it is refused."""
        self._closer -= statement.rows
        if self._closer < 0 and not refused:
            found = self._tried(statement, closely=True)
            if not isinstance(found, ApplyError):
                return found
            if not self._taken_back(refused=True):
                return ()
        return [found for row in statement.cut() for found in self._row(row, closely=True)]

    def _tried(self, statement: Statement, *, closely: bool) -> tuple[Finding, ...] | ApplyError:
        """Run the statement and return its findings, or why the target refused it; ``closely``: missing rows of an update are inserted first, which
        counts them.
        """
        missing = None
        try:
            if closely and statement.effect is Effect.CHANGES:
                missing = self._session.answer(statement.as_ignore(), self._meanwhile).affected
            return judge(statement, self._session.answer(statement.sql, self._meanwhile), missing)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            _log.debug("a statement is refused: %s", error)
            return error

    def _taken_back(self, *, refused: bool) -> bool:
        """Roll the statement back, also a refused one: some errors end the whole transaction, and what follows would be another one.

        False: that was not possible, so the transaction is to be run again.
        """
        if self._savepoints:
            try:
                self._session.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
                return True
            except ServerRefused as error:
                _log.debug("the transaction is run again: %s", error)
        self.news[self._number] = refused
        return False

    def _row(self, statement: Statement, closely: bool) -> tuple[Finding, ...]:
        found = self._tried(statement, closely=closely)
        if isinstance(found, ApplyError):
            return () if self._passed_over(statement, found) else self._refused(statement, found)
        if statement.effect is Effect.UPDATES and any(one.found == 0 for one in found):
            answer = self._session.answer(statement.as_replace(), self._meanwhile)
            words = removed_another(statement, "it had a value of the row that is written", answer.affected) if answer.affected > 1 else ""
            found += (finding(statement, FindingKind.ROWS, words, 0),) if words else ()
            return (*found, *changed_values(statement, answer))
        return found

    def _refused(self, statement: Statement, error: ApplyError) -> tuple[Finding, ...]:
        """Write the row of a refused statement nevertheless, if it is refused for a row that is there, or looks for a row that cannot be there.

        Raises:
            ApplyError: it is refused for another reason.
        """
        effect, keyed = statement.effect, statement.origin.key or statement.origin.own_keys
        updates = effect is Effect.UPDATES
        if error.errno in _NOT_COMPARABLE and (updates or effect is Effect.REMOVES):
            words = f"the row to be {'changed' if updates else 'deleted'} cannot exist in the target: {error.words}"
            harm = changed_values(statement, self._session.answer(statement.as_replace(), self._meanwhile)) if updates else ()
            return (finding(statement, FindingKind.ROWS, words, 0), *harm)
        if error.errno != _DUPLICATE or effect is Effect.REMOVES or not keyed:
            raise self._refusal(statement, error) from (error if self._settings.log_row_data else None)
        if effect is Effect.RESTORES:
            words = "a row that was deleted before its transaction was skipped was not inserted again, because another row has its key"
            return (finding(statement, FindingKind.ROWS, f"{words}: {error.words}", 0),)
        if updates:
            self._session.answer(statement.as_delete(), self._meanwhile)
        answer = self._session.answer(statement.as_replace(), self._meanwhile)
        ours, removed = "a row that the binlogs insert already existed", answer.affected - 1
        if updates:
            ours, removed = "another row has the key of a row that the binlogs change", 1
        words = refused_by_another(statement, ours, error.words, removed)
        return (finding(statement, FindingKind.ROWS, words, 0), *changed_values(statement, answer))

    def _passed_over(self, statement: Statement, error: ApplyError) -> bool:
        """Whether safe mode has nothing to write for this row."""
        if error.errno in _NOT_COMPARABLE and statement.effect is Effect.CLEARS:
            return True
        if not (statement.superseded and error.errno == NO_PARTITION):
            return False
        _log.warning(
            "safe mode: %s has no partition for a row of commit_ts %d. A later DDL has dropped the partition with its rows, so the row is skipped: %s",
            statement.origin.table,
            statement.newest_ts,
            error.words,
        )
        return True

    def _refusal(self, statement: Statement, error: ApplyError) -> ApplyError:
        """``error`` with the row that it is about, and what to do."""
        if error.errno == PACKET_TOO_LARGE:
            return ApplyError(f"{self._place(statement)}: {error}", error.errno, error.words)
        ts = statement.newest_ts
        way_on = f", or {self._way_out.format(ts=ts, before=ts - 1, behind=ts + 1)}"
        if statement.effect is Effect.RESTORES:
            way_on = ". The row was deleted before its transaction was skipped, and has to be inserted again"
        return ApplyError(
            f"{self._place(statement)}, schema version {statement.origin.schema_version}: {error}. Repair the target (its message says "
            f"what it rejects) and start again{way_on}",
            error.errno,
            error.words,
        )

    def _place(self, statement: Statement) -> str:
        """Table, key and transaction."""
        key = key_text(statement) if self._settings.log_row_data else HIDDEN
        ts = statement.newest_ts
        return f"{statement.origin.table}, key {key}, commit_ts {ts} ({as_time(ts)})"


def checked(session: Session, apply: ApplyConfig, way_out: str = SKIPPING, *, savepoints: bool = True) -> Iterator[Effects]:
    """Yield what runs the statements of the open transaction of ``session``; again, after a rollback, where a statement could not be rolled back by itself.

    The block does everything that belongs to the transaction, and runs its statements through ``Effects.run``, the same ones each time.

    Args:
        session: in a transaction in which nothing was executed yet.
        apply: how to handle findings, and whether errors may show rows.
        way_out: how to continue without a row that the target refuses, where ``{ts}`` stands for its commit_ts, ``{before}`` and ``{behind}`` for
            ts - 1 and ts + 1.
        savepoints: False: a small transaction is run again as a whole, which spares all others their SAVEPOINTs.

    Raises:
        FindingError: there are findings, and ``on-finding`` is ``stop``; the transaction must not be committed.
    """
    doubted: dict[int, bool] = {}
    while True:
        effects = Effects(session, apply, doubted, way_out, savepoints=savepoints and session.has_savepoints and not doubted)
        yield effects
        if not effects.news:
            break
        # Rows written one by one may conflict with the rows of other statements, so a later run may doubt more of them.
        doubted = doubted | effects.news
        session.rollback()
        session.begin()
    if effects.findings and apply.on_finding == "stop":
        _stop_at(effects.findings, apply)


Phases = Sequence[tuple[str, Iterable[Statement]]]
"""Statements, each with the failpoint before them."""


@dataclass(frozen=True, slots=True)
class CheckedWriter:
    """Transactions that check the lease, and the effect of each statement."""

    lease: Lease
    settings: ApplyConfig
    sessions: Sessions
    retry_policy: RetryPolicy
    way_out: str = SKIPPING
    """How to continue without a row that the target refuses, as for ``checked``."""

    def write(self, claim: Callable[[Session], bool], phases: Phases, *, savepoints: bool = True) -> Sequence[Finding]:
        """Run the statements in one transaction; returns the findings.

        ``claim`` records in the transaction what they are of. False: the target has it, because the answer to an earlier commit was lost.
        ``savepoints``: as for ``checked``.
        """
        found: Sequence[Finding] = ()
        for attempt in retrying(self.retry_policy):
            with attempt, transaction(self.sessions, attempt) as session:
                # The lease is checked here, because ``checked`` may roll back and open another transaction.
                for effects in checked(session, self.settings, self.way_out, savepoints=savepoints):
                    lease.check(session, self.lease)
                    if not claim(session):
                        break
                    for point, statements in phases:
                        failpoints.point(point)
                        effects.run(statements)
                else:
                    # Kept also if the answer to this COMMIT is lost: the next attempt finds the record, and runs nothing.
                    found = effects.findings
        return found


def _stop_at(findings: Sequence[Finding], settings: ApplyConfig) -> None:
    """Raise ``FindingError`` if one of the findings says that the target differs."""
    findings = [found for found in findings if found.kind is not FindingKind.FAILOVER]
    if findings:
        first = in_words(findings[0], settings.log_row_data)
        raise FindingError(
            f"the target differs from what the binlogs expect, {len(findings)} findings, the first: {first}. Nothing of this transaction is "
            f"committed. Compare the table with the upstream by {comparing(findings[0].table)}, repair it and start again. Or set spark.on-finding = record, "
            "which records findings and continues"
        )
