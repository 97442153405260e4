"""A task that a Pump or Drainer repeats in a thread: its heartbeat, GC, checks.

Promises: a daemon thread that ends soon after ``stop``. A failed task is logged and run again after its interval, as in a real Pump.
"""

import logging
import threading
from collections.abc import Callable

from pyspark_tidb_binlog.schemas.errors import ReplicationError

_log = logging.getLogger(__name__)


class PeriodicTask:
    """Calls ``act`` every ``interval`` seconds until stopped."""

    def __init__(self, name: str, interval: float, act: Callable[[], None], *, at_once: bool = False) -> None:
        """``at_once``: the first time now, not after an interval."""
        self._interval = interval
        self._wait = 0.0 if at_once else interval
        self._act = act
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._wait):
            self._wait = self._interval
            try:
                self._act()
            except (ReplicationError, OSError) as error:
                _log.warning("%s: %s", self._thread.name, error)
            except Exception:  # logged in full; a node whose heartbeat ended would look dead to all others
                _log.exception("%s", self._thread.name)

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._stopped.set()
        self._thread.join()
