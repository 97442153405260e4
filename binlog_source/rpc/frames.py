"""The bytes of a call: HTTP/2's frames (RFC 9113, sections 4, 6 and 7), their header blocks (HPACK, RFC 7541), and gRPC's messages in them.

    frame    length u24 | type u8 | flags u8 | stream u32 | payload
    message  compressed flag u8 | length u32 BE | bytes

Promises: pure. A violation of HTTP/2 or HPACK raises ``ProtocolError``, which must end the connection: afterwards the dynamic table no longer
matches the client's. A block's size is bounded, both encoded and decoded. A client's error in a message raises ``Refusal`` with the status
that a real Pump (grpc-go) returns.

``hpack`` has tables and Huffman code. Its decoder takes four times as long for one block as all the rest of a call. A client repeats nearly
the same block with each call, so a block that does not change the table is cached. But grpc-go adds each call's ``grpc-timeout`` to the
table, so TiDB's blocks all differ and must be decoded.
"""

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
SET_TABLE, SET_MAX_STREAMS, SET_INITIAL_WINDOW, SET_MAX_FRAME, SET_MAX_HEADERS = 0x1, 0x3, 0x4, 0x5, 0x6

FRAME = struct.Struct(">IBI")
SETTING = struct.Struct(">HI")
WORD = struct.Struct(">I")
WIDEST = (1 << 31) - 1
"""The widest window, the largest stream id, and the maximum bytes of a message: protobuf's limit, and grpc-go's."""
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
    """The client violated HTTP/2, and the two sides would be in different states: GOAWAY reports ``code``, and the connection is closed."""

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


Fields = Iterable[tuple[bytes, bytes]]

MAX_BLOCK = 64 * 1024
"""Maximum bytes of a block, and of its fields as RFC 9113 counts them (6.5.2)."""
_FIELD_OVERHEAD = 32
_LONGEST_SHIFT = 28
_KNOWN_BLOCKS = 64
_KNOWN_BYTES = 1024


def literal(fields: Fields) -> bytes:
    """Encode fields without the dynamic table and without Huffman coding."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def _text(value: bytes) -> bytes:
    length = len(value)
    if length < 0x7F:
        return bytes((length,)) + value
    head, length = bytearray(b"\x7f"), length - 0x7F
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(head) + bytes((length,)) + value


class HeaderReader:
    """Decodes one connection's header blocks, in order."""

    def __init__(self) -> None:
        self._table = HeaderTable()
        self._changes = 0
        self._known: dict[bytes, Mapping[bytes, bytes]] = {}

    def read(self, block: bytes) -> Mapping[bytes, bytes]:
        """Decode a block. Of a field that occurs more than once, the last value counts.

        Raises:
            ProtocolError: it violates RFC 7541, or is too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        changes = self._changes
        try:
            read = dict(self._fields(block))
        except IndexError:
            raise _bad_block("it ends in the middle of a field") from None
        except HPACKError as error:
            raise _bad_block(str(error)) from error
        if changes != self._changes:
            self._known.clear()
        elif len(block) <= _KNOWN_BYTES:
            if len(self._known) >= _KNOWN_BLOCKS:
                self._known.clear()
            self._known[block] = read
        return read

    def _fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        fields: list[tuple[bytes, bytes]] = []
        entry = self._table.get_by_index
        at = size = 0
        while at < len(block):
            kind = block[at]
            if kind & 0x80:
                index, at = _number(block, at, 0x7F)
                name, value = entry(index)
            elif kind & 0xE0 == 0x20:
                at = self._resize(block, at, late=bool(fields))
                continue
            else:
                index, at = _number(block, at, 0x3F if kind & 0x40 else 0x0F)
                if index:
                    name = entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                if kind & 0x40:
                    self._table.add(name, value)
                    self._changes += 1
            size += len(name) + len(value) + _FIELD_OVERHEAD
            if size > MAX_BLOCK:
                raise _bad_block(f"more than {MAX_BLOCK} bytes of fields")
            fields.append((name, value))
        return fields

    def _resize(self, block: bytes, at: int, late: bool) -> int:
        size, at = _number(block, at, 0x1F)
        if late or size > DEFAULT_TABLE:
            raise _bad_block(f"the dynamic table's size is set to {size}{' after a field' if late else ''}")
        self._table.maxsize = size
        self._changes += 1
        return at


def _bad_block(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.COMPRESSION_ERROR, f"header block cannot be decoded: {why}")


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    number = block[at] & mask
    at += 1
    if number == mask:
        shift = 0
        while True:
            byte = block[at]
            at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > _LONGEST_SHIFT:
                raise _bad_block("an integer of too many bytes")
    return number, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    compressed = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise _bad_block("it ends in the middle of a field")
    text = block[at:end]
    return (decode_huffman(text) if compressed else text), end


_PREFIX = struct.Struct(">BI")
PREFIX_SIZE = _PREFIX.size

OK, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 0, 2, 4, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 12, 13, 14, 15
ENCODING, GZIP, IDENTITY = b"grpc-encoding", b"gzip", b"identity"
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
    return inflated(message, min(limit, WIDEST))


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
