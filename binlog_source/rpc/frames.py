"""HTTP/2 frames: types, flags, sizes, and the error that a wrong one is (RFC 9113, sections 4, 6 and 7). Pure."""

import struct
from enum import IntEnum

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


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ProtocolError(Exception):
    """The client violated HTTP/2: GOAWAY reports ``code``, and the connection is closed."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


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
