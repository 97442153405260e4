"""The client's clock. A test can replace it, to let ten minutes pass at once.

Promises: thread-safe; after ``close`` every wait returns at once.
"""

import threading
import time


class Clock:
    """The machine's monotonic clock, in seconds from an arbitrary origin."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def now(self) -> float:
        """The current time."""
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait; True when the clock is closed: the caller should end."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End every wait, now and later."""
        self._closed.set()
