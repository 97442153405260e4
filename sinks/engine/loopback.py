"""Finds transactions that came back in a ring: those that carry a mark of our channel (drainer.md 7). Pure.

Promises: one image of the mark table with our channel is enough, whatever the operation. Pieces of a transaction are joined by commit_ts, because only
one piece has the mark. The table is found by its name in the DDL history, without regard to case and at the schema version of each row, because
it may have been created again.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt, TableSnapshot
from pyspark_tidb_binlog.sinks.routing.table_filter import MARK_SCHEMA, MARK_TABLE

_CHANNEL = "channel_id"


@dataclass(frozen=True, slots=True)
class MarkTables:
    """The mark tables of an upstream. Picklable."""

    spans: tuple[tuple[int, int, int], ...] = ()
    """(table id, first schema version, the first one at which it has another name)."""

    @classmethod
    def of(cls, history: SchemaHistory) -> Self:
        """Those of ``history``."""
        found: list[tuple[int, int, int]] = []
        for table_id, track in history.tracks.items():
            ends = [entry.version for entry in track.entries[1:]] + [1 << 62]
            for entry, end in zip(track.entries, ends, strict=True):
                if isinstance(entry, TableSnapshot) and (entry.schema.lower(), entry.name.lower()) == (MARK_SCHEMA, MARK_TABLE):
                    found.append((table_id, entry.version, end))
        return cls(tuple(found))

    @property
    def table_ids(self) -> frozenset[int]:
        """Their ids."""
        return frozenset(table_id for table_id, _, _ in self.spans)

    def apart(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The marks among ``rows`` (``ROW_EVENT``), and the others."""
        if not self.spans or not rows.num_rows:
            return rows.slice(0, 0), rows
        table_ids, versions = rows.column("table_id").to_numpy(), rows.column("schema_version").to_numpy()
        marks = np.zeros(rows.num_rows, np.bool_)
        for table_id, begin, end in self.spans:
            marks |= (table_ids == table_id) & (versions >= begin) & (versions < end)
        if not marks.any():
            return rows.slice(0, 0), rows  # without a copy
        return rows.filter(pa.array(marks)), rows.filter(pa.array(~marks))


def looped(marks: pa.Table, history: SchemaHistory, channel_id: int) -> frozenset[int]:
    """commit_ts of the transactions with one of these ``marks`` (``ROW_EVENT``) that is of channel ``channel_id``."""
    found: set[int] = set()
    for table_id in pc.unique(marks.column("table_id")).to_pylist():
        of_table = marks.filter(pc.equal(marks.column("table_id"), table_id))
        for version in pc.unique(of_table.column("schema_version")).to_pylist():
            table = history.table_at(table_id, version)
            if table is not None:
                found |= _of_channel(of_table.filter(pc.equal(of_table.column("schema_version"), version)), table, channel_id)
    return frozenset(found)


def _of_channel(marks: pa.Table, table: TableAt, channel_id: int) -> set[int]:
    name = next((c.name for c in table.info.target_columns() if c.name.lower() == _CHANNEL), None)
    if name is None:
        return set()
    ops, raw, versions = marks.column("op").to_numpy(), marks.column("row").combine_chunks(), marks.column("schema_version").to_numpy()
    found: set[int] = set()
    for kinds, decode in (((Op.UPDATE, Op.DELETE), decoder.old_images), ((Op.INSERT, Op.UPDATE), decoder.new_images)):
        places = np.flatnonzero(np.isin(ops, kinds))
        images = decode(table, ops[places], raw.take(pa.array(places)), versions[places])
        ours = pc.fill_null(pc.equal(pc.cast(images.column(name), pa.int64()), channel_id), False)
        found |= set(marks.column("commit_ts").take(pa.array(places)).filter(ours).to_pylist())
    return found
