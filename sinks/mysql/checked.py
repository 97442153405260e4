"""Runs the statements of one transaction, checks the effect of each, and repeats them row by row where it is not the expected one.

Promises: a transaction whose statements have their expected effects is run once, without extra queries. Otherwise it is rolled back and run
again with the doubtful statements split into rows, so that every finding and every rejected row is identified; rows to update that seemed
to be missing are then counted reliably. With ``on-finding = stop`` a finding raises ``FindingError`` before anything is committed; with
``record`` the row is written nevertheless.
"""

import itertools
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.effects import (
    NO_PARTITION,
    StatementResult,
    changed_values,
    finding,
    judge,
    matched,
    noted,
    refused_by_another,
)
from pyspark_tidb_binlog.sinks.mysql.moves import HeldValues, RowMove
from pyspark_tidb_binlog.sinks.mysql.sent_statements import DUPLICATE, NOT_COMPARABLE, StatementSender, stop_at_findings
from pyspark_tidb_binlog.sinks.mysql.session import PACKET_TOO_LARGE, Session
from pyspark_tidb_binlog.sinks.mysql.statements import Ahead, Effect, Statement
from pyspark_tidb_binlog.sinks.mysql.target import as_text

_log = logging.getLogger(__name__)

_MOVES = "tidb_binlog_moves"
_ROUNDS = 8
"""Runs in which rejected statements are identified one after the other; beyond them every statement is run row by row."""
_ALL = range(1 << 62)
_COUNTED_ROWS, _COUNTED_BYTES = 200, 256 * 1024
"""Rows in one query, and the size of their keys: of too many conditions the server reads the whole table."""
CLOSER_ROWS = 10_000
"""Maximum rows of a transaction that are run one by one to identify the rows with a finding; beyond it only the statement is identified."""


