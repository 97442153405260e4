"""When the stream's next batch begins, and where it ends. Pure: the caller gives the views of the Pumps' logs, ``admission`` chooses.

Promises: a batch begins as soon as it can release something. A raw batch also begins, after a while, when there is enough to read, or when
the Pump that holds R back has an orphan: pairing can settle an orphan only after it was read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import ASK_AFTER
from pyspark_tidb_binlog.binlog_source.source.admission import (
    Limits,
    TailView,
    holder,
    newest_promise,
    pending_bytes,
    plan_raw,
    plan_sorted,
    unread_bytes,
)
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.schemas.events import Delivery, as_time, tso

HELD_SECONDS = 1.0
"""How long a raw batch waits for R to advance before it reads ahead of R, so that pairing can resolve orphans.

A Pump that holds R back mostly just answers a moment later than the others. Binlogs that are read ahead of it pass through the pairing
state, which costs more than the wait.
"""
_AHEAD_MS = int(ASK_AFTER * 1000) + 1000
"""How far beyond R each Pump may be read: orphans must become old enough, and timers fire only when the watermark has passed them."""


_FUTURE_MS = 3_600_000
"""No promise is that far ahead of the upstream's time: a promise is a commit_ts, or the ts of a fake, which PD issued."""


def in_the_future(views: Mapping[str, TailView], delivery: Delivery, now_ts: int) -> dict[str, int]:
    """The Pumps whose promise is more than an hour ahead of ``now_ts``, with the promise."""
    bound = now_ts + tso(_FUTURE_MS)
    promises = {pump: newest_promise(view, delivery) for pump, view in views.items()}
    return {pump: promise for pump, promise in promises.items() if promise > bound}


def future_text(ahead: Mapping[str, int], now_ts: int) -> str:
    """The message about Pumps with a promise that is ``in_the_future``."""
    told = ", ".join(f"Pump {pump} promises that nothing up to ts {ts} ({as_time(ts)}) follows" for pump, ts in sorted(ahead.items()))
    return (
        f"{told}, but the upstream's time is {now_ts} ({as_time(now_ts)}). The Pump's log holds a binlog with a wrong ts, or PD's time was set back. The "
        f"stream stops here, because it would lose what commits below that ts. {document('errors/upstream')} says what to do"
    )


@dataclass(frozen=True, slots=True)
class BatchPlanner:
    """Plans batches of one stream."""

    max_pending_bytes: int

    def is_worthwhile(self, views: Mapping[str, TailView], before: BinlogOffset, max_bytes: int | None, held_seconds: float) -> bool:
        """Whether to plan a batch after ``before`` now; ``held_seconds``: how long ago the last one was planned."""
        held_at = holder(views, before.delivery)
        if held_at.promise > before.resolved_ts:
            return True
        if before.delivery is Delivery.SORTED or held_seconds < HELD_SECONDS:
            return False
        enough = max_bytes is not None and unread_bytes(views) >= max_bytes and not self.is_full(views)
        orphan = bool(views[held_at.pump].steps)
        return enough or orphan

    def is_full(self, views: Mapping[str, TailView]) -> bool:
        """Whether the pairing state has reached ``maxPendingBytes``."""
        return pending_bytes(views) >= self.max_pending_bytes

    def plan(
        self, views: Mapping[str, TailView], before: BinlogOffset, max_bytes: int | None, ceiling: int | None, gc_ts: int
    ) -> BinlogOffset:
        """The end of the batch after ``before``; ``before`` itself if there is nothing to gain.

        ``ceiling``: the highest R of the stream. ``gc_ts``: the highest ts up to which a Pump had collected.
        """
        start = _beginning(before, ceiling, gc_ts)
        if before.delivery is Delivery.SORTED:
            end = plan_sorted(start, views, max_bytes, ceiling)
        else:
            end = plan_raw(start, views, Limits(max_bytes, self.max_pending_bytes, _AHEAD_MS), ceiling)
        if end is start:
            return before
        return end if start is before else replace(end, gone_ts=start.resolved_ts)


def _beginning(before: BinlogOffset, ceiling: int | None, gc_ts: int) -> BinlogOffset:
    """Where a stream from 0 on starts: the ts from which every Pump has everything. Earlier Commits may lack a collected Prewrite."""
    gone_ts = gc_ts if before.initial and not before.floor else 0
    if ceiling is not None:
        gone_ts = min(gone_ts, ceiling)
    return replace(before, resolved_ts=gone_ts) if gone_ts else before
