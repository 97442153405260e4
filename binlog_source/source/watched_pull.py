"""A pull that is cancelled when no message has come for too long. Its whole duration does not count. gRPC shell.

Promises: only the time of waiting for a message counts, not what the reader does with it. Each pull has one thread, which ends with it: a
reader that receives its call's messages itself needs another thread to end the call.
"""

import threading
import time
from collections.abc import Iterator

from pyspark_tidb_binlog.binlog_source.source.pull import Pull, PullMetadata

SILENT_SECONDS = 30.0
"""Seconds of waiting for one message after which a connection counts as broken: well above the interval at which any Pump writes fakes."""
_LONGEST_SILENCE = 600.0
"""Seconds that are waited at most: after an outage a dead connection is not kept for long."""


def longer(silence: float) -> float:
    """How long the next connection may be silent when nothing came in ``silence`` seconds: a binlog of a real Pump is one message."""
    return min(2 * silence, _LONGEST_SILENCE)


class WatchedPull:
    """A ``Pull`` under watch. For one thread."""

    def __init__(self, pull: Pull, seconds: float) -> None:
        """``seconds``: of waiting for one message or the metadata, after which it is cancelled."""
        self.silent = False
        """Whether it was cancelled for that."""
        self._pull = pull
        self._seconds = seconds
        self._waits_since: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="silence of a pull", daemon=True).start()

    def metadata(self) -> PullMetadata:
        """See ``Pull.metadata``."""
        self._waits_since = time.monotonic()
        try:
            return self._pull.metadata()
        finally:
            self._waits_since = None

    def __iter__(self) -> Iterator[bytes]:
        messages = iter(self._pull)
        while True:
            self._waits_since = time.monotonic()
            try:
                message = next(messages, None)
            finally:
                self._waits_since = None
            if message is None:
                return
            yield message

    def _watch(self) -> None:
        left = self._seconds
        while not self._closed.wait(left):
            since = self._waits_since
            left = self._seconds if since is None else since + self._seconds - time.monotonic()
            if left <= 0:
                self.silent = True
                self._pull.cancel()
                return

    def close(self) -> None:
        """End it; by the thread that reads it."""
        self._closed.set()
        self._pull.close()
