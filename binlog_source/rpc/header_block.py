"""Header blocks (HPACK, RFC 7541): decodes a client's block to a mapping, encodes ours as plain literals. ``hpack`` has tables and Huffman
code.

Promises: pure. A ``BadBlock`` must end the connection, because the dynamic table no longer matches the client's. A block's size is bounded,
both encoded and decoded.

Why not the library's decoder: it takes four times as long for one block as all the rest of a call. A client repeats nearly the same block
with each call, so a block that does not change the table is cached. But grpc-go adds each call's ``grpc-timeout`` to the table, so TiDB's
blocks all differ and must be decoded.
"""

from collections.abc import Iterable, Mapping

from hpack import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Fields = Iterable[tuple[bytes, bytes]]

MAX_BLOCK = 64 * 1024
"""Maximum bytes of a block, and of its fields as RFC 9113 counts them (6.5.2)."""
_MAX_TABLE = HeaderTable.DEFAULT_SIZE
_FIELD_OVERHEAD = 32
_LONGEST_SHIFT = 28
_KNOWN_BLOCKS = 64
_KNOWN_BYTES = 1024


class BadBlock(Exception):
    """A header block that cannot be decoded."""


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
            BadBlock: it violates RFC 7541, or is too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        changes = self._changes
        try:
            read = dict(self._fields(block))
        except IndexError:
            raise BadBlock("it ends in the middle of a field") from None
        except HPACKError as error:
            raise BadBlock(str(error)) from error
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
                raise BadBlock(f"more than {MAX_BLOCK} bytes of fields")
            fields.append((name, value))
        return fields

    def _resize(self, block: bytes, at: int, late: bool) -> int:
        size, at = _number(block, at, 0x1F)
        if late or size > _MAX_TABLE:
            raise BadBlock(f"the dynamic table's size is set to {size}{' after a field' if late else ''}")
        self._table.maxsize = size
        self._changes += 1
        return at


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
                raise BadBlock("an integer of too many bytes")
    return number, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    compressed = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise BadBlock("it ends in the middle of a field")
    text = block[at:end]
    return (decode_huffman(text) if compressed else text), end
