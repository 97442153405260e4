"""Rows of a part that may exceed memory: kept in memory up to a limit, in a temporary file beyond it.

Promises: rows are returned in insertion order until ``close``. A file that is being read has no directory entry.
The files are where Python's ``tempfile`` puts them (``TMPDIR``).
"""

import os
import tempfile
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import pyarrow as pa

IN_MEMORY = 32 << 20
"""Limit in bytes of what is kept in memory."""


class RowSpool:
    """Arrow tables of one schema, as one table."""

    def __init__(self, schema: pa.Schema, in_memory: int = IN_MEMORY) -> None:
        self._schema = schema
        self._in_memory = in_memory
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._path = ""
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._map: pa.MemoryMappedFile | None = None

    def extend(self, tables: Iterable[pa.Table]) -> Self:
        """Add rows."""
        for table in tables:
            self._bytes += table.nbytes
            if self._writer is None and self._bytes > self._in_memory:
                self._spill()
            if self._writer is None:
                self._tables.append(table)
            else:
                self._writer.write_table(table)
        return self

    def table(self) -> pa.Table:
        """All rows; beyond the limit they stay on disk and are memory-mapped. Nothing may be added afterwards."""
        if self._writer is None:
            return pa.concat_tables([self._schema.empty_table(), *self._tables])
        self._writer.close()
        self._map = pa.memory_map(self._path)
        os.unlink(self._path)
        self._path = ""
        return pa.ipc.open_file(self._map).read_all()

    def close(self) -> None:
        """Release the rows."""
        self._tables = []
        if self._writer is not None:
            self._writer.close()
        if self._map is not None:
            self._map.close()
        if self._path:
            os.unlink(self._path)
            self._path = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _spill(self) -> None:
        handle, self._path = tempfile.mkstemp(prefix="tidb-binlog-rows-")
        os.close(handle)
        self._writer = pa.ipc.new_file(self._path, self._schema)
        for table in self._tables:
            self._writer.write_table(table)
        self._tables = []
