"""Lag as seen by a client of the target: from a probe row's commit upstream until it is visible on another connection.

Promises: ``lags`` and ``percentile`` are pure; ``ProbeWatch`` is the thin shell that polls the target. Both sides read CLOCK_MONOTONIC,
which all processes of a machine share.
"""

import bisect
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

_UNKNOWN_DATABASE, _UNKNOWN_TABLE = 1049, 1146
_RETRY_SECONDS = 0.2


Probes = Sequence[tuple[int, int]]
"""(id, monotonic nanoseconds at which its commit returned), ascending."""
Sightings = Sequence[tuple[int, int]]
"""(largest id visible, monotonic nanoseconds), ascending."""


def lags(probes: Probes, sightings: Sightings) -> list[float]:
    """Seconds that each probe row took; rows that were never seen are left out."""
    largest = [number for number, _ in sightings]
    places = ((bisect.bisect_left(largest, number), at) for number, at in probes)
    return [(sightings[place][1] - at) / 1e9 for place, at in places if place < len(sightings)]


def start_up_end(probes: Probes, sightings: Sightings) -> int | None:
    """When the start-up ended: at the first visible row that was committed after the first row became visible. None: it did not end.

    Rows committed earlier wait for the first batches, which are slow: the JVM and the Python workers are cold.
    """
    committed = dict(probes)
    return next((at for largest, at in sightings if committed.get(largest, 0) > sightings[0][1]), None)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a ``share`` (0 to 1) of ``values`` does not exceed; 0.0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class ProbeWatch:
    """Polls the largest id of the probe table from its own thread and connection, for the duration of the ``with`` block."""

    def __init__(self, target: TargetConfig, apply: ApplyConfig, table: str, interval: float = 0.005) -> None:
        """``table`` as ``db.table``, with an integer column ``id``; it may appear later."""
        self._target, self._settings, self._interval = target, apply, interval
        self._sql = f"SELECT MAX(id) FROM {table}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe watch", daemon=True)
        self.failure: ApplyError | None = None
        """The error that ended the polling early."""
        self.sightings: list[tuple[int, int]] = []
        """(largest id visible, monotonic nanoseconds), only where the id grew."""

    def __enter__(self) -> Self:
        """Start polling."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop polling."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._target, self._settings) as session:
                    # each query is its own transaction and holds no metadata lock against DDLs
                    session.execute("SET SESSION autocommit = 1")
                    self._look(session)
            except RetryableApplyError:
                self._stop.wait(_RETRY_SECONDS)
            except ApplyError as error:
                self.failure = error
                return

    def _look(self, session: Session) -> None:
        seen = self.sightings[-1][0] if self.sightings else 0
        while not self._stop.wait(self._interval):
            try:
                newest = session.query(self._sql)[0][0] or 0
            except ApplyError as error:
                if error.errno not in (_UNKNOWN_DATABASE, _UNKNOWN_TABLE):
                    raise
                self._stop.wait(_RETRY_SECONDS)
                continue
            if newest > seen:
                seen = newest
                self.sightings.append((newest, time.monotonic_ns()))
