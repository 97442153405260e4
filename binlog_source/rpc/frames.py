"""HTTP/2 frames: types, flags, and the validity rules of each type (RFC 9113, sections 4 and 6).

Promises: pure.
"""

import struct
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.rpc.http2_errors import ErrorCode, RemoteConnectionError, RemoteStreamError

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


class FrameRules(NamedTuple):
    """The rules for one type of frame."""

    on_stream: bool | None
    """True: on a stream; False: on the connection (stream 0); None: either."""
    least: int
    most: int
    """Bounds of its payload in bytes."""
    size_error: type[RemoteConnectionError] | type[RemoteStreamError] = RemoteConnectionError
    """What a wrong size is: an error of the connection or of the stream."""


_ANY = 1 << 24
SHAPES = {
    DATA: FrameRules(True, 0, _ANY),
    HEADERS: FrameRules(True, 0, _ANY),
    PRIORITY: FrameRules(True, 5, 5, RemoteStreamError),
    RST_STREAM: FrameRules(True, 4, 4),
    SETTINGS: FrameRules(False, 0, _ANY),
    PING: FrameRules(False, 8, 8),
    GOAWAY: FrameRules(False, 8, _ANY),
    WINDOW_UPDATE: FrameRules(None, 4, 4),
    CONTINUATION: FrameRules(True, 0, _ANY),
}
"""By type. A client must not send PUSH_PROMISE; frames of unknown types are ignored."""

COSTS = {PRIORITY: 1, RST_STREAM: 2, SETTINGS: 16, PING: 1, GOAWAY: 1}
"""What a frame costs of its connection's allowance of frames that carry no request data."""
UNKNOWN_COST = 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Serialize a frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def word_frame(kind: int, stream_id: int, value: int) -> bytes:
    """Serialize a frame whose payload is one 32-bit number: RST_STREAM, WINDOW_UPDATE."""
    return frame(kind, 0, stream_id, WORD.pack(value))


def check(kind: int, stream_id: int, size: int) -> None:
    """Validate the stream id and the size of a frame.

    Raises:
        RemoteConnectionError: the frame is an error of the connection.
        RemoteStreamError: the frame is an error of its stream.
    """
    shape = SHAPES.get(kind)
    if shape is None:
        if kind == PUSH_PROMISE:
            raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        return
    if shape.on_stream is not None and shape.on_stream != bool(stream_id):
        raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, f"frame of type {kind} on stream {stream_id}")
    if not shape.least <= size <= shape.most:
        raise shape.size_error(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {kind} with {size} bytes")


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise RemoteConnectionError(ErrorCode.FRAME_SIZE_ERROR, "padded frame without a padding length")
    if payload[0] >= len(payload):
        raise RemoteConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame's payload")
    return payload[1 : len(payload) - payload[0]]
