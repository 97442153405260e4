"""Changes of all tables as rows: ``database, table, op, …, key, before, after, ddl, pump``, the images as VARIANT. Pure.

``key`` has the columns of the primary key before the change (of an insert: after it). Without a primary key it has ``_tidb_rowid``. With a generated
column in the key, which images lack, it has ``_tidb_handle``.

Promises: in the order of commit_ts and ``seq``, a DDL before the rows that follow it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.joint_images import TableImages, joint_images
from pyspark_tidb_binlog.schemas.changes.row_choice import OP_NAMES, DdlBinlog, Ints, RowsOfTable
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells, typed
from pyspark_tidb_binlog.schemas.changes.variant_values import (
    VARIANT,
    VariantColumn,
    VariantRows,
    encoded,
    no_rows,
    rows_as_variants,
    spread,
    tables_as_variants,
)
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import TSO_LOGICAL_BITS
from pyspark_tidb_binlog.schemas.row_layout import Half
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

TIME = pa.timestamp("us", tz="UTC")
CHANGE = pa.schema(
    [
        pa.field("database", pa.string()),
        pa.field("table", pa.string()),
        pa.field("op", pa.string()),
        pa.field("commit_ts", pa.int64()),
        pa.field("commit_time", TIME),
        pa.field("start_ts", pa.int64()),
        pa.field("seq", pa.int32()),
        pa.field("schema_version", pa.int64()),
        pa.field("key", VARIANT),
        pa.field("before", VARIANT),
        pa.field("after", VARIANT),
        pa.field("ddl", pa.string()),
        pa.field("pump", pa.string()),
    ]
)
KEYED_CHANGE = CHANGE.append(pa.field("row_key", pa.binary()))
"""With the identity of a row change's row: ``schemas.decoder.row_keys``."""
ROWID = "_tidb_rowid"
HANDLE = "_tidb_handle"
HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions that events belong to, by commit_ts, ascending."""

    commit_ts: Ints
    start_ts: Ints
    pump: pa.Array

    @classmethod
    def of(cls, transactions: pa.RecordBatch) -> "Commits":
        """Those of ``transactions`` (``stages.RAW``, without control rows)."""
        return cls(transactions.column("commit_ts").to_numpy(), transactions.column("start_ts").to_numpy(), transactions.column("pump"))

    def columns(self, commit_ts: Ints) -> dict[str, pa.Array]:
        """The columns of changes that follow from their commit_ts."""
        at = np.searchsorted(self.commit_ts, commit_ts)
        return {
            "commit_ts": pa.array(commit_ts),
            "commit_time": commit_time(commit_ts),
            "start_ts": pa.array(self.start_ts[at]),
            "pump": self.pump.take(pa.array(at)),
        }


def commit_time(commit_ts: Ints) -> pa.Array:
    """The physical time of each ts."""
    return pa.array((commit_ts >> TSO_LOGICAL_BITS) * 1000).view(TIME)


def change_rows(
    commits: Commits, events: pa.RecordBatch, tables: Iterable[RowsOfTable], ddls: Sequence[DdlBinlog], *, json_nulls: bool = False
) -> pa.RecordBatch | None:
    """The changes of some transactions, as ``KEYED_CHANGE``: row changes (``events`` is the ``ROW_EVENT`` that ``tables`` were chosen of) and DDLs.

    ``json_nulls``: NULL in a JSON column leaves the field out of an image, so that JSON's null is told apart.
    """
    commit_ts, seqs = events.column("commit_ts").to_numpy(), events.column("seq").to_numpy()
    groups = list(tables)
    pieces = []
    if groups:
        found = []
        for group, images in zip(groups, joint_images(groups), strict=True):
            try:
                found.append(images or _images_of(group))
            except pa.ArrowInvalid as error:
                raise unfit(f"{group.table.schema}.{group.table.name}", commit_ts[group.places], error) from error
        pieces.append(_row_changes(commits, commit_ts, seqs, groups, _variants_of(groups, found, json_nulls)))
    if ddls:
        pieces.append(_ddl_rows(commits, ddls))
    if not pieces:
        return None
    whole = pa.concat_batches(pieces)
    # a DDL comes before the rows of its ts
    seq = np.concatenate([*(seqs[group.places] for group in groups), np.full(len(ddls), -1, np.int32)])
    order = np.lexsort((seq, whole.column("commit_ts").to_numpy()))
    return whole if bool((np.diff(order) > 0).all()) else whole.take(pa.array(order))


def unfit(table: str, commit_ts: Ints, error: object) -> SchemaMismatch:
    """The error about cells that are not values of their columns."""
    return SchemaMismatch(
        f"{table}, commit_ts {int(commit_ts[0])} to {int(commit_ts[-1])}: a value does not fit the table's definition: {error}; check that tidbStatus is "
        "the history of the cluster whose Pumps are read; to skip these rows, start a new query behind them (startingCommitTs), or exclude the table (tables)"
    )


def heartbeat_row(upto_ts: int) -> pa.RecordBatch:
    """The row that says that everything up to ``upto_ts`` was given."""
    at = np.array([upto_ts], np.int64)
    row = _batch(1, {"op": pa.array([HEARTBEAT]), "commit_ts": pa.array(at), "commit_time": commit_time(at)})
    return row.select(CHANGE.names)


def columns_of(info: TableInfo, images: pa.RecordBatch) -> list[tuple[ColumnInfo, TypedCells]]:
    """The columns of decoded images with their types.

    Raises:
        ArrowInvalid: a cell is no value of its column, which is named.
    """
    return [(column, _typed(column, images.column(place))) for place, column in enumerate(info.target_columns())]


def _typed(column: ColumnInfo, cells: pa.Array) -> TypedCells:
    try:
        return typed(column, cells)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"column {column.name}: {error}") from error


def _images_of(group: RowsOfTable) -> TableImages:
    """Those of one table, decoded alone."""
    found = decoder.images(group.table, group.ops, group.rows, group.versions)
    firsts = np.searchsorted(found.events, np.arange(len(group.places)))
    return TableImages(_fields(group.table.info, found.cells), found.keys.take(pa.array(firsts)), found.events, found.halves)


def _variants_of(groups: Sequence[RowsOfTable], images: Sequence[TableImages], json_nulls: bool) -> dict[str, pa.Array]:
    """The columns of the changes of all tables that are made of their images."""
    of_rows = [VariantRows(one.fields, np.arange(len(one.events))) for one in images]
    of_keys = [_keys(group.table.info, one) for group, one in zip(groups, images, strict=True)]
    variants = tables_as_variants([*of_rows, *of_keys], json_nulls=json_nulls)
    first = np.cumsum([0, *(len(one.keys) for one in images)])
    events = np.concatenate([one.events + begin for one, begin in zip(images, first[:-1], strict=True)])
    halves = np.concatenate([one.halves for one in images])
    rows = variants.slice(0, len(events))
    return {
        "key": variants.slice(len(events)),
        "before": _of_half(rows, events, halves == Half.OLD, int(first[-1])),
        "after": _of_half(rows, events, halves == Half.NEW, int(first[-1])),
        "row_key": pa.concat_arrays([one.keys for one in images]),
    }


def _row_changes(
    commits: Commits, commit_ts: Ints, seqs: npt.NDArray[np.int32], groups: Sequence[RowsOfTable], variants: dict[str, pa.Array]
) -> pa.RecordBatch:
    """The changes of all tables, one table behind the other."""
    places, ops = (np.concatenate([getattr(group, name) for group in groups]) for name in ("places", "ops"))
    table = pa.array(np.repeat(np.arange(len(groups)), [len(group.places) for group in groups]))
    names = pa.array([OP_NAMES[op] for op in OP_NAMES])
    return _batch(
        len(places),
        commits.columns(commit_ts[places])
        | {
            "database": pa.array([group.table.schema for group in groups], pa.string()).take(table),
            "table": pa.array([group.table.name for group in groups], pa.string()).take(table),
            "op": names.take(pa.array(np.searchsorted([int(op) for op in OP_NAMES], ops))),
            "seq": pa.array(seqs[places]),
            "schema_version": pa.array(np.concatenate([group.versions for group in groups])),
        }
        | variants,
    )


def _of_half(variants: pa.StructArray, events: Ints, are: npt.NDArray[np.bool_], count: int) -> pa.StructArray:
    """The images that ``are`` of one half, null for those of ``count`` events without it."""
    places = np.flatnonzero(are)
    if len(places) == count:
        return variants if len(variants) == count else variants.take(pa.array(places))
    of_event, there = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    of_event[events[places]], there[events[places]] = places, True
    return spread(variants, of_event, there)


def image_variants(info: TableInfo, images: pa.RecordBatch, count: int, *, json_nulls: bool) -> pa.StructArray:
    """``count`` decoded images as VARIANT; ``json_nulls``: as in ``change_rows``."""
    return rows_as_variants(_fields(info, images), count, json_nulls=json_nulls)


def _fields(info: TableInfo, images: pa.RecordBatch) -> tuple[VariantColumn, ...]:
    return tuple(_field(column, cells) for column, cells in columns_of(info, images))


def _field(column: ColumnInfo, cells: TypedCells) -> VariantColumn:
    if kind_of(column) is CellKind.JSON:
        return VariantColumn(column.name, cells, is_json=True)
    return VariantColumn(column.name, None, encoded=encoded([cells])[0])


def _keys(info: TableInfo, images: TableImages) -> VariantRows:
    """The key of each row, from its first image: that before, or of an insert that after."""
    each = np.arange(len(images.keys))
    if columns := _key_columns(info):
        slots = {column.id: place for place, column in enumerate(info.target_columns())}
        return VariantRows([images.fields[slots[column.id]] for column in columns], np.searchsorted(images.events, each))
    if info.handle_columns():
        return VariantRows([VariantColumn(HANDLE, TypedCells(images.keys))], each)
    # without a primary key the identity is the rowid alone, as 8 bytes
    fixed = images.keys.cast(pa.binary(8))
    cells = pa.array(np.frombuffer(fixed.buffers()[1], ">i8")[fixed.offset : fixed.offset + len(fixed)].astype(np.int64))
    return VariantRows([VariantColumn(ROWID, TypedCells(cells))], each)


def _key_columns(info: TableInfo) -> tuple[ColumnInfo, ...]:
    """The primary key's columns, if images have all of them."""
    index = info.primary_index()
    columns = info.handle_columns() or (info.index_columns(index) if index is not None else ())
    there = {column.id for column in info.target_columns()}
    return columns if all(column.id in there for column in columns) else ()


