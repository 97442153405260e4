"""RFC 9113's rules for a server as vectors: a client's bytes in, what it is told out. Each line names the section whose rule it is.

``CONNECTION``: GOAWAY with the code, and the end. ``STREAM``: RST_STREAM with the code, while another stream goes on. ``FINE``: neither.
"""

import struct

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, frame
from pyspark_tidb_binlog.binlog_source.rpc.header_block import literal
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Connection
from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import RemoteConnectionError
from pyspark_tidb_binlog.binlog_source.rpc.http2_events import Call
from tests.support.http2_frames import widen, word

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
PROTOCOL, FLOW_CONTROL, CLOSED, SIZE, REFUSED, COMPRESSION, CALM = 0x1, 0x3, 0x5, 0x6, 0x7, 0x9, 0xB
CONNECTION, STREAM, FINE = "connection", "stream", "fine"
WINDOW = 65_535
METHOD, SCHEME, PATH, AUTHORITY = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/Write"), (b":authority", b"pump")
USUAL = (METHOD, SCHEME, PATH)
BLOCK = literal(USUAL)
GREETING = PREFACE + frame(SETTINGS, 0, 0, b"")


def setting(name, value):
    return frame(SETTINGS, 0, 0, struct.pack(">HI", name, value))


def headers(*fields, flags=END_HEADERS | END_STREAM, stream_id=1):
    return frame(HEADERS, flags, stream_id, literal(fields))


def message(size):
    return b"\0" + word(size - 5) + b"x" * (size - 5)


OPEN = headers(*USUAL, flags=END_HEADERS)
WHOLE = headers(*USUAL)

