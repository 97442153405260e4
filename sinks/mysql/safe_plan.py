"""Plans the statements of a span in safe mode: whatever part of the span the target already has, afterwards it has all of it. Pure.

A row's first and last image are not enough: of 1 -> 2 -> 3 the target may hold 2. So every image that a row had in the span is looked up, by each of
its unique keys, and deleted; then the last images are written, with REPLACE. No row outside the span is
deleted: it would have to share a unique key with a row of the span, at the same time. All deletes run before all writes, as in
``sinks.mysql.plan``.

Exact for every row that has a unique key without NULL, and for rows without such a key as long as no two of them are equal: each row's image deletes at
most one row of the target. Equal rows cannot be told apart: a row outside the span may be deleted instead of a row that is not yet
there. ``cannot_tell_apart`` says which tables have such rows.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.fold import AFTER, BEFORE, Indexes, Mask, fold
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.matching import NO_KEY, ByColumns, OldRows, key_numbers
from pyspark_tidb_binlog.sinks.mysql.plan import SLICE, NewRows, OldRowSource, PlanLimits, RowSource, SpanPlan, TableBuilder, TableWork
from pyspark_tidb_binlog.sinks.mysql.statements import Statement


def cannot_tell_apart(info: TableInfo) -> bool:
    """Whether rows of the table may be equal in every column that the target has: no unique key has only NOT NULL columns."""
    return not any(all(column.not_null for column in key) for key in info.unique_keys())


@dataclass(frozen=True, slots=True)
class SafeSpan:
    """How a span is applied in safe mode."""

    superseded: frozenset[int] = frozenset()
    """Ids of tables whose next DDL may have been executed on the target. A value that no longer fits is not a finding, because the span also has what
    comes after that DDL."""
    in_doubt: bool = True
    """Whether a part of the span may be in the target. If not, as where safe mode is only a setting, a new row that no unique key finds is written, and equal
    rows are not deleted first."""


class SafeSpanPlan(SpanPlan):
    """``SpanPlan`` in safe mode.

    Args:
        events: row events of the span, ALL of them, in any order.
        how: as it says.

    The others, and what it raises, as in ``SpanPlan``.
    """

    def __init__(
        self,
        events: pa.Table,
        tables: Mapping[int, TableAt],
        limits: PlanLimits,
        keys: pa.BinaryArray | None = None,
        *,
        flavour: Flavour = Flavour.MARIADB,
        gapped: Collection[int] = (),
        how: SafeSpan,
        source: RowSource | None = None,
    ) -> None:
        self._how = how
        super().__init__(events, tables, limits, keys, flavour=flavour, gapped=gapped, source=source)

    def _works(self, events: pa.Table, source: RowSource) -> list[TableWork]:
        if not events.num_rows:
            return []
        rows = pc.dictionary_encode(events["key"].combine_chunks()).indices.to_numpy(zero_copy_only=False).astype(np.int64)
        found = []
        for changes in fold(events):
            superseded = changes.table_id in self._how.superseded
            builder = _SafeTable(self._tables[changes.table_id], self._limits, self._flavour, rows, superseded=superseded)
            here = source.table_ids == changes.table_id
            had = np.flatnonzero(here & (source.ops != Op.INSERT) & _shown(events, BEFORE))
            has = np.flatnonzero(here & (source.ops != Op.DELETE) & _shown(events, AFTER))
            table = builder.table
            gone = _joined(source.old_rows(table, had), OldRows.complete(source.new_images(table, has).rows, has))
            if not self._how.in_doubt and cannot_tell_apart(table.info):
                net = source.old_rows(table, np.concatenate([changes.removed, changes.before]))
                gone = _joined(gone.only(key_numbers(table, gone) != NO_KEY), net.only(key_numbers(table, net) == NO_KEY))
            last = NewRows(source, builder.table, np.concatenate([changes.after, changes.added]))
            found.append(TableWork(builder, gone, (), last))
        return found


class _SafeTable(TableBuilder):
    """The statements of one table; ``rows``: a number for the row of each event."""

    def __init__(self, table: TableAt, limits: PlanLimits, flavour: Flavour, rows: Indexes, *, superseded: bool) -> None:
        super().__init__(table, limits, flavour, safe=True, superseded=superseded)
        self._rows = rows

    def deletes(self, old: OldRows, source: OldRowSource) -> list[Statement]:
        """Statements that delete whatever has any unique key of these images, or, if they have none, is like them."""
        found = super().deletes(old, source)
        if not len(old):
            return found
        first = key_numbers(self.table, old)
        for number, key in enumerate(self.info.unique_keys()):
            rows = old.only(self._complete(old, key) & (first != number))
            for start in range(0, len(rows), SLICE):
                found += self._by_key(key, rows.slice(start, min(SLICE, len(rows) - start)), source)
        return found

    def _complete(self, old: OldRows, key: Sequence[ColumnInfo]) -> Mask:
        """The images that have all columns of ``key``, and no NULL in them."""
        places = {c.id: i for i, c in enumerate(self.columns)}
        found: Mask = np.ones(len(old), dtype=bool)
        for column in key:
            place = places[column.id]
            found &= old.images.column(place).is_valid().to_numpy(zero_copy_only=False)
            if not old.whole:
                found &= ~old.lacks(place)
        return found

    def _by_key(self, key: tuple[ColumnInfo, ...], old: OldRows, source: OldRowSource) -> list[Statement]:
        return super()._by_key(key, self._once(old, [old.images.column(c.name) for c in key], source, by_row=False), source)

    def _by_columns(self, match: ByColumns, old: OldRows, source: OldRowSource) -> list[Statement]:
        """Delete at most one row of the target for each image of a row, however often the row had it."""
        return super()._by_columns(match, self._once(old, [self._conditions(match, old, source)], source, by_row=True), source)

    def _once(self, old: OldRows, values: Sequence[pa.Array], source: OldRowSource, *, by_row: bool) -> OldRows:
        """The first of each kind, the newest transaction first, so that errors name it."""
        codes = self._rows[old.events] if by_row else np.zeros(len(old), dtype=np.int64)
        for array in values:
            here = pc.dictionary_encode(array).indices.to_numpy(zero_copy_only=False).astype(np.int64)
            codes = np.unique(codes * (int(here.max(initial=0)) + 1) + here, return_inverse=True)[1].astype(np.int64)
        newest = np.argsort(-source.commit_ts[old.events], kind="stable")
        return old.only(np.sort(newest[np.unique(codes[newest], return_index=True)[1]]))


def _shown(events: pa.Table, hidden: str) -> Mask:
    """The events whose image conditions do not hide."""
    if hidden not in events.column_names:
        return np.ones(events.num_rows, dtype=bool)
    found: Mask = ~events[hidden].to_numpy()
    return found


def _joined(one: OldRows, other: OldRows) -> OldRows:
    if not len(other):
        return one
    if not len(one):
        return other
    images = pa.Table.from_batches([one.images, other.images.cast(one.images.schema)]).combine_chunks().to_batches()
    return OldRows(images[0], np.concatenate([one.events, other.events]))
