"""Inflates compressed requests in a thread of its own: a few bytes may become 2 GiB.

    lane of the large   one request after the other; each is charged to the server's ``Budget`` with the size in its gzip trailer
    lane of the huge    the same for requests that the budget admits one at a time and does not count (``Budget.is_huge``)

Promises: all methods are for the loop's thread, and none of them inflates. A request is inflated no further than to its announced size and
the limit. Addresses take turns. A request that waits for ``WAIT_SECONDS`` is refused. The waiting bytes are bounded: above a quarter of the
budget, the newest request of the address with the most bytes is refused. The memory is given back when the message was handled (``end``).
"""

import enum
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark_tidb_binlog.binlog_source.rpc.budget import Budget, Share
from pyspark_tidb_binlog.binlog_source.rpc.calls import Loop
from pyspark_tidb_binlog.binlog_source.rpc.grpc_message import RESOURCE_EXHAUSTED, UNAVAILABLE, Refusal, announced_size, inflated
from pyspark_tidb_binlog.binlog_source.rpc.serving_order import ServingOrder

WAIT_SECONDS = 60.0
"""Maximum seconds that a compressed request waits for its turn and for memory."""
_OVERHEAD = 1024
"""Bytes that a waiting request takes beside its own."""
_ONE = 1
"""The key of a lane's grant: it has one at most."""

_log = logging.getLogger(__name__)

Deliver = Callable[[bytes | Refusal], None]


class _Stage(enum.Enum):
    """Where a request is."""

    WAITING = enum.auto()
    INFLATING = enum.auto()
    DELIVERED = enum.auto()
    ENDED = enum.auto()


class Inflation:
    """One compressed request. Call ``end`` once: when its message was handled, or is no longer wanted."""

    __slots__ = ("_lane", "deliver", "limit", "owner", "packed", "since", "stage", "unwanted")

    def __init__(self, lane: "_Lane", owner: str, packed: bytes, limit: int, deliver: Deliver) -> None:
        self._lane = lane
        self.owner = owner
        self.packed = packed
        self.limit = limit
        self.deliver = deliver
        self.since = 0.0
        """When it began to wait."""
        self.stage = _Stage.WAITING
        self.unwanted = False
        """Whether its client has left: read by the thread, which then ends soon."""

    @property
    def size(self) -> int:
        """Bytes of memory while it waits."""
        return len(self.packed) + _OVERHEAD

    def end(self) -> None:
        """Give back its memory."""
        self.unwanted = True
        if self.stage is not _Stage.INFLATING:
            self._lane.leave(self)


class Inflater:
    """The compressed requests of one server."""

    def __init__(self, name: str, budget: Budget, loop: Loop) -> None:
        self._budget = budget
        self._large, self._huge = (_Lane(f"{name} inflates {what}", budget, loop) for what in ("large", "huge"))

    def take(self, owner: str, packed: bytes, limit: int, deliver: Deliver) -> Inflation:
        """Have a message inflated to at most ``limit`` bytes; ``deliver`` is called later, on the loop's thread. ``owner``: the client's address."""
        lane = self._huge if self._budget.is_huge(min(announced_size(packed), limit)) else self._large
        return lane.add(Inflation(lane, owner, packed, limit, deliver))

    def look(self) -> None:
        """Refuse what has waited for too long; called every now and then."""
        self._large.look()
        self._huge.look()

    def close(self) -> None:
        """End the threads, once nothing is wanted any more."""
        self._large.close()
        self._huge.close()


class _Lane:
    """Requests of which one at a time is inflated."""

    def __init__(self, name: str, budget: Budget, loop: Loop) -> None:
        self._budget = budget
        self._loop = loop
        self._share = Share(budget, lambda _: self._start(), name)
        self._line: dict[str, deque[Inflation]] = {}
        self._waiting = 0
        """Bytes in the line."""
        self._turns = ServingOrder()
        self._first: Inflation | None = None
        """The one that is inflated, or waits for the budget only."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def add(self, one: Inflation) -> Inflation:
        one.since = self._loop.now()
        self._line.setdefault(one.owner, deque()).append(one)
        self._waiting += one.size
        while self._waiting > self._budget.capacity // 4 and sum(map(len, self._line.values())) > 1:
            most = max(self._line.values(), key=lambda own: sum(other.size for other in own))
            self._refuse(most[-1], "too many compressed requests wait")
        self._next()
        return one

    def look(self) -> None:
        now = self._loop.now()
        waiting = [one for own in self._line.values() for one in own]
        if self._first is not None and self._first.stage is _Stage.WAITING:
            waiting.append(self._first)
        for one in waiting:
            if now - one.since > WAIT_SECONDS:
                self._refuse(one, f"it has waited for {WAIT_SECONDS:g} s")

    def leave(self, one: Inflation) -> None:
        """A request that is not inflated at the moment ends."""
        if one.stage is _Stage.ENDED:
            return
        one.stage = _Stage.ENDED
        if one is self._first:
            self._first = None
            self._share.release(_ONE, 0, asked=True)
            self._next()
        else:
            own = self._line[one.owner]
            own.remove(one)
            self._waiting -= one.size
            if not own:
                del self._line[one.owner]

    def _refuse(self, one: Inflation, why: str) -> None:
        text = f"no memory for a compressed request of {announced_size(one.packed)} bytes: {why}"
        # not at once: who has just handed it over does not know it yet
        self._loop.call(one.deliver, Refusal(UNAVAILABLE, text))
        self.leave(one)

    def _next(self) -> None:
        if self._first is not None or not self._line:
            return
        owner = min(self._line, key=self._turns.order())
        self._turns.took(owner)
        one = self._line[owner].popleft()
        self._waiting -= one.size
        if not self._line[owner]:
            del self._line[owner]
        self._first = one
        if self._share.ask(_ONE, min(announced_size(one.packed), one.limit)):
            self._start()

    def _start(self) -> None:
        assert self._first is not None
        self._first.stage = _Stage.INFLATING
        self._pool.submit(self._inflate, self._first)

    def _inflate(self, one: Inflation) -> None:
        """In the lane's thread."""
        found: bytes | Refusal
        try:
            found = inflated(one.packed, one.limit, lambda: not one.unwanted)
        except Refusal as refusal:
            found = refusal
        except MemoryError:
            _log.warning("no memory for a compressed request of %d bytes", announced_size(one.packed))
            found = Refusal(RESOURCE_EXHAUSTED, "no memory to decompress the received message")
        self._loop.call(self._inflated, one, found)

    def _inflated(self, one: Inflation, found: bytes | Refusal) -> None:
        one.stage = _Stage.DELIVERED
        if one.unwanted:
            self.leave(one)
        else:
            one.deliver(found)

    def close(self) -> None:
        self._pool.shutdown()
