"""The statements of one transaction, each checked for its effect, and looked at row by row where that is not as foretold.

Promises: a transaction whose statements do what they must is run once and nothing is asked. Otherwise it is rolled back and run again
with the statements in doubt cut into rows, so that every finding, and every refusal, names its row. With ``on-finding = stop`` a finding
leaves as ``FindingError`` before anything is committed; with ``record`` the target gets the row all the same.
"""

import itertools
from collections.abc import Callable, Container, Iterable
from typing import TypeVar

from conf.model import ApplyConfig
from schemas.errors import ApplyError, FindingError, RetryableApplyError
from schemas.events import as_time
from schemas.findings import Finding, FindingKind, in_words
from schemas.redaction import HIDDEN
from sinks.effects import Answer, finding, judge, key_text
from sinks.session import Session
from sinks.statements import Effect, Statement

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

    def __init__(self, session: Session, apply: ApplyConfig, closer: Container[int] = ()) -> None:
        """``closer``: the numbers of the statements to run row by row."""
        self._session = session
        self._apply = apply
        self._closer = closer
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
            if self._number in self._closer:
                for row in statement.cut():
                    self.findings += self._row(row)
            elif statement.single:
                self.findings += self._row(statement)
            else:
                self._whole(statement)
            self._number += 1
        return rows

    @property
    def refused(self) -> bool:
        """Whether a statement was refused as a whole: its rows are not in."""
        return bool(self._refused)

    def to_look_at(self) -> frozenset[int]:
        """The numbers of the statements that are to be run again row by row, beyond those that were."""
        found, rows = set(self._refused), 0
        for number, size in self._doubted.items():
            rows += size
            if rows <= CLOSER_ROWS:
                found.add(number)
        return frozenset(found)

    def _whole(self, statement: Statement) -> None:
        try:
            findings = judge(statement, self._send(statement, statement.sql))
        except RetryableApplyError:
            raise
        except ApplyError:
            self._refused.add(self._number)
            return
        if findings:
            self._doubted[self._number] = statement.rows
            self.findings += findings

    def _row(self, statement: Statement) -> tuple[Finding, ...]:
        try:
            return judge(statement, self._send(statement, statement.sql))
        except RetryableApplyError:
            raise
        except ApplyError as error:
            if error.errno == _NOT_COMPARABLE and statement.effect is Effect.REMOVES:
                return (finding(statement, FindingKind.ROWS, f"the row cannot be looked for, so it was not there: {error.words}", 0),)
            if error.errno != _DUPLICATE or statement.effect is Effect.REMOVES or not statement.origin.key:
                raise self._refusal(statement, error) from (error if self._apply.log_row_data else None)
            self._send(statement, statement.as_replace())
            return (finding(statement, FindingKind.ROWS, f"a row was there that must not be: {error.words}", 0),)

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
    closer: frozenset[int] = frozenset()
    for number in itertools.count(1):
        # What is written row by row may bring the rows of another statement in the way of a third: so until nothing new is refused.
        effects = Effects(session, apply, closer if number < _ROUNDS else _ALL)
        result = write(effects)
        more = effects.to_look_at()
        if not (effects.refused or (more and not closer)):
            break
        closer |= more
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
