"""A group of requests that one append writes: how many go together, and the result that each gets. Pure.

Promises: a group has at least one request. A small request waits for no large one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record

_GROUP_BYTES = 1 << 20
SMALL_BYTES = 128 << 10
"""A group with a first request of at most this size takes only this much more: small requests do not wait for large ones (pump.md 4.4)."""


class WriteRequest:
    """Records to be written together; ``done`` is called on the thread that writes, with all requests of the group that share it."""

    __slots__ = ("begun", "done", "error", "records", "size", "call")

    def __init__(self, records: Sequence[Record], done: Callable[[list["WriteRequest"]], None], call: object = None) -> None:
        self.records = records
        self.done = done
        self.call = call
        self.size = sum(len(record.payload) for record in records)
        self.error: OSError | None = None
        """Why the write failed; None: all of it is durable."""
        self.begun = time.perf_counter()


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """The sizes and times of one group, for the metrics. Bytes and seconds."""

    requests: Sequence[WriteRequest]
    size: int
    write: float
    """The whole write, ``fsync`` included."""
    fsync: float
    rotated: bool


def group_of(requests: Sequence[WriteRequest]) -> int:
    """How many of the requests, from the first on, are written together."""
    size = requests[0].size
    limit = size + SMALL_BYTES if size <= SMALL_BYTES else _GROUP_BYTES
    count = 1
    while count < len(requests) and size < limit:
        size += requests[count].size
        count += 1
    return count


def refuse(group: Sequence[WriteRequest], durable: int, error: OSError) -> None:
    """Set the error of the requests whose records are not all among the first ``durable`` ones of their group."""
    for request in group:
        durable -= len(request.records)
        if durable < 0:
            request.error = error