class Effects:
    """Runs the statements of one transaction and collects the findings."""

    def __init__(self, session: Session, apply: ApplyConfig, by_row: Container[int] = (), counted: Container[int] = ()) -> None:
        """``by_row``: numbers of the statements to run row by row; ``counted``: of those to run whole, with their missing rows counted."""
        self._session = session
        self._settings = apply
        self._sender = StatementSender(session, apply)
        self._by_row = by_row
        self._counted = counted
        self._number = 0
        self._meanwhile: Callable[[], None] | None = None
        self._refused: set[int] = set()
        self._doubted: dict[int, int] = {}
        self.findings: list[Finding] = []

    def run(self, statements: Iterable[Statement]) -> int:
        """Run the statements in order; returns their number of row images. Each is planned while the server executes the one before it.

        Raises:
            ApplyError: the target rejected a row, or a row is too big for the server.
        """
        rows, ahead = 0, Ahead(statements)
        self._meanwhile = ahead.prepare
        for statement in ahead:
            rows += statement.rows
            closely = self._number in self._counted
            if self._number in self._by_row:
                for row in statement.cut():
                    self.findings += self._row(row, closely=True)
            elif not statement.single:
                self._whole(statement, closely)
            elif found := self._row(statement, closely):
                self._doubt(statement, found)
            self.findings += noted(statement)
            self._number += 1
        return rows

    def move(self, tables: Iterable[Sequence[RowMove]]) -> int:
        """Give rows their new keys, in one transaction with their deletes before it; returns the number of rows."""
        rows = 0
        for moves in tables:
            rows += len(moves)
            if not self._moved_in_place(moves):
                self.put(moves, self.take(moves))
        return rows

    def _moved_in_place(self, moves: Sequence[RowMove]) -> bool:
        """Whether each could be moved by an UPDATE; if not, none is."""
        if self._session.flavour is Flavour.TIDB or (len(moves) > 1 and not all(move.by_key for move in moves)):
            return False  # TiDB may find a duplicate only at the commit
        if len(moves) > 1 and not self._all_there(moves):
            return False
        findings: list[Finding] = []
        self._session.execute(f"SAVEPOINT {_MOVES}")
        for move in moves:
            try:
                found = matched(answer := self._send(move.update, move.update.sql))
            except RetryableApplyError:
                raise
            except ApplyError as error:
                if error.errno not in {DUPLICATE, *NOT_COMPARABLE}:
                    raise self._refusal(move.update, error) from (error if self._settings.log_row_data else None)
                self._session.execute(f"ROLLBACK TO SAVEPOINT {_MOVES}")
                return False
            findings += (*judge(move.update, answer, 1 - found), *noted(move.fresh))
            if not found:
                findings += self._row(move.fresh, closely=True)
        self._session.execute(f"RELEASE SAVEPOINT {_MOVES}")
        self.findings += findings
        return True

    def _all_there(self, moves: Sequence[RowMove]) -> bool:
        """Whether the target has every row. If a row is missing, another row with its key could be mistaken for it."""
        found = 0
        for some in _counted_together(moves):
            sought = b" OR ".join(b"(" + move.condition + b")" for move in some)
            try:
                rows = self._session.query(f"SELECT COUNT(*) FROM {moves[0].table} WHERE ".encode() + sought + b" FOR UPDATE")
            except RetryableApplyError:
                raise
            except ApplyError as error:
                if error.errno not in NOT_COMPARABLE:
                    raise self._refusal(some[0].update, error) from (error if self._settings.log_row_data else None)
                return False
            found += int(rows[0][0])
        return found == len(moves)

    def take(self, moves: Iterable[RowMove]) -> dict[bytes, HeldValues | None]:
        """Take rows away from their keys; returns by row the values of its other columns, or None if there was no such row."""
        kept: dict[bytes, HeldValues | None] = {}
        for move in moves:
            literals = self._looked(move)
            kept[move.row] = None if literals is None else HeldValues.of(move.others, literals)
            if literals is None:
                words = "1 of the rows that the binlogs update were not in the target and were inserted"
                self.findings.append(finding(move.take, FindingKind.ROWS, words, 0))
            else:
                self.findings += self._row(move.taken(literals), closely=True)
        return kept

    def _looked(self, move: RowMove) -> str | None:
        try:
            rows = self._session.query(move.look)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            if error.errno in NOT_COMPARABLE:
                return None
            raise self._refusal(move.take, error) from (error if self._settings.log_row_data else None)
        if rows and rows[0][0] is None:
            raise ApplyError(
                f"{self._sender.place(move.take)}: as text, the values of the columns that only the target has ({', '.join(o.name for o in move.others)}) are longer "
                f"than the target's max_allowed_packet, {self._session.max_allowed_packet:,}. Raise it there (SET GLOBAL max_allowed_packet, up to 1 "
                "GiB) and start again",
                PACKET_TOO_LARGE,
            )
        return as_text(rows[0][0]) if rows else None

    def put(self, moves: Iterable[RowMove], kept: Mapping[bytes, HeldValues | None]) -> int:
        """Write rows that were taken away under their new keys; returns their number."""
        rows = 0
        for move in moves:
            rows += 1
            held = kept.get(move.row)
            written = move.fresh if held is None else move.put(held)
            self.findings += (*self._row(written, closely=True), *noted(written))
            words = "" if held is None else move.lost(held)
            if move.row not in kept:
                names = ", ".join(other.name for other in move.others)
                words = f"the columns that only the target has lost their values and got their defaults: {names}"
            if words:
                self.findings.append(finding(written, FindingKind.VALUE, words))
        return rows

    @property
    def refused(self) -> bool:
        """Whether a whole statement was rejected: its rows are not written."""
        return bool(self._refused)

    def to_look_at(self) -> tuple[frozenset[int], frozenset[int]]:
        """The numbers of the statements to run again ``by_row`` and ``counted``, in addition to those of this run."""
        by_row, counted = set(self._refused), set[int]()
        rows = 0
        for number, statement_rows in self._doubted.items():
            rows += statement_rows
            (by_row if rows <= CLOSER_ROWS else counted).add(number)
        return frozenset(by_row), frozenset(counted)

    def _whole(self, statement: Statement, closely: bool) -> None:
        try:
            findings = self._judged(statement, closely)
        except RetryableApplyError:
            raise
        except ApplyError:
            self._refused.add(self._number)
            return
        if findings:
            self._doubt(statement, findings)

    def _doubt(self, statement: Statement, findings: tuple[Finding, ...]) -> None:
        closer = not statement.single or statement.effect is Effect.CHANGES
        if closer and self._number not in self._counted:
            self._doubted[self._number] = statement.rows
        self.findings += findings

    def _row(self, statement: Statement, closely: bool) -> tuple[Finding, ...]:
        try:
            return self._judged(statement, closely)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            if self._passed_over(statement, error):
                return ()
            if error.errno in NOT_COMPARABLE and statement.effect is Effect.REMOVES:
                return (finding(statement, FindingKind.ROWS, f"the row to be deleted cannot exist in the target: {error.words}", 0),)
            if error.errno != DUPLICATE or statement.effect is Effect.REMOVES or not statement.origin.key:
                raise self._refusal(statement, error) from (error if self._settings.log_row_data else None)
            if statement.effect is Effect.RESTORES:
                words = "a row that was deleted before its transaction was skipped was not inserted again, because another row has its key"
                return (finding(statement, FindingKind.ROWS, f"{words}: {error.words}", 0),)
            answer = self._send(statement, statement.as_replace())
            words = refused_by_another(statement, "a row that the binlogs insert already existed", error.words, answer.affected - 1)
            return (finding(statement, FindingKind.ROWS, words, 0), *changed_values(statement, answer))

    def _passed_over(self, statement: Statement, error: ApplyError) -> bool:
        """Whether safe mode has nothing to write for this row."""
        if error.errno in NOT_COMPARABLE and statement.effect is Effect.CLEARS:
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

    def _judged(self, statement: Statement, closely: bool) -> tuple[Finding, ...]:
        """Run the statement and return its findings; ``closely``: missing rows of an update are inserted first, which counts them."""
        missing = None
        if closely and statement.effect is Effect.CHANGES:
            missing = self._send(statement, statement.as_ignore()).affected
        return judge(statement, self._send(statement, statement.sql), missing)

    def _send(self, statement: Statement, sql: bytes) -> StatementResult:
        return self._sender.send(statement, sql, self._meanwhile)

    def _refusal(self, statement: Statement, error: ApplyError) -> ApplyError:
        way_out = f", or skip the transaction with syncer.ignore-txn-commit-ts = [{statement.newest_ts}]"
        if statement.effect is Effect.RESTORES:
            way_out = ". The row was deleted before its transaction was skipped, and has to be inserted again"
        return self._sender.refusal(statement, error, way_out)


