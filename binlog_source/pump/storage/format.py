"""The format of a value-log file, exactly as a real Pump writes it (wire.md 4, pump.md 4.1).

    file    = record* [footer]
    record  = 0x823A56E8 u32 LE | payload length u64 LE | CRC-32C(payload) u32 LE | payload
    footer  = max ts i64 LE | 0x123AB922 u32 LE        (only in a file that is finished)
    name    = file id, six digits, ".vlog"; the ids count up from 0

A ``Pointer`` is the place of a record: file id and offset of its header, ordered as the log is.

Promises: pure. Lengths are not trusted. A record is damaged if it exceeds the rest of its file, or has a wrong magic or CRC. Reading then
continues at the next record magic that starts a whole record.
"""

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from pyspark_tidb_binlog.schemas.errors import Corruption

RECORD_MAGIC = 0x823A56E8
END_MAGIC = 0x123AB922
HEADER = struct.Struct("<IQI")
FOOTER = struct.Struct("<qI")

_PACKED = struct.Struct("<Iq")
_MAGIC_BYTES = struct.pack("<I", RECORD_MAGIC)
_NAME = re.compile(r"(\d{6,10})\.vlog\Z")


class Pointer(NamedTuple):
    """A position in the value log. ``(0, 0)`` is its beginning."""

    file_id: int
    offset: int

    def pack(self) -> bytes:
        """The 12 bytes of a real Pump's metadata (pump.md 4.2): file id u32 LE, offset i64 LE."""
        return _PACKED.pack(self.file_id, self.offset)

    @classmethod
    def unpack(cls, data: bytes) -> "Pointer":
        """The inverse of ``pack``."""
        return cls(*_PACKED.unpack(data))

    def __str__(self) -> str:
        """``file:offset``, for messages."""
        return f"{self.file_id}:{self.offset}"


BEGINNING = Pointer(0, 0)


@dataclass(frozen=True, slots=True)
class Split:
    """The content of a piece of a file: whole records, and how far it was parsed."""

    offsets: list[int]
    """Where each record's header starts, relative to the piece."""
    payloads: list[bytes]
    consumed: int
    """Bytes processed; reading continues from there."""
    holes: list[tuple[int, int]]
    """Begin and end of the damaged bytes that were skipped, all before ``consumed``; ascending, never adjacent."""
    missing: int
    """Bytes needed from ``consumed`` on to continue; 0 when the piece is used up."""

    @property
    def skipped(self) -> int:
        """Damaged bytes that were skipped."""
        return sum(end - begin for begin, end in self.holes)


def file_name(file_id: int) -> str:
    """The name of value-log file ``file_id``."""
    return f"{file_id:06d}.vlog"


def file_id_of(name: str) -> int | None:
    """The file id that ``name`` stands for, None when it is not a value-log file."""
    match = _NAME.match(name)
    file_id = int(match[1]) if match else -1
    return file_id if name == file_name(file_id) else None


def encode_record(payload: bytes) -> bytes:
    """A payload framed as a record."""
    return HEADER.pack(RECORD_MAGIC, len(payload), google_crc32c.value(payload)) + payload


def encode_footer(max_ts: int) -> bytes:
    """The footer of a file whose highest timestamp is ``max_ts``."""
    return FOOTER.pack(max_ts, END_MAGIC)


def decode_footer(tail: bytes) -> int | None:
    """The highest timestamp named by a file's last 12 bytes, None when they are not a footer."""
    if len(tail) != FOOTER.size:
        return None
    max_ts, magic = FOOTER.unpack(tail)
    return int(max_ts) if magic == END_MAGIC else None


def decode_record(record: bytes, at: Pointer) -> bytes:
    """The payload of exactly one record that was read at ``at``."""
    if len(record) < HEADER.size:
        raise Corruption(
            f"value log {at}: {len(record)} bytes are left for a record of at least {HEADER.size}: restore the file from a copy"
        )
    magic, length, crc = HEADER.unpack_from(record)
    payload = record[HEADER.size :]
    if magic != RECORD_MAGIC or length != len(payload) or google_crc32c.value(payload) != crc:
        raise Corruption(f"value log {at}: magic, length or checksum of the record is wrong: restore the file from a copy")
    return payload


def split_records(piece: bytes, available: int) -> Split:
    """Cut ``piece``, which starts at a record, into records.

    ``available`` is the number of bytes from the piece's start to the end of the file's records (without a footer). A record that claims more
    is damaged. A record that claims more than ``piece``, but not more than ``available``, is reported in ``missing``.
    """
    offsets: list[int] = []
    payloads: list[bytes] = []
    holes: list[tuple[int, int]] = []
    at, size = 0, len(piece)
    checksum, unpack, head = google_crc32c.value, HEADER.unpack_from, HEADER.size
    while available - at >= head:
        if size - at < head:
            return Split(offsets, payloads, at, holes, head)
        magic, length, crc = unpack(piece, at)
        end = at + head + length
        if magic == RECORD_MAGIC and end <= available:
            if end > size:
                return Split(offsets, payloads, at, holes, head + length)
            payload = piece[at + head : end]
            if checksum(payload) == crc:
                offsets.append(at)
                payloads.append(payload)
                at = end
                continue
        found = piece.find(_MAGIC_BYTES, at + 1)
        if found < 0 and size >= available:
            break
        # a magic may straddle the end of the piece: keep its first bytes for the next one
        next_at = found if found >= 0 else max(at + 1, size - len(_MAGIC_BYTES) + 1)
        _pass_over(holes, at, next_at)
        at = next_at
        if found < 0:
            return Split(offsets, payloads, at, holes, head)
    end = max(at, min(available, size))
    _pass_over(holes, at, end)
    return Split(offsets, payloads, end, holes, 0)


def _pass_over(holes: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add a hole, merged with the last one if they touch."""
    if holes and holes[-1][1] == begin:
        begin = holes.pop()[0]
    if begin < end:
        holes.append((begin, end))


def is_framed(piece: bytes) -> bool:
    """Whether ``piece`` begins with a record that is whole by its header, whatever its checksum."""
    if len(piece) < HEADER.size:
        return False
    magic, length, _ = HEADER.unpack_from(piece)
    return bool(magic == RECORD_MAGIC and HEADER.size + length <= len(piece))
