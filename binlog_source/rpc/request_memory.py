"""Memory for large requests: one cap for all connections of a server.

A stream's first window admits a small request whole. A larger request announces its size, and asks here before its window is opened for
the rest.

Promises: pure. Admitted are at most ``capacity`` bytes, or one request. Requests are admitted in the order in which they asked, so every
request is admitted in the end. A request counts from its admission on, whether its bytes arrive or not.
"""

from collections.abc import Callable, Hashable


class RequestMemory:
    """The memory of one server."""

    def __init__(self, capacity: int = 256 << 20) -> None:
        """``capacity``: bytes."""
        self.capacity = capacity
        self.held = 0
        """Bytes of the admitted requests."""
        self._admitted: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def ask(self, request: Hashable, size: int, admit: Callable[[], None]) -> None:
        """Have ``admit`` called once there is room for a request of ``size`` bytes: now, or during another request's ``forget``."""
        self._waiting[request] = size, admit
        self._serve()

    def forget(self, request: Hashable) -> None:
        """Drop a request, admitted or waiting: it is complete or abandoned."""
        self._waiting.pop(request, None)
        self.held -= self._admitted.pop(request, 0)
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            request, (size, admit) = next(iter(self._waiting.items()))
            if self.held and self.held + size > self.capacity:
                return
            del self._waiting[request]
            self._admitted[request] = size
            self.held += size
            admit()
