"""Pairing as a Spark operator: one bucket's batch in, complete transactions out. Spark shell around ``pairing.bucket``.

A bucket's state has three parts: a value, which is ``pairing.state.pack`` of its index (absent if nothing is kept), a map of its chunks,
and a map of the pieces of huge Prewrites. Each batch has at least one control row for each bucket. So Spark calls each bucket once per
batch, with its values in any order.

Time is the query's watermark (``stages.PACKED``, event_time). Two tasks need no further records, and have an event-time timer: resolving
orphans, and writing outcomes to Pumps that lack them. A timer fires in the first batch after the watermark has passed it, after that
batch's rows. Releases do not wait for a timer: they follow the punctuation, which arrives a batch earlier.
"""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessor, StatefulProcessorHandle, TimerValues, ValueState
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from pyspark_tidb_binlog.binlog_source.source.collected_values import REST, CollectedValues
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import SourceConfig

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

    from pyspark_tidb_binlog.binlog_source.pairing.bucket import Paired
    from pyspark_tidb_binlog.binlog_source.pairing.state import Chunk

_PIECE_BYTES = 16 << 20
"""A chunk's value is stored in pieces of this size: one transaction may be larger than a state value should be."""

# As types, not as text: Spark asks the JVM to parse each text twice, in every task.
_VALUE = StructType([StructField("value", BinaryType())])
_PIECE = StructType([StructField("start_ts", LongType()), StructField("first_seq", IntegerType())])
_CHUNK_PIECE = StructType([StructField("number", LongType()), StructField("piece", IntegerType())])


class PairProcessor(StatefulProcessor):
    """Pairs the records of one bucket per key. Picklable: holds settings only."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._handle = handle
        self._collected = CollectedValues()
        self._index: ValueState = handle.getValueState("index", _VALUE)
        self._piece_store = StoredPieces(handle.getMapState("bodies", _PIECE, _VALUE))
        self._chunks = StoredChunks(handle.getMapState("chunks", _CHUNK_PIECE, _VALUE))

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> "Iterator[pd.DataFrame]":
        """One batch (``stages.PACKED``) of the bucket ``key``."""
        # Not at module level: Spark also loads this module in a separate process, and the query does not start before that ends.
        import pandas as pd

        from pyspark_tidb_binlog.binlog_source.pairing.bucket import pair_bucket, pieces_of

        stored, clock_ms = self._stored(), timerValues.getCurrentWatermarkInMs()
        values = (value for piece in rows for value in piece["rows"])
        paired = pair_bucket(key[0], values, stored, self._chunks, self._piece_store, clock_ms, self._source)
        self._keep(stored, paired)
        failpoints.point("pair-state")
        for value in chain(paired.transactions, pieces_of(paired.huge, self._piece_store)):
            before = self._collected.full
            if self._collected.take(len(value)):
                yield pd.DataFrame({"transactions": [value]})
            elif not before:
                # The others are gone through all the same: the state must become what it becomes for who takes them.
                yield pd.DataFrame({"transactions": [REST]})

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: "ExpiredTimerInfo") -> "Iterator[pd.DataFrame]":
        """Handle a timer that the watermark has passed."""
        from pyspark_tidb_binlog.binlog_source.pairing.bucket import look

        stored = self._stored()
        self._keep(stored, look(stored, timerValues.getCurrentWatermarkInMs(), self._source))
        return iter(())

    def _stored(self) -> bytes | None:
        # Spark logs a warning when an absent value is read.
        found = self._index.get() if self._index.exists() else None
        return bytes(found[0]) if found is not None else None

    def _keep(self, stored: bytes | None, paired: "Paired") -> None:
        if paired.state is None:
            if stored is not None:
                self._index.clear()
        elif paired.state != stored:
            self._index.update((paired.state,))
        if paired.timer_ms:
            self._handle.registerTimer(paired.timer_ms)


class StoredPieces:
    """``pairing.state.PieceStore`` in Spark's state store."""

    def __init__(self, values: MapState) -> None:
        self._values = values

    def get(self, start_ts: int, first_seq: int) -> bytes:
        """The payload of a stored piece."""
        from pyspark_tidb_binlog.schemas.errors import Corruption

        found = self._values.getValue((start_ts, first_seq))
        if found is None:
            raise Corruption(
                f"the pairing state in Spark's checkpoint lacks a piece of start_ts {start_ts}, from row change {first_seq} on: "
                "delete Spark's checkpoint directory. The stream then resumes from the target's checkpoint"
            )
        return bytes(found[0])

    def put(self, start_ts: int, first_seq: int, payload: bytes) -> None:
        """Store a piece."""
        self._values.updateValue((start_ts, first_seq), (payload,))

    def remove(self, start_ts: int, first_seq: int) -> None:
        """Remove a piece."""
        self._values.removeKey((start_ts, first_seq))


class StoredChunks:
    """``pairing.state.Chunks`` in Spark's state store."""

    def __init__(self, pieces: MapState) -> None:
        self._pieces = pieces

    def get(self, chunk: "Chunk") -> bytes:
        """The value of a stored chunk."""
        return b"".join(self._piece(chunk, piece) for piece in _pieces(chunk))

    def put(self, chunk: "Chunk", value: bytes) -> None:
        """Store a new chunk."""
        for piece in _pieces(chunk):
            self._pieces.updateValue((chunk.number, piece), (value[piece * _PIECE_BYTES : (piece + 1) * _PIECE_BYTES],))

    def remove(self, chunk: "Chunk") -> None:
        """Remove a chunk."""
        for piece in _pieces(chunk):
            self._pieces.removeKey((chunk.number, piece))

    def _piece(self, chunk: "Chunk", piece: int) -> bytes:
        from pyspark_tidb_binlog.schemas.errors import Corruption

        found = self._pieces.getValue((chunk.number, piece))
        if found is None:
            raise Corruption(
                f"the pairing state in Spark's checkpoint lacks piece {piece} of chunk {chunk.number}: "
                "delete Spark's checkpoint directory. The stream then resumes from the target's checkpoint"
            )
        return bytes(found[0])


def _pieces(chunk: "Chunk") -> range:
    return range(-(-chunk.stored // _PIECE_BYTES))
