"""Steps in which nothing was applied: the target's record of their end is saved at most every ``SECONDS``. Pure.

Promises: a step is put off only if the record says everything except its commit_ts, and after it is noted elsewhere, durably, that the target has
everything up to the step's end (``Sink.defer``). The next save brings the record up to date.
"""

import time
from collections.abc import Callable

from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep

SECONDS = 3.0
"""Minimum time between two transactions that hold a checkpoint only: in a ring each is a change for the other side to read."""
AT_ONCE = 2
"""Steps of a life that are saved at once. The first step often ends before the Pumps' newest binlogs, because the Pumps answer a start one after the other."""
Note = Callable[[int, int], None]
"""Receives the commit_ts of the record, and the one up to which the target has everything."""


class LateRecord:
    """What the target's checkpoint row says, as far as this life knows."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is put off before ``note`` is set and the first ``saved``."""
        self._clock = clock
        self.note: Note | None = None
        self.recorded_ts = 0
        """commitTS of the row."""
        self.applied = AppliedJobs(0)
        """The jobs that it was saved with."""
        self._saved_at = 0.0
        self._at_once = AT_ONCE

    def found(self, commit_ts: int, applied: AppliedJobs) -> None:
        """The row says this at the start. The first ``AT_ONCE`` steps are saved at once, so that the row soon shows how far the stream is."""
        self.recorded_ts, self.applied, self._at_once = commit_ts, applied, AT_ONCE

    def saved(self, commit_ts: int, applied: AppliedJobs) -> None:
        """The row says this now, by a transaction of this life."""
        self.recorded_ts, self.applied, self._at_once = commit_ts, applied, max(0, self._at_once - 1)
        self._saved_at = self._clock()

    def put_off(self, step: RowsStep) -> bool:
        """Note the end of ``step``, in which nothing is applied; False: it is to be saved now."""
        if self.note is None or self._at_once or step.applied != self.applied or self._clock() - self._saved_at >= SECONDS:
            return False
        self.note(self.recorded_ts, step.upto_ts)
        return True
