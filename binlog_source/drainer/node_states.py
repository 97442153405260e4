"""The states of a running Drainer and the actions of ``PUT /state/{nodeID}/{action}``.

    online   --pause-->  pausing --rested-->  paused
    pausing, paused --resume--> online
    online, pausing, paused --close--> closing

A pause keeps the process: the stream stops between two batches, and HTTP and gRPC continue. (A real Drainer ends its process, has no
resume, and accepts ``close`` only while it is online.) When the process ends, a closing Drainer is registered as ``offline``, any other as
``paused``.

Promises: pure; an action that is not in the table is refused.
"""

import enum

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState


class Action(enum.StrEnum):
    """What an operator asks for."""

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"


_AFTER = {
    (NodeState.ONLINE, Action.PAUSE): NodeState.PAUSING,
    (NodeState.PAUSING, Action.RESUME): NodeState.ONLINE,
    (NodeState.PAUSED, Action.RESUME): NodeState.ONLINE,
    (NodeState.ONLINE, Action.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSING, Action.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSED, Action.CLOSE): NodeState.CLOSING,
}


def state_after(state: NodeState, action: Action) -> NodeState | None:
    """The state that follows at once; None when the action is refused."""
    return _AFTER.get((state, action))


def last_state(state: NodeState) -> NodeState:
    """What a Drainer in ``state`` registers when its process ends."""
    return NodeState.OFFLINE if state is NodeState.CLOSING else NodeState.PAUSED
