"""Memory for requests that are not complete: one budget for a server, a share of it for each connection.

    small   what every stream's first window admits is counted as it comes; over the budget, the greediest connection must go
    large   a request that says that it is longer asks for the rest; its window is opened when that is granted, in turn
    huge    one at a time for the whole server, beside the budget: so that a binlog of any size passes

Promises: pure. ``held`` never passes ``capacity`` by grants. A connection has at most a quarter of it in grants, so that no one
keeps the others waiting alone. What is granted is taken from the budget at once, whether its bytes come or not.
"""

from collections.abc import Callable

DEFAULT_CAPACITY = 256 << 20


class Budget:
    """One server's."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """``capacity``: bytes."""
        self.capacity = capacity
        self.held = 0
        self.waiting: dict[tuple[Share, int], int] = {}
        """Bytes asked for and not granted yet, in turn."""
        self._huge: tuple[Share, int] | None = None
        self.full = False
        """Whether somebody waits for the server's room."""

    @property
    def _largest(self) -> int:
        """Bytes of a request from which on it is huge."""
        return self.capacity // 4

    @property
    def overdrawn(self) -> bool:
        """Whether more is held than there should be."""
        return self.held > self.capacity

    def ask(self, share: "Share", stream_id: int, amount: int) -> bool:
        """Room for a request's rest; False: ``share.granted`` tells when there is."""
        key = (share, stream_id)
        if not self._fits(share, amount):
            self.waiting[key] = amount
            return False
        self._lend(key, amount)
        return True

    def _fits(self, share: "Share", amount: int) -> bool:
        if amount > self._largest:
            return self._huge is None
        if share.lent + amount > self._largest:
            return False
        self.full = self.full or self.held + amount > self.capacity
        return not self.full

    def _lend(self, key: tuple["Share", int], amount: int) -> None:
        share, stream_id = key
        share.grants[stream_id] = amount
        if amount > self._largest:
            self._huge = key
        else:
            self.held += amount
            share.lent += amount

    def forget(self, share: "Share", stream_id: int) -> None:
        """The request is complete, or given up: whatever it asked for or was granted."""
        key = (share, stream_id)
        self.waiting.pop(key, None)
        amount = share.grants.pop(stream_id, 0)
        if self._huge == key:
            self._huge = None
        elif amount:
            self.held -= amount
            share.lent -= amount

    def serve(self) -> None:
        """Grant what there is room for now. Who waits for the server's room is not overtaken; who waits for its own connection's is."""
        self.full = False
        for key, amount in list(self.waiting.items()):
            share, stream_id = key
            if self._fits(share, amount):
                del self.waiting[key]
                self._lend(key, amount)
                share.granted(stream_id)


class Share:
    """One connection's."""

    def __init__(self, budget: Budget, granted: Callable[[int], None]) -> None:
        """``granted`` is called with the stream for which there is room at last."""
        self.budget = budget
        self.granted = granted
        self.counted = 0
        """Bytes that came without having been asked for."""
        self.lent = 0
        self.grants: dict[int, int] = {}
        """Bytes by stream, whether they have come or not."""

    @property
    def held(self) -> int:
        """Bytes of the budget that are this connection's."""
        return self.counted + self.lent

    def count(self, size: int) -> None:
        """Bytes came, or (negative) are gone."""
        self.counted += size
        self.budget.held += size

    def ask(self, stream_id: int, amount: int) -> bool:
        """Room for the rest of a request; False: later."""
        return self.budget.ask(self, stream_id, amount)

    def release(self, stream_id: int, counted: int, *, asked: bool) -> None:
        """A request is complete, or given up; ``counted`` of it came without having been asked for."""
        self.count(-counted)
        if asked:
            self.budget.forget(self, stream_id)
        if asked or self.budget.full:
            self.budget.serve()

    def close(self) -> None:
        """The connection is gone."""
        self.granted = _nobody
        self.count(-self.counted)
        for stream_id in {*self.grants, *(stream_id for share, stream_id in self.budget.waiting if share is self)}:
            self.budget.forget(self, stream_id)
        self.budget.serve()


def _nobody(stream_id: int) -> None:
    """Nobody is there any more to be told."""
