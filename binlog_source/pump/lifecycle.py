"""The states of a Pump and their transitions (pump.md 2).

    (any)    --start-->  online
    online   --pause-->  pausing --done--> paused
    online   --close-->  closing --done--> offline
    closing  --pause-->  pausing: the process ends early; the next start is online, as a real Pump's

Promises: pure; a transition that is not in the table is refused.
"""

import enum

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState


class Move(enum.StrEnum):
    """What changes the state of a running Pump."""

    PAUSE = "pause"
    CLOSE = "close"
    DONE = "done"


TRANSITIONS: dict[tuple[NodeState, Move], NodeState] = {
    (NodeState.ONLINE, Move.PAUSE): NodeState.PAUSING,
    (NodeState.CLOSING, Move.PAUSE): NodeState.PAUSING,
    (NodeState.ONLINE, Move.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSING, Move.DONE): NodeState.PAUSED,
    (NodeState.CLOSING, Move.DONE): NodeState.OFFLINE,
}


def after(state: NodeState, move: Move) -> NodeState | None:
    """The next state; None when the move is not allowed."""
    return TRANSITIONS.get((state, move))


def must_notify(before: NodeState | None) -> bool:
    """Whether the Drainers must be notified before a Pump last registered as ``before`` serves: no Drainer reads from it yet."""
    return before is None or before is NodeState.OFFLINE
