"""gRPC's own layer: a message is ``compressed flag u8 | length u32 BE | bytes``; statuses; gzip.

Promises: pure. What a client did wrong is a ``Refusal`` with the status a real Pump (grpc-go) gives.
"""

import gzip
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_PREFIX = struct.Struct(">BI")

OK, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 0, 2, 4, 8, 12, 13, 14, 15
ENCODING, GZIP, IDENTITY = b"grpc-encoding", b"gzip", b"identity"
_MOST = (1 << 31) - 1
"""No message is longer: protobuf's bound, and grpc-go's."""


@dataclass(frozen=True, slots=True)
class Refusal(Exception):
    """A call failed: its status and text."""

    status: int
    text: str


def prefixed(message: bytes) -> bytes:
    """A message as it stands in a stream."""
    return _PREFIX.pack(0, len(message)) + message


def prefixed_gzip(message: bytes) -> bytes:
    """A message as it stands in a stream, compressed."""
    packed = gzip.compress(message, 1, mtime=0)
    return _PREFIX.pack(1, len(packed)) + packed


def message_of(body: bytes, headers: Mapping[bytes, bytes], limit: int) -> bytes:
    """The only message of a request's body."""
    encoding = headers.get(ENCODING)
    if encoding is not None and encoding not in (GZIP, IDENTITY):
        # even of a message that is not compressed: so does grpc-go
        raise Refusal(UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{encoding.decode(errors="replace")}"')
    if len(body) < _PREFIX.size:
        raise Refusal(INTERNAL, "the request holds no message")
    compressed, length = _PREFIX.unpack_from(body)
    if _PREFIX.size + length != len(body):
        raise Refusal(INTERNAL, f"the request holds {len(body) - _PREFIX.size} bytes where a message of {length} should be")
    message = body[_PREFIX.size :]
    if not compressed:
        return message
    if compressed != 1:
        raise Refusal(INTERNAL, f"grpc: received unexpected payload format {compressed}")
    if encoding != GZIP:
        raise Refusal(INTERNAL, "grpc: compressed flag set with identity or empty encoding")
    return _inflated(message, min(limit, _MOST))


def _inflated(message: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = inflater.decompress(message, limit + 1)
    except zlib.error as error:
        raise _not_inflated(str(error)) from error
    if len(data) > limit:
        raise too_large(len(data), limit)
    if not inflater.eof:
        raise _not_inflated("unexpected EOF")
    if inflater.unused_data:
        raise _not_inflated(f"{len(inflater.unused_data)} bytes after its end")
    return data


def _not_inflated(why: str) -> Refusal:
    return Refusal(INTERNAL, f"grpc: failed to decompress the received message: {why}")


def too_large(size: int, limit: int) -> Refusal:
    """The refusal of a message above the limit; TiDB's Pump client looks for ``ResourceExhausted``'s words."""
    return Refusal(RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")


def announced(beginning: bytes) -> int:
    """How long the message is that begins so."""
    return int(_PREFIX.unpack_from(beginning)[1]) if len(beginning) >= _PREFIX.size else 0
