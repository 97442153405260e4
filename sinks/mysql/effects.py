"""Compares the effect of a statement on the target with its expected effect. Pure.

The counts of affected rows are the same in MariaDB, MySQL and TiDB (on a connection without CLIENT_FOUND_ROWS):

* DELETE, INSERT: the number of rows removed or added. If the row exists already, the INSERT fails (1062).
* UPDATE of one row: 0 also for a row that had these values already; the statement's info says whether a row matched (``matched``).
* INSERT ... ON DUPLICATE KEY UPDATE: a missing row counts 1, a changed row 2, an unchanged row 0. The statement's info gives the number of
  changed rows (``Duplicates``), so affected - 2 * duplicates rows were missing. A statement of one row has no info. But MariaDB counts 1
  for an unchanged row with NULL in a column whose default is not NULL: for rows that seem to be missing only INSERT IGNORE gives certainty.

A warning is a finding unless it is known to be harmless: any other may mean that a value was truncated, clamped or replaced.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Statement, values_of

KEY_TEXT = 200
"""Maximum length of the key shown in a finding."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One row of SHOW WARNINGS."""

    errno: int
    words: str


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The server's response to a statement."""

    affected: int
    info: str = ""
    """``Records: 3  Duplicates: 1  Warnings: 0``, in the server's language; empty for one row."""
    warning_count: int = 0
    warnings: tuple[Warned, ...] = ()
    """Those that the server has kept."""


_DEPRECATED = 1287
"""Deprecated syntax: VALUES() in MySQL 8, a warning for each."""
_ABOUT_THE_STATEMENT = frozenset(
    {
        1364,  # a column without a default that rows do not write, so that the upstream does not have it: the server gives it a value
        _DEPRECATED,
        1592,  # unsafe for statement-based logging: the server's own replication
        1681,  # deprecated syntax without another one
        3719,  # "utf8" is an alias
        3778,  # deprecated collation
        6414,  # MySQL 9: a trigger of the target writes to a table without transactions
    }
)
"""Warnings that do not concern row values."""

ANY_COUNT = frozenset({Effect.CLEARS, Effect.SETTLES})
"""In safe mode no count of rows means anything."""
NO_PARTITION = 1526
"""No partition takes the row."""

_TRUNCATED = 1265
_COLUMN = re.compile(r"column '(?P<name>.*)' at row \d+$")


def judge(statement: Statement, answer: StatementResult, missing: int | None = None) -> tuple[Finding, ...]:
    """The deviations in ``answer`` from the expected effect; ``missing``: number of rows that did not exist, if known for certain."""
    found = touched(statement, answer) if missing is None else statement.rows - missing
    if found == statement.rows and not answer.warning_count:
        return ()
    findings = []
    if found != statement.rows and statement.effect not in ANY_COUNT:
        findings.append(finding(statement, FindingKind.ROWS, _row_words(statement.effect, found - statement.rows), found))
    return (*findings, *changed_values(statement, answer))


def changed_values(statement: Statement, answer: StatementResult) -> tuple[Finding, ...]:
    """A finding if, by its warnings, the server may have changed a value of the row; none for a row that is not the last row of its key."""
    if statement.superseded or not answer.warning_count:
        return ()
    words = _harm(statement, answer)
    return (finding(statement, FindingKind.VALUE, words),) if words else ()


def noted(statement: Statement) -> tuple[Finding, ...]:
    """The findings that were known before the statement was sent, one for each row."""
    rows = statement.cut() if statement.noted else ()
    return tuple(finding(row, kind, words) for row in rows for kind, words, _ in row.noted)


def matched(answer: StatementResult) -> int:
    """The rows that an UPDATE found: the first number of its info, since ``affected`` does not count rows that were so already."""
    if answer.affected:
        return answer.affected
    numbers = re.findall(r"\d+", answer.info)
    return int(numbers[0]) if numbers else 0


