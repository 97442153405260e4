"""A finding: something that is not as the binlogs say it must be, on the target or in the Pumps. Pure values.

Promises: picklable and comparable; ``words`` and ``key`` may hold row data and are masked by whoever prints them, not here.
"""

import enum
from dataclasses import dataclass

from schemas.events import as_time
from schemas.redaction import HIDDEN, without_values


class FindingKind(enum.StrEnum):
    """What is not as it must be."""

    ROWS = "rows"
    """A statement touched fewer or more rows than the net change foretells."""
    VALUE = "value"
    """The target cut, clamped or replaced a value."""
    LOST = "lost"
    """Binlogs that the Pumps no longer have, or have damaged (``fail-on-data-loss = false``)."""
    DDL = "ddl"
    """A DDL was skipped or quarantined, or lost a part of its meaning on the target."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    kind: FindingKind
    words: str
    """What happened, the server's own words among it."""
    table: str = ""
    """`` `db`.`table` `` on the target; empty = not of one table."""
    commit_ts: int = 0
    """Of the newest transaction concerned; 0 = unknown."""
    key: str = ""
    """The row's key as text; empty = unknown, or of several rows."""
    wanted: int = -1
    """Rows that had to be touched; -1 = not a matter of rows."""
    found: int = -1
    """Rows that were."""


def in_words(finding: Finding, show_row_data: bool) -> str:
    """One line for people; without ``show_row_data`` no value of a row is in it."""
    parts = [f"{finding.kind}"]
    if finding.table:
        parts.append(finding.table)
    if finding.commit_ts:
        parts.append(f"commit_ts {finding.commit_ts} ({as_time(finding.commit_ts)})")
    if finding.key:
        parts.append(f"key {finding.key if show_row_data else HIDDEN}")
    if finding.wanted >= 0:
        parts.append(f"{finding.wanted} rows wanted, {finding.found} found")
    sentence = finding.words if show_row_data or finding.kind in (FindingKind.LOST, FindingKind.DDL) else _without_values(finding.words)
    return f"{' '.join(parts[:2])}{''.join(f', {p}' for p in parts[2:])}: {sentence}"


def _without_values(words: str) -> str:
    """Our own words come first, the server's sentence after the last colon of ours."""
    ours, colon, server = words.partition(": ")
    return ours + colon + without_values(server) if colon else without_values(words)
