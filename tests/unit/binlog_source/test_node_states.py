"""The states of a running Drainer: every action in every state."""

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registration import DRAINER_TRANSITIONS, Action, last_state
from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState

ACCEPTED = {
    ("online", "pause"): "pausing", ("pausing", "resume"): "online", ("paused", "resume"): "online",
    ("online", "close"): "closing", ("pausing", "close"): "closing", ("paused", "close"): "closing",
}  # fmt: skip


@pytest.mark.parametrize("state", list(NodeState))
@pytest.mark.parametrize("action", list(Action))
def test_every_action_in_every_state(state: NodeState, action: Action) -> None:
    assert DRAINER_TRANSITIONS.get((state, action)) == ACCEPTED.get((state.value, action.value))


def test_only_a_close_ends_offline() -> None:
    assert {state: last_state(state) for state in NodeState if state is not NodeState.OFFLINE} == {
        NodeState.ONLINE: NodeState.PAUSED,
        NodeState.PAUSING: NodeState.PAUSED,
        NodeState.PAUSED: NodeState.PAUSED,
        NodeState.CLOSING: NodeState.OFFLINE,
    }