VECTORS = [
    # 3.4 the preface
    ("3.4", "another preface", CONNECTION, PROTOCOL, PREFACE[:-1] + b"x"),
    ("3.4", "the first frame is PING", CONNECTION, PROTOCOL, PREFACE + frame(PING, 0, 0, b"\0" * 8)),
    ("3.4", "the first frame is HEADERS", CONNECTION, PROTOCOL, PREFACE + WHOLE),
    ("3.4", "the first frame is of unknown kind", CONNECTION, PROTOCOL, PREFACE + frame(0xBE, 0, 0, b"")),
    ("3.4", "the first frame acknowledges settings", CONNECTION, PROTOCOL, PREFACE + frame(SETTINGS, ACK, 0, b"")),
    # 4 frames
    ("4.1", "a frame of unknown kind, unknown flags, the reserved bit", FINE, 0, GREETING + frame(0xBE, 0xFF, 1 << 31 | 77, b"??") + WHOLE),
    ("4.2", "a frame above the announced size", CONNECTION, SIZE, GREETING + OPEN + struct.pack(">IBI", ((1 << 16) + 1) << 8, 0, 1)),
    ("4.3", "a header block of rubbish", CONNECTION, COMPRESSION, GREETING + frame(HEADERS, END_HEADERS, 1, b"\x80")),
    ("4.3", "a header block that is cut off", CONNECTION, COMPRESSION, GREETING + frame(HEADERS, END_HEADERS, 1, b"\x40\x05ab")),
    ("4.3", "a block interrupted by PING", CONNECTION, PROTOCOL, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, b"\0" * 8)),
    ("4.3", "a block interrupted by DATA", CONNECTION, PROTOCOL, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1, b"x")),
    ("4.3", "a block interrupted by a frame of unknown kind", CONNECTION, PROTOCOL,
     GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(0xBE, 0, 1, b"")),
    ("4.3", "a block continued on another stream", CONNECTION, PROTOCOL,
     GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b"")),
    # 5.1 the states of a stream
    ("5.1", "idle: DATA", CONNECTION, PROTOCOL, GREETING + frame(DATA, 0, 1, b"x")),
    ("5.1", "idle: RST_STREAM", CONNECTION, PROTOCOL, GREETING + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1", "idle: WINDOW_UPDATE", CONNECTION, PROTOCOL, GREETING + widen(1, 1)),
    ("5.1", "idle: CONTINUATION", CONNECTION, PROTOCOL, GREETING + frame(CONTINUATION, END_HEADERS, 1, BLOCK)),
    ("5.1", "idle: PRIORITY is allowed", FINE, 0, GREETING + frame(PRIORITY, 0, 1, b"\0" * 5) + WHOLE),
    ("5.1", "half closed: DATA", STREAM, CLOSED, GREETING + WHOLE + frame(DATA, END_STREAM, 1, b"x")),
    ("5.1", "half closed: HEADERS", STREAM, CLOSED, GREETING + WHOLE + WHOLE),
    ("5.1", "half closed: WINDOW_UPDATE, PRIORITY, RST_STREAM are allowed", FINE, 0,
     GREETING + WHOLE + widen(1, 9) + frame(PRIORITY, 0, 1, b"\0" * 5) + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1", "closed by RST_STREAM: DATA", STREAM, CLOSED, GREETING + OPEN + frame(RST_STREAM, 0, 1, word(8)) + frame(DATA, 0, 1, b"x")),
    ("5.1", "closed: WINDOW_UPDATE and RST_STREAM are allowed", FINE, 0,
     GREETING + OPEN + frame(RST_STREAM, 0, 1, word(8)) + widen(1, 5) + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1.1", "a server's stream id", CONNECTION, PROTOCOL, GREETING + headers(*USUAL, stream_id=2)),
    ("5.1.1", "a lower stream id", CONNECTION, PROTOCOL, GREETING + headers(*USUAL, stream_id=7) + headers(*USUAL, stream_id=3)),
    ("5.1.1", "a stream id used again", CONNECTION, PROTOCOL, GREETING + WHOLE + frame(RST_STREAM, 0, 1, word(8)) + WHOLE),
    ("5.1.2", "more streams than announced", STREAM, REFUSED,
     GREETING + b"".join(headers(*USUAL, stream_id=2 * n + 7) for n in range(512)) + headers(*USUAL, stream_id=2001)),
    ("5.5", "SETTINGS that nobody knows", FINE, 0, GREETING + setting(0x9999, 7) + WHOLE),
    # 6.1 DATA
    ("6.1", "DATA on stream 0", CONNECTION, PROTOCOL, GREETING + frame(DATA, 0, 0, b"x")),
    ("6.1", "padding as long as the frame", CONNECTION, PROTOCOL, GREETING + OPEN + frame(DATA, PADDED, 1, b"\x05" + b"x" * 4)),
    ("6.1", "padded, and empty", CONNECTION, SIZE, GREETING + OPEN + frame(DATA, PADDED, 1, b"")),
    # 6.2 HEADERS
    ("6.2", "HEADERS on stream 0", CONNECTION, PROTOCOL, GREETING + headers(*USUAL, stream_id=0)),
    ("6.2", "padding longer than the frame", CONNECTION, PROTOCOL, GREETING + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK)),
    ("6.2", "a priority that is not there", CONNECTION, SIZE, GREETING + frame(HEADERS, END_HEADERS | PRIORITIZED, 1, b"1234")),
    # 6.3 PRIORITY, 6.4 RST_STREAM
    ("6.3", "PRIORITY on stream 0", CONNECTION, PROTOCOL, GREETING + frame(PRIORITY, 0, 0, b"\0" * 5)),
    ("6.3", "PRIORITY of 4 bytes", STREAM, SIZE, GREETING + OPEN + frame(PRIORITY, 0, 1, b"\0" * 4)),
    ("6.4", "RST_STREAM on stream 0", CONNECTION, PROTOCOL, GREETING + frame(RST_STREAM, 0, 0, word(8))),
    ("6.4", "RST_STREAM of 3 bytes", CONNECTION, SIZE, GREETING + OPEN + frame(RST_STREAM, 0, 1, b"123")),
    # 6.5 SETTINGS
    ("6.5", "SETTINGS on a stream", CONNECTION, PROTOCOL, GREETING + frame(SETTINGS, 0, 1, b"")),
    ("6.5", "SETTINGS of 5 bytes", CONNECTION, SIZE, GREETING + frame(SETTINGS, 0, 0, b"12345")),
    ("6.5", "an acknowledgement with settings", CONNECTION, SIZE, GREETING + frame(SETTINGS, ACK, 0, b"\0" * 6)),
    ("6.5.2", "ENABLE_PUSH 2", CONNECTION, PROTOCOL, GREETING + setting(0x2, 2)),
    ("6.5.2", "INITIAL_WINDOW_SIZE too wide", CONNECTION, FLOW_CONTROL, GREETING + setting(0x4, 1 << 31)),
    ("6.5.2", "MAX_FRAME_SIZE too small", CONNECTION, PROTOCOL, GREETING + setting(0x5, 16_383)),
    ("6.5.2", "MAX_FRAME_SIZE too large", CONNECTION, PROTOCOL, GREETING + setting(0x5, 1 << 24)),
    # 6.6 to 6.8
    ("6.6", "PUSH_PROMISE", CONNECTION, PROTOCOL, GREETING + OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, word(2) + BLOCK)),
    ("6.7", "PING on a stream", CONNECTION, PROTOCOL, GREETING + frame(PING, 0, 1, b"\0" * 8)),
    ("6.7", "PING of 7 bytes", CONNECTION, SIZE, GREETING + frame(PING, 0, 0, b"\0" * 7)),
    ("6.8", "GOAWAY on a stream", CONNECTION, PROTOCOL, GREETING + frame(GOAWAY, 0, 1, b"\0" * 8)),
    ("6.8", "GOAWAY of 7 bytes", CONNECTION, SIZE, GREETING + frame(GOAWAY, 0, 0, b"\0" * 7)),
    # 6.9 WINDOW_UPDATE
    ("6.9", "0 on the connection", CONNECTION, PROTOCOL, GREETING + widen(0, 0)),
    ("6.9", "0 on a stream", STREAM, PROTOCOL, GREETING + OPEN + widen(1, 0)),
    ("6.9", "5 bytes", CONNECTION, SIZE, GREETING + frame(WINDOW_UPDATE, 0, 0, b"12345")),
    ("6.9.1", "a connection's window too wide", CONNECTION, FLOW_CONTROL, GREETING + widen(0, (1 << 31) - WINDOW)),
    ("6.9.1", "a stream's window too wide", STREAM, FLOW_CONTROL, GREETING + OPEN + widen(1, (1 << 31) - WINDOW)),
    ("6.9.1", "more DATA than the stream's window", STREAM, FLOW_CONTROL,
     GREETING + OPEN + frame(DATA, 0, 1, message(60_000)) + frame(DATA, 0, 1, b"x" * 5_536)),
    ("6.9.1", "as much DATA as the stream's window", FINE, 0,
     GREETING + OPEN + frame(DATA, 0, 1, message(WINDOW)[:60_000]) + frame(DATA, END_STREAM, 1, b"x" * 5_535)),
    ("6.9.2", "settings that make a window too wide", CONNECTION, FLOW_CONTROL, GREETING + OPEN + widen(1, 1 << 20) + setting(0x4, (1 << 31) - 1)),
    # 6.10 CONTINUATION
    ("6.10", "CONTINUATION on stream 0", CONNECTION, PROTOCOL, GREETING + frame(CONTINUATION, END_HEADERS, 0, b"")),
    ("6.10", "CONTINUATION after END_HEADERS", CONNECTION, PROTOCOL, GREETING + OPEN + frame(CONTINUATION, END_HEADERS, 1, b"")),
    # 8.1 to 8.3: messages
    ("8.1", "trailers that do not end the request", STREAM, PROTOCOL, GREETING + OPEN + headers((b"a", b"b"), flags=END_HEADERS)),
    ("8.1", "trailers with a pseudo-header field", STREAM, PROTOCOL, GREETING + OPEN + headers(METHOD)),
    ("8.1", "trailers with an upper-case name", STREAM, PROTOCOL, GREETING + OPEN + headers((b"A", b"b"))),
    ("8.1", "trailers", FINE, 0, GREETING + OPEN + frame(DATA, 0, 1, message(9)) + headers((b"a", b"b"))),
    ("8.1.1", "content-length below the body", STREAM, PROTOCOL,
     GREETING + headers(*USUAL, (b"content-length", b"8"), flags=END_HEADERS) + frame(DATA, END_STREAM, 1, message(9))),
    ("8.1.1", "content-length above the body", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"content-length", b"8"))),
    ("8.1.1", "content-length that is none", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"content-length", b"-1"))),
    ("8.1.1", "content-length as the body is", FINE, 0,
     GREETING + headers(*USUAL, (b"content-length", b"9"), flags=END_HEADERS) + frame(DATA, END_STREAM, 1, message(9))),
    ("8.2.1", "an upper-case name", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"Te", b"trailers"))),
    ("8.2.1", "an empty name", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"", b"x"))),
    ("8.2.1", "a name with a blank", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"a b", b"x"))),
    ("8.2.1", "a name beyond ASCII", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"\xfc", b"x"))),
    ("8.2.1", "a name with a colon", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"a:b", b"x"))),
    *(("8.2.1", f"a value with {what!r}", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"a", what)))
      for what in (b"x\0y", b"x\ry", b"x\ny", b" x", b"x ", b"\tx", b"x\t")),
    ("8.2.1", "a pseudo-header's value with a line feed", STREAM, PROTOCOL, GREETING + headers(METHOD, SCHEME, (b":path", b"/a\nb"))),
    *(("8.2.2", f"field {name.decode()}", STREAM, PROTOCOL, GREETING + headers(*USUAL, (name, b"x")))
      for name in (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")),
    ("8.2.2", "te other than trailers", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b"te", b"gzip"))),
    ("8.2.2", "te: trailers", FINE, 0, GREETING + headers(*USUAL, (b"te", b"trailers"))),
    ("8.3", "a pseudo-header field after a regular one", STREAM, PROTOCOL, GREETING + headers(METHOD, SCHEME, (b"a", b"b"), PATH)),
    ("8.3", "an unknown pseudo-header field", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b":protocol", b"x"))),
    ("8.3", "an answer's pseudo-header field", STREAM, PROTOCOL, GREETING + headers(*USUAL, (b":status", b"200"))),
    *(("8.3", f"{name.decode()} twice", STREAM, PROTOCOL, GREETING + headers(*USUAL, AUTHORITY, (name, b"x")))
      for name in (b":method", b":scheme", b":path", b":authority")),
    ("8.3.1", "no :method", STREAM, PROTOCOL, GREETING + headers(SCHEME, PATH)),
    ("8.3.1", "no :scheme", STREAM, PROTOCOL, GREETING + headers(METHOD, PATH)),
    ("8.3.1", "no :path", STREAM, PROTOCOL, GREETING + headers(METHOD, SCHEME)),
    ("8.3.1", "an empty :path", STREAM, PROTOCOL, GREETING + headers(METHOD, SCHEME, (b":path", b""))),
    ("8.3.1", "an empty block", STREAM, PROTOCOL, GREETING + headers()),
    ("8.3.1", ":authority", FINE, 0, GREETING + headers(AUTHORITY, *USUAL)),
    ("8.5", "CONNECT with :path", STREAM, PROTOCOL, GREETING + headers((b":method", b"CONNECT"), AUTHORITY, PATH)),
    ("8.5", "CONNECT without :authority", STREAM, PROTOCOL, GREETING + headers((b":method", b"CONNECT"))),
    # 10.5 what is legal once and harm when there is no end to it
    ("10.5.1", "a header block without end", CONNECTION, CALM, GREETING + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"x" * 30_000) * 3),
    ("10.5", "empty CONTINUATION without end", CONNECTION, CALM, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, b"") * 100),
    ("10.5", "empty DATA without end", CONNECTION, CALM, GREETING + OPEN + frame(DATA, 0, 1, b"") * 10_000),
    ("10.5", "PING without end", CONNECTION, CALM, GREETING + frame(PING, 0, 0, b"\0" * 8) * 10_000),
    ("10.5", "SETTINGS without end", CONNECTION, CALM, GREETING + frame(SETTINGS, 0, 0, b"") * 1_000),
    ("10.5", "acknowledged SETTINGS without end", CONNECTION, CALM, GREETING + frame(SETTINGS, ACK, 0, b"") * 1_000),
    ("10.5", "PRIORITY without end", CONNECTION, CALM, GREETING + frame(PRIORITY, 0, 1, b"\0" * 5) * 10_000),
    ("10.5", "unknown frames without end", CONNECTION, CALM, GREETING + frame(0xBE, 0, 0, b"") * 10_000),
    ("10.5", "rapid reset", CONNECTION, CALM,
     GREETING + b"".join(headers(*USUAL, stream_id=n) + frame(RST_STREAM, 0, n, word(8)) for n in range(1, 10_001, 2))),
    ("10.5", "made you reset", CONNECTION, CALM, GREETING + b"".join(headers(*USUAL, stream_id=n) + widen(n, 0) for n in range(1, 10_001, 2))),
]  # fmt: skip


