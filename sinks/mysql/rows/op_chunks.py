"""Cuts row operations, by name, into chunks of a limited size; no table changes within a chunk. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.row_ops import RowOp


@dataclass(frozen=True, slots=True)
class OpPiece:
    """Row operations that follow each other on one table."""

    table: TableAt
    ops: Sequence[RowOp]
    bytes_each: int
    begins: bool = False
    """Whether a transaction begins here."""


@dataclass(frozen=True, slots=True)
class OpChunk:
    """Row operations that are applied together."""

    ops: list[RowOp]
    tables: dict[tuple[str, str], TableAt]


def chunks_of(pieces: Iterator[OpPiece], most: int, most_bytes: int, enough: int = 0) -> Iterator[OpChunk]:
    """The operations in their order.

    Args:
        pieces: in order; a table is the same object as long as it has the same columns.
        most: operations of a chunk.
        most_bytes: of a chunk, about.
        enough: a chunk with so many operations ends with its transaction; 0: only the limits end one.
    """
    ops: list[RowOp] = []
    tables: dict[tuple[str, str], TableAt] = {}
    size = 0
    for piece in pieces:
        name = piece.table.schema, piece.table.name
        full = len(ops) + len(piece.ops) > most or size >= most_bytes or (enough and piece.begins and len(ops) >= enough)
        if ops and (full or tables.get(name, piece.table) is not piece.table):
            yield OpChunk(ops, tables)
            ops, tables, size = [], {}, 0
        ops += piece.ops
        tables[name] = piece.table
        size += len(piece.ops) * piece.bytes_each
    if ops:
        yield OpChunk(ops, tables)
