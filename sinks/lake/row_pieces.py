"""Row changes that do not fit into memory, in pieces that do. All changes of a row are in one piece.

    with RowPieces(batches, schema, directory) as pieces:
        for piece in pieces: ...            # as often as wanted

Promises: the rows are read once and held on disk in files without a name, so a process that dies leaves nothing. A piece has about ``PIECE_BYTES``,
or all the changes of some rows that have more.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Self

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.sinks.engine.fold import part_numbers

PIECE_BYTES = 64 << 20
"""Of rows in memory."""
_SHARES = 64
"""Files: a piece has the rows of one, or of some that are small."""


def held(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int) -> pa.Table | None:
    """All rows; None: they have more than ``most_bytes``."""
    found, size = list[pa.RecordBatch](), 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            return None
    return pa.Table.from_batches(found, schema)


class RowPieces:
    """The pieces of some rows that have a ``table_id`` and a ``row_key``."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, directory: str | None) -> None:
        """Reads ``batches``. ``directory``: where there is room for all rows; None: where the system has temporary files."""
        self._schema, self._sizes, self._stack = schema, [0] * _SHARES, ExitStack()
        self._files = [self._stack.enter_context(tempfile.TemporaryFile(dir=directory)) for _ in range(_SHARES)]
        with ExitStack() as writing:
            writers = [writing.enter_context(pa.ipc.new_stream(file, schema)) for file in self._files]
            for batch in batches:
                keys = batch.column("row_key")
                shares = part_numbers(batch.column("table_id").to_numpy(), keys, np.zeros(len(keys), np.bool_), _SHARES)
                for share in np.unique(shares).tolist():
                    rows = batch.take(pa.array(np.flatnonzero(shares == share)))
                    writers[share].write_batch(rows)
                    self._sizes[share] += rows.nbytes

    def __iter__(self) -> Iterator[pa.Table]:
        """Each piece."""
        piece, size = list[pa.RecordBatch](), 0
        for file, more in zip(self._files, self._sizes, strict=True):
            if piece and size + more > PIECE_BYTES:
                yield pa.Table.from_batches(piece, self._schema)
                piece, size = [], 0
            piece, size = [*piece, *_read(file)], size + more
        if piece:
            yield pa.Table.from_batches(piece, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The rows are gone."""
        self._stack.close()


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    file.seek(0)
    with pa.ipc.open_stream(file) as stream:
        yield from stream
