"""The registry's record of a Pump or Drainer, its Status, as the JSON of pump.md 1; and the requests that a registry answers.

Promises: pure. ``to_json`` writes the fields in the order of a real node. ``Registry`` has two implementations: PD (``cluster/pd.py``) and
the standalone one (``cluster/registry_client.py``). ``tests/contract`` checks both.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark_tidb_binlog.schemas.errors import ProtocolViolation

PUMPS = "pumps"
DRAINERS = "drainers"
KINDS = (PUMPS, DRAINERS)


class NodeState(enum.StrEnum):
    """The state that a node registers."""

    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: a Pump with the max commit ts it has sorted, or a Drainer with its checkpoint."""

    node_id: str
    host: str
    """Advertised host:port."""
    state: NodeState = NodeState.ONLINE
    max_commit_ts: int = 0
    update_ts: int = 0
    score: int = 0
    """Weight of a Pump for the Pump client's strategy ``score``; a real node writes 0."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The Status as the JSON object that a node registers."""
        return {
            "nodeId": self.node_id,
            "host": self.host,
            "state": self.state.value,
            "isAlive": False,
            "score": self.score,
            "label": {"labels": dict(self.labels)} if self.labels else None,
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }

    def to_json(self) -> str:
        """The Status as JSON text, no indentation."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Any) -> "NodeStatus":
        """The inverse of ``to_dict``; missing fields are zero, invalid ones raise ``ProtocolViolation``."""
        try:
            return cls(
                node_id=str(data["nodeId"]),
                host=str(data["host"]),
                state=NodeState(data["state"]),
                max_commit_ts=int(data.get("maxCommitTS", 0)),
                update_ts=int(data.get("updateTS", 0)),
                score=int(data.get("score", 0)),
                labels={str(name): str(value) for name, value in ((data.get("label") or {}).get("labels") or {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolViolation(f"the registry holds an invalid node status: {data!r} ({error})") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> "NodeStatus":
        """The inverse of ``to_json``."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ProtocolViolation(f"the registry holds an invalid node status: {text!r}") from error
        return cls.from_dict(data)


@dataclass(frozen=True, slots=True)
class Listing:
    """Some nodes, by node id, and the registry's revision at which they were read."""

    nodes: tuple[NodeStatus, ...]
    revision: int
    unreadable: tuple[str, ...] = ()
    """The ids of nodes that are there with a value that is no Status; only PD's etcd takes such a value."""


class Registry(Protocol):
    """The nodes of a cluster and its clock. Safe for many threads; raises ``PumpUnavailable``, with the URL, if it does not answer."""

    @property
    def url(self) -> str:
        """Its URL, for messages."""

    def cluster_id(self) -> int:
        """The cluster's id."""

    def tso(self, count: int = 1) -> int:
        """The first of ``count`` consecutive new timestamps."""

    def gc_safe_point(self) -> int:
        """MVCC data of the cluster up to this ts may be collected; 0 = none."""

    def tidb_servers(self) -> Mapping[str, str] | None:
        """``ip:status_port`` of every running TiDB server, by its id; None: this registry does not know them."""

    def listing(self, kind: str) -> Listing:
        """Every node of ``kind`` (``pumps`` or ``drainers``) that ever registered."""

    def changes(self, kind: str, after: int, timeout: float) -> Listing:
        """The nodes of ``kind`` written after revision ``after``, each in its newest state.

        Waits until there is one, or ``timeout`` seconds have passed: then ``nodes`` is empty. If the registry no longer has the changes
        since ``after``, it returns all nodes. ``revision`` is the next call's ``after``.
        """

    def put_status(self, kind: str, status: NodeStatus) -> None:
        """Register a node; the last writer wins."""

    def own_state(self, kind: str, node_id: str) -> NodeState | None:
        """The last state that a node registered itself, even if others wrote another state later; None: the registry no longer has it.

        A write of others for the node (binlogctl, ``ctl update-pump``) keeps its ``updateTS``. Every write of the node itself renews it.
        """

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
