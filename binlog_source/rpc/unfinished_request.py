"""One unfinished request: its body so far, and its stream's window. Pure."""

from collections.abc import Mapping

from pyspark_tidb_binlog.binlog_source.rpc.frames import DEFAULT_WINDOW

BEGINNING = 5
"""Bytes of a request by which gRPC announces its length."""
_SMALL_PART = 1024


class UnfinishedRequest:
    """What was received of a request so far, and the room that its stream's window has for the rest."""

    __slots__ = ("asked", "headers", "parts", "room", "size", "waits", "whole")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.room = DEFAULT_WINDOW
        self.whole = 0  # its announced bytes; 0: not known yet
        self.asked = False  # whether it has asked for memory
        self.waits = False  # whether it has not been admitted since

    def add(self, part: bytes) -> None:
        """Append to the body; small parts are merged, because an object takes more memory than its few bytes."""
        self.size += len(part)
        if len(part) >= _SMALL_PART:
            self.parts.append(part)
        elif self.parts and isinstance(self.parts[-1], bytearray):
            self.parts[-1] += part
        else:
            self.parts.append(bytearray(part))

    def beginning(self) -> bytes:
        """The first bytes of the body."""
        return b"".join(self.parts[:BEGINNING])[:BEGINNING]

    def body(self) -> bytes:
        """The whole body."""
        return bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)
