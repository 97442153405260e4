"""A finding: something that is not as the binlogs say it must be, on the target or in the Pumps. Pure values.

Promises: picklable and comparable; ``words`` and ``key`` may hold row data and are masked by whoever prints them, not here.
"""

import enum
from dataclasses import dataclass


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
