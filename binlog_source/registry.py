"""What the registry knows of a Pump or Drainer: its Status, as the JSON of pump.md 1.

Promises: pure; ``to_json`` writes the fields in the order of a real node.
"""

import enum
import json
from dataclasses import dataclass
from typing import Any

from schemas.errors import ProtocolViolation

PUMPS = "pumps"
DRAINERS = "drainers"
KINDS = (PUMPS, DRAINERS)


class NodeState(enum.StrEnum):
    """A node's state as it registers it."""

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

    def to_dict(self) -> dict[str, Any]:
        """The Status as the JSON object that a node registers."""
        return {
            "nodeId": self.node_id,
            "host": self.host,
            "state": self.state.value,
            "isAlive": False,
            "score": 0,
            "label": None,
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }

    def to_json(self) -> str:
        """The Status as JSON text, no indentation."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, data: Any) -> "NodeStatus":
        """The inverse of ``to_dict``; what is missing is zero, what is wrong a ``ProtocolViolation``."""
        try:
            return cls(
                node_id=str(data["nodeId"]),
                host=str(data["host"]),
                state=NodeState(data["state"]),
                max_commit_ts=int(data.get("maxCommitTS", 0)),
                update_ts=int(data.get("updateTS", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolViolation(f"the registry holds no node status: {data!r} ({error})") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> "NodeStatus":
        """The inverse of ``to_json``."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ProtocolViolation(f"the registry holds no node status: {text!r}") from error
        return cls.from_dict(data)
