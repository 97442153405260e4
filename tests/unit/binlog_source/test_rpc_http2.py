"""The server side of HTTP/2, frame by frame: what it hands out, what it sends, and what it does not put up with."""

import struct
from typing import NamedTuple

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, HeaderReader, ProtocolError, frame, literal, percent
from pyspark_tidb_binlog.binlog_source.rpc.http2 import HEAD, Call, Cancelled, Connection
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from tests.support.http2_frames import widen, word

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
TABLE, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 0x1, 0x3, 0x4, 0x5
PROTOCOL_ERROR, REFUSED_STREAM = 0x1, 0x7
WINDOW = 65_535
FIELDS = {b":method": b"POST", b":scheme": b"http", b":path": b"/binlog.Pump/WriteBinlog"}
BLOCK = literal(FIELDS.items())


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def sent(connection):
    """The frames that the connection wants to send."""
    data, found = b"".join(connection.output()), []
    while data:
        word, flags, stream_id = struct.unpack_from(">IBI", data)
        end = 9 + (word >> 8)
        found.append(Frame(word & 0xFF, flags, stream_id, data[9:end]))
        assert len(data) >= end
        data = data[end:]
    return found


def settings(*pairs):
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def opened(*pairs, max_request=1 << 20):
    """A connection whose client has greeted with these settings."""
    connection = Connection(max_request, BoundedMemory())
    connection.receive(PREFACE + settings(*pairs))
    connection.output()
    return connection


def message(body, length=None):
    """A body as gRPC has it, or the beginning of one of ``length`` bytes."""
    return b"\0" + word(len(body) if length is None else length) + body


def request(stream_id, body=b""):
    return frame(HEADERS, END_HEADERS, stream_id, BLOCK) + frame(DATA, END_STREAM, stream_id, body)


def data_of(frames, stream_id):
    return b"".join(f.payload for f in frames if f.kind == DATA and f.stream_id == stream_id)


# What comes in.

EVERYTHING = (
    PREFACE
    + settings((INITIAL_WINDOW, 100_000), (0x9999, 7))
    + frame(SETTINGS, ACK, 0, b"")
    + frame(HEADERS, 0, 1, BLOCK[:7])
    + frame(CONTINUATION, 0, 1, BLOCK[7:20])
    + frame(CONTINUATION, END_HEADERS, 1, BLOCK[20:])
    + frame(DATA, 0, 1, message(b"first", 14))
    + frame(PING, 0, 0, b"12345678")
    + frame(HEADERS, END_HEADERS | PADDED | PRIORITIZED, 3, b"\x04" + b"\x00\x00\x00\x01\x10" + BLOCK + b"\0" * 4)
    + frame(DATA, PADDED, 3, b"\x03" + message(b"third", 6) + b"\0" * 3)
    + frame(DATA, END_STREAM | PADDED, 3, b"\x00" + b"!")
    + frame(PRIORITY, 0, 5, b"\0" * 5)
    + frame(0xBE, 0xFF, 77, b"a frame of a kind that nobody knows")
    + frame(DATA, 0, 1, b"")
    + frame(DATA, END_STREAM, 1, b" and last")
    + widen(0, 1 << 20)
    + frame(HEADERS, END_HEADERS, 5, BLOCK)
    + frame(RST_STREAM, 0, 5, word(8))
    + frame(HEADERS, END_HEADERS | END_STREAM, 7, BLOCK)
    + frame(GOAWAY, 0, 0, word(0) + word(0) + b"bye")
)
MEANT = [Call(3, FIELDS, message(b"third!")), Call(1, FIELDS, message(b"first and last")), Cancelled(5), Call(7, FIELDS, b"")]


def test_frames_mean_the_same_wherever_they_are_cut():
    whole = Connection(1 << 20, BoundedMemory())
    assert whole.receive(EVERYTHING) == MEANT
    said = b"".join(whole.output())
    for cut in range(len(EVERYTHING) + 1):
        connection = Connection(1 << 20, BoundedMemory())
        events = connection.receive(EVERYTHING[:cut])
        events += connection.receive(EVERYTHING[cut:])
        assert (events, b"".join(connection.output())) == (MEANT, said), cut