def _counted_together(moves: Iterable[RowMove]) -> Iterator[list[RowMove]]:
    some: list[RowMove] = []
    size = 0
    for move in moves:
        size += len(move.condition)
        if some and (len(some) == _COUNTED_ROWS or size > _COUNTED_BYTES):
            yield some
            some, size = [], len(move.condition)
        some.append(move)
    yield some


def checked(session: Session, apply: ApplyConfig) -> Iterator[Effects]:
    """Yield what runs the statements of the open transaction of ``session``; again, after a rollback, while an effect is doubtful.

    The block does everything that belongs to the transaction, and runs its statements through ``Effects.run``, the same ones each time.

    Args:
        session: in a transaction in which nothing was executed yet.
        apply: how to handle findings, and whether errors may show rows.

    Raises:
        FindingError: there are findings, and ``on-finding`` is ``stop``; the transaction must not be committed.
    """
    by_row: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    for number in itertools.count(1):
        # Rows written one by one may conflict with the rows of other statements: repeat until no further statement is rejected.
        effects = Effects(session, apply, by_row if number < _ROUNDS else _ALL, counted)
        yield effects
        rows, wholes = effects.to_look_at()
        if not (effects.refused or (rows | wholes and not by_row | counted)):
            stop_at_findings(effects.findings, apply)
            return
        by_row, counted = by_row | rows, counted | wholes
        session.rollback()
        session.begin()
