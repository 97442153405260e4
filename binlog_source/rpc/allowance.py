"""An allowance of frames without request data: normal use stays within it, a flood does not (RFC 9113, section 10.5).

Promises: pure; ``now`` is any clock's seconds.
"""

CALM = 8192
"""Maximum allowance."""
CALM_RATE = 256
"""Its refill per second."""


class Allowance:
    """An allowance (a token bucket), refilled by time and by what the server sends."""

    __slots__ = ("_at", "_earned", "_left")

    def __init__(self) -> None:
        self._left = float(CALM)
        self._at = 0.0
        self._earned = 0

    def spend(self, cost: int, now: float, earned: int) -> bool:
        """Spend ``cost``; whether the allowance sufficed. ``earned``: what the server's sending has refilled in total so far."""
        self._left -= cost
        if self._left < 0:
            self._left = min(CALM, self._left + max((now - self._at) * CALM_RATE + earned - self._earned, 0.0))
            self._at, self._earned = now, earned
        return self._left >= 0
