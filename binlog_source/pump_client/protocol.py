"""The interface of a Pump client that TiDB needs; ``PumpClient`` implements it.

Promises: ``prewrite`` returns when the Prewrite is durable, or raises ``PumpUnavailable``. Outcomes never fail.
"""

from collections.abc import Callable
from typing import Protocol

Sent = Callable[[str], None]
"""Called with the node id of a Pump each time a Prewrite was sent to it, before the answer. Runs in the writing thread."""


def ignore_sent(node_id: str) -> None:
    """Ignore what was sent."""


class BinlogClient(Protocol):
    """Writes one cluster's binlogs. Safe for many threads."""

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""

    def prewrite(self, start_ts: int, payload: bytes, sent: Sent = ignore_sent) -> None:
        """Write a Prewrite and wait until a Pump has it; ``PumpUnavailable`` when none accepts it."""

    def outcome(self, start_ts: int, payload: bytes) -> None:
        """Write a Commit or Rollback, in the background, to the Pump that has the Prewrite."""

    def duplicate(self, start_ts: int, payload: bytes) -> bool:
        """Write a Prewrite that one Pump has to another Pump, too, as a retry after a timeout does. Returns whether another accepted it."""

    def forget(self, start_ts: int) -> None:
        """No outcome of this transaction will follow."""

    def flush(self, timeout: float = 30.0) -> None:
        """Wait, ``timeout`` seconds at most, until every outcome is written; ``PumpUnavailable`` when a Pump does not accept its own."""

    def close(self) -> None:
        """Stop writing; outcomes that are not written yet are lost."""
