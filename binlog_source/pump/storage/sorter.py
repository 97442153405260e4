"""The promises after each record, sorted and raw, and the checkpoints that store them.

Rules
-----
* *Sorted promise* S (``maxCommitTS``): the largest commit_ts before the first Prewrite, in log order, that still waits for its outcome
  (pump.md 4.5). Everything written before that Prewrite is complete.
* *Raw promise* T: the largest ts of a fake or Commit so far, but below the lowest start_ts that still waits for its outcome, and never
  below an earlier T. TiDB requests a commit_ts only after its Prewrite was acknowledged. So a late Prewrite commits above every ts that the
  log held before it, however low its start_ts is, and an earlier T stays valid.
* *Low position*: where the first Prewrite that still waits was written. A pull from there reads it again.
* A *checkpoint* holds these three for a position, at least every ``span`` bytes of log and at the end of each file. They depend only on the
  log before the position. A checkpoint and the records of ``[low, at)`` restore the sorter (``Sorter.resume``): these records include
  every Prewrite that waited at ``at``, and S is the largest commit_ts before ``low``.

Promises: pure. Memory grows with the Prewrites that wait, not with the records after them.
"""

import heapq
import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind

CHECKPOINT_SPAN = 1 << 20
"""At most this many bytes of log lie between two checkpoints (more only when one record is bigger)."""
_PACKED = struct.Struct("<IqQQIqQ")
_HEAP_SLACK = 1024


class SorterCheckpoint(NamedTuple):
    """The promises at a position of the log."""

    at: Pointer
    """The position just after the last record it covers."""
    raw_promise: int
    sorted_promise: int
    low: Pointer
    """The position of the first waiting Prewrite; ``at`` when none waits."""
    max_ts: int
    """Largest ts of a fake or Commit before ``at``."""

    def pack(self) -> bytes:
        """As the index stores it."""
        return _PACKED.pack(*self.at, self.raw_promise, self.sorted_promise, *self.low, self.max_ts)

    @classmethod
    def unpack(cls, data: bytes) -> "SorterCheckpoint":
        """The inverse of ``pack``."""
        file_id, offset, raw, in_order, low_file, low_offset, max_ts = _PACKED.unpack(data)
        return cls(Pointer(file_id, offset), raw, in_order, Pointer(low_file, low_offset), max_ts)


NOTHING = SorterCheckpoint(BEGINNING, 0, 0, BEGINNING, 0)
"""The promises of an empty log."""


class LogRecord(NamedTuple):
    """One record of the log as the sorter and the index see it: from ``at``, ``length`` bytes long with its header."""

    kind: RecordKind
    start_ts: int
    commit_ts: int
    at: Pointer
    length: int

    @property
    def end(self) -> Pointer:
        """Just after it."""
        return Pointer(self.at.file_id, self.at.offset + self.length)


class _Waiting(NamedTuple):
    at: Pointer
    max_before: int
    """Largest ts of a fake or Commit before it."""


class Sorter:
    """Computes the promises, record by record."""

    def __init__(self, span: int = CHECKPOINT_SPAN, beginning: Pointer = BEGINNING) -> None:
        """Start at ``beginning``, with no Prewrite waiting."""
        self._span = span
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._lowest: list[int] = []
        self._end = beginning
        self._raw = self._max_ts = 0
        self._since = 0

    @classmethod
    def resume(cls, checkpoint: SorterCheckpoint, before: Iterable[LogRecord], span: int = CHECKPOINT_SPAN) -> "Sorter":
        """The sorter as it was at ``checkpoint``; ``before``: the records from ``checkpoint.low`` to ``checkpoint.at``."""
        sorter = cls(span)
        sorter._max_ts = checkpoint.sorted_promise
        for step in before:
            sorter.push(step)
        sorter._end, sorter._raw, sorter._max_ts = checkpoint.at, checkpoint.raw_promise, checkpoint.max_ts
        sorter._since = 0
        return sorter

    @property
    def waiting(self) -> tuple[int, ...]:
        """The start_ts of the Prewrites without outcome, in log order."""
        return tuple(self._waiting)

    def push(self, step: LogRecord) -> SorterCheckpoint | None:
        """Process the next record of the log; the checkpoint just before it, when one is due."""
        kind, start_ts, commit_ts, at, length = step
        due = None
        if self._since and (self._since + length > self._span or at.file_id != self._end.file_id):
            due = self.now()
            self._since = 0
        self._since += length
        self._end = Pointer(at.file_id, at.offset + length)
        if kind is RecordKind.PREWRITE:
            if start_ts not in self._waiting:
                self._waiting[start_ts] = _Waiting(at, self._max_ts)
                heapq.heappush(self._lowest, start_ts)
            return due
        self._waiting.pop(start_ts, None)
        if commit_ts > self._max_ts:
            self._max_ts = commit_ts
        self._raise_raw()
        return due

    def pass_over(self, end: Pointer) -> None:
        """Skip a damaged place, up to ``end``, whose content is unknown."""
        self._end = end

    def now(self) -> SorterCheckpoint:
        """The promises at the end of the log."""
        if not self._waiting:
            return SorterCheckpoint(self._end, self._raw, self._max_ts, self._end, self._max_ts)
        first = next(iter(self._waiting.values()))
        return SorterCheckpoint(self._end, self._raw, first.max_before, first.at, self._max_ts)

    def _raise_raw(self) -> None:
        waiting, lowest = self._waiting, self._lowest
        if len(lowest) > 2 * len(waiting) + _HEAP_SLACK:
            self._lowest = lowest = list(waiting)
            heapq.heapify(lowest)
        while lowest and lowest[0] not in waiting:
            heapq.heappop(lowest)
        bound = min(self._max_ts, lowest[0] - 1) if lowest else self._max_ts
        if bound > self._raw:
            self._raw = bound
