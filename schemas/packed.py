"""Many Arrow rows as one value, so that Spark moves a few blobs instead of every row. Pure.

Promises: ``unpacked`` is the inverse of ``packed``. Format: one Arrow IPC stream with LZ4-compressed buffers; it never outlives a query.
A value crosses the JVM several times, so a quarter of the bytes is well worth the cost of compression.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

import pyarrow as pa

VALUE_BYTES = 4 << 20
"""Approximate limit for the bytes of rows in one value: what a Python worker or the JVM holds at a time."""


class SizedRows(Protocol):
    """Some rows that know their number and their bytes."""

    def __len__(self) -> int:
        """Rows."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


R = TypeVar("R", bound=SizedRows)

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def packed(table: pa.Table) -> bytes:
    """``table`` as one value."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as stream:
        stream.write_table(table)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def unpacked(values: Iterable[pa.BinaryScalar], schema: pa.Schema) -> pa.Table:
    """All rows of ``values`` in order, cut to the columns of ``schema``."""
    tables = [pa.ipc.open_stream(value.as_buffer()).read_all().select(schema.names) for value in values]
    return pa.concat_tables(tables).cast(schema) if tables else schema.empty_table()


def gathered(parts: Iterable[R], most_bytes: int = VALUE_BYTES, most_rows: int = sys.maxsize) -> Iterator[list[R]]:
    """``parts`` in lists, none empty; the part that reaches a limit is the last of its list. Whoever takes a list may clear it."""
    held, rows, size = list[R](), 0, 0
    for part in parts:
        held.append(part)
        rows, size = rows + len(part), size + part.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held
