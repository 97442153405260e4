"""RFC 9113's rules for a server as vectors: a client's bytes in, what it is told out. Each line names the section whose rule it is.

A code: GOAWAY with it, and the end. ``None``: the connection goes on.
"""

import struct

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import PREFACE, ProtocolError, frame, literal
from pyspark_tidb_binlog.binlog_source.rpc.http2 import Call, Connection
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from tests.support.http2_frames import widen, word

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
PROTOCOL, FLOW_CONTROL, SIZE, REFUSED, COMPRESSION, CALM = 0x1, 0x3, 0x6, 0x7, 0x9, 0xB
WINDOW = 65_535
USUAL = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/Write"))
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
    ("3.4 another preface", PROTOCOL, PREFACE[:-1] + b"x"),
    # 4 frames
    ("4.1 a frame of unknown kind, unknown flags, the reserved bit", None, GREETING + frame(0xBE, 0xFF, 1 << 31 | 77, b"??") + WHOLE),
    ("4.2 a frame above the announced size", SIZE, GREETING + OPEN + struct.pack(">IBI", ((1 << 16) + 1) << 8, 0, 1)),
    ("4.3 a header block of rubbish", COMPRESSION, GREETING + frame(HEADERS, END_HEADERS, 1, b"\x80")),
    ("4.3 a header block that is cut off", COMPRESSION, GREETING + frame(HEADERS, END_HEADERS, 1, b"\x40\x05ab")),
    ("4.3 a block interrupted by PING", PROTOCOL, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(PING, 0, 0, b"\0" * 8)),
    ("4.3 a block interrupted by DATA", PROTOCOL, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1, b"x")),
    ("4.3 a block continued on another stream", PROTOCOL, GREETING + frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b"")),
    # 5.1 the states of a stream
    ("5.1 idle: DATA", PROTOCOL, GREETING + frame(DATA, 0, 1, b"x")),
    ("5.1 idle: RST_STREAM", PROTOCOL, GREETING + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1 idle: WINDOW_UPDATE", PROTOCOL, GREETING + widen(1, 1)),
    ("5.1 idle: CONTINUATION", PROTOCOL, GREETING + frame(CONTINUATION, END_HEADERS, 1, BLOCK)),
    ("5.1 idle: PRIORITY is allowed", None, GREETING + frame(PRIORITY, 0, 1, b"\0" * 5) + WHOLE),
    ("5.1 half closed: DATA", FLOW_CONTROL, GREETING + WHOLE + frame(DATA, END_STREAM, 1, b"x")),
    ("5.1 half closed: HEADERS", PROTOCOL, GREETING + WHOLE + WHOLE),
    ("5.1 half closed: WINDOW_UPDATE, PRIORITY, RST_STREAM are allowed", None,
     GREETING + WHOLE + widen(1, 9) + frame(PRIORITY, 0, 1, b"\0" * 5) + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1 closed: DATA, WINDOW_UPDATE and RST_STREAM are ignored", None,
     GREETING + OPEN + frame(RST_STREAM, 0, 1, word(8)) + frame(DATA, 0, 1, b"x") + widen(1, 5) + frame(RST_STREAM, 0, 1, word(8))),
    ("5.1.1 a server's stream id", PROTOCOL, GREETING + headers(*USUAL, stream_id=2)),
    ("5.1.1 a lower stream id is ignored", None, GREETING + headers(*USUAL, stream_id=7) + headers(*USUAL, stream_id=3)),
    ("5.5 SETTINGS that nobody knows", None, GREETING + setting(0x9999, 7) + WHOLE),
    # 6 the types of frames
    ("6.1 DATA on stream 0", PROTOCOL, GREETING + frame(DATA, 0, 0, b"x")),
    ("6.1 padding as long as the frame", PROTOCOL, GREETING + OPEN + frame(DATA, PADDED, 1, b"\x05" + b"x" * 4)),
    ("6.1 padded, and empty", PROTOCOL, GREETING + OPEN + frame(DATA, PADDED, 1, b"")),
    ("6.2 HEADERS on stream 0", PROTOCOL, GREETING + headers(*USUAL, stream_id=0)),
    ("6.2 padding longer than the frame", PROTOCOL, GREETING + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK)),
    ("6.4 RST_STREAM on stream 0", PROTOCOL, GREETING + frame(RST_STREAM, 0, 0, word(8))),
    ("6.4 RST_STREAM of 3 bytes", SIZE, GREETING + OPEN + frame(RST_STREAM, 0, 1, b"123")),
    ("6.5 SETTINGS of 5 bytes", SIZE, GREETING + frame(SETTINGS, 0, 0, b"12345")),
    ("6.5.2 MAX_FRAME_SIZE too small", PROTOCOL, GREETING + setting(0x5, 16_383)),
    ("6.5.2 MAX_FRAME_SIZE too large", PROTOCOL, GREETING + setting(0x5, 1 << 24)),
    ("6.7 PING of 7 bytes", SIZE, GREETING + frame(PING, 0, 0, b"\0" * 7)),
    ("6.9 WINDOW_UPDATE of 5 bytes", SIZE, GREETING + frame(WINDOW_UPDATE, 0, 0, b"12345")),
    ("6.9.1 more DATA than the stream's window", FLOW_CONTROL,
     GREETING + OPEN + frame(DATA, 0, 1, message(60_000)) + frame(DATA, 0, 1, b"x" * 5_536)),
    ("6.9.1 as much DATA as the stream's window", None,
     GREETING + OPEN + frame(DATA, 0, 1, message(WINDOW)[:60_000]) + frame(DATA, END_STREAM, 1, b"x" * 5_535)),
    ("6.10 CONTINUATION after END_HEADERS", PROTOCOL, GREETING + OPEN + frame(CONTINUATION, END_HEADERS, 1, b"")),
    # 8.1: messages
    ("8.1 trailers that do not end the request", PROTOCOL, GREETING + OPEN + headers((b"a", b"b"), flags=END_HEADERS)),
    ("8.1 trailers", None, GREETING + OPEN + frame(DATA, 0, 1, message(9)) + headers((b"a", b"b"))),
    # 10.5
    ("10.5.1 a header block without end", CALM, GREETING + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"x" * 30_000) * 3),
]  # fmt: skip


def told(*parts):
    """The code that the connection ends with, None if it goes on; and the ids of the calls that came."""
    connection, calls = Connection(1 << 20, BoundedMemory()), []
    try:
        for part in parts:
            calls += [event.stream_id for event in connection.receive(part) if isinstance(event, Call)]
    except ProtocolError as failure:
        return failure.code, []
    assert not any(f[3] == RST_STREAM for f in connection.output()[2:])
    (after,) = connection.receive(headers(*USUAL, stream_id=9001))
    assert after.stream_id == 9001
    return None, calls


@pytest.mark.parametrize(("what", "code", "data"), VECTORS, ids=[v[0] for v in VECTORS])
def test_a_rule_holds_wherever_the_bytes_are_cut(what, code, data):
    whole = told(data)
    assert whole[0] == code
    for cut in range(0, len(data), 1 if len(data) < 300 else len(data) // 2):
        assert told(data[:cut], data[cut:]) == whole, cut
