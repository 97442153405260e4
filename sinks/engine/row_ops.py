"""Single row operations in upstream order, whole columns at a time: for targets that must receive every operation. Pure.

    row events + TableAt -> RowBatch: the operations of each table and kind as images, with their places in the order

Promises: an operation's place is its rank in (commit_ts, seq) order. A transaction that two Pumps have, because its Prewrite was sent again
to another Pump, counts once. Nothing is folded: a row that was changed twice has two operations.
Images are those of ``schemas.decoder``. There is no Python loop over row events.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.batch import with_rows
from pyspark_tidb_binlog.sinks.engine.fold import Indexes
from pyspark_tidb_binlog.sinks.engine.identity import EventColumns

_log = logging.getLogger(__name__)

KINDS = (Op.INSERT, Op.UPDATE, Op.DELETE)
"""The kinds of row operations."""


@dataclass(frozen=True, slots=True, eq=False)
class TableOps:
    """The operations of one kind on one table."""

    table: TableAt
    op: Op
    places: Indexes
    """Place of each among all operations of its batch, ascending."""
    versions: Indexes
    """Schema version of each."""
    old: pa.RecordBatch | None
    """The rows before them, as ``decoder.old_rows``; None for INSERT."""
    new: pa.RecordBatch | None
    """The rows after them, as ``decoder.new_images``; None for DELETE."""
    raw: pa.BinaryArray | None = None
    """The row events, from which an old image can be read under another table info; None if there are none."""

    def __len__(self) -> int:
        return len(self.places)

    def old_under(self, writer: TableAt, chosen: Indexes) -> pa.RecordBatch:
        """The rows before some of them, read under another info of the table; only with ``raw``."""
        assert self.raw is not None
        return decoder.old_rows(
            writer, np.full(len(chosen), int(self.op), np.int32), self.raw.take(pa.array(chosen)), self.versions[chosen]
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Operations between two DDL barriers."""

    pieces: tuple[TableOps, ...]
    commit_ts: Indexes
    """Of each operation, by its place; ascending."""

    def __len__(self) -> int:
        return len(self.commit_ts)

    @property
    def transactions(self) -> Indexes:
        """The places at which a transaction begins."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([[0], np.flatnonzero(np.diff(self.commit_ts)) + 1]).astype(np.int64)


def operations_of(events: pa.Table, tables: Mapping[int, TableAt]) -> RowBatch:
    """The operations of ``events`` (``ROW_EVENT``, in any order).

    Args:
        events: those of one step.
        tables: the tables as they are on the target, by table id. Views, sequences and temporary tables have no rows there.

    Raises:
        SchemaMismatch: an event's table is not among ``tables``.
        Corruption: a row's bytes are damaged.
    """
    events = with_rows(events, tables).select(_USED)
    events = each_once(events.take(pa.array(np.lexsort((events["seq"].to_numpy(), events["commit_ts"].to_numpy())))))
    source = EventColumns(events)
    pieces = []
    for table_id in np.unique(source.table_ids).tolist():
        here = source.table_ids == table_id
        for op in KINDS:
            places = np.flatnonzero(here & (source.ops == op))
            if len(places):
                pieces.append(_decoded(tables[table_id], op, places, source))
    return RowBatch(tuple(pieces), source.commit_ts.astype(np.int64, copy=False))


def each_once(events: pa.Table) -> pa.Table:
    """``events`` (``ROW_EVENT``, in order) without those that equal the one before: no two of the upstream have one commit_ts and seq."""
    same = np.ones(len(events), dtype=bool)
    same[:1] = False
    for name in _USED:
        if same.any():
            column = events[name].combine_chunks()
            same[1:] &= pc.equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    if not same.any():
        return events
    first = events["commit_ts"][int(np.argmax(same))].as_py()
    _log.warning("%d row changes from commit_ts %d on came from two Pumps; each is applied once", int(same.sum()), first)
    return events.filter(pa.array(~same))


_USED = ["commit_ts", "seq", "op", "table_id", "schema_version", "row"]


def _decoded(table: TableAt, op: Op, places: Indexes, source: EventColumns) -> TableOps:
    ops, raw = source.ops[places], source.rows_at(places)
    versions = source.versions[places]
    old = None if op is Op.INSERT else decoder.old_rows(table, ops, raw, versions)
    new = None if op is Op.DELETE else decoder.new_images(table, ops, raw, versions)
    return TableOps(table, op, places, versions, old, new, raw)
