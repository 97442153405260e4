"""A finding: the target or the Pumps do not match the binlogs. Pure values.

Promises: picklable and comparable. ``words`` and ``key`` may contain row data; ``in_words`` masks row data unless it is asked not to.
"""

import enum
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.redaction import HIDDEN, without_values


class FindingKind(enum.StrEnum):
    """What does not match the binlogs."""

    ROWS = "rows"
    """A statement affected fewer or more rows than the net change implies."""
    VALUE = "value"
    """The target truncated, clamped or replaced a value."""
    LOST = "lost"
    """Binlogs that the Pumps no longer have, or that are damaged there (``fail-on-data-loss = false``)."""
    DDL = "ddl"
    """A DDL was skipped or quarantined, or lost part of its effect on the target."""
    FAILOVER = "failover"
    """The row is as upstream, but the target refuses each later change of it by an application."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    kind: FindingKind
    words: str
    """What happened, including the server's own message."""
    table: str = ""
    """`` `db`.`table` `` on the target; empty = not of a single table."""
    commit_ts: int = 0
    """That of the newest transaction concerned; 0 = unknown."""
    key: str = ""
    """The row's key as text; empty = unknown, or several rows."""
    wanted: int = -1
    """Rows that had to be affected; -1 = not about rows."""
    found: int = -1
    """Rows that were affected."""


def in_words(finding: Finding, show_row_data: bool) -> str:
    """One line for people; without ``show_row_data`` it contains no row value."""
    parts = [f"{finding.kind}"]
    if finding.table:
        parts.append(finding.table)
    if finding.commit_ts:
        parts.append(f"commit_ts {finding.commit_ts} ({as_time(finding.commit_ts)})")
    if finding.key:
        parts.append(f"key {finding.key if show_row_data else HIDDEN}")
    if finding.wanted >= 0:
        parts.append(f"{finding.wanted} rows expected, {finding.found} found")
    sentence = finding.words if show_row_data or finding.kind in (FindingKind.LOST, FindingKind.DDL) else _without_values(finding.words)
    return f"{' '.join(parts[:2])}{''.join(f', {p}' for p in parts[2:])}: {sentence}"


def _without_values(words: str) -> str:
    """Our own text comes first and has no colon inside; the server's message follows the first colon."""
    ours, colon, server = words.partition(": ")
    return ours + colon + without_values(server) if colon else without_values(words)
