"""What the record and the settings know of a table that differs, in words: DDLs that were not executed in full, findings, skipped transactions. Pure.

A DDL explains a table's difference if a loss begins with the table's name at the target, or if it was not executed and its text names the table.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import significant, words
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, RecordedDdl
from pyspark_tidb_binlog.sinks.mysql.structure import TableName

_NOT_EXECUTED = frozenset({"ignored", "filtered"})
"""How a DDL is done that no server was given."""
_OF_ALL_TABLES = frozenset({FindingKind.LOST, FindingKind.DDL})
"""Kinds of findings that may be of no single table."""


_CHANGES = frozenset({"ALTER", "CREATE", "DROP", "RENAME"})
_OF_NAMED_TABLES = frozenset({"TABLE", "INDEX", "UNIQUE", "VIEW"})
"""The second words of statements that name each table they change. ``RECOVER TABLE BY JOB`` names none, nor may ``ALTER DATABASE`` name its database."""


def may_concern(query: str, executed: str, names: Collection[str]) -> bool:
    """Whether a DDL may change a table. ``query``: TiDB's text. ``executed``: what the target is given. ``names``: of the table, on either side and without a database."""
    first = words(significant(query)[:2])
    if first[:1] != ["TRUNCATE"] and (len(first) < 2 or first[0] not in _CHANGES or first[1] not in _OF_NAMED_TABLES):
        return True
    texts = f"{query} {executed}".replace("``", "`").replace('""', '"')
    return any(re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", texts, re.IGNORECASE) for name in names)


def reason(ddls: Sequence[RecordedDdl], upstream: TableName, target: TableName, name: str) -> str:
    """Why the target lacks a column or key of this name, as the newest DDL of the table records it; empty: nothing is recorded."""
    named = re.compile(rf"(?:\b(?:column|key|index) |`){re.escape(name)}(?![\w$])", re.IGNORECASE)
    for ddl in reversed(ddls):
        for loss in _losses(ddl, target):
            if named.search(loss):
                return f"{loss} ({_of(ddl)})"
        if _passes_over(ddl, upstream) and name.lower() in _names(ddl):
            return f"{_of(ddl)}: {ddl.query}"
    return ""


def explanations(
    upstream: TableName, target: TableName, findings: Iterable[Mapping[str, Any]], ddls: Sequence[RecordedDdl], skipped: Collection[int]
) -> Iterator[str]:
    """Yield what may explain that a table differs.

    Args:
        upstream: the table's name there.
        target: its name at the target.
        findings: rows of the Delta table of findings.
        ddls: what the target's record has of DDLs (``remarkable``).
        skipped: ``ignore-txn-commit-ts``.
    """
    for ddl in ddls:
        if _passes_over(ddl, upstream):
            yield f"{_of(ddl)}: {ddl.query}"
        yield from (f"{loss} ({_of(ddl)})" for loss in _losses(ddl, target))
    if skipped:
        yield f"ignore-txn-commit-ts skips the transactions at {', '.join(map(str, sorted(skipped)))}"
    rows, label = list(findings), ".".join(target).lower()
    counts = Counter(row["kind"] for row in rows if (row["table"] or "").replace("`", "").lower() == label)
    common = Counter(row["kind"] for row in rows if not row["table"] and row["kind"] in _OF_ALL_TABLES)
    for what, found in (("of this table", counts), ("of no single table", common)):
        if found:
            yield f"findings {what}: {', '.join(f'{count} {kind}' for kind, count in sorted(found.items()))}"


def _passes_over(ddl: RecordedDdl, upstream: TableName) -> bool:
    return (ddl.state != DONE or ddl.how in _NOT_EXECUTED) and upstream[1].lower() in _names(ddl)


def _names(ddl: RecordedDdl) -> frozenset[str]:
    return frozenset(token.name.lower() for token in significant(ddl.query))


def _losses(ddl: RecordedDdl, target: TableName) -> list[str]:
    head = f"{'.'.join(target)}: ".lower()
    return [loss[len(head) :] for loss in ddl.losses if loss.lower().startswith(head)]


def _of(ddl: RecordedDdl) -> str:
    what = f"DDL of job {ddl.job_id}" if ddl.job_id > 0 else "first copy"
    fate = "" if ddl.state == DONE and ddl.how not in _NOT_EXECUTED else f", {ddl.how if ddl.state == DONE else ddl.state}"
    return f"{what} at commit_ts {ddl.commit_ts}{fate}"
