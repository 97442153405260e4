"""Checks that a Pump's log is still the log that was read: what a reader keeps about it, and the messages if it was replaced. Pure.

A position alone does not show this: a log that was restored from a backup, or recreated under the same name, in time grows past every
position. So a reader also keeps the largest commit_ts of a Commit or fake before the position, ``LogFingerprint``. Each timestamp is issued
once. So another log has this timestamp at this position only if it contains everything that was read.

A pull sends both in metadata ``tidb-binlog-seen``. Our Pump checks its log. Its initial metadata has ``yes`` or ``no`` under the same key,
and the end of its log under ``tidb-binlog-end``. Sorted delivery has no positions: the binlog of that commit_ts must be anywhere in the
log, unless it may have been collected.

A real Pump answers none of this. It is asked for what follows the ts before, and must deliver that binlog first (``tails.py``).
"""

import re
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import as_time

ANYWHERE = Position(0, 0)
"""The position of a ``LogFingerprint`` that consists of a commit_ts only."""
_TEXT = re.compile(r"(\d{1,10}):(\d{1,19}):(\d{1,19})")


@dataclass(frozen=True, slots=True)
class LogFingerprint:
    """What was read of a log: it ends at ``position`` or later. ``ts`` is the largest ts of a Commit or fake before that; 0: unknown."""

    position: Position
    ts: int = 0

    @property
    def text(self) -> str:
        """The form in metadata."""
        return f"{self.position.suffix}:{self.position.offset}:{self.ts}"


def seen_in(text: str) -> LogFingerprint | None:
    """What a reader's metadata says it has seen; None if nothing."""
    found = _TEXT.fullmatch(text)
    return LogFingerprint(Position(int(found[1]), int(found[2])), int(found[3])) if found else None


def replaced_text(pump: str, seen: LogFingerprint, end: Position | None) -> str:
    """The message about a log that is not the one that was read."""
    place = f"up to {seen.position.suffix:06d}.vlog:{seen.position.offset}" if seen.position != ANYWHERE else "in order"
    known = f", commit_ts {seen.ts} ({as_time(seen.ts)})" if seen.ts else ""
    where = f"its log now ends at {end.suffix:06d}.vlog:{end.offset}" if end is not None else "its log continues after that"
    return (
        f"Pump {pump} has a different log from the one that was read {place}{known}: {where} and does not contain what was read. "
        "The Pump was restored from a backup or recreated, and acknowledged binlogs are lost"
    )


def anew_text(pump: str, after_ts: int) -> str:
    """The message about the loss of unread binlogs that only the former log held."""
    return (
        f"Pump {pump} has a different log than before, because the Pump was restored from a backup or recreated. The stream reads the new log from "
        f"ts {after_ts} ({as_time(after_ts)}). Binlogs above this ts are lost if only the former log held them"
    )
