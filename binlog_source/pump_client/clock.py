"""Time as the client sees it, so that a test can let ten minutes pass at once.

Promises: safe for many threads; after ``close`` no wait lasts.
"""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Tells and passes time. Seconds, from an origin of its own."""

    def now(self) -> float:
        """The time."""

    def wait(self, seconds: float) -> bool:
        """Let time pass; True when the clock is closed: whoever waits should end."""

    def close(self) -> None:
        """End every wait, now and later."""


class WallClock:
    """The machine's monotonic clock."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def now(self) -> float:
        """See ``Clock``."""
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        """See ``Clock``."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """See ``Clock``."""
        self._closed.set()
