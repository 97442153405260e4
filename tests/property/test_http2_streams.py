"""HTTP/2 with many streams on one connection: every request gets its own body, and every answer arrives whole within its windows."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, ProtocolError, frame, literal
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Call, Cancelled, Connection
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from tests.support.examples import examples

DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 8, 9
END_STREAM, END_HEADERS, PADDED = 0x1, 0x4, 0x8
INITIAL_WINDOW, WINDOW = 0x4, 65_535
USUAL = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/Write")]
SETTLED = PREFACE + frame(SETTINGS, 0, 0, b"")


@st.composite
def uploads(draw):
    """Frames of several requests, mixed up but each in order; and what they mean: streams by id, with what comes of them."""
    plans, meant = [], {}
    for number in range(draw(st.integers(1, 5))):
        stream_id = 2 * number + 1
        parts = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
        parts[0] = struct.pack(">BI", 0, sum(map(len, parts))) + parts[0]
        block = literal([*USUAL, (b"number", b"%d" % number)])
        cut = draw(st.integers(0, len(block)))
        plan = [frame(HEADERS, 0, stream_id, block[:cut]) + frame(CONTINUATION, END_HEADERS, stream_id, block[cut:])]
        for part in parts:
            padding = draw(st.integers(0, 9))
            padded = (PADDED, bytes((padding,)) + part + b"\0" * padding) if padding else (0, part)
            plan.append(frame(DATA, padded[0], stream_id, padded[1]))
        gives_up = draw(st.integers(0, 9)) == 0
        plan.append(frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08") if gives_up else frame(DATA, END_STREAM, stream_id, b""))
        plans.append(plan)
        meant[stream_id] = None if gives_up else (b"%d" % number, b"".join(parts))
    first = [plan.pop(0) for plan in plans]
    order = draw(st.permutations([n for n, plan in enumerate(plans) for _ in plan]))
    # ids must come in ascending order, so all begin before the rest is mixed
    return b"".join(first) + b"".join(plans[n].pop(0) for n in order), meant


@examples(200)
@given(uploads(), st.lists(st.integers(0, 600), max_size=8))
def test_each_call_gets_its_own_body(upload, cuts):
    data, meant = upload
    data = SETTLED + data
    connection = Connection(1 << 62, BoundedMemory())
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    events = [event for a, b in zip(places, places[1:], strict=False) for event in connection.receive(data[a:b])]
    found = {}
    for event in events:
        assert event.stream_id not in found
        found[event.stream_id] = (event.headers[b"number"], event.body) if isinstance(event, Call) else None
        assert isinstance(event, Call | Cancelled)
    assert found == meant
    assert connection.busy == any(meant.values())


class Client:
    """What a client granted and got; it complains of a byte too many."""

    def __init__(self, streams, window):
        self.initial = window
        self.window = dict.fromkeys(streams, window)
        self.shared = WINDOW
        self.got = {stream_id: b"" for stream_id in streams}
        self.ended = []

    def take(self, chunks):
        data = b"".join(chunks)
        while data:
            word, flags, stream_id = struct.unpack_from(">IBI", data)
            end = 9 + (word >> 8)
            payload, kind, data = data[9:end], word & 0xFF, data[end:]
            if kind == DATA:
                assert stream_id not in self.ended
                self.window[stream_id] -= len(payload)
                self.shared -= len(payload)
                assert self.shared >= 0 and self.window[stream_id] >= 0
                self.got[stream_id] += payload
            elif kind == HEADERS and flags & END_STREAM:
                self.ended.append(stream_id)

    def widen(self, stream_id, more):
        if stream_id:
            self.window[stream_id] += more
        else:
            self.shared += more
        return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", more))

    def settle(self, window):
        for stream_id in self.window:
            self.window[stream_id] += window - self.initial
        self.initial = window
        return frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window))


STREAMS = (1, 3, 5)
SIZES = st.integers(1, 40_000)
MOVES = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(STREAMS), SIZES),
    st.tuples(st.just("widen"), st.sampled_from((0, *STREAMS)), SIZES),
    st.tuples(st.just("settle"), st.just(0), st.integers(0, 60_000)),
)


@examples(200)
@given(st.integers(0, 60_000), st.lists(MOVES, max_size=30))
def test_answers_arrive_whole_and_within_their_windows(window, moves):
    client, connection = Client(STREAMS, WINDOW), Connection(1 << 62, BoundedMemory())
    connection.receive(PREFACE + client.settle(window))
    connection.receive(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, literal(USUAL)) for stream_id in STREAMS))
    said = {stream_id: b"" for stream_id in STREAMS}
    for number, (move, stream_id, size) in enumerate(moves):
        if move == "send":
            data = bytes((number,)) * size
            said[stream_id] += data
            connection.send(stream_id, data)
        else:
            connection.receive(client.widen(stream_id, size) if move == "widen" else client.settle(size))
        client.take(connection.output())
        for sent in STREAMS:
            assert connection.queued(sent) == len(said[sent]) - len(client.got[sent])
            if connection.queued(sent):
                assert client.window[sent] <= 0 or client.shared == 0, "what the windows admit does not wait"
    for stream_id in STREAMS:
        connection.finish(stream_id, 0, "")
    connection.receive(b"".join(client.widen(stream_id, 1 << 24) for stream_id in (0, *STREAMS)))
    client.take(connection.output())
    assert client.got == said
    assert sorted(client.ended) == list(STREAMS) and not connection.busy


PAYLOADS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"\0\0\0\x05", struct.pack(">HI", INITIAL_WINDOW, 3), struct.pack(">HI", INITIAL_WINDOW, 90_000), struct.pack(">HI", 1, 0)]
    ),
    st.sampled_from([literal(USUAL), literal([(b"a", b"b")]), b"\x82", b"\x40\x01a\x01b", b"\xbe", b"\x02\0\0"]),
)
FRAMES = st.builds(
    frame, st.integers(0, 10), st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 0x25, 0x2D]), st.sampled_from([0, 1, 3, 5, 7, 2]), PAYLOADS
)


@examples(500)
@given(st.lists(st.tuples(FRAMES, st.integers(0, 3)), max_size=30))
def test_whatever_a_peer_sends_is_an_event_or_a_protocol_failure(steps):
    connection = Connection(50, BoundedMemory())
    connection.receive(SETTLED)
    for data, reaction in steps:
        try:
            events = connection.receive(data)
        except ProtocolError as failure:
            connection.goaway(failure.code, str(failure))
            break
        for event in events:
            if isinstance(event, Cancelled) or reaction == 0:
                continue
            if reaction == 1:
                connection.refuse(event.stream_id, 2, "no")
            elif reaction == 2:
                connection.answer(event.stream_id, b"x" * 10)
            else:
                connection.send(event.stream_id, b"x" * 100)
                connection.finish(event.stream_id, 0, "")
    said = b"".join(connection.output())
    while said:
        said = said[9 + int.from_bytes(said[:3], "big") :]