def _ddl_rows(commits: Commits, ddls: Sequence[DdlBinlog]) -> pa.RecordBatch:
    return _batch(
        len(ddls),
        commits.columns(np.array([ddl.commit_ts for ddl in ddls], np.int64))
        | {
            "database": pa.array([database_of(ddl.job) or None for ddl in ddls], pa.string()),
            "table": pa.array([_table_of(ddl) for ddl in ddls], pa.string()),
            "op": _repeated("ddl", len(ddls)),
            "seq": pa.array(np.zeros(len(ddls), np.int32)),
            "schema_version": pa.array([int(ddl.job.version) for ddl in ddls], pa.int64()),
            "ddl": pa.array([ddl.query for ddl in ddls], pa.string()),
        },
    )


def database_of(job: Job) -> str:
    """The database that a DDL is about; empty if it is about none."""
    return job.schema_name or (job.db_info.name if job.db_info is not None else "")


def _table_of(ddl: DdlBinlog) -> str | None:
    return ddl.job.table_name or (ddl.job.table_info.name if ddl.job.table_info is not None else None)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _batch(count: int, columns: dict[str, Any]) -> pa.RecordBatch:
    arrays = [
        columns[f.name] if f.name in columns else no_rows(count) if f.type == VARIANT else pa.nulls(count, f.type) for f in KEYED_CHANGE
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=KEYED_CHANGE)
