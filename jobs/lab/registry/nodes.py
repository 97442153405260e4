"""The node states of the standalone registry, with revisions, optionally kept in a file.

Promises: revisions rise with every write and across restarts, even without a file. Each run starts at the milliseconds since 1970, so a
revision of an earlier run is lower. Thread-safe.
"""

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeState, NodeStatus
from pyspark_tidb_binlog.schemas.durable_file import replace_file

_REVISION, _OWN_STATE = "revision", "ownState"


class NodesClosed(Exception):
    """The registry stops, which ends the wait."""


@dataclass(frozen=True, slots=True)
class _Written:
    status: NodeStatus
    revision: int
    own_state: NodeState | None
    """That which the node registered last itself; None: unknown."""


class Nodes:
    """The node states, by kind and id. The file has per kind a list of Status objects, each with the ``revision`` of its write and ``ownState``."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._closed = False
        self._nodes: dict[str, dict[str, _Written]] = {kind: {} for kind in KINDS}
        if path is not None and path.exists():
            self._load(path)
        newest = max((node.revision for nodes in self._nodes.values() for node in nodes.values()), default=0)
        self._revision = max(newest, time.time_ns() // 1_000_000)

    def listing(self, kind: str) -> Listing:
        """The states of a kind."""
        with self._changed:
            return self._after(kind, 0)

    def changes(self, kind: str, after: int, timeout: float) -> Listing:
        """See ``Registry.changes``.

        Raises:
            NodesClosed: ``close`` was called.
        """
        with self._changed:
            if after > self._revision:
                return self._after(kind, 0)
            self._changed.wait_for(lambda: self._closed or self._after(kind, after).nodes, timeout)
            if self._closed:
                raise NodesClosed
            return self._after(kind, after)

    def put(self, kind: str, status: NodeStatus) -> None:
        """Set one state."""
        with self._changed:
            self._revision += 1
            before = self._nodes[kind].get(status.node_id)
            own_state = status.state if before is None or before.status.update_ts != status.update_ts else before.own_state
            self._nodes[kind][status.node_id] = _Written(status, self._revision, own_state)
            if self._path is not None:
                self._save(self._path)
            self._changed.notify_all()

    def own_state(self, kind: str, node_id: str) -> NodeState | None:
        """See ``Registry.own_state``."""
        with self._changed:
            written = self._nodes[kind].get(node_id)
            return written.own_state if written is not None else None

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _after(self, kind: str, revision: int) -> Listing:
        fresh = (node.status for _, node in sorted(self._nodes[kind].items()) if node.revision > revision)
        return Listing(tuple(fresh), self._revision)

    def _load(self, path: Path) -> None:
        for kind, items in json.loads(path.read_text()).items():
            read = [_Written(NodeStatus.from_dict(item), int(item.get(_REVISION, 1)), _state(item.get(_OWN_STATE))) for item in items]
            self._nodes[kind] = {node.status.node_id: node for node in read}

    def _save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            kind: [node.status.to_dict() | {_REVISION: node.revision, _OWN_STATE: node.own_state} for node in nodes.values()]
            for kind, nodes in self._nodes.items()
        }
        replace_file(path, json.dumps(content))


def _state(text: str | None) -> NodeState | None:
    return NodeState(text) if text else None
