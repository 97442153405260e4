"""What a span has changed, and its inverse, in all its tables: as rows, as SQL, and in numbers. Pure.

    1. DELETE   of every table: what came, and what is to have another key
    2. UPDATE   back
    3. INSERT   what went, and what has another key now

Promises: each row is touched once, whatever the span did to it. The rows of a plan are under the columns that the tables have now.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.change_rows import image_variants
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, no_rows, spread
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.past.net_rows import Mask, NetRows
from pyspark_tidb_binlog.sinks.past.undo_sql import SETTINGS, TableUndo

_TEXT = pa.string()
UNDO = pa.schema(
    {"place": pa.int64(), "database": _TEXT, "table": _TEXT, "op": _TEXT, "expected": VARIANT, "restored": VARIANT, "sql": _TEXT}
)
"""The rows of a plan: ``expected`` is the present row that is deleted or updated, ``restored`` what is there afterwards."""
DIFFERENCE = pa.schema({"op": _TEXT, "columns": pa.list_(_TEXT), "before": VARIANT, "after": VARIANT})
"""Net changes as rows; ``columns``: those that changed."""
_AT_ONCE = 50_000
"""Statements that are held together."""


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """The inverse of the changes of ``(after_ts, upto_ts]``."""

    after_ts: int
    upto_ts: int
    nets: Sequence[NetRows]

    def tables(self, flavour: Flavour = Flavour.TIDB) -> list[TableUndo]:
        """Each table, for a server of a kind."""
        return [TableUndo(net, flavour) for net in self.nets]

    def summary(self) -> str:
        """For people."""
        lines = [f"undo of ({self.after_ts}, {self.upto_ts}], from {as_time(self.after_ts)} to {as_time(self.upto_ts)} UTC"]
        for table in self.tables():
            inserted, deleted, updated = table.net.counts
            lines.append(f"{table.name}: {inserted} deletes, {updated} updates, {deleted} inserts")
        return "\n".join(lines if self.nets else [*lines, "nothing to undo"])

    def sql(self, flavour: Flavour = Flavour.TIDB) -> Iterator[str]:
        """The statements, each on its own: they are for a session of a person. Each change names the whole present row that it expects."""
        yield from (f"-- {line}" for line in self.summary().splitlines())
        if self.nets:
            yield from (*(f"{setting};" for setting in SETTINGS), "BEGIN;")
            for _, _, statements in self._steps(flavour):
                # Clients that read a file take \r\n for \n.
                yield from (f"{sql.decode()};".replace("\r", "\\r") for sql in statements.to_pylist())
            yield "COMMIT;"

    def rows(self, flavour: Flavour = Flavour.TIDB) -> pa.Table:
        """The changes as rows (``UNDO``), in their order."""
        pieces, place = list[pa.Table](), 0
        for op, rows, statements in self._steps(flavour):
            count = len(rows)
            there = np.ones(count, np.bool_)
            cells = {
                "place": np.arange(place, place + count),
                "database": [rows.table.schema] * count,
                "table": [rows.table.name] * count,
                "op": [op] * count,
                "expected": _variants(rows, rows.now, there & (op != "insert")),
                "restored": _variants(rows, rows.was, there & (op != "delete")),
                "sql": statements.cast(pa.string()),
            }
            pieces.append(pa.table(cells, UNDO))
            place += count
        return pa.concat_tables([UNDO.empty_table(), *pieces])

    def _steps(self, flavour: Flavour) -> Iterator[tuple[str, NetRows, pa.BinaryArray]]:
        for op in ("delete", "update", "insert"):
            for table in self.tables(flavour):
                at = np.flatnonzero(table.rows_of(op))
                for begin in range(0, len(at), _AT_ONCE):
                    some = table.net.only(at[begin : begin + _AT_ONCE])
                    yield op, some, TableUndo(some, flavour).statements(op)


def differences(nets: Iterable[NetRows]) -> pa.Table:
    """Net changes as rows (``DIFFERENCE``)."""
    pieces = [DIFFERENCE.empty_table()]
    for net in nets:
        names = np.array([c.name for c in net.table.info.target_columns()])
        changes = np.array([net.changed([name]) for name in names])
        cells = {
            "op": np.where(net.inserted, "insert", np.where(net.deleted, "delete", "update")),
            "columns": [names[changes[:, row]].tolist() for row in range(len(net))],
            "before": _variants(net, net.was, net.was_there),
            "after": _variants(net, net.now, net.now_there),
        }
        pieces.append(pa.table(cells, DIFFERENCE))
    return pa.concat_tables(pieces)


def _variants(rows: NetRows, images: pa.RecordBatch, there: Mask) -> pa.StructArray:
    if not there.any():
        return no_rows(len(there))
    return spread(image_variants(rows.table.info, images, len(images), json_nulls=True), np.arange(len(images)), there)
