"""Changes of one table as rows of its own columns (``table_shape``). Pure.

An update is two rows, ``update_preimage`` and ``update_postimage``. Promises: in the order of commit_ts, ``_change_seq``, old before new.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.arrowtypes import digits_of
from pyspark_tidb_binlog.schemas.changes.change_rows import HEARTBEAT, commit_time, unfit
from pyspark_tidb_binlog.schemas.changes.former_types import as_former
from pyspark_tidb_binlog.schemas.changes.row_choice import Ints, RowsOfTable
from pyspark_tidb_binlog.schemas.changes.table_shape import TableShape
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates, is_date, type_of, typed
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.row_layout import Half
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
_TYPE_OF = np.zeros((max(Op) + 1, len(Half)), np.int64)
"""Of an event's kind and half: the place among ``_TYPES``."""
_TYPE_OF[Op.UPDATE] = (1, 2)
_TYPE_OF[Op.DELETE] = 3


def table_rows(shape: TableShape, history: SchemaHistory, events: pa.RecordBatch, tables: Iterable[RowsOfTable]) -> pa.RecordBatch | None:
    """The changes among ``events`` (``ROW_EVENT``), of which ``tables`` were chosen, by ``history``.

    Raises:
        SchemaMismatch: a cell does not fit its column, or is an invalid date while invalidDates is fail.
    """
    pieces, places = [], []
    commit_ts, seqs = events.column("commit_ts").to_numpy(), events.column("seq").to_numpy()
    for group in tables:
        sources = shape.sources(group.table, history)
        images = decoder.images(group.table, group.ops, group.rows, group.versions)
        at = group.places[images.events]
        types = _TYPE_OF[group.ops[images.events], images.halves]
        pieces.append(_rows(shape, group.table.info, sources, images.cells, types, commit_ts[at], seqs[at]))
        places.append(at)
    if not pieces:
        return None
    whole = pa.concat_batches(pieces)
    order = np.argsort(np.concatenate(places), kind="stable")
    return whole if bool((np.diff(order) > 0).all()) else whole.take(pa.array(order))


def table_heartbeat(shape: TableShape, upto_ts: int) -> pa.RecordBatch:
    """The row that says that everything up to ``upto_ts`` was given."""
    at = np.array([upto_ts], np.int64)
    own = [pa.nulls(1, shape.type_of(column)) for column in shape.columns]
    marks = [pa.array([HEARTBEAT]), pa.array(at), commit_time(at), pa.nulls(1, pa.int32())]
    return pa.RecordBatch.from_arrays([*own, *marks], schema=shape.schema)


def _rows(
    shape: TableShape,
    info: TableInfo,
    sources: Sequence[int | None],
    images: pa.RecordBatch,
    types: Ints,
    commit_ts: Ints,
    seqs: npt.NDArray[np.int32],
) -> pa.RecordBatch:
    there = info.target_columns()
    cells = [
        pa.nulls(len(images), shape.type_of(column))
        if source is None
        else _cells(shape, column, there[source], images.column(source), commit_ts)
        for column, source in zip(shape.columns, sources, strict=True)
    ]
    marks = [pa.array(_TYPES).take(pa.array(types)), pa.array(commit_ts), commit_time(commit_ts), pa.array(seqs)]
    return pa.RecordBatch.from_arrays([*cells, *marks], schema=shape.schema)


def _cells(shape: TableShape, wanted: ColumnInfo, column: ColumnInfo, cells: pa.Array, commit_ts: Ints) -> pa.Array:
    """The cells of ``column`` as those of the shape's column ``wanted``."""
    kind = shape.type_of(wanted)
    if is_date(wanted) and pa.types.is_string(kind) and type_of(column) == type_of(wanted) and digits_of(column) == digits_of(wanted):
        return cells
    try:
        found = typed(column, cells)
    except pa.ArrowInvalid as error:
        raise unfit(str(shape.name), commit_ts, f"column {column.name}: {error}") from error
    if found.odd is not None and is_date(wanted) and shape.invalid_dates is InvalidDates.FAIL:
        place = int(np.argmax(found.odd.is_valid().to_numpy(zero_copy_only=False)))
        raise SchemaMismatch(
            f"{shape.name}, commit_ts {int(commit_ts[place])}: column {column.name} holds {found.odd[place].as_py()!r}, which is not a date of "
            "Spark; set invalidDates=null, or invalidDates=string to get all dates as text"
        )
    if found.values.type == kind and wanted.tp == column.tp and wanted.is_binary == column.is_binary:
        return found.values
    try:
        return as_former(wanted, kind, column, cells)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"{shape.name}, commit_ts {int(commit_ts[0])} to {int(commit_ts[-1])}: column {wanted.name} is {kind} as of schema version "
            f"{shape.version}, but {column.name} is {found.values.type} in these rows, and not all values fit: {error}; start again with "
            f"schemaCommitTs at a ts where the table has the wanted types; if no definition fits all values, see {document('changes')}, One table"
        ) from error
