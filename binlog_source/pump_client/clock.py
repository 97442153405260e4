"""The client's clock. A test can replace it, to let ten minutes pass at once.

Promises: thread-safe; after ``close`` every wait returns at once.
"""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds, from an arbitrary origin."""

    def now(self) -> float:
        """The current time."""

    def wait(self, seconds: float) -> bool:
        """Wait; True when the clock is closed: the caller should end."""

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
