"""A Pump client that leaves at the Pumps what a TiDB leaves there when it dies, stalls or loses an answer.

    lost Commit    its record is never sent: the Pump has to ask the upstream
    late Commit    its record is sent after a delay; later commits overtake it
    duplicate      a second Pump has the Prewrite, too, as after a timed-out write, and gets no outcome

The same seed and the same order of transactions give the same faults. DDL binlogs are affected, too.
"""

import random
import threading
from dataclasses import dataclass
from typing import Self

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.pump_client.connection import failure_of
from pyspark_tidb_binlog.schemas.proto import binlog_pb2


@dataclass(frozen=True)
class Faults:
    """How often each fault happens: a share of the Commits, or of the Prewrites."""

    seed: int = 0
    lost_commits: float = 0.0
    late_commits: float = 0.0
    late_by: float = 1.0
    """Delay of a late Commit, in seconds."""
    duplicates: float = 0.0


class FaultyClient(PumpClient):
    """Without faults before ``inject``."""

    _faults = Faults()

    def inject(self, faults: Faults) -> Self:
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._changed = threading.Condition()
        self._late: set[threading.Timer] = set()
        return self

    def prewrite(self, start_ts: int, payload: bytes) -> None:
        super().prewrite(start_ts, payload)
        if self._draw() < self._faults.duplicates:
            first = self._pump_set.pump_of(start_ts)
            others = [handle for handle in self._pump_set.available() if handle is not first]
            any(failure_of(handle.connection, payload) is None for handle in others)

    def outcome(self, start_ts: int, payload: bytes) -> None:
        drawn = self._draw() if binlog_pb2.Binlog.FromString(payload).tp == binlog_pb2.Commit else 1.0
        if drawn < self._faults.lost_commits:
            self.forget(start_ts)
        elif drawn < self._faults.lost_commits + self._faults.late_commits:
            self._postpone(start_ts, payload)
        else:
            super().outcome(start_ts, payload)

    def flush(self, timeout: float = 30.0) -> None:
        """The late Commits, too."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._late, timeout), f"{len(self._late)} late Commits are not due"
        super().flush(timeout)

    def close(self) -> None:
        """Late Commits that were not sent yet are lost."""
        with self._changed:
            late, self._late = self._late, set()
        for timer in late:
            timer.cancel()
        for timer in late:
            timer.join()
        super().close()

    def _draw(self) -> float:
        with self._changed:
            return self._random.random()

    def _postpone(self, start_ts: int, payload: bytes) -> None:
        def send() -> None:
            PumpClient.outcome(self, start_ts, payload)
            with self._changed:
                self._late.discard(timer)
                self._changed.notify_all()

        timer = threading.Timer(self._faults.late_by, send)
        timer.daemon = True
        with self._changed:
            self._late.add(timer)
        timer.start()
