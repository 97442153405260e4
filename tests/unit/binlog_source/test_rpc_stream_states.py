"""The life cycle of a stream (RFC 9113, section 5.1): every entry of the table, as a connection's streams go through it."""

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.http2 import Connection
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, LocalProtocolError, RemoteConnectionError, RemoteStreamError
from pyspark_tidb_binlog.binlog_source.rpc.stream_states import (
    CLOSED,
    DATA_RECEIVED,
    END_STREAM_RECEIVED,
    END_STREAM_SENT,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    HEADERS_RECEIVED,
    IDLE,
    NEXT,
    OPEN,
    RESET,
    RST_STREAM_RECEIVED,
    RST_STREAM_SENT,
    VIOLATIONS,
    WINDOW_UPDATE_RECEIVED,
    StreamEvent,
    StreamState,
    StreamStates,
)

SENT = (END_STREAM_SENT, RST_STREAM_SENT)
WAY = {
    IDLE: (),
    OPEN: (HEADERS_RECEIVED,),
    HALF_CLOSED_LOCAL: (HEADERS_RECEIVED, END_STREAM_SENT),
    HALF_CLOSED_REMOTE: (HEADERS_RECEIVED, END_STREAM_RECEIVED),
    CLOSED: (HEADERS_RECEIVED, RST_STREAM_RECEIVED),
    RESET: (HEADERS_RECEIVED, RST_STREAM_SENT),
}
"""The events that bring a new stream to each state."""


def streams(state):
    found = StreamStates()
    for event in WAY[state]:
        found.apply(5, event)
    assert found.of(5) is state
    return found


@pytest.mark.parametrize(("before", "event", "after"), [(*pair, after) for pair, after in NEXT.items()])
def test_every_transition(before, event, after):
    found = streams(before)
    assert found.apply(5, event) is before
    assert found.of(5) is after


@pytest.mark.parametrize(("before", "event", "violation"), [(*pair, violation) for pair, violation in VIOLATIONS.items()])
def test_every_violation_is_the_clients_and_changes_nothing(before, event, violation):
    found = streams(before)
    with pytest.raises(violation.error) as caught:
        found.apply(5, event)
    assert caught.value.code is violation.code and "{" not in str(caught.value)
    assert found.of(5) is before


def test_whatever_a_client_sends_is_a_transition_or_a_violation():
    pairs = {(state, event) for state in StreamState for event in StreamEvent}
    assert not NEXT.keys() & VIOLATIONS.keys()
    assert {event for _, event in pairs - NEXT.keys() - VIOLATIONS.keys()} <= set(SENT)
    assert not {event for _, event in VIOLATIONS} & set(SENT)


@pytest.mark.parametrize("state", [IDLE, HALF_CLOSED_LOCAL, CLOSED, RESET])
def test_to_end_an_answer_that_is_not_under_way_is_our_own_error(state):
    with pytest.raises(LocalProtocolError, match=state.name):
        streams(state).apply(5, END_STREAM_SENT)


@pytest.mark.parametrize(
    ("state", "event", "error", "code"),
    [
        (IDLE, DATA_RECEIVED, RemoteConnectionError, ErrorCode.PROTOCOL_ERROR),
        (IDLE, WINDOW_UPDATE_RECEIVED, RemoteConnectionError, ErrorCode.PROTOCOL_ERROR),
        (HALF_CLOSED_REMOTE, DATA_RECEIVED, RemoteStreamError, ErrorCode.STREAM_CLOSED),
        (CLOSED, HEADERS_RECEIVED, RemoteConnectionError, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_the_rfc_says_of_some(state, event, error, code):
    assert VIOLATIONS[state, event][:2] == (error, code)


def test_lower_streams_are_closed_and_higher_ones_idle():
    found = streams(OPEN)
    assert [found.of(stream_id) for stream_id in (1, 3, 5, 7, 2)] == [CLOSED, CLOSED, OPEN, IDLE, IDLE]


def test_after_goaway_higher_streams_are_ignored_and_not_remembered():
    found = streams(OPEN)
    found.leaving = True
    for event in (HEADERS_RECEIVED, DATA_RECEIVED, END_STREAM_RECEIVED, HEADERS_RECEIVED):
        assert found.apply(7, event) is RESET
    assert (found.last_id, found.of(5), found.of(8)) == (5, OPEN, IDLE)


def test_streams_that_ended_here_are_forgotten_in_the_end():
    found = StreamStates()
    ids = range(1, 2 * 4097 + 1, 2)
    for stream_id in ids:
        found.apply(stream_id, HEADERS_RECEIVED)
        found.apply(stream_id, RST_STREAM_SENT)
    assert [found.of(ids[0]), found.of(ids[1]), found.of(ids[-1])] == [CLOSED, RESET, RESET]


@pytest.mark.parametrize(
    "act",
    [
        lambda connection: connection.answer(7, b""),
        lambda connection: connection.send(7, b"x"),
        lambda connection: connection.refuse(7, 2, "no"),
    ],
)
def test_an_answer_to_nobody_is_our_own_error(act):
    with pytest.raises(LocalProtocolError, match="stream 7"):
        act(Connection())
