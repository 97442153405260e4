"""What a start says while the upstream does not answer."""

import logging
import threading
import time
from collections.abc import Callable

from pyspark_tidb_binlog.schemas.errors import Stopped

_SAY_SECONDS = 5.0
_log = logging.getLogger(__name__)


class StartWait:
    """The ``Waiting`` of a start: reports what does not answer at once and every ``_SAY_SECONDS``, on the terminal and in the log."""

    def __init__(
        self, patience: float, stop: threading.Event, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``patience``: seconds after which a start gives up, for messages; ``say`` prints a line on the terminal."""
        self._patience = patience
        self._stop = stop
        self._say = say
        self._clock = clock
        self._begun = self._said_at = -1.0

    def __call__(self, why: str) -> None:
        """Report the reason, if that is due.

        Raises:
            Stopped: a stop was requested.
        """
        if self._stop.is_set():
            raise Stopped(f"stopped while waiting for the upstream: {why}")
        now = self._clock()
        if self._begun < 0:
            self._begun = now
        elif now - self._said_at < _SAY_SECONDS:
            return
        self._said_at = now
        text = f"waiting for the upstream, {now - self._begun:.0f} of {self._patience:g} s (spark.upstream-timeout): {why}"
        _log.warning("%s", text)
        self._say(text)
