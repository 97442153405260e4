"""Errors of HTTP/2 (RFC 9113, sections 5.4 and 7): the client's faults, apart from this program's faults.

    RemoteConnectionError   the client violated HTTP/2: answered with GOAWAY, and the connection is closed
    RemoteStreamError       the client violated HTTP/2 on one stream: answered with RST_STREAM; the other streams continue
    LocalProtocolError      this program tried to send what HTTP/2 forbids: nothing is sent, and the client is not to blame

Promises: a code is always one of section 7's.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class LocalProtocolError(Exception):
    """A frame that this program tried to send, and that the stream's state forbids."""


class RemoteProtocolError(Exception):
    """The client violated HTTP/2; ``code`` is what it is told."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class RemoteConnectionError(RemoteProtocolError):
    """A connection error (5.4.1): GOAWAY reports ``code``, and the connection is closed."""


class RemoteStreamError(RemoteProtocolError):
    """A stream error (5.4.2): the stream is reset with ``code``."""
