"""Small pieces of HTTP/2 as a client sends them."""

import struct

from pyspark_tidb_binlog.binlog_source.rpc.frames import frame

WINDOW_UPDATE = 8


def word(value: int) -> bytes:
    """Four bytes, big-endian."""
    return struct.pack(">I", value)


def widen(stream_id: int, more: int) -> bytes:
    """The client lets ``more`` bytes come on a stream; 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, word(more))
