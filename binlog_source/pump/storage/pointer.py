"""The place of a record in the value log: file id and offset of its header, ordered as the log is.

Promises: pure. ``pack`` returns the 12 bytes of a real Pump's metadata (pump.md 4.2).
"""

import struct
from typing import NamedTuple

_PACKED = struct.Struct("<Iq")


class Pointer(NamedTuple):
    """A position in the value log. ``(0, 0)`` is its beginning."""

    file_id: int
    offset: int

    def pack(self) -> bytes:
        """File id u32 LE, offset i64 LE."""
        return _PACKED.pack(self.file_id, self.offset)

    @classmethod
    def unpack(cls, data: bytes) -> "Pointer":
        """The inverse of ``pack``."""
        return cls(*_PACKED.unpack(data))

    def __str__(self) -> str:
        """``file:offset``, for messages."""
        return f"{self.file_id}:{self.offset}"


BEGINNING = Pointer(0, 0)
