"""What may be promised after each record: the sorted promise and the raw one, and the checkpoints that remember them.

Rules
-----
* *Sorted promise* S (``maxCommitTS``): moves to a commit_ts only when every record written before it is complete; a Prewrite without
  outcome holds back everything behind it (pump.md 4.5).
* *Raw promise* T: the largest ts of a fake or Commit so far, but below the lowest start_ts that still waits for its outcome; never
  below an earlier T. TiDB asks for a commit ts only after its Prewrite was acknowledged, so a Prewrite that comes late commits above
  every ts that the log held before it, however low its start_ts is: an earlier T stays true.
* *Low position*: where the earliest Prewrite that still waits was written; a pull from there meets it again.
* A *checkpoint* holds all of them for a position, at least every ``span`` bytes of log. All are functions of the log before the
  position and of nothing else: the scan at open finds the same values again.

Promises: pure.
"""

import bisect
import heapq
from collections import deque
from typing import NamedTuple

from binlog_source.pump.storage.pointer import BEGINNING, Pointer
from binlog_source.pump.storage.record import Kind

CHECKPOINT_SPAN = 1 << 20
"""At most this many bytes of log lie between two checkpoints (more only when one record is bigger)."""


class Checkpoint(NamedTuple):
    """What may be promised at a position of the log."""

    at: Pointer
    """The position just after the last record it covers."""
    raw_promise: int
    sorted_promise: int
    low: Pointer
    """Where the earliest waiting Prewrite lies; ``at`` when none waits."""
    max_ts: int
    """Largest ts of a fake or Commit before ``at``."""


class Sorter:
    """Follows the log record by record."""

    def __init__(self, span: int = CHECKPOINT_SPAN) -> None:
        self._span = span
        self._queue: deque[tuple[bool, int, Pointer]] = deque()
        self._waiting: dict[int, Pointer] = {}
        self._lowest: list[int] = []
        self._end = BEGINNING
        self._raw = self._sorted = self._max_ts = 0
        self._since = 0
        self._checkpoints = [self.now()]

    @property
    def waiting(self) -> dict[int, Pointer]:
        """The Prewrites without outcome: start_ts -> where they lie. Read it under the writer's lock."""
        return self._waiting

    def push(self, kind: Kind, start_ts: int, commit_ts: int, at: Pointer, end: Pointer, length: int) -> None:
        """The next record of the log, of ``length`` bytes, lies from ``at`` to ``end``."""
        if self._since and self._since + length > self._span:
            self._checkpoints.append(self.now())
            self._since = 0
        self._since += length
        self._end = end
        if kind is Kind.PREWRITE:
            self._waiting.setdefault(start_ts, at)
            heapq.heappush(self._lowest, start_ts)
            self._queue.append((True, start_ts, at))
        else:
            self._waiting.pop(start_ts, None)
            self._queue.append((False, commit_ts, at))
            self._max_ts = max(self._max_ts, commit_ts)
        self._drain()

    def now(self) -> Checkpoint:
        """The promises at the end of the log."""
        low = self._queue[0][2] if self._queue else self._end
        return Checkpoint(self._end, self._raw, self._sorted, low, self._max_ts)

    def base(self, ts: int) -> Checkpoint:
        """The latest checkpoint that no Commit above ``ts`` precedes: from its ``low`` on lies every transaction after ``ts``."""
        position = bisect.bisect_right(self._checkpoints, ts, key=lambda c: c.max_ts)
        return self._checkpoints[max(position - 1, 0)]

    def next_checkpoint(self, after: Pointer) -> Checkpoint:
        """The first checkpoint past ``after``, or the end of the log."""
        position = bisect.bisect_right(self._checkpoints, after, key=lambda c: c.at)
        return self._checkpoints[position] if position < len(self._checkpoints) else self.now()

    def _drain(self) -> None:
        queue, waiting = self._queue, self._waiting
        while queue:
            is_prewrite, ts, at = queue[0]
            if is_prewrite:
                if waiting.get(ts) == at:
                    break
            elif ts > self._sorted:
                self._sorted = ts
            queue.popleft()
        lowest = self._lowest
        while lowest and lowest[0] not in waiting:
            heapq.heappop(lowest)
        bound = min(self._max_ts, lowest[0] - 1) if lowest else self._max_ts
        self._raw = max(self._raw, bound)
