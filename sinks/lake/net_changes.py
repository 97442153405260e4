"""The net effect of the ledger's rows of one table between two of its DDLs, per row.

    insert 7, update 7, delete 8, insert 9, delete 9   ->   7: its last image is written;  8: gone

A mirror finds a row by its *identity*: the clustered key's columns of the image before, exactly as they were. A table without a clustered key has the
hidden column ``_tidb_rowid``; one whose key has generated columns, which images lack, has ``_tidb_handle``, the key's bytes.

Row changes that do not fit into memory come in pieces that do:

    with RowPieces(batches, schema, directory) as pieces:
        for piece in pieces: ...            # as often as wanted

Promises: whole columns at a time. A row that comes twice does no harm. The rows of pieces are read once and held on disk in files without a name, so a
process that dies leaves nothing. A piece has about ``PIECE_BYTES``, or all the changes of some rows that have more. All changes of a row are in one piece.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import HANDLE, ROWID, columns_of
from pyspark_tidb_binlog.schemas.changes.row_choice import Ints
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells, type_of
from pyspark_tidb_binlog.schemas.changes.variant_cells import cells_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VariantColumn, rows_as_variants
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.fold import part_numbers
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER

NEEDED = ("database", "table", "op", "commit_ts", "seq", "before", "after", "table_id", "row_key")
"""The columns of the ledger that say what became of rows."""


PIECE_BYTES = 64 << 20
"""Of rows in memory."""
_SHARES = 64
"""Files: a piece has the rows of one, or of some that are small."""


@dataclass(frozen=True, slots=True)
class MirrorChanges:
    """The net effect of a span on rows."""

    rows: pa.Table
    """The last images, as ``mirror_schema``; only nulls where the row is gone."""
    found_by: pa.Table
    """The identity of each row in the mirror: the columns of ``identity``."""
    gone: pa.Array
    fresh: bool
    """Whether none of the rows was in the mirror before."""


def hidden_column(info: TableInfo) -> pa.Field | None:
    """The column of a mirror that is none of the table's; None: it has none."""
    columns = info.handle_columns()
    if not columns:
        return pa.field(ROWID, pa.int64())
    there = {c.id for c in info.target_columns()}
    return None if all(c.id in there for c in columns) else pa.field(HANDLE, pa.binary())


def identity(info: TableInfo) -> tuple[str, ...]:
    """The names of the columns by which a mirror finds a row."""
    hidden = hidden_column(info)
    return (hidden.name,) if hidden is not None else tuple(c.name for c in info.handle_columns())


def mirror_schema(info: TableInfo) -> pa.Schema:
    """The columns of a mirror."""
    hidden = hidden_column(info)
    return pa.schema([*([hidden] if hidden is not None else []), *(field_of(c) for c in info.target_columns())])


def field_of(column: ColumnInfo) -> pa.Field:
    """A column of a mirror: ``type_of``, and VARIANT for JSON."""
    if kind_of(column) is CellKind.JSON:
        return LEDGER.field("after").with_name(column.name)
    return pa.field(column.name, type_of(column))


def net_changes(rows: pa.Table, info: TableInfo) -> MirrorChanges | None:
    """The net effect of ``rows`` (``NEEDED``, of one table, in their order), whose images are of ``info``; None: nothing.

    Raises:
        SchemaMismatch: a key has a date that no calendar has, or bytes that are no text.
    """
    keys = rows["row_key"].combine_chunks()
    first, last = first_and_last(keys)
    order = np.argsort(last, kind="stable")
    first, last = first[order], last[order]
    before, after = rows["before"].combine_chunks(), rows["after"].combine_chunks()
    was = before.is_valid().to_numpy(zero_copy_only=False)[first]
    remains = after.is_valid().to_numpy(zero_copy_only=False)[last]
    first, last, was, remains = (part[was | remains] for part in (first, last, was, remains))
    if not len(first):
        return None
    columns, hidden = info.target_columns(), hidden_column(info)
    images = cells_of(after.take(pa.array(last)), columns)
    schema, names = mirror_schema(info), identity(info)
    if hidden is not None:
        found = keys.take(pa.array(first))
        ids = [_numbers(found) if hidden.name == ROWID else found]
        images = [*ids, *images]
    else:
        both = pa.concat_arrays([before, after])
        ids = cells_of(both.take(pa.array(np.where(was, first, len(before) + last))), info.handle_columns())
        _require_found(ids, info, f"at commit_ts {rows['commit_ts'][0]}")
    cells = [cell.cast(field.type) if cell.type != field.type else cell for cell, field in zip(images, schema, strict=True)]
    return MirrorChanges(pa.Table.from_arrays(cells, schema=schema), pa.table(ids, names=list(names)), pa.array(~remains), not was.any())


def first_and_last(keys: pa.Array) -> tuple[Ints, Ints]:
    """The places of the first and of the last row of each key, in the order in which keys come first."""
    codes = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(codes, return_index=True)
    return first, len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]


def read_rows(info: TableInfo, images: pa.RecordBatch, rowids: pa.Array | None) -> pa.RecordBatch:
    """Rows as ``mirror_schema``: ``images`` (``schemas.arrowtypes``) of all columns, and ``_tidb_rowid`` if the mirror has it.

    Raises:
        SchemaMismatch: a key has a date that no calendar has, or bytes that are no text.
    """
    schema, cells = mirror_schema(info), [rowids] if rowids is not None else []
    cells += [mirror_cells(column, found) for column, found in columns_of(info, images)]
    rows = pa.RecordBatch.from_arrays([cell.cast(f.type) for cell, f in zip(cells, schema, strict=True)], schema=schema)
    if hidden_column(info) is None:
        _require_found([rows.column(name) for name in identity(info)], info, "of the upstream")
    return rows


def mirror_cells(column: ColumnInfo, found: TypedCells) -> pa.Array:
    """A column as a mirror has it."""
    if kind_of(column) is not CellKind.JSON:
        return found.values
    return cells_of(rows_as_variants([VariantColumn(column.name, found, is_json=True)], len(found.values), json_nulls=True), (column,))[0]


def _numbers(keys: pa.BinaryArray) -> pa.Array:
    return pa.array(np.frombuffer(b"".join(keys.to_pylist()), ">i8").astype(np.int64))


def _require_found(ids: list[pa.Array], info: TableInfo, where: str) -> None:
    for cells, column in zip(ids, info.handle_columns(), strict=True):
        if cells.null_count:
            raise SchemaMismatch(f"rows {where} have a date in the key column {column.name} that no calendar has")
        # TiDB takes any bytes for latin1, and two keys could be one text.
        if not column.charset.startswith("utf8") and pa.types.is_string(cells.type) and pc.any(pc.match_substring(cells, "\ufffd")).as_py():
            raise SchemaMismatch(f"rows {where} have bytes in the key column {column.name} that are no text")


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
