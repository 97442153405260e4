"""Memory for requests that are not complete: one budget for a server, a share of it for each connection.

    small   what every stream's first window admits is counted as it comes; over one half of the budget, somebody must make room
    large   a request that says that it is longer asks for the rest; its window is opened when the other half has room, in turn
    huge    one at a time for the whole server, beside the budget: so that a binlog of any size passes

Promises: pure. Grants never pass their half, and what came unasked never keeps them waiting. A connection has at most a quarter of the budget in
grants, so that no one keeps the others waiting alone; addresses take turns, the one first whose last turn is the longest ago. What is granted is
taken from the budget at once, whether its bytes come or not.
"""

from collections.abc import Callable

from binlog_source.rpc.turns import Turns

DEFAULT_CAPACITY = 256 << 20


class Budget:
    """One server's."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """``capacity``: bytes."""
        self.capacity = capacity
        self.counted = 0
        """Bytes that came without having been asked for."""
        self.excused = 0
        """Of these, what belongs to requests whose rest was asked for: they wait for us."""
        self.lent = 0
        """Bytes that were granted."""
        self.waiting: dict[str, dict[tuple[Share, int], int]] = {}
        """Bytes asked for and not granted yet, in turn, by owner."""
        self._huge: tuple[Share, int] | None = None
        self._turns = Turns()  # of owners
        self.full = False
        """Whether somebody waits for the server's room."""

    @property
    def _largest(self) -> int:
        """Bytes of a request from which on it is huge."""
        return self.capacity // 4

    @property
    def held(self) -> int:
        """Bytes, without the huge request's."""
        return self.counted + self.lent

    @property
    def overdrawn(self) -> bool:
        """Whether more came unasked than there is room for."""
        return self.counted > self.capacity // 2

    def ask(self, share: "Share", stream_id: int, amount: int) -> bool:
        """Room for a request's rest; False: ``share.granted`` tells when there is."""
        key = (share, stream_id)
        if not self._fits(share, amount):
            self.waiting.setdefault(share.owner, {})[key] = amount
            return False
        self._lend(key, amount)
        return True

    def _fits(self, share: "Share", amount: int) -> bool:
        if amount > self._largest:
            return self._huge is None
        if share.lent + amount > self._largest:
            return False
        self.full = self.full or self.lent + amount > self.capacity // 2
        return not self.full

    def _lend(self, key: tuple["Share", int], amount: int) -> None:
        share, stream_id = key
        share.grants[stream_id] = amount
        self._turns.took(share.owner)
        if amount > self._largest:
            self._huge = key
        else:
            self.lent += amount
            share.lent += amount

    def forget(self, share: "Share", stream_id: int) -> None:
        """The request is complete, or given up: whatever it asked for or was granted."""
        key = (share, stream_id)
        self._wait_no_more(key)
        amount = share.grants.pop(stream_id, 0)
        if self._huge == key:
            self._huge = None
        elif amount:
            self.lent -= amount
            share.lent -= amount

    def _wait_no_more(self, key: tuple["Share", int]) -> None:
        owner = key[0].owner
        line = self.waiting.get(owner)
        if line is not None and line.pop(key, None) is not None and not line:
            del self.waiting[owner]

    def serve(self) -> None:
        """Grant what there is room for now. Who waits for the server's room is not overtaken; who waits for its own connection's is."""
        self.full = False
        if not self.waiting:
            return
        fit = self._that_fit()
        for key in fit:
            self._wait_no_more(key)
        for share, stream_id in fit:
            share.granted(stream_id)

    def _that_fit(self) -> list[tuple["Share", int]]:
        """Who is granted something now."""
        fit = []
        for owner in sorted(self.waiting, key=self._turns.order()):
            for key, amount in self.waiting[owner].items():
                if self._fits(key[0], amount):
                    self._lend(key, amount)
                    fit.append(key)
                elif self.full and self._huge is not None:
                    return fit
        return fit


class Share:
    """One connection's."""

    def __init__(self, budget: Budget, granted: Callable[[int], None], owner: str = "") -> None:
        """``granted`` is called with the stream for which there is room at last; ``owner``: the client's address."""
        self.budget = budget
        self.owner = owner
        self.granted = granted
        self.counted = self.excused = self.lent = 0
        """As in the budget."""
        self.grants: dict[int, int] = {}
        """Bytes by stream, whether they have come or not."""

    @property
    def held(self) -> int:
        """Bytes of the budget that are this connection's."""
        return self.counted + self.lent

    @property
    def idle(self) -> int:
        """Bytes that came unasked, and whose client does not wait for us."""
        return self.counted - self.excused

    def count(self, size: int, *, asked: bool = False) -> None:
        """Bytes came, or (negative) are gone; ``asked``: of a request whose rest was asked for."""
        self.counted += size
        self.budget.counted += size
        if asked:
            self.excuse(size)

    def excuse(self, size: int) -> None:
        """So many of the bytes that were counted belong to a request whose rest is asked for now."""
        self.excused += size
        self.budget.excused += size

    def ask(self, stream_id: int, amount: int) -> bool:
        """Room for the rest of a request; False: later."""
        return self.budget.ask(self, stream_id, amount)

    def release(self, stream_id: int, counted: int, *, asked: bool) -> None:
        """A request is complete, or given up; ``counted`` of it came without having been asked for."""
        self.count(-counted, asked=asked)
        if asked:
            self.budget.forget(self, stream_id)
        if asked or self.budget.full:
            self.budget.serve()

    def close(self) -> None:
        """The connection is gone."""
        self.granted = _nobody
        self.count(-self.counted)
        self.excuse(-self.excused)
        line = self.budget.waiting.get(self.owner, {})
        for stream_id in {*self.grants, *(stream_id for share, stream_id in line if share is self)}:
            self.budget.forget(self, stream_id)
        self.budget.serve()


def _nobody(stream_id: int) -> None:
    """Nobody is there any more to be told."""
