"""The bounded queue between value log and index: the records that are in the log and not yet in the index.

Promises: the order is kept. ``put`` takes all of its steps or none. Memory is bounded by the capacity and one group.
"""

import threading
from collections import deque
from collections.abc import Sequence

from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import LogRecord


class Backlog:
    """A queue of groups of steps, bounded by the number of steps."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._groups: deque[Sequence[LogRecord]] = deque()
        self._size = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._size

    def put(self, steps: Sequence[LogRecord], timeout: float) -> bool:
        """Add a group; False when there was no room for ``timeout`` seconds. An empty queue accepts a group of any size."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.has_room(len(steps)) or self._closed, timeout):
                return False
            self._groups.append(steps)
            self._size += len(steps)
            self._changed.notify_all()
            return True

    def has_room(self, count: int) -> bool:
        """Whether a group of ``count`` steps would be added at once."""
        return not self._size or self._size + count <= self._capacity

    def take(self, limit: int) -> list[LogRecord]:
        """Wait for steps and take at most ``limit``; none when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._groups or self._closed)
            taken: list[LogRecord] = []
            while self._groups and len(taken) < limit:
                group = self._groups.popleft()
                room = limit - len(taken)
                if len(group) > room:
                    self._groups.appendleft(group[room:])
                taken.extend(group[:room])
            self._size -= len(taken)
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Have ``take`` return at once from now on; queued steps can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