def touched(statement: Statement, answer: StatementResult) -> int:
    """The number of rows for which the statement had its expected effect."""
    if statement.effect is Effect.UPDATES:
        return matched(answer)
    if statement.effect is not Effect.CHANGES:
        return answer.affected
    if statement.rows == 1:
        return 0 if answer.affected == 1 else 1
    numbers = re.findall(r"\d+", answer.info)
    # Without info, an odd count still shows that a row was missing.
    duplicates = int(numbers[-2]) if len(numbers) >= 3 else answer.affected // 2
    return statement.rows - (answer.affected - 2 * duplicates)


def finding(statement: Statement, kind: FindingKind, words: str, found: int = -1) -> Finding:
    """A finding about the rows of ``statement``."""
    wanted = statement.rows if found >= 0 else -1
    return Finding(kind, words, statement.origin.table, statement.newest_ts, key_text(statement), wanted, found)


def removed_another(statement: Statement, words: str, rows: int = 1) -> str:
    """A text that says that rows of the upstream were removed to make place for the row of ``statement``; empty if the removed row had a key of the upstream.

    Args:
        statement: of one row.
        words: the server's, of the refused INSERT or UPDATE.
        rows: how many rows were removed.
    """
    if not statement.origin.own_keys or not (rows > 1 or _names_one_of(statement.origin.own_keys, words)):
        return ""
    names = ", ".join(statement.origin.own_keys)
    return f"another row of the target was removed, because it had the same value of a unique key that the upstream does not have ({names}): {words}"


def refused_by_another(statement: Statement, ours: str, words: str, rows: int = 1) -> str:
    """Why the row of ``statement`` was refused: ``removed_another``, or ``ours`` and that the key treats values as equal that the upstream keeps apart."""
    folded = statement.origin.folded
    taken = f", or {folded.words}" if folded is not None and _names_one_of(folded.keys, words) else ""
    return removed_another(statement, words, rows) or f"{ours}{taken}: {words}"


def _names_one_of(keys: Sequence[str], words: str) -> bool:
    """Whether the server's words of a duplicate name one of ``keys``, which ends them, in MySQL 8 behind the table's."""
    return any(words.endswith((f"'{name}'", f".{name}'")) for name in keys)


def key_text(statement: Statement) -> str:
    """The key of a one-row statement, as in ``id=7``; for several rows the first key and the number of others."""
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
        return f"{difference} more rows were affected than the binlogs change"
    if effect is Effect.ADDS:
        return "a row that the binlogs insert was not inserted"
    if effect is Effect.RESTORES:
        return "a row that was deleted before its transaction was skipped was not inserted again"
    verb = "delete" if effect is Effect.REMOVES else "update"
    return f"{-difference} of the rows that the binlogs {verb} were not in the target" + (
        " and were inserted" if effect in (Effect.CHANGES, Effect.UPDATES) else ""
    )


def _harm(statement: Statement, answer: StatementResult) -> str:
    """The first warning that may mean a changed value, and how many there are; empty = none."""
    harmful = _harmful(statement, answer.warnings)
    # A server that has kept none may be one that does not warn of VALUES().
    deprecated = sum(w.errno == _DEPRECATED for w in answer.warnings)
    expected = max(0, statement.deprecated - deprecated) if deprecated else 0
    unseen = max(0, answer.warning_count - len(answer.warnings) - expected)
    count = len(harmful) + unseen
    if not count:
        return ""
    first = f"warning {harmful[0].errno}: {harmful[0].words}" if harmful else "the server has kept no text of any warning (max_error_count)"
    return first if count == 1 else f"{count} warnings, {first}"


def _harmful(statement: Statement, warnings: Sequence[Warned]) -> list[Warned]:
    """The warnings that may mean a changed value.

    TiDB stores 0 for an invalid ENUM value. The target warns once for each such 0 but stores it too, so that many warnings are expected.
    """
    zeros = Counter(c["name"] for w in warnings if w.errno == _TRUNCATED and (c := _COLUMN.search(w.words)))
    return [
        w
        for w in warnings
        if w.errno not in _ABOUT_THE_STATEMENT
        and not (w.errno == _TRUNCATED and (c := _COLUMN.search(w.words)) and zeros[c["name"]] <= statement.zeros_in(c["name"]))
    ]