def test_frames_byte_by_byte():
    connection = Connection(1 << 20, BoundedMemory())
    assert [event for at in range(len(EVERYTHING)) for event in connection.receive(EVERYTHING[at : at + 1])] == MEANT


def test_the_servers_first_words():
    connection = Connection(1 << 20, BoundedMemory())
    first, second = sent(connection)
    limits = dict(struct.iter_unpack(">HI", first.payload))
    assert first.kind == SETTINGS and limits[MAX_FRAME] == 1 << 16 and INITIAL_WINDOW not in limits
    assert second == (WINDOW_UPDATE, 0, 0, word(limits[MAX_STREAMS] * WINDOW - WINDOW))


def test_settings_and_pings_are_acknowledged():
    connection = opened()
    connection.receive(settings((0x2, 0)) + frame(PING, 0, 0, b"BDP-ping") + frame(PING, ACK, 0, b"not this"))
    assert sent(connection) == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"BDP-ping")]


def test_the_reserved_bit_of_a_stream_id_says_nothing():
    connection = opened()
    reserved = 1 << 31
    data = frame(HEADERS, END_HEADERS, reserved | 1, BLOCK) + frame(DATA, END_STREAM, reserved | 1, message(b"body"))
    assert connection.receive(data) == [Call(1, FIELDS, message(b"body"))]


def test_the_connections_window_is_refilled_long_before_it_is_used_up():
    connection = opened()
    total = 512 * WINDOW
    taken = 0
    for stream_id in range(1, 2000, 2):
        connection.receive(request(stream_id, message(b"x" * 59_995)))
        connection.answer(stream_id, b"")
        taken += 60_000
        updates = [f for f in sent(connection) if f.kind == WINDOW_UPDATE]
        assert bool(updates) == (taken > total // 2)
        if updates:
            assert updates == [(WINDOW_UPDATE, 0, 0, word(taken))]
            taken = 0


def test_padding_is_not_kept():
    connection = opened()
    connection.receive(frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, PADDED, 1, b"\x09" + message(b"x" * 985, 2000) + b"\0" * 9))
    assert sent(connection) == [(WINDOW_UPDATE, 0, 1, word(10))]


def test_what_comes_for_a_call_that_is_over_is_passed_over():
    connection = opened()
    connection.receive(frame(HEADERS, END_HEADERS, 1, BLOCK))
    connection.refuse(1, 2, "no")
    connection.output()
    late = widen(1, 5) + frame(RST_STREAM, 0, 1, word(8))
    assert connection.receive(late) == []
    assert not connection.busy
    connection.answer(1, b"")
    connection.send(1, b"x")
    connection.finish(1, 0, "")
    connection.refuse(1, 2, "x")
    assert sent(connection) == []


def test_trailers_of_a_request_end_it():
    connection = opened()
    assert connection.receive(frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, 0, 1, message(b"body"))) == []
    assert connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, literal([(b"x", b"y")]))) == [Call(1, FIELDS, message(b"body"))]


# Bounds.


@pytest.mark.parametrize("cut", [1, 3, 100, 2000])
def test_a_body_that_is_too_large_is_refused_before_it_ends(cut):
    connection = opened(max_request=100)
    body = b"\x00\x00\x00\x07\xd0" + b"x" * 2000
    data = frame(HEADERS, END_HEADERS, 1, BLOCK) + b"".join(frame(DATA, 0, 1, body[at : at + cut]) for at in range(0, len(body), cut))
    assert connection.receive(data) == []
    headers, reset = sent(connection)
    assert (
        headers.flags == END_STREAM | END_HEADERS
        and b"larger than max (2000 vs. 100)" in headers.payload
        and reset == (RST_STREAM, 0, 1, word(0))
    )
    assert connection.receive(frame(DATA, END_STREAM, 1, b"the rest") + request(3, message(b"y" * 100))) == [
        Call(3, FIELDS, message(b"y" * 100))
    ]


def test_calls_beyond_the_bound_are_to_be_made_again():
    connection = opened()
    count = 512
    connection.receive(b"".join(frame(HEADERS, END_HEADERS, 2 * n + 1, BLOCK) for n in range(count)))
    assert sent(connection) == []
    over = 2 * count + 1
    assert connection.receive(request(over, b"x")) == []
    assert sent(connection) == [(RST_STREAM, 0, over, word(REFUSED_STREAM))]
    connection.receive(frame(RST_STREAM, 0, 1, word(8)))
    assert connection.receive(request(over + 2, b"x")) == [Call(over + 2, FIELDS, b"x")]


