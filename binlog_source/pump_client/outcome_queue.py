"""Writes Commits and Rollbacks to one Pump, in the background.

Promises: ``put`` never waits and never fails. Outcomes are written in order; those that arrive while a group is being written form the next
group. A failed group is retried after a pause. An outcome is given up, logged and counted if it is older than ``outcome_patience``, or its
Pump is offline: orphan resolution then finds it. Outcomes that are not written when the queue closes are lost, as when a TiDB dies.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from pyspark_tidb_binlog.binlog_source.pump_client.connection import PumpConnection, write_group
from pyspark_tidb_binlog.binlog_source.pump_client.settings import Clock, Counters, PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed

_GROUP = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A Commit or Rollback that was put into an ``OutcomeQueue``."""

    start_ts: int
    payload: bytes
    since: float
    """When it was put, by the client's clock."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it is written, given up or lost."""


class OutcomeQueue:
    """Writes outcomes to one Pump; its thread starts with the first."""

    def __init__(
        self,
        connection: PumpConnection,
        settings: PumpClientSettings,
        clock: Clock,
        counters: Counters,
        after_failure: Callable[[], object],
        left: Callable[[], bool],
    ) -> None:
        """``after_failure`` is called after each call that failed; ``left``: whether the Pump is registered offline."""
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._counters = counters
        self._after_failure = after_failure
        self._left = left
        self._changed = threading.Condition()
        self._waiting: deque[Outcome] = deque()
        self.open = 0
        """Outcomes that are not written yet."""
        self._ending = False
        self._thread: threading.Thread | None = None

    def put(self, start_ts: int, payload: bytes) -> Outcome:
        """Queue an outcome to be written in the background."""
        outcome = Outcome(start_ts, payload, self._clock.now())
        with self._changed:
            if self._ending:
                outcome.over.set()
                return outcome
            self.open += 1
            self._waiting.append(outcome)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"outcomes for {self._connection.node_id}", daemon=True)
                self._thread.start()
        return outcome

    def flush(self, timeout: float) -> bool:
        """Whether every outcome was written or given up within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.open == 0, timeout)

    def end(self) -> None:
        """Accept no more; queued outcomes are tried once more at most."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, ``timeout`` seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while group := self._next_group():
            failed = self._write(group)
            if failed and self._clock.wait(self._settings.outcome_pause):
                break
        self._lose_the_rest()

    def _next_group(self) -> list[Outcome]:
        """The oldest outcomes, still counted as waiting; empty when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
        if self._settings.gather:
            self._clock.wait(self._settings.gather)
        with self._changed:
            return list(islice(self._waiting, _GROUP))

    def _write(self, group: list[Outcome]) -> bool:
        """Write a group; whether some of it must be retried, which stays at the head."""
        failures = write_group(self._connection, [outcome.payload for outcome in group])
        left = [o for o, failure in zip(group, failures, strict=True) if failure is not None and not self._given_up(o, failure)]
        if any(failures):
            self._after_failure()
        self._settle(group, left)
        return bool(left)

    def _given_up(self, outcome: Outcome, failure: WriteFailed) -> bool:
        age = self._clock.now() - outcome.since
        left = self._left()
        if not left and age <= self._settings.outcome_patience:
            self._counters.add(retries=1)
            return False
        self._counters.add(outcomes_given_up=1)
        if left:
            _log.info(
                "the outcome of start_ts %d is given up, because Pump %s is registered as offline. A Pump that left by itself has asked the upstream "
                "for the outcome. A Pump that was set offline asks when it starts again",
                outcome.start_ts,
                self._connection.node_id,
            )
            return True
        _log.error(
            "Pump %s did not accept the outcome of start_ts %d for %.0f s (%s): the outcome is given up, and the Pump asks the upstream",
            self._connection.node_id, outcome.start_ts, age, failure,
        )  # fmt: skip
        return True

    def _settle(self, group: list[Outcome], left: list[Outcome]) -> None:
        with self._changed:
            for _ in group:
                self._waiting.popleft()
            self._waiting.extendleft(reversed(left))
            self.open -= len(group) - len(left)
            self._changed.notify_all()
        for outcome in group:
            if outcome not in left:
                outcome.over.set()

    def _lose_the_rest(self) -> None:
        with self._changed:
            lost = list(self._waiting)
            self._waiting.clear()
        if lost:
            _log.warning(
                "%d outcomes for Pump %s were not written before the Pump client closed: the Pump asks the upstream for these outcomes",
                len(lost),
                self._connection.node_id,
            )
        for outcome in lost:
            outcome.over.set()
