"""gRPC's message framing (``compressed flag u8 | length u32 BE | bytes``), statuses and gzip.

Promises: pure. A client's error raises ``Refusal`` with the status that a real Pump (grpc-go) returns.
"""

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_PREFIX = struct.Struct(">BI")

OK, CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 1, 2, 4, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 12, 13, 14, 15
ENCODING, GZIP, IDENTITY = b"grpc-encoding", b"gzip", b"identity"
_MOST = (1 << 31) - 1
"""Maximum bytes of a message: protobuf's limit, and grpc-go's."""
_STEP = 16 << 10
"""Compressed bytes that are inflated at once: at most 1,032 times as many."""
_LEAST_GZIP = 18
"""Bytes of gzip's header and trailer."""


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


@dataclass(frozen=True, slots=True)
class Packed:
    """A compressed message."""

    data: bytes
    limit: int
    """Maximum bytes of its content."""


def message_of(body: bytes, headers: Mapping[bytes, bytes], limit: int, at_once: int = _MOST) -> bytes | Packed:
    """The single message in a request's body; inflated if it announces at most ``at_once`` bytes, else as it is."""
    encoding = headers.get(ENCODING)
    if encoding is not None and encoding not in (GZIP, IDENTITY):
        # grpc-go refuses it for an uncompressed message too
        raise Refusal(UNIMPLEMENTED, f'grpc: Decompressor is not installed for grpc-encoding "{encoding.decode(errors="replace")}"')
    if len(body) < _PREFIX.size:
        raise Refusal(INTERNAL, "the request holds no message")
    compressed, length = _PREFIX.unpack_from(body)
    if _PREFIX.size + length != len(body):
        raise Refusal(INTERNAL, f"the request holds {len(body) - _PREFIX.size} bytes instead of a message of {length}")
    message = body[_PREFIX.size :]
    if not compressed:
        return message
    if compressed != 1:
        raise Refusal(INTERNAL, f"grpc: received unexpected payload format {compressed}")
    if encoding != GZIP:
        raise Refusal(INTERNAL, "grpc: compressed flag set with identity or empty encoding")
    limit = min(limit, _MOST)
    return inflated(message, limit) if announced_size(message) <= at_once else Packed(message, limit)


def announced_size(packed: bytes) -> int:
    """Bytes of a compressed message's content, as gzip's trailer has them; 0 where there is none. ``inflated`` makes no more of it."""
    return int.from_bytes(packed[-4:], "little") if len(packed) >= _LEAST_GZIP else 0


def inflated(packed: bytes, limit: int, wanted: Callable[[], bool] = lambda: True) -> bytes:
    """The content of a compressed message; ``Refusal`` when it is damaged, longer than ``limit`` bytes, or not ``wanted`` any more."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    parts, size, most = [], 0, min(limit, announced_size(packed))
    trailing = 0
    for at in range(0, len(packed), _STEP):
        if not wanted():
            raise Refusal(CANCELLED, "the client has left")
        step = packed[at : at + _STEP]
        if inflater.eof:
            trailing += len(step)
            continue
        try:
            part = inflater.decompress(step, most + 1 - size)
        except zlib.error as error:
            raise _not_inflated(str(error)) from error
        size += len(part)
        if size > limit:
            raise too_large(size, limit)
        if size > most:
            raise _not_inflated("incorrect length: it is longer than its trailer says")
        parts.append(part)
        trailing += len(inflater.unused_data)
    if not inflater.eof:
        raise _not_inflated("unexpected EOF")
    if trailing:
        raise _not_inflated(f"{trailing} trailing bytes")
    return b"".join(parts)


def _not_inflated(why: str) -> Refusal:
    return Refusal(INTERNAL, f"grpc: failed to decompress the received message: {why}")


def too_large(size: int, limit: int) -> Refusal:
    """The refusal of a message above the limit; TiDB's Pump client recognises it by the status name ``ResourceExhausted``."""
    return Refusal(RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")


def announced(beginning: bytes) -> int:
    """The message length that a body's first bytes announce; 0 if the prefix is incomplete."""
    return int(_PREFIX.unpack_from(beginning)[1]) if len(beginning) >= _PREFIX.size else 0
