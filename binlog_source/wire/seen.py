"""Whether a Pump's log is still the one that was read: what a reader remembers of it, and the words when it is another. Pure.

A position alone does not say so: a log that was restored from a backup, or begun anew under the same name, grows past every position in time.
So a reader remembers with it the largest commit_ts of a Commit or fake before it, ``Seen``. Timestamps are given out once, so no other log has the
same one at the same place, unless all that was read is in it. A pull names it in metadata ``tidb-binlog-seen``; our Pump looks, and answers ``yes`` or
``no`` under the same name in its initial metadata, with ``tidb-binlog-end``, where its log ends. Sorted delivery knows no positions: there the binlog
of that commit_ts must be anywhere in the log, or may have been collected.

A real Pump answers nothing of it; it is asked for what follows the ts before, and must deliver that binlog first (``tails.py``).
"""

import re
from dataclasses import dataclass

from binlog_source.wire.position import Position
from schemas.errors import DamagedLog
from schemas.events import as_time

SEEN_KEY = "tidb-binlog-seen"
"""Metadata of a pull: ``suffix:offset:ts``; of its answer: ``yes`` or ``no``."""
END_KEY = "tidb-binlog-end"
YES, NO = "yes", "no"
ANYWHERE = Position(0, 0)
"""The position of a ``Seen`` that is a commit_ts alone."""
_TEXT = re.compile(r"(\d{1,10}):(\d{1,19}):(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of a log: it ends at ``position`` or later, and ``ts`` is the largest of a Commit or fake before that; 0: not known."""

    position: Position
    ts: int = 0

    @property
    def text(self) -> str:
        """As metadata."""
        return f"{self.position.suffix}:{self.position.offset}:{self.ts}"


def seen_in(text: str) -> Seen | None:
    """What a reader says that it has seen; None when it says nothing."""
    found = _TEXT.fullmatch(text)
    return Seen(Position(int(found[1]), int(found[2])), int(found[3])) if found else None


def replaced_text(pump: str, seen: Seen, end: Position | None) -> str:
    """The words for a log that is not the one that was read."""
    place = f"up to {seen.position.suffix:06d}.vlog:{seen.position.offset}" if seen.position != ANYWHERE else "in order"
    known = f", commit_ts {seen.ts} ({as_time(seen.ts)})" if seen.ts else ""
    where = f"its log now ends at {end.suffix:06d}.vlog:{end.offset}" if end is not None else "its log now goes on behind that"
    return (
        f"Pump {pump} has another log than the one that was read {place}{known}: {where} and does not hold that; it was restored from a backup or "
        "begun anew, and binlogs that it had acknowledged are lost"
    )


def anew_text(pump: str, after_ts: int) -> str:
    """The words for what the log before held and nobody had read."""
    return (
        f"Pump {pump} has another log than before: it was restored from a backup or begun anew, and is read from ts {after_ts} ({as_time(after_ts)}) on; "
        "what the log before held above that and the stream had not read is lost"
    )


def refuse_replaced(text: str) -> None:
    """Lose nothing.

    Raises:
        DamagedLog: always.
    """
    raise DamagedLog(
        f"{text}; give it its newest data directory back, or load a fresh snapshot of the upstream, "
        "or set failOnDataLoss=false to read on from what it has, with a finding"
    )
