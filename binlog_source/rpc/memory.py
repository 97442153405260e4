"""Memory for large messages: one cap for all that a server receives, another for all that its pulls read.

Promises: thread-safe. Admitted are at most ``capacity`` bytes, or one message. Messages are admitted in the order in which they asked, so
every message is admitted in the end. A message counts from its admission on, for ``stall`` seconds at most: a client that does not read
delays the others, and never stops them.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable


class BoundedMemory:
    """The memory of one server."""

    def __init__(self, capacity: int = 256 << 20, stall: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        """``capacity``: bytes; ``stall``, ``clock``: seconds."""
        self.capacity = capacity
        self._stall = stall
        self._clock = clock
        self._lock = threading.RLock()
        self._admitted: dict[Hashable, tuple[int, float]] = {}  # bytes, and since when
        self._waiting: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    @property
    def held(self) -> int:
        """Bytes of the admitted messages that count."""
        with self._lock:
            return sum(size for size, since in self._admitted.values() if self._clock() - since < self._stall)

    def holds(self, message: Hashable) -> bool:
        """Whether a message is admitted."""
        return message in self._admitted

    def ask(self, message: Hashable, size: int, admit: Callable[[], None]) -> None:
        """Have ``admit`` called once there is room for a message of ``size`` bytes: now, or during a later ``forget`` or ``serve``."""
        with self._lock:
            self._waiting[message] = size, admit
            self.serve()

    def forget(self, message: Hashable) -> None:
        """Drop a message, admitted or waiting: it is complete or abandoned."""
        with self._lock:
            self._waiting.pop(message, None)
            self._admitted.pop(message, None)
            self.serve()

    def serve(self) -> None:
        """Admit those for which there is room."""
        with self._lock:
            while self._waiting:
                message, (size, admit) = next(iter(self._waiting.items()))
                held = self.held
                if held and held + size > self.capacity:
                    return
                del self._waiting[message]
                self._admitted[message] = size, self._clock()
                admit()
