"""One unfinished request: its body so far, its stream's window, its timeout.

A request must be complete ``PATIENCE`` seconds after it began. A request with granted memory must make progress instead, because others
wait for its memory: in every ``PATIENCE`` seconds it must be completed or receive ``SLOWEST`` bytes a second, and it must not pause for
``SILENCE`` seconds. A large announced length does not extend the time.

Promises: pure; ``now`` is any clock's seconds.
"""

from collections.abc import Mapping

FIRST_WINDOW = 4096
"""A stream's initial window: small, so that thousands of large requests may wait for memory."""
BEGINNING = 5
"""Bytes of a request by which gRPC announces its length."""
SMALL_PART = 1024
PATIENCE = 30.0
"""Seconds within which a request must be complete or, if it was granted memory, make progress."""
SILENCE = 10.0
"""Maximum seconds without any byte of a request that was granted memory."""
GRANT_PATIENCE = 60.0
"""Maximum seconds that a large request waits for the server's memory."""
SLOWEST = 256 << 10
"""Minimum bytes a second of a large request."""


class UnfinishedRequest:
    """What was received of a request so far, and the room that its stream's window has for the rest."""

    __slots__ = ("before", "counted", "headers", "heard", "missing", "parts", "patience", "room", "seen", "since", "size", "waits", "whole")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.room = FIRST_WINDOW
        self.whole = 0  # its announced bytes; 0: not known yet
        self.counted = 0
        self.missing = 0  # bytes that its initial window does not admit; 0: none, or not asked for yet
        self.waits = False  # whether these are asked for and not granted yet
        self.patience = PATIENCE
        self.since = -1.0  # when ``patience`` began to run; negative: from the next check on
        self.before = 0  # its size at ``since``
        self.heard = 0.0  # time of the last check at which it had grown
        self.seen = 0  # its size at ``heard``

    def add(self, part: bytes) -> None:
        """Append to the body; small parts are merged, because an object takes more memory than its few bytes."""
        self.size += len(part)
        if len(part) >= SMALL_PART:
            self.parts.append(part)
        elif self.parts and isinstance(self.parts[-1], bytearray):
            self.parts[-1] += part
        else:
            self.parts.append(bytearray(part))

    def beginning(self) -> bytes:
        """The first bytes of the body."""
        return b"".join(self.parts[:BEGINNING])[:BEGINNING]

    def body(self) -> bytes:
        """The whole body."""
        return bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)

    def wait(self) -> None:
        """It waits for the server's memory."""
        self.waits = True
        self.patience, self.since = GRANT_PATIENCE, -1.0

    def admit(self) -> None:
        """The bytes that were missing are granted."""
        self.waits = False
        self.room += self.missing
        self.patience, self.since = PATIENCE, -1.0

    def overdue(self, now: float) -> str:
        """Why it is refused; "" if it may continue."""
        if self.since < 0:
            self._go_on(now)
        if self.size > self.seen:
            self.heard, self.seen = now, self.size
        granted = self.missing > 0 and not self.waits
        if granted and now - self.heard > SILENCE:
            return f"the request is not complete, and no byte of it was received for {SILENCE:g} s, after {self.size} bytes"
        if now - self.since <= self.patience:
            return ""
        if self.waits:
            return f"no memory for a request of {self.whole} bytes within {self.patience:g} s: other large requests are under way"
        if granted and self.size - self.before >= SLOWEST * self.patience:
            self._go_on(now)
            return ""
        return f"the request is not complete after {self.patience:g} s: {self.size - self.before} bytes were received"

    def _go_on(self, now: float) -> None:
        self.since = self.heard = now
        self.before = self.seen = self.size
