"""``pairing.state.Chunks`` in memory: what was put, and what each call cost."""

from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.pairing.state import Chunk


@dataclass
class MemoryPieces:
    """``pairing.state.PieceStore`` in memory."""

    values: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def get(self, start_ts: int, first_seq: int) -> bytes:
        """The payload that was put."""
        return self.values[start_ts, first_seq]

    def put(self, start_ts: int, first_seq: int, payload: bytes) -> None:
        """Keep a piece."""
        assert self.values.setdefault((start_ts, first_seq), payload) == payload

    def remove(self, start_ts: int, first_seq: int) -> None:
        """Forget a piece."""
        del self.values[start_ts, first_seq]


@dataclass
class MemoryChunks:
    """A dict of chunks. A chunk is put once, and neither read nor removed when it is not there."""

    values: dict[int, bytes] = field(default_factory=dict)
    read: int = 0
    """Bytes."""
    written: int = 0

    def get(self, chunk: Chunk) -> bytes:
        """The value that was put."""
        assert len(self.values[chunk.number]) == chunk.stored
        self.read += chunk.stored
        return self.values[chunk.number]

    def put(self, chunk: Chunk, value: bytes) -> None:
        """Keep a new chunk."""
        assert chunk.number not in self.values
        self.written += len(value)
        self.values[chunk.number] = value

    def remove(self, chunk: Chunk) -> None:
        """Forget a chunk."""
        del self.values[chunk.number]

    def copy(self) -> "MemoryChunks":
        """As it is now."""
        return MemoryChunks(dict(self.values))
