"""What a statement did to the target beside what it had to do. Pure.

How the counts say it, on MariaDB, MySQL and TiDB alike (a connection without CLIENT_FOUND_ROWS):

* DELETE, INSERT: the affected rows are the rows that were removed, or added. A row that is there already makes the INSERT fail (1062).
* INSERT ... ON DUPLICATE KEY UPDATE: a row that was not there counts 1, one that was changed 2, one that was there and is the same 0. The
  statement's info names the changed ones (``Duplicates``), so that affected - 2 * duplicates rows were missing. Of one row there is no info.
  But MariaDB counts 1 for a row that is the same with NULL in a column whose default is not NULL: of rows that seem to be missing only
  INSERT IGNORE tells whether they are.

A warning is a finding unless it is among the harmless ones: any other may be a value that was cut, clamped or replaced.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.findings import Finding, FindingKind
from sinks.mysql.statements import Effect, Statement, values_of

KEY_TEXT = 200
"""Characters of a key that a finding shows."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One row of SHOW WARNINGS."""

    errno: int
    words: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server says of a statement."""

    affected: int
    info: str = ""
    """``Records: 3  Duplicates: 1  Warnings: 0``, in the server's language; empty for one row."""
    warning_count: int = 0
    warnings: tuple[Warned, ...] = ()
    """Those that the server still knows."""


_ABOUT_THE_STATEMENT = frozenset(
    {
        1287,  # deprecated syntax: VALUES() in MySQL 8
        1592,  # unsafe for statement-based logging: the server's own replication
        3719,  # "utf8" is an alias
        3778,  # deprecated collation
    }
)
"""Warnings that say nothing of a row."""

_TRUNCATED = 1265
_COLUMN = re.compile(r"column '(?P<name>.*)' at row \d+$")


def judge(statement: Statement, answer: Answer, missing: int | None = None) -> tuple[Finding, ...]:
    """What of ``answer`` is not as it must be; ``missing``: rows that were not there, where that is known for certain."""
    found = touched(statement, answer) if missing is None else statement.rows - missing
    findings = []
    if found != statement.rows:
        findings.append(finding(statement, FindingKind.ROWS, _row_words(statement.effect, found - statement.rows), found))
    if words := _harm(statement, answer):
        findings.append(finding(statement, FindingKind.VALUE, words))
    return tuple(findings)


def touched(statement: Statement, answer: Answer) -> int:
    """How many of its rows the statement found as they had to be."""
    if statement.effect is not Effect.CHANGES:
        return answer.affected
    if statement.rows == 1:
        return 0 if answer.affected == 1 else 1
    numbers = re.findall(r"\d+", answer.info)
    # Without info an odd count still tells that a row was missing.
    duplicates = int(numbers[-2]) if len(numbers) >= 3 else answer.affected // 2
    return statement.rows - (answer.affected - 2 * duplicates)


def finding(statement: Statement, kind: FindingKind, words: str, found: int = -1) -> Finding:
    """A finding about the rows of ``statement``."""
    wanted = statement.rows if found >= 0 else -1
    return Finding(kind, words, statement.origin.table, statement.newest_ts, key_text(statement), wanted, found)


def key_text(statement: Statement) -> str:
    """The key of a statement of one row, ``id=7``; the first of several and how many more there are."""
    text = statement.row_text()
    origin = statement.origin
    if not origin.columns:
        shown = text.decode("utf-8", "replace")
    else:
        values = dict(zip(origin.columns, values_of(text), strict=True))
        shown = ", ".join(f"{name}={values[name].decode('utf-8', 'replace')}" for name in (origin.key or origin.columns))
    if len(shown) > KEY_TEXT:
        shown = shown[:KEY_TEXT] + "…"
    return shown if statement.single else f"{shown} and {statement.rows - 1} more"


def _row_words(effect: Effect, difference: int) -> str:
    if difference > 0:
        return f"{difference} rows more were touched than the binlogs know of"
    if effect is Effect.ADDS:
        return "a row that the binlogs add was not added"
    verb = "remove" if effect is Effect.REMOVES else "change"
    return f"{-difference} of the rows that the binlogs {verb} were not in the target" + (
        " and were added" if effect is Effect.CHANGES else ""
    )


def _harm(statement: Statement, answer: Answer) -> str:
    """The first warning that may mean another value, and how many there are; empty = none."""
    harmful = _harmful(statement, answer.warnings)
    unseen = max(0, answer.warning_count - len(answer.warnings))
    count = len(harmful) + unseen
    if not count:
        return ""
    first = f"warning {harmful[0].errno}: {harmful[0].words}" if harmful else "the server shows none of them"
    return first if count == 1 else f"{count} warnings, {first}"


def _harmful(statement: Statement, warnings: Sequence[Warned]) -> list[Warned]:
    """A 0 of an ENUM is what TiDB keeps of a value that it did not know: the target warns once for each and keeps it too."""
    zeros = Counter(c["name"] for w in warnings if w.errno == _TRUNCATED and (c := _COLUMN.search(w.words)))
    return [
        w
        for w in warnings
        if w.errno not in _ABOUT_THE_STATEMENT
        and not (w.errno == _TRUNCATED and (c := _COLUMN.search(w.words)) and zeros[c["name"]] <= statement.zeros_in(c["name"]))
    ]