@pytest.mark.parametrize("data", [b"PRI * HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_another_preface_is_refused(data):
    with pytest.raises(ProtocolError):
        Connection(1 << 20, BoundedMemory()).receive(data)


def test_after_goaway_calls_under_way_go_on_and_new_ones_are_passed_over():
    connection = opened()
    connection.receive(frame(HEADERS, END_HEADERS, 5, BLOCK))
    connection.goaway(PROTOCOL_ERROR, "why " + "ü" * 5000)
    (bye,) = sent(connection)
    assert bye[:3] == (GOAWAY, 0, 0) and bye.payload[:8] == word(5) + word(PROTOCOL_ERROR) and bye.payload[8:].decode().startswith("why üü")
    assert len(bye.payload) < 16_384
    assert connection.receive(request(7, b"new")) == []
    assert connection.receive(frame(DATA, END_STREAM, 5, message(b"old"))) == [Call(5, FIELDS, message(b"old"))]
    connection.answer(5, b"")
    assert len(sent(connection)) == 3 and not connection.busy


# Header blocks whose meaning depends on what came before.


def test_header_blocks_that_use_the_table():
    connection = opened()
    indexed = BLOCK + b"\x40\x04name\x05first"
    again = BLOCK + b"\xbe"
    calls = []
    for stream_id, block in enumerate((indexed, again, again, BLOCK + b"\x40\x04name\x06second", again, BLOCK + b"\xbf"), 1):
        calls += connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 2 * stream_id + 1, block))
    assert [call.headers[b"name"] for call in calls] == [b"first", b"first", b"first", b"second", b"second", b"first"]


def test_header_blocks_of_ignored_calls_still_change_the_table():
    connection = opened()
    connection.receive(frame(HEADERS, END_HEADERS, 1, BLOCK))
    connection.refuse(1, 2, "no")
    connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\x04name\x05value"))
    (call,) = connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, BLOCK + b"\xbe"))
    assert call.headers == {**FIELDS, b"name": b"value"}


# What goes out.


def test_an_answer_is_head_message_and_trailers():
    connection = opened()
    connection.receive(request(1))
    connection.answer(1, b"abc")
    assert sent(connection) == [
        (HEADERS, END_HEADERS, 1, HEAD),
        (DATA, 0, 1, b"\x00\x00\x00\x00\x03abc"),
        (HEADERS, END_HEADERS | END_STREAM, 1, literal([(b"grpc-status", b"0")])),
    ]
    assert HeaderReader().read(HEAD) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert not connection.busy


@pytest.mark.parametrize("pairs", [[(INITIAL_WINDOW, 3)], [(MAX_FRAME, 16_384)]])
def test_an_answer_that_does_not_fit_goes_in_pieces(pairs):
    connection = opened(*pairs)
    connection.receive(request(1))
    message = b"x" * 20_000
    connection.answer(1, message)
    connection.receive(widen(1, 50_000))
    frames = sent(connection)
    assert data_of(frames, 1) == b"\x00" + word(20_000) + message
    assert [f.kind for f in frames].count(DATA) > 1 and frames[-1].flags & END_STREAM
    assert not connection.busy


def test_a_refusal_is_one_header_block():
    connection = opened()
    connection.receive(request(1))
    connection.refuse(1, 2, "50% für\n")
    (refusal,) = sent(connection)
    assert (refusal.kind, refusal.flags) == (HEADERS, END_HEADERS | END_STREAM)
    fields = HeaderReader().read(refusal.payload)
    assert fields[b":status"] == b"200" and fields[b"grpc-status"] == b"2" and fields[b"grpc-message"] == b"50%25 f%C3%BCr%0A"


@pytest.mark.parametrize("status", [0, 2])
def test_a_stream_that_ends_before_it_began_has_a_head_too(status):
    connection = opened()
    connection.receive(request(1))
    connection.finish(1, status, "no")
    (only,) = sent(connection)
    fields = HeaderReader().read(only.payload)
    assert only.flags == END_HEADERS | END_STREAM
    assert (fields[b":status"], fields[b"content-type"], fields[b"grpc-status"]) == (b"200", b"application/grpc", b"%d" % status)


