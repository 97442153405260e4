"""Memory for unfinished requests: one budget for a server, a share of it for each connection.

    small   fits a stream's initial window: counted as it arrives; above one half of the budget, a request must be refused
    large   announces more, and asks for the rest: its window is opened, in turn, when the other half has room
    huge    one at a time for the whole server, outside the budget, so that a binlog of any size passes

Promises: pure. Grants never exceed their half, and bytes that arrived without a grant never delay them. A connection has at most a quarter
of the budget in grants, so that no connection can block all others. Addresses take turns, the least recently served first. A grant is
charged to the budget at once, whether its bytes arrive or not.
"""

from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.rpc.serving_order import ServingOrder

DEFAULT_CAPACITY = 256 << 20


class Budget:
    """The budget of one server."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """``capacity``: bytes."""
        self.capacity = capacity
        self.counted = 0
        """Bytes that arrived without a grant."""
        self.excused = 0
        """Bytes of requests whose remainder the server has not yet allowed. The server holds them back, not the client."""
        self.lent = 0
        """Bytes granted."""
        self.waiting: dict[str, dict[tuple[Share, int], int]] = {}
        """Bytes asked for and not granted yet, by owner, in order of arrival."""
        self._huge: tuple[Share, int] | None = None
        self._turns = ServingOrder()  # of owners
        self.full = False
        """Whether a request waits for room in the server's budget."""

    @property
    def _largest(self) -> int:
        """Bytes above which a request is huge."""
        return self.capacity // 4

    def is_huge(self, amount: int) -> bool:
        """Whether a request for so many bytes is admitted outside the budget, one at a time."""
        return amount > self._largest

    @property
    def held(self) -> int:
        """Bytes in use, the huge request excluded."""
        return self.counted + self.lent

    @property
    def overdrawn(self) -> bool:
        """Whether more bytes arrived without a grant than there is room for."""
        return self.counted > self.capacity // 2

    def ask(self, share: "Share", stream_id: int, amount: int) -> bool:
        """Ask for room for the rest of a request; False: ``share.granted`` is called once there is room."""
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
        """Drop what a request asked for or was granted: it is complete or abandoned."""
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
        """Grant what fits. No request overtakes a request that waits for the budget. A request that waits for its share may be overtaken."""
        self.full = False
        if not self.waiting:
            return
        fit = self._that_fit()
        for key in fit:
            self._wait_no_more(key)
        for share, stream_id in fit:
            share.granted(stream_id)

    def _that_fit(self) -> list[tuple["Share", int]]:
        """Grant what there is room for; the requests that were granted."""
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
    """The share of one connection."""

    def __init__(self, budget: Budget, granted: Callable[[int], None], owner: str = "") -> None:
        """``granted`` is called with the id of a stream that waited and has room; ``owner``: the client's address."""
        self.budget = budget
        self.owner = owner
        self.granted = granted
        self.counted = self.excused = self.lent = 0
        """As in ``Budget``, for this connection."""
        self.grants: dict[int, int] = {}
        """Granted bytes by stream, arrived or not."""

    @property
    def held(self) -> int:
        """Bytes of the budget that this connection uses."""
        return self.counted + self.lent

    @property
    def idle(self) -> int:
        """Bytes that arrived without a grant, of requests that did not ask for one."""
        return self.counted - self.excused

    def count(self, size: int, *, asked: bool = False) -> None:
        """Count bytes that arrived or, if negative, were freed; ``asked``: of a request that asked for the rest."""
        self.counted += size
        self.budget.counted += size
        if asked:
            self.excuse(size)

    def excuse(self, size: int) -> None:
        """Note that ``size`` of the counted bytes belong to a request that asks for the rest now."""
        self.excused += size
        self.budget.excused += size

    def ask(self, stream_id: int, amount: int) -> bool:
        """Ask for room for the rest of a request; False: ``granted`` is called later."""
        return self.budget.ask(self, stream_id, amount)

    def release(self, stream_id: int, counted: int, *, asked: bool) -> None:
        """Release a request that is complete or abandoned; ``counted`` of its bytes arrived without a grant."""
        self.count(-counted, asked=asked)
        if asked:
            self.budget.forget(self, stream_id)
        if asked or self.budget.full:
            self.budget.serve()

    def close(self) -> None:
        """Release everything: the connection is closed."""
        self.granted = _nobody
        self.count(-self.counted)
        self.excuse(-self.excused)
        line = self.budget.waiting.get(self.owner, {})
        for stream_id in {*self.grants, *(stream_id for share, stream_id in line if share is self)}:
            self.budget.forget(self, stream_id)
        self.budget.serve()


def _nobody(stream_id: int) -> None:
    """Ignore a grant to a closed connection."""
