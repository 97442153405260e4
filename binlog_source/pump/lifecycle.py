"""The states of a Pump and what moves it from one to the next (pump.md 2).

    (any)    --start-->  online
    online   --pause-->  pausing --done--> paused
    online   --close-->  closing --done--> offline

Promises: pure; what the table does not hold is refused.
"""

import enum

from binlog_source.cluster.registry import NodeState


class Move(enum.StrEnum):
    """What may happen to a Pump that runs."""

    PAUSE = "pause"
    CLOSE = "close"
    DONE = "done"


TRANSITIONS: dict[tuple[NodeState, Move], NodeState] = {
    (NodeState.ONLINE, Move.PAUSE): NodeState.PAUSING,
    (NodeState.ONLINE, Move.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSING, Move.DONE): NodeState.PAUSED,
    (NodeState.CLOSING, Move.DONE): NodeState.OFFLINE,
}


def after(state: NodeState, move: Move) -> NodeState | None:
    """The next state; None when the move is not allowed."""
    return TRANSITIONS.get((state, move))


def must_notify(before: NodeState | None) -> bool:
    """Whether Drainers must be told before a Pump whose last registered state was ``before`` serves: none of them reads from it."""
    return before is None or before is NodeState.OFFLINE