def test_a_stream_of_answers():
    connection = opened()
    connection.receive(request(1))
    connection.start(1, [(b"x-key", b"value")])
    connection.send(1, b"one")
    connection.send(1, b"")
    connection.send(1, b"two")
    connection.finish(1, 0, "")
    head, first, second, end = sent(connection)
    assert HeaderReader().read(head.payload)[b"x-key"] == b"value" and not head.flags & END_STREAM
    assert (first.payload, second.payload) == (b"one", b"two")
    assert end == (HEADERS, END_HEADERS | END_STREAM, 1, literal([(b"grpc-status", b"0")]))


def test_nothing_is_sent_beyond_the_streams_window():
    connection = opened((INITIAL_WINDOW, 10))
    connection.receive(request(1))
    connection.send(1, b"0123456789abcdef")
    connection.finish(1, 0, "")
    assert data_of(sent(connection), 1) == b"0123456789" and connection.queued(1) == 6
    connection.receive(widen(1, 4))
    assert data_of(sent(connection), 1) == b"abcd" and connection.queued(1) == 2
    connection.receive(widen(1, 2))
    last, trailers = sent(connection)
    assert last.payload == b"ef" and trailers.flags & END_STREAM and connection.queued(1) == 0


def test_nothing_is_sent_beyond_the_connections_window():
    connection = opened((INITIAL_WINDOW, 1 << 20))
    connection.receive(request(1) + request(3))
    connection.send(1, b"a" * (WINDOW - 5))
    connection.send(3, b"b" * 100)
    frames = sent(connection)
    assert len(data_of(frames, 1)) == WINDOW - 5 and data_of(frames, 3) == b"b" * 5
    connection.receive(widen(3, 1000))
    assert sent(connection) == []
    connection.receive(widen(0, 1000))
    assert data_of(sent(connection), 3) == b"b" * 95


def test_unary_answers_wait_for_the_windows_too():
    connection = opened((INITIAL_WINDOW, 0))
    connection.receive(request(1))
    connection.answer(1, b"")
    assert [f.kind for f in sent(connection)] == [HEADERS]
    connection.receive(settings((INITIAL_WINDOW, 5)))
    assert data_of(sent(connection), 1) == b"\0" * 5 and not connection.busy


def test_streams_take_turns_at_a_narrow_connection():
    connection = opened((INITIAL_WINDOW, 1 << 20))
    ids = (1, 3, 5)
    connection.receive(b"".join(map(request, ids)))
    connection.send(1, b"x" * WINDOW)
    for stream_id in ids:
        connection.send(stream_id, b"y" * 1000)
    connection.output()
    turns = []
    for _ in range(6):
        connection.receive(widen(0, 100))
        turns += [f.stream_id for f in sent(connection)]
    assert turns == [1, 3, 5, 1, 3, 5]


def test_a_changed_initial_window_counts_for_open_streams_both_ways():
    connection = opened((INITIAL_WINDOW, 100))
    connection.receive(request(1))
    connection.send(1, b"x" * 80)
    connection.receive(settings((INITIAL_WINDOW, 50)))
    connection.send(1, b"y" * 100)
    assert data_of(sent(connection), 1) == b"x" * 80  # the window is at -30
    connection.receive(widen(1, 30))
    assert data_of(sent(connection), 1) == b""
    connection.receive(widen(1, 1))
    assert data_of(sent(connection), 1) == b"y"
    connection.receive(settings((INITIAL_WINDOW, 40), (INITIAL_WINDOW, 60)))
    assert data_of(sent(connection), 1) == b"y" * 10
    connection.receive(request(3))
    connection.send(3, b"z" * 100)
    assert data_of(sent(connection), 3) == b"z" * 60


def test_a_window_that_is_widened_again_and_again_sends_once():
    connection = opened((INITIAL_WINDOW, 0))
    connection.receive(request(1, message(b"go")))
    connection.send(1, b"0123456789")
    connection.output()
    connection.receive(widen(1, 1) * 3 + widen(1, 2))
    assert [(f.kind, f.payload) for f in sent(connection)] == [(DATA, b"01234")]
    connection.receive(settings((INITIAL_WINDOW, 1)) + settings((INITIAL_WINDOW, 3)))
    assert data_of(sent(connection), 1) == b"567"


