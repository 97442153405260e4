"""Corrects deletes that are committed while other transactions are to be skipped than then. Pure.

committed without 7, now without 8     rows that only 8 deletes are inserted again, rows that only 7 deletes are deleted
"""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.batch import with_rows
from pyspark_tidb_binlog.sinks.engine.fold import BEFORE, Indexes, Mask, TableChanges, first_events, fold
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.matching import OldRows, differ, key_numbers
from pyspark_tidb_binlog.sinks.mysql.plan import EventRows, Images, PlanLimits, builder_of, sliced, work_of
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Statement

_STRANGERS = (
    "rows equal to those of this transaction may be missing. Its deletes were committed while transactions before it were skipped, "
    "so they may have deleted other rows. This transaction is now skipped, and the rows that it deleted are not known"
)
_RESET = "rows were inserted again with the defaults of the columns that only the target has: "
_GUESSED = "rows were inserted again with the default of columns that their images lack"


class DeleteCorrection:
    """Plans what changes committed deletes, planned without some transactions, into deletes planned without others: the rows to insert again, then the
    rows to delete in addition. Only row identities that those transactions touch need be given.

    A row is inserted as it was before the span, which its first event shows, also an event of a skipped transaction.

    Args:
        events: row events of the span, in any order; of a row at least its first event, and the first and last of its events in either plan.
        tables: as in ``SpanPlan``, like the other arguments.
        limits: statement sizes.
        keys: row identities, one per event.
        before: commit_ts of the transactions that the committed deletes were planned without.
        after: commit_ts of those to be skipped now.
        flavour: the SQL dialect.
    """

    def __init__(
        self,
        events: pa.Table,
        tables: Mapping[int, TableAt],
        limits: PlanLimits,
        keys: pa.BinaryArray,
        before: Collection[int],
        after: Collection[int],
        *,
        flavour: Flavour = Flavour.MARIADB,
    ) -> None:
        self._events = with_rows(events.append_column("key", keys), tables)
        self._source = EventRows(self._events)
        self._first = first_events(self._events)
        ids = np.unique(self._source.table_ids).tolist()
        self._builders = {i: builder_of(tables[i], limits, flavour) for i in ids}
        self._deleted, self._to_delete = self._gone(before), self._gone(after)

    def restores(self) -> Iterator[Statement]:
        """The rows that were deleted and now are not to be."""
        for table_id, deleted in self._deleted.items():
            restored = self._restored(table_id, deleted)
            for piece in sliced(Images(restored.images, self._source.commit_ts[restored.events])):
                yield from self._builders[table_id].writes(piece, Effect.RESTORES)

    def deletes(self) -> Iterator[Statement]:
        """The rows that were not deleted and now are to be."""
        for table_id, wanted in self._to_delete.items():
            table, deleted = self._builders[table_id].table, self._deleted.get(table_id)
            if deleted is not None:
                done = self._rows(deleted)[self._found(table, deleted)]
                same = np.isin(wanted.events, deleted.events) | self._found(table, wanted) & np.isin(self._rows(wanted), done)
                wanted = wanted.only(~same)
            yield from self._builders[table_id].deletes(wanted, self._source)

    def doubts(self) -> Iterator[Finding]:
        """What may be wrong after the correction, and no statement shows."""
        for table_id, deleted in self._deleted.items():
            table, restored = self._builders[table_id].table, self._restored(table_id, deleted)
            yield from self._doubted(table, self._strangers(table, deleted).events, FindingKind.ROWS, _STRANGERS)
            if table.others:
                words = _RESET + ", ".join(table.others)
                yield from self._doubted(table, restored.events, FindingKind.VALUE, words)
            guessed = pc.greater(pc.binary_length(restored.lacking), 0).to_numpy(zero_copy_only=False)
            yield from self._doubted(table, restored.events[guessed], FindingKind.VALUE, _GUESSED)

    def _doubted(self, table: TableAt, events: Indexes, kind: FindingKind, words: str) -> Iterator[Finding]:
        for commit_ts, count in zip(*np.unique(self._source.commit_ts[events], return_counts=True), strict=True):
            yield Finding(kind, f"{count} {words}", table_name(table.schema, table.name), int(commit_ts))

    def _restored(self, table_id: int, deleted: OldRows) -> OldRows:
        """The rows to insert again, of those ``deleted``, as they were before the span."""
        table = self._builders[table_id].table
        rows, wanted = self._rows(deleted)[self._found(table, deleted)], self._to_delete.get(table_id)
        if wanted is not None:
            rows = rows[~np.isin(rows, self._rows(wanted)[self._found(table, wanted)])]
        return self._source.old_rows(table, rows)

    def _strangers(self, table: TableAt, deleted: OldRows) -> OldRows:
        """Those ``deleted`` images that their row never had in the target, and that now are not to be deleted: without an identity in the
        target, another row was deleted instead if it is like them.
        """
        wanted = self._to_delete.get(table.table_id)
        if table.info.pk_is_handle or table.info.is_common_handle:
            return deleted.slice(0, 0)
        strangers = ~self._found(table, deleted)
        return deleted.only(strangers if wanted is None else strangers & ~np.isin(deleted.events, wanted.events))

    def _gone(self, skipped: Collection[int]) -> dict[int, OldRows]:
        """The rows to delete without the transactions ``skipped``, by table id."""
        chosen = np.flatnonzero(~np.isin(self._source.commit_ts, list(skipped)))
        found = {}
        reborn = frozenset(i for i, builder in self._builders.items() if builder.table.others)
        for c in fold(self._events.drop_columns(["row"]).take(pa.array(chosen)), reborn):
            changes = TableChanges(c.table_id, chosen[c.removed], chosen[c.before], chosen[c.after], chosen[c.added])
            found[c.table_id] = work_of(self._builders[c.table_id], changes, self._source).gone
        return found

    def _rows(self, old: OldRows) -> Indexes:
        """The first event of each row."""
        return self._first[old.events]

    def _found(self, table: TableAt, old: OldRows) -> Mask:
        """Which of the rows the target had, in the state that these images delete."""
        first = self._rows(old)
        found: Mask = self._source.ops[first] != Op.INSERT
        if BEFORE in self._events.column_names:
            found &= ~self._events[BEFORE].to_numpy()[first]
        later = np.flatnonzero(found & (first != old.events))
        if table.info.pk_is_handle or table.info.is_common_handle or not len(later):
            return found
        images, known = old.only(later), self._source.old_rows(table, first[later])
        numbers = key_numbers(table, images)
        keys = dict(enumerate(table.info.unique_keys()))
        for number in np.unique(numbers).tolist():
            here = numbers == number
            names = [c.name for c in keys.get(number, table.info.target_columns())]
            found[later[here]] = ~differ(images.only(here).images, known.only(here).images, names)
        return found
