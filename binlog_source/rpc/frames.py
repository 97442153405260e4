"""HTTP/2's frames: kinds, flags, error codes, and what each kind must look like (RFC 9113, sections 4, 6 and 7).

Promises: pure. ``ProtocolFailure`` ends a connection, ``StreamFailure`` one stream of it.
"""

import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM = 0x0, 0x1, 0x3, 0x5, 0x6, 0x7
CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x8, 0x9, 0xB
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


class ProtocolFailure(Exception):
    """The peer broke HTTP/2; ``code`` is the error code that it is told."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFailure(Exception):
    """The peer broke HTTP/2 on one stream, which is reset with ``code``; the others go on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Shape(NamedTuple):
    """What a kind of frame must look like."""

    on_stream: bool | None
    """Whether it belongs to a stream; None: either."""
    least: int
    most: int
    """Bytes of its payload."""
    harms: type[ProtocolFailure] | type[StreamFailure] = ProtocolFailure
    """What a wrong size ends."""


_ANY = 1 << 24
SHAPES = {
    DATA: Shape(True, 0, _ANY),
    HEADERS: Shape(True, 0, _ANY),
    PRIORITY: Shape(True, 5, 5, StreamFailure),
    RST_STREAM: Shape(True, 4, 4),
    SETTINGS: Shape(False, 0, _ANY),
    PING: Shape(False, 8, 8),
    GOAWAY: Shape(False, 8, _ANY),
    WINDOW_UPDATE: Shape(None, 4, 4),
    CONTINUATION: Shape(True, 0, _ANY),
}
"""By kind; a client sends no PUSH_PROMISE, and frames of unknown kind are to be passed over."""

COSTS = {PRIORITY: 1, RST_STREAM: 2, SETTINGS: 16, PING: 1, GOAWAY: 1}
"""What a frame takes from its connection's allowance of frames that bring nothing."""
UNKNOWN_COST = 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """One frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def word_frame(kind: int, stream_id: int, value: int) -> bytes:
    """A frame whose payload is one number: RST_STREAM, WINDOW_UPDATE."""
    return frame(kind, 0, stream_id, WORD.pack(value))


def check(kind: int, stream_id: int, size: int) -> None:
    """Refuse a frame that is not of its kind's shape.

    Raises:
        ProtocolFailure: it harms the connection.
        StreamFailure: it harms its stream.
    """
    shape = SHAPES.get(kind)
    if shape is None:
        if kind == PUSH_PROMISE:
            raise ProtocolFailure(PROTOCOL_ERROR, "a client pushes nothing")
        return
    if shape.on_stream is not None and shape.on_stream != bool(stream_id):
        raise ProtocolFailure(PROTOCOL_ERROR, f"frame of kind {kind} on stream {stream_id}")
    if not shape.least <= size <= shape.most:
        raise shape.harms(FRAME_SIZE_ERROR, f"frame of kind {kind} with {size} bytes")


def unpadded(payload: bytes, flags: int) -> bytes:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ProtocolFailure(FRAME_SIZE_ERROR, "a padded frame does not say how much its padding is")
    if payload[0] >= len(payload):
        raise ProtocolFailure(PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
