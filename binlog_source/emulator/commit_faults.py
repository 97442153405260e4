"""Fault injection: writes to the Pumps what a TiDB leaves there when it dies, stalls or loses an answer.

    lost Commit    its record is never sent: the Pump has to ask the upstream
    late Commit    its record is sent after a delay; later commits overtake it
    duplicate      a second Pump has the Prewrite, too, as after a timed-out write, and gets no outcome
    on_prewrite    a test's hook between sending a Prewrite and its answer, to kill a Pump there

Promises: faults are drawn from one seeded generator, so the same seed and the same order of transactions give the same faults; without
faults records pass unchanged. DDL binlogs are affected, too. Safe for many threads.
"""

import enum
import random
import threading
import time
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.pump_client.protocol import BinlogClient, Sent, ignore_sent
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault happens. Probabilities, 0 to 1."""

    seed: int = 0
    lost_commits: float = 0.0
    """Share of the Commits that are never sent."""
    late_commits: float = 0.0
    """Share of the Commits that are sent late."""
    late_by: float = 1.0
    """Delay of a late Commit, in seconds."""
    duplicates: float = 0.0
    """Share of the Prewrites that are also written to a second Pump, if there is one."""
    on_prewrite: Sent = ignore_sent
    """Called with the Pump's node id after a Prewrite was sent to it, before its answer."""

    def __post_init__(self) -> None:
        for name in ("lost_commits", "late_commits", "duplicates"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, 0 to 1")
        if self.lost_commits + self.late_commits > 1:
            raise ValueError("lost_commits and late_commits together must not be above 1")
        if self.late_by < 0:
            raise ValueError("late_by must not be below 0")


NO_FAULTS = Faults()


class CommitFate(enum.Enum):
    """What becomes of a Commit record."""

    SENT = "sent"
    LOST = "lost"
    LATE = "late"


def commit_fate(faults: Faults, drawn: float) -> CommitFate:
    """The fate of a Commit for ``drawn``, a uniform random number in [0, 1)."""
    if drawn < faults.lost_commits:
        return CommitFate.LOST
    return CommitFate.LATE if drawn < faults.lost_commits + faults.late_commits else CommitFate.SENT


class FaultyWriter:
    """Passes an upstream's records to its Pump client, with faults."""

    def __init__(self, client: BinlogClient, faults: Faults = NO_FAULTS) -> None:
        """Takes ownership of ``client``: ``close`` closes it."""
        self._client = client
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._changed = threading.Condition()
        self._late: set[threading.Timer] = set()

    def prewrite(self, start_ts: int, payload: bytes) -> None:
        """Write a Prewrite, also to a second Pump if so drawn; ``PumpUnavailable`` if no Pump accepts it."""
        self._client.prewrite(start_ts, payload, self._faults.on_prewrite)
        if self._draw() < self._faults.duplicates:
            self._client.duplicate(start_ts, payload)

    def commit(self, start_ts: int, payload: bytes) -> None:
        """Write a Commit now, late or never."""
        match commit_fate(self._faults, self._draw()):
            case CommitFate.SENT:
                self._client.outcome(start_ts, payload)
            case CommitFate.LOST:
                self._client.forget(start_ts)
            case CommitFate.LATE:
                self._postpone(start_ts, payload)

    def roll_back(self, start_ts: int, payload: bytes) -> None:
        """Write a Rollback."""
        self._client.outcome(start_ts, payload)

    def lose_outcome(self, start_ts: int) -> None:
        """Write no outcome, as when a TiDB dies."""
        self._client.forget(start_ts)

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every outcome that is not to be lost is written, also the late ones; ``PumpUnavailable`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            if not self._changed.wait_for(lambda: not self._late, timeout):
                raise PumpUnavailable(f"{len(self._late)} late Commits are not due within {timeout:g} s; flush with a longer timeout")
        self._client.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Stop writing; late Commits that were not sent yet are lost."""
        with self._changed:
            late, self._late = self._late, set()
        for timer in late:
            timer.cancel()
        for timer in late:
            timer.join()
        self._client.close()

    def _draw(self) -> float:
        with self._changed:
            return self._random.random()

    def _postpone(self, start_ts: int, payload: bytes) -> None:
        def send() -> None:
            self._client.outcome(start_ts, payload)
            with self._changed:
                self._late.discard(timer)
                self._changed.notify_all()

        timer = threading.Timer(self._faults.late_by, send)
        timer.daemon = True
        with self._changed:
            self._late.add(timer)
        timer.start()
