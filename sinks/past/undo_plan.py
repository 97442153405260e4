"""The inverse of what a span has changed, in all its tables: as rows, as SQL, and in numbers. Pure.

    1. DELETE   of every table: what came, and what is to have another key
    2. UPDATE   back
    3. INSERT   what went, and what has another key now

Promises: each row is touched once, whatever the span did to it. The rows of a plan are under the columns that the tables have now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, VariantColumn, no_rows, rows_as_variants, spread
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.past.net_rows import Mask, NetRows
from pyspark_tidb_binlog.sinks.past.undo_sql import SETTINGS, TableUndo

UNDO = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("database", pa.string()),
        pa.field("table", pa.string()),
        pa.field("op", pa.string()),
        pa.field("expected", VARIANT),
        pa.field("restored", VARIANT),
        pa.field("sql", pa.string()),
    ]
)
"""The rows of a plan: ``expected`` is the present row that is deleted or updated, ``restored`` what is there afterwards."""

_DIFFERENCE = pa.schema(
    [
        pa.field("op", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("before", VARIANT),
        pa.field("after", VARIANT),
    ]
)


_AT_ONCE = 50_000
"""Statements that are held together."""


@dataclass(frozen=True, slots=True)
class UndoCount:
    """What is done to one table."""

    table: str
    deletes: int
    updates: int
    inserts: int
    moves: int
    """Rows among the deletes and the inserts that get a former key back."""


@dataclass(frozen=True)
class UndoPlan:
    """The inverse of the changes of ``(after_ts, upto_ts]``."""

    after_ts: int
    upto_ts: int
    nets: Sequence[NetRows]

    def tables(self, flavour: Flavour = Flavour.TIDB) -> list[TableUndo]:
        """Each table, for a server of a kind."""
        return [TableUndo(net, flavour) for net in self.nets]

    @cached_property
    def counts(self) -> list[UndoCount]:
        """In numbers, table by table."""
        return [UndoCount(t.name, *(int(m.sum()) for m in (t.removes, t.sets, t.writes, t.moved))) for t in self.tables()]

    def summary(self) -> str:
        """For people."""
        lines = [f"undo of ({self.after_ts}, {self.upto_ts}], from {as_time(self.after_ts)} to {as_time(self.upto_ts)} UTC"]
        lines += [
            f"{c.table}: {c.deletes - c.moves} deletes, {c.updates + c.moves} updates, {c.inserts - c.moves} inserts" for c in self.counts
        ]
        return "\n".join(lines if self.counts else [*lines, "nothing to undo"])

    def sql(self, flavour: Flavour = Flavour.TIDB) -> Iterator[str]:
        """The statements, each on its own: they are for a session of a person. Each change names the whole present row that it expects."""
        yield from (f"-- {line}" for line in self.summary().splitlines())
        if self.counts:
            yield from (*(f"{setting};" for setting in SETTINGS), "BEGIN;")
            for _, statements in self._steps(flavour):
                # Clients that read a file take \r\n for \n.
                yield from (f"{sql.decode()};".replace("\r", "\\r") for sql in statements.to_pylist())
            yield "COMMIT;"

    def rows(self, flavour: Flavour = Flavour.TIDB) -> pa.Table:
        """The changes as rows (``UNDO``), in their order."""
        pieces, place = list[pa.RecordBatch](), 0
        for (op, table), statements in self._steps(flavour):
            rows = table.net
            absent = np.zeros(len(rows), np.bool_)
            cells = {
                "place": pa.array(np.arange(place, place + len(rows))),
                "database": pa.array([rows.table.schema] * len(rows), pa.string()),
                "table": pa.array([rows.table.name] * len(rows), pa.string()),
                "op": pa.array([op] * len(rows), pa.string()),
                "expected": _variants(rows, rows.now, absent if op == "insert" else ~absent),
                "restored": _variants(rows, rows.was, absent if op == "delete" else ~absent),
                "sql": pa.array([sql.decode() for sql in statements.to_pylist()], pa.string()),
            }
            pieces.append(pa.RecordBatch.from_arrays([cells[f.name] for f in UNDO], schema=UNDO))
            place += len(rows)
        return pa.Table.from_batches(pieces, UNDO)

    def differences(self, columns: Sequence[Sequence[str]]) -> pa.Table:
        """The changes themselves: ``op``, ``columns`` (as given), ``before``, ``after``."""
        (net,) = self.nets
        ops = np.where(net.inserted, "insert", np.where(net.deleted, "delete", "update"))
        cells = [pa.array(ops), pa.array(columns, pa.list_(pa.string()))]
        return pa.Table.from_arrays(
            [*cells, _variants(net, net.was, net.was_there), _variants(net, net.now, net.now_there)], schema=_DIFFERENCE
        )

    def _steps(self, flavour: Flavour) -> Iterator[tuple[tuple[str, TableUndo], pa.BinaryArray]]:
        for op in ("delete", "update", "insert"):
            for table in self.tables(flavour):
                at = np.flatnonzero(table.rows_of(op))
                for begin in range(0, len(at), _AT_ONCE):
                    some = TableUndo(table.net.only(at[begin : begin + _AT_ONCE]), flavour)
                    yield (op, some), some.statements(op)


def _variants(rows: NetRows, images: pa.RecordBatch, there: Mask) -> pa.StructArray:
    info = rows.table.info
    if not there.any():
        return no_rows(len(there))
    columns = [VariantColumn(c.name, cells, kind_of(c) is CellKind.JSON) for c, cells in columns_of(info, images)]
    return spread(rows_as_variants(columns, len(images), json_nulls=True), np.arange(len(images)), there)
