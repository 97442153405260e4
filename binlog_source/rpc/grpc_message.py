"""gRPC's message framing (``compressed flag u8 | length u32 BE | bytes``), statuses and gzip.

Promises: pure. A client's error raises ``Refusal`` with the status that a real Pump (grpc-go) returns.
"""

import gzip
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

_PREFIX = struct.Struct(">BI")
PREFIX_SIZE = _PREFIX.size

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 1, 2, 4, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 12, 13, 14, 15
ENCODING, GZIP, IDENTITY = b"grpc-encoding", b"gzip", b"identity"
_MOST = (1 << 31) - 1
"""Maximum bytes of a message: protobuf's limit, and grpc-go's."""
_MAX_TEXT = 2048
"""Maximum bytes of a status text: C-core refuses header lists above 8 KiB, and percent-encoding may triple it."""
_UNQUOTED = bytes(set(range(0x20, 0x7F)) - {0x25})
"""What gRPC over HTTP/2 leaves as it is in a status text: printable ASCII but the percent sign."""


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """The failure of a call: its gRPC status and text."""

    status: int
    text: str


def prefixed(message: bytes) -> bytes:
    """Frame a message."""
    return _PREFIX.pack(0, len(message)) + message


def prefixed_gzip(message: bytes) -> bytes:
    """Compress and frame a message."""
    packed = gzip.compress(message, 1, mtime=0)
    return _PREFIX.pack(1, len(packed)) + packed


def message_of(body: bytes | bytearray, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The single message in a request's body; ``limit``: maximum bytes of a compressed message's content."""
    encoding = headers.get(ENCODING)
    if encoding is not None and encoding not in (GZIP, IDENTITY):
        # grpc-go refuses it for an uncompressed message too
        raise Refusal(UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{encoding.decode(errors="replace")}"')
    if len(body) < _PREFIX.size:
        raise Refusal(INTERNAL, "the request holds no message")
    compressed, length = _PREFIX.unpack_from(body)
    if _PREFIX.size + length != len(body):
        raise Refusal(INTERNAL, f"the request holds {len(body) - _PREFIX.size} bytes instead of a message of {length}")
    message = bytes(memoryview(body)[_PREFIX.size :])
    if not compressed:
        return message
    if compressed != 1:
        raise Refusal(INTERNAL, f"grpc: received unexpected payload format {compressed}")
    if encoding != GZIP:
        raise Refusal(INTERNAL, "grpc: compressed flag set with identity or empty encoding")
    return inflated(message, min(limit, _MOST))


def inflated(packed: bytes, limit: int) -> bytes:
    """The content of a compressed message; ``Refusal`` when it is damaged or longer than ``limit`` bytes."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(packed, limit + 1)
    except zlib.error as error:
        raise _not_inflated(str(error)) from error
    if len(content) > limit:
        raise too_large(len(content), limit)
    if not inflater.eof:
        raise _not_inflated("unexpected EOF")
    if inflater.unused_data:
        raise _not_inflated(f"{len(inflater.unused_data)} trailing bytes")
    return content


def _not_inflated(why: str) -> Refusal:
    return Refusal(INTERNAL, f"grpc: failed to decompress the received message: {why}")


def too_large(size: int, limit: int) -> Refusal:
    """The refusal of a message above the limit; TiDB's Pump client recognises it by the status name ``ResourceExhausted``."""
    return Refusal(RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")


def announced(beginning: bytes | bytearray) -> int:
    """The message length that a body's first bytes announce; 0 if the prefix is incomplete."""
    return int(_PREFIX.unpack_from(beginning)[1]) if len(beginning) >= _PREFIX.size else 0


def percent(text: str) -> bytes:
    """A status text as ``grpc-message`` carries it, percent-encoded; a very long one is truncated."""
    return quote(cut(text), _UNQUOTED).encode()


def cut(text: str) -> bytes:
    """A text in UTF-8, truncated between characters to a bounded length."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= _MAX_TEXT:
        return encoded
    return encoded[:_MAX_TEXT].decode(errors="ignore").encode()
