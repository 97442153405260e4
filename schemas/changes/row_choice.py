"""Which row changes of some transactions are given, and with which table each is decoded. Pure.

The rule is the same as for a target. A row committed after a DDL's binlog has the table after that DDL, even if its writer did not know the DDL yet. A row
whose schema version contains a DDL of its table has the table after that DDL, even before the DDL's binlog. So the table of a row is the table at the
higher of two versions: the row's own version, and the version of the DDL binlogs with a lower commit_ts. Rows of a table dropped at that version are left
out, as at a target.

Promises: the table of a row depends on the row, the DDL binlogs before it and the jobs up to its version, not on what is read with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

Ints = npt.NDArray[np.int64]
_CELL_BYTES = 24
"""Of a name's and a value's offset, an id and a number."""
OP_NAMES = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete"}


@dataclass(frozen=True, slots=True)
class DdlBinlog:
    """A DDL binlog whose job has an effect."""

    commit_ts: int
    job: Job
    query: str


@dataclass(frozen=True, slots=True)
class RowsOfTable:
    """Row changes that are decoded together."""

    table: TableAt
    places: Ints
    """Their numbers among all of the events."""
    ops: npt.NDArray[np.int32]
    versions: Ints
    rows: pa.BinaryArray


def version_after(version: int, ddls: Sequence[DdlBinlog]) -> int:
    """The schema version after ``ddls``."""
    return max([version, *(ddl.job.version for ddl in ddls)])


def effective_versions(events: pa.RecordBatch, ddls: Sequence[DdlBinlog], version: int) -> Ints:
    """The version whose tables the events (``ROW_EVENT``) are decoded with; ``version``: that before the first of ``ddls``, ascending."""
    bounds = np.array([ddl.commit_ts for ddl in ddls], np.int64)
    reached = np.maximum.accumulate(np.array([version, *(ddl.job.version for ddl in ddls)], np.int64))
    by_ddl = reached[np.searchsorted(bounds, events.column("commit_ts").to_numpy(), side="left")]
    found: Ints = np.maximum(by_ddl, events.column("schema_version").to_numpy())
    return found


def chosen_rows(
    events: pa.RecordBatch, effective: Ints, history: SchemaHistory, wanted: Callable[[TableAt], bool], ops: Sequence[str]
) -> Iterator[RowsOfTable]:
    """The events of the tables that are ``wanted``, and of the operations ``ops``, by table."""
    if not events.num_rows:
        return
    table_ids, versions, kinds = (events.column(name).to_numpy() for name in ("table_id", "schema_version", "op"))
    asked = np.isin(kinds, [int(op) for op, name in OP_NAMES.items() if name in ops])
    groups: dict[tuple[int, int, bool], tuple[TableAt, list[Ints]]] = {}
    for places in _alike(table_ids, effective, versions):
        first = places[0]
        table = history.table_at(int(table_ids[first]), int(effective[first]))
        if table is None or not wanted(table):
            continue
        # rows of a version beyond the table's are from states of a DDL that is under way: it may be dropping a column
        dropping = int(versions[first]) > table.version
        key = table.table_id, int(table.version), dropping
        groups.setdefault(key, (replace(table, dropping=dropping), []))[1].append(places[asked[places]])
    rows = events.column("row")
    for table, parts in groups.values():
        places = np.sort(np.concatenate(parts))
        if len(places):
            yield RowsOfTable(table, places, kinds[places].astype(np.int32), versions[places], rows.take(pa.array(places)))


def output_bounds(count: int, tables: Sequence[RowsOfTable], most_bytes: int) -> Ints:
    """The cuts of ``count`` events, from 0 to ``count``. The decoded rows of ``tables`` in each piece have about ``most_bytes``."""
    sizes = np.zeros(count, np.int64)
    for group in tables:
        images = np.where(group.ops == Op.UPDATE, 2, 1)
        lengths = pc.binary_length(group.rows).to_numpy(zero_copy_only=False)
        sizes[group.places] = images * (_image_bytes(group.table.info) + lengths)
    pieces = (np.cumsum(sizes) - 1) // most_bytes
    cuts = np.flatnonzero(np.diff(pieces) > 0) + 1
    return np.array([0, *cuts, count], np.int64)


def within(tables: Sequence[RowsOfTable], begin: int, end: int) -> Iterator[RowsOfTable]:
    """Those of the events from ``begin`` to before ``end``."""
    for group in tables:
        first, last = np.searchsorted(group.places, (begin, end))
        if last - first == len(group.places):
            yield group
        elif first < last:
            at = slice(first, last)
            rows = group.rows.take(pa.array(np.arange(first, last)))
            yield RowsOfTable(group.table, group.places[at], group.ops[at], group.versions[at], rows)


def _image_bytes(info: TableInfo) -> int:
    """The bytes of an image beside its row's bytes: names, offsets, full-width numbers, and defaults of missing columns."""
    return sum(_CELL_BYTES + len(c.name) + len(str(c.origin_default or "")) for c in info.target_columns())


def _alike(*columns: Ints) -> Iterator[Ints]:
    """The places at which all columns have the same values."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        codes = np.unique(codes * len(values) + inverse, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for begin, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield order[begin:end]
