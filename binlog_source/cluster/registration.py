"""The entry of one Pump or Drainer in the registry: its address, its state, and how far it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus, Registry


@dataclass(frozen=True, slots=True)
class Registration:
    """One node's entry."""

    registry: Registry
    kind: str
    """``PUMPS`` or ``DRAINERS``."""
    node_id: str
    address: str
    """``host:port`` at which other nodes reach it."""
    commit_ts: Callable[[], int]
    """A Pump's sorted promise, a Drainer's checkpoint."""
    score: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def put(self, state: NodeState) -> None:
        """Register the node in this state.

        Raises:
            PumpUnavailable: the registry does not answer.
        """
        status = NodeStatus(self.node_id, self.address, state, self.commit_ts(), self.registry.tso(), self.score, dict(self.labels))
        self.registry.put_status(self.kind, status)
