"""The statements of one transaction, each checked for its effect, and looked at row by row where that is not as foretold.

Promises: a transaction whose statements do what they must is run once and nothing is asked. Otherwise it is rolled back and run again
with the statements in doubt cut into rows, so that every finding, and every refusal, names its row; rows to change that seemed to be missing
are counted for certain then. With ``on-finding = stop`` a finding leaves as ``FindingError`` before anything is committed; with ``record``
the target gets the row all the same.
"""

import itertools
from collections.abc import Callable, Container, Iterable
from typing import TypeVar

from conf.model import ApplyConfig
from schemas.errors import ApplyError, FindingError, RetryableApplyError
from schemas.events import as_time
from schemas.findings import Finding, FindingKind, in_words
from schemas.redaction import HIDDEN
from sinks.mysql.effects import Answer, finding, judge, key_text
from sinks.mysql.session import Session
from sinks.mysql.statements import Effect, Statement

T = TypeVar("T")

_DUPLICATE = 1062
_PACKET_TOO_LARGE = 1153
_NOT_COMPARABLE = 1267
"""A text is compared with a column whose charset cannot hold it: no row there has it."""
_ROUNDS = 8
"""Tries in which statements are named one after the other; beyond them each is run row by row."""
_ALL = range(1 << 62)
CLOSER_ROWS = 10_000
"""Rows of a transaction that are run one by one to name those concerned; a doubt beyond them is named by its statement."""


class Effects:
    """Runs the statements of one transaction and gathers what is found."""

    def __init__(self, session: Session, apply: ApplyConfig, by_row: Container[int] = (), counted: Container[int] = ()) -> None:
        """The numbers of the statements to look at more closely: ``by_row``, or as a whole with its missing rows ``counted``."""
        self._session = session
        self._apply = apply
        self._by_row = by_row
        self._counted = counted
        self._number = 0
        self._refused: set[int] = set()
        self._doubted: dict[int, int] = {}
        self.findings: list[Finding] = []

    def run(self, statements: Iterable[Statement]) -> int:
        """Run them in order; the row images that they stand for.

        Raises:
            ApplyError: the target refuses a row, or it is too big for the server.
        """
        rows = 0
        for statement in statements:
            rows += statement.rows
            closely = self._number in self._counted
            if self._number in self._by_row:
                for row in statement.cut():
                    self.findings += self._row(row, closely=True)
            elif not statement.single:
                self._whole(statement, closely)
            elif found := self._row(statement, closely):
                self._doubt(statement, found)
            self._number += 1
        return rows

    @property
    def refused(self) -> bool:
        """Whether a statement was refused as a whole: its rows are not in."""
        return bool(self._refused)

    def to_look_at(self) -> tuple[frozenset[int], frozenset[int]]:
        """The numbers of the statements that are to be run again ``by_row`` and ``counted``, beyond those that were."""
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
            if error.errno == _NOT_COMPARABLE and statement.effect is Effect.REMOVES:
                return (finding(statement, FindingKind.ROWS, f"the row cannot be looked for, so it was not there: {error.words}", 0),)
            if error.errno != _DUPLICATE or statement.effect is Effect.REMOVES or not statement.origin.key:
                raise self._refusal(statement, error) from (error if self._apply.log_row_data else None)
            self._send(statement, statement.as_replace())
            return (finding(statement, FindingKind.ROWS, f"a row was there that must not be: {error.words}", 0),)

    def _judged(self, statement: Statement, closely: bool) -> tuple[Finding, ...]:
        """What is found when it is run; ``closely``: rows that are to be changed and are missing are added first, which counts them."""
        missing = None
        if closely and statement.effect is Effect.CHANGES:
            missing = self._send(statement, statement.as_ignore()).affected
        return judge(statement, self._send(statement, statement.sql), missing)

    def _send(self, statement: Statement, sql: bytes) -> Answer:
        # The server, and the protocol, count a byte for the command.
        if len(sql) + 1 > self._session.max_allowed_packet > 0:
            raise ApplyError(
                f"{self._place(statement)}: the row needs a statement of {len(sql):,} bytes, the target's max_allowed_packet is "
                f"{self._session.max_allowed_packet:,}; raise it on the target (SET GLOBAL max_allowed_packet, up to 1 GiB) and start again",
                _PACKET_TOO_LARGE,
            )
        return self._session.answer(sql)

    def _refusal(self, statement: Statement, error: ApplyError) -> ApplyError:
        if error.errno == _PACKET_TOO_LARGE:
            return error
        ts = statement.newest_ts
        return ApplyError(
            f"{self._place(statement)}, schema version {statement.origin.schema_version}: {error}. Mend the target (its words say what it does not "
            f"take) and start again, or leave the transaction out with syncer.ignore-txn-commit-ts = [{ts}]",
            error.errno,
            error.words,
        )

    def _place(self, statement: Statement) -> str:
        key = key_text(statement) if self._apply.log_row_data else HIDDEN
        ts = statement.newest_ts
        return f"{statement.origin.table}, key {key}, commit_ts {ts} ({as_time(ts)})"


def checked(session: Session, apply: ApplyConfig, write: Callable[[Effects], T]) -> tuple[T, tuple[Finding, ...]]:
    """Have ``write`` done in the open transaction of ``session``, again where something is in doubt; its result and what was found.

    Args:
        session: in a transaction that nothing was done in yet.
        apply: what becomes of findings, and whether errors may show rows.
        write: everything that belongs into the transaction; its statements go through ``Effects.run``, the same ones each time.

    Raises:
        FindingError: something was found, and ``on-finding`` is ``stop``; the transaction must not be committed.
    """
    by_row: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    for number in itertools.count(1):
        # What is written row by row may bring the rows of another statement in the way of a third: so until nothing new is refused.
        effects = Effects(session, apply, by_row if number < _ROUNDS else _ALL, counted)
        result = write(effects)
        rows, wholes = effects.to_look_at()
        if not (effects.refused or (rows | wholes and not by_row | counted)):
            break
        by_row, counted = by_row | rows, counted | wholes
        session.rollback()
        session.begin()
    if effects.findings and apply.on_finding == "stop":
        raise FindingError(_stop_text(effects.findings, apply.log_row_data))
    return result, tuple(effects.findings)


def _stop_text(findings: list[Finding], show: bool) -> str:
    first = in_words(findings[0], show)
    return (
        f"the target is not as the binlogs say it must be, {len(findings)} findings, the first: {first}. Nothing of this transaction is committed. "
        "Compare the table with its source and mend it, then start again; or go on and keep a list of what is found with syncer.on-finding = record"
    )