def test_frames_are_as_large_as_the_client_allows():
    connection = opened((INITIAL_WINDOW, 1 << 20))
    connection.receive(request(1) + widen(0, 1 << 20))
    connection.send(1, b"x" * 40_000)
    assert [len(f.payload) for f in sent(connection) if f.kind == DATA] == [16_384, 16_384, 7_232]
    connection.receive(settings((MAX_FRAME, 30_000)))
    connection.send(1, b"x" * 40_000)
    assert [len(f.payload) for f in sent(connection) if f.kind == DATA] == [30_000, 10_000]


def test_a_client_that_wants_a_smaller_table_is_told_that_none_is_used():
    connection = opened()
    connection.receive(request(1) + request(3) + request(5) + request(7))
    connection.start(1, [])
    connection.output()
    connection.receive(settings((TABLE, 100)))
    connection.finish(1, 0, "")
    _, trailers = sent(connection)
    assert trailers.payload[0] == 0x20
    connection.answer(3, b"")
    assert sent(connection)[0].payload == HEAD
    for stream_id, act in ((5, lambda: connection.answer(5, b"")), (7, lambda: connection.refuse(7, 2, "no"))):
        connection.receive(settings((TABLE, 0)))
        act()
        first = next(f for f in sent(connection) if f.stream_id == stream_id)
        assert first.payload.startswith(b"\x20" + HEAD)


def test_a_cancelled_stream_is_forgotten():
    connection = opened((INITIAL_WINDOW, 1))
    connection.receive(request(1) + request(3))
    connection.send(1, b"x" * 100)
    assert connection.receive(frame(RST_STREAM, 0, 1, word(8))) == [Cancelled(1)]
    connection.output()
    assert connection.queued(1) == 0
    connection.receive(widen(0, 1000) + widen(1, 1000))
    assert sent(connection) == []


# Texts.


def test_a_lone_surrogate_becomes_a_question_mark():
    assert percent("a name that is no text: \udcff") == b"a name that is no text: ?"


@pytest.mark.parametrize("text", ["x" * 100_000, "%" * 100_000, "漢" * 100_000])
def test_a_long_text_is_cut_between_characters(text):
    said = percent(text)
    assert 1000 < len(said) <= 3 * 2048
    assert text.startswith(bytes.fromhex(said.replace(b"%", b"").decode()).decode() if b"%" in said else said.decode())


# Requests that are larger than a stream's first window.


def test_a_large_request_waits_for_memory_and_then_for_nothing():
    memory = BoundedMemory(150_000)
    connection, other = Connection(1 << 62, memory), Connection(1 << 62, memory)
    for one in (connection, other):
        one.receive(PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, 0, 1, message(b"", 100_000)))
    assert not other.awaits and connection.awaits and memory.held == 100_005
    assert sent(connection)[-1] == (WINDOW_UPDATE, 0, 1, word(100_005 - WINDOW))
    assert sent(other)[-1].stream_id == 0, "no more than its first window"
    (call,) = connection.receive(b"".join(frame(DATA, 0, 1, b"x" * 50_000) for _ in range(2)) + frame(DATA, END_STREAM, 1, b""))
    assert len(call.body) == 100_005 and memory.held == 100_005 and other.awaits
    assert sent(other) == [(WINDOW_UPDATE, 0, 1, word(100_005 - WINDOW))]
    other.receive(frame(RST_STREAM, 0, 1, word(8)))
    assert memory.held == 0


@pytest.mark.parametrize("end", [lambda c: c.close(), lambda c: c.receive(frame(RST_STREAM, 0, 1, word(8)))])
def test_a_request_that_is_abandoned_gives_its_memory_back(end):
    memory = BoundedMemory()
    connection = Connection(1 << 62, memory)
    connection.receive(PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, BLOCK) + frame(DATA, 0, 1, message(b"", 100_000)))
    assert memory.held == 100_005
    end(connection)
    assert memory.held == 0 and not connection.awaits