def told(data):
    """How a connection takes a client's bytes: what ends, the code, and the calls that came."""
    connection = Connection()
    try:
        calls = [event for event in connection.receive(data) if isinstance(event, Call)]
    except RemoteConnectionError as failure:
        connection.goaway(failure.code, str(failure))
        return CONNECTION, failure.code, []
    out, resets = b"".join(connection.output()), []
    while out:
        size = 9 + int.from_bytes(out[:3], "big")
        if out[3] == RST_STREAM:
            resets.append(int.from_bytes(out[9:13], "big"))
        out = out[size:]
    if resets:
        assert len(resets) == 1
        # the others go on
        assert [call.stream_id for call in connection.receive(headers(*USUAL, stream_id=9001))] == [9001] or resets == [REFUSED]
        return STREAM, resets[0], calls
    return FINE, 0, calls


@pytest.mark.parametrize(("section", "what", "ends", "code", "data"), VECTORS, ids=[f"{v[0]} {v[1]}" for v in VECTORS])
def test_rule(section, what, ends, code, data):
    assert told(data)[:2] == (ends, code)
    if ends == FINE:
        assert [call.stream_id for call in told(data)[2]] in ([1], [])


@pytest.mark.parametrize(("section", "what", "ends", "code", "data"), VECTORS, ids=[f"{v[0]} {v[1]}" for v in VECTORS])
def test_a_rule_holds_wherever_the_bytes_are_cut(section, what, ends, code, data):
    places = range(0, len(data), 1) if len(data) < 300 else range(0, len(data), len(data) // 2)
    for cut in places:
        connection = Connection()
        try:
            connection.receive(data[:cut])
            connection.receive(data[cut:])
            found = 0
        except RemoteConnectionError as failure:
            found = failure.code
        assert found == (code if ends == CONNECTION else 0), cut


def test_time_and_our_own_data_refill_the_allowance():
    connection = Connection()
    connection.receive(GREETING)
    pings = frame(PING, 0, 0, b"\0" * 8) * 250
    for second in range(1, 1000):
        connection.receive(pings, float(second))
    connection.receive(WHOLE, 1000.0)
    for _ in range(100):
        for _ in range(300):
            connection.send(1, b"x")
        connection.receive(pings + widen(0, 300) + widen(1, 300), 1000.0)
    with pytest.raises(RemoteConnectionError):
        connection.receive(pings * 40, 1000.0)


def test_many_small_parts_do_not_hold_more_than_their_bytes():
    connection = Connection()
    connection.receive(GREETING + OPEN)
    for byte in message(40_000):
        connection.receive(frame(DATA, 0, 1, bytes((byte,))))
    (request,) = connection._receiver._requests.values()
    assert len(request.parts) == 1 and request.size == 40_000
