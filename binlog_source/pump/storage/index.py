"""Where each timestamp's record lies: an ordered map ts -> (kind, place, length).

Promises: ``Index`` is what the store asks for; ``MemoryIndex`` holds it in sorted arrays, 21 bytes a record, rebuilt by a scan of the log at open.
One writer, any number of readers at a time.
"""

import bisect
import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import Kind

_OFFSET_BITS = 40


class Entry(NamedTuple):
    """One record that is found by its ts."""

    ts: int
    kind: Kind
    at: Pointer
    length: int
    """Bytes of the record, header included."""


class Index(Protocol):
    """An ordered map from ts to the place of a record; a later entry with the same ts replaces the earlier one."""

    def put(self, entries: Iterable[Entry]) -> None:
        """Enter records."""

    def get(self, ts: int) -> Entry | None:
        """The record with this ts."""

    def delivered(self, after: int, upto: int, limit: int) -> Sequence[Entry]:
        """At most ``limit`` Commits and fakes with ``after < ts <= upto``, ascending."""


class MemoryIndex:
    """Sorted arrays in memory. Timestamps arrive nearly in order, so that an insertion moves few entries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ts = array("q")
        self._kinds = array("B")
        self._places = array("Q")
        self._lengths = array("I")

    def put(self, entries: Iterable[Entry]) -> None:
        """See ``Index``."""
        with self._lock:
            for ts, kind, at, length in entries:
                place = at.file_id << _OFFSET_BITS | at.offset
                position = len(self._ts)
                if position and ts <= self._ts[-1]:
                    position = bisect.bisect_left(self._ts, ts)
                    if self._ts[position] == ts:
                        self._kinds[position], self._places[position], self._lengths[position] = kind, place, length
                        continue
                self._ts.insert(position, ts)
                self._kinds.insert(position, kind)
                self._places.insert(position, place)
                self._lengths.insert(position, length)

    def get(self, ts: int) -> Entry | None:
        """See ``Index``."""
        with self._lock:
            position = bisect.bisect_left(self._ts, ts)
            if position < len(self._ts) and self._ts[position] == ts:
                return self._entry(position)
            return None

    def delivered(self, after: int, upto: int, limit: int) -> Sequence[Entry]:
        """See ``Index``."""
        found: list[Entry] = []
        with self._lock:
            position = bisect.bisect_right(self._ts, after)
            end = bisect.bisect_right(self._ts, upto)
            while position < end and len(found) < limit:
                if self._kinds[position] in (Kind.COMMIT, Kind.FAKE):
                    found.append(self._entry(position))
                position += 1
        return found

    def __len__(self) -> int:
        """Records held."""
        return len(self._ts)

    def _entry(self, position: int) -> Entry:
        place = self._places[position]
        at = Pointer(place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1))
        return Entry(self._ts[position], Kind(self._kinds[position]), at, self._lengths[position])
