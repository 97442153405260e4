"""gRPC's own layer: a message is ``compressed flag u8 | length u32 BE | bytes``; statuses; gzip.

Promises: pure. What a client did wrong is a ``Refusal`` with the status a real Pump (grpc-go) gives.
"""

import gzip
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_PREFIX = struct.Struct(">BI")

OK, UNKNOWN, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 2, 8, 12, 13, 14
ENCODING, GZIP = b"grpc-encoding", b"gzip"


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
    if len(body) < _PREFIX.size:
        raise Refusal(INTERNAL, "the request holds no message")
    compressed, length = _PREFIX.unpack_from(body)
    if _PREFIX.size + length != len(body):
        raise Refusal(INTERNAL, f"the request holds {len(body) - _PREFIX.size} bytes where a message of {length} should be")
    message = body[_PREFIX.size :]
    if not compressed:
        return message
    encoding = headers.get(ENCODING, b"identity")
    if encoding != GZIP:
        raise Refusal(UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{encoding.decode(errors="replace")}"')
    return _inflated(message, limit)


def _inflated(message: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = inflater.decompress(message, min(limit + 1, (1 << 31) - 1))
    except zlib.error as error:
        raise Refusal(INTERNAL, f"grpc: failed to decompress the received message: {error}") from error
    if len(data) > limit:
        raise too_large(len(data), limit)
    return data


def too_large(size: int, limit: int) -> Refusal:
    """The refusal of a message above the limit; TiDB's Pump client looks for ``ResourceExhausted``'s words."""
    return Refusal(RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")
