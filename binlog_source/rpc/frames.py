"""HTTP/2 frames: types, flags, sizes (RFC 9113, sections 4 and 6). Pure."""

import struct

from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
SET_TABLE, SET_PUSH, SET_MAX_STREAMS, SET_INITIAL_WINDOW, SET_MAX_FRAME, SET_MAX_HEADERS = 0x1, 0x2, 0x3, 0x4, 0x5, 0x6

FRAME = struct.Struct(">IBI")
SETTING = struct.Struct(">HI")
WORD = struct.Struct(">I")
WIDEST = (1 << 31) - 1
"""The widest window, and the largest stream id."""
DEFAULT_WINDOW = 65_535
DEFAULT_MAX_FRAME = 16_384
LARGEST_MAX_FRAME = (1 << 24) - 1
DEFAULT_TABLE = 4096
SIZES = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
"""Bytes of the payloads whose size is fixed."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Serialize a frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def word_frame(kind: int, stream_id: int, value: int) -> bytes:
    """Serialize a frame whose payload is one 32-bit number: RST_STREAM, WINDOW_UPDATE."""
    return frame(kind, 0, stream_id, WORD.pack(value))


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame's payload")
    return payload[1 : len(payload) - payload[0]]
