"""A registry in memory, as ``binlog_source/cluster/registry.py`` describes one.

Promises: every write is one revision; ``changes`` waits in real time. With ``down`` nothing is answered; ``compact`` forgets what happened so far.
"""

import threading
import time

from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeState, NodeStatus
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable


class FakeRegistry:
    """Safe for many threads."""

    url = "fake://127.0.0.1"

    def __init__(self, cluster: int = 7) -> None:
        self.down = False
        self.asked: list[str] = []
        """The names of the questions so far."""
        self._cluster = cluster
        self._ts = 0
        self._revision = 1
        self._compacted = 0
        self._nodes: dict[str, dict[str, tuple[int, NodeStatus]]] = {kind: {} for kind in KINDS}
        self._written: dict[str, list[NodeStatus]] = {kind: [] for kind in KINDS}
        self._changed = threading.Condition()

    def cluster_id(self) -> int:
        self._ask("cluster_id")
        return self._cluster

    def tso(self, count: int = 1) -> int:
        self._ask("tso")
        self._ts += count
        return self._ts - count + 1

    def gc_safe_point(self) -> int:
        self._ask("gc_safe_point")
        return 0

    def listing(self, kind: str) -> Listing:
        self._ask("listing")
        with self._changed:
            return self._after(kind, 0)

    def changes(self, kind: str, after: int, timeout: float) -> Listing:
        self._ask("changes")
        deadline = time.monotonic() + timeout
        with self._changed:
            if after < self._compacted:
                return self._after(kind, 0)
            while not self._after(kind, after).nodes and not self.down and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if self.down:
                raise PumpUnavailable(f"registry {self.url} does not answer")
            return self._after(kind, after)

    def put_status(self, kind: str, status: NodeStatus) -> None:
        with self._changed:
            self._revision += 1
            self._written[kind].append(status)
            self._nodes[kind][status.node_id] = (self._revision, status)
            self._changed.notify_all()

    def own_state(self, kind: str, node_id: str) -> NodeState | None:
        self._ask("own_state")
        own: NodeStatus | None = None
        for status in (status for status in self._written[kind] if status.node_id == node_id):
            own = status if own is None or status.update_ts != own.update_ts else own
        return own.state if own is not None and not self._compacted else None

    def close(self) -> None:
        pass

    def compact(self) -> None:
        self._compacted = self._revision

    def go_down(self) -> None:
        with self._changed:
            self.down = True
            self._changed.notify_all()

    def _after(self, kind: str, revision: int) -> Listing:
        nodes = [status for _, (written, status) in sorted(self._nodes[kind].items()) if written > revision]
        return Listing(tuple(nodes), self._revision)

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        if self.down:
            raise PumpUnavailable(f"registry {self.url} does not answer")
