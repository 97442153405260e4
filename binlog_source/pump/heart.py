"""The Pump's own pulse: fake binlogs when nobody writes, and its status in the registry.

Promises: two daemon threads that end within a moment of ``stop``. A failure is logged and tried again at the next beat, as in a real Pump.
"""

import logging
import threading
import time
from collections.abc import Callable

from binlog_source.pump.service import PumpService
from binlog_source.pump.storage.record import fake
from schemas.errors import ReplicationError
from schemas.events import tso

_log = logging.getLogger(__name__)


def own_clock(service: PumpService) -> int:
    """A timestamp for a Pump without an oracle: its clock, above all that its log holds."""
    return max(tso(time.time_ns() // 1_000_000), service.store.state.max_ts + 1)


class Beat:
    """Calls ``act`` every ``interval`` seconds until stopped."""

    def __init__(self, name: str, interval: float, act: Callable[[], None]) -> None:
        self._interval = interval
        self._act = act
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._act()
            except (ReplicationError, OSError) as error:
                _log.warning("%s: %s", self._thread.name, error)

    def stop(self) -> None:
        """End the beat; returns when it has ended."""
        self._stopped.set()
        self._thread.join()


class FakeBinlogs:
    """Writes a fake binlog when no WriteBinlog call came since the last look."""

    def __init__(self, service: PumpService, oracle: Callable[[], int]) -> None:
        self._service = service
        self._oracle = oracle
        self._seen = -1

    def __call__(self) -> None:
        """One look."""
        writes = self._service.writes
        if writes == self._seen:
            self._service.write_records([fake(self._oracle())])
        self._seen = writes
