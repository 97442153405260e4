"""Plans the statements of one part of a span: from the rows of a Spark partition, in subsets that fit into memory. Pure.

    rows of a part -> rows that share a ``_tidb_rowid`` told apart -> subsets by key -> ``SpanPlan`` or ``SafeSpanPlan`` for each

A part may be planned again without other transactions than before (``syncer.ignore-txn-commit-ts``): ``DeleteCorrection``.

    committed without 7, now without 8     rows that only 8 deletes are inserted again, rows that only 7 deletes are deleted
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.errors import ApplyError, Corruption, SchemaMismatch
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, with_rows, without
from pyspark_tidb_binlog.sinks.engine.fold import (
    BEFORE,
    HiddenRows,
    Indexes,
    Mask,
    TableChanges,
    ends_of,
    first_events,
    fold,
    marked,
    subset_numbers,
)
from pyspark_tidb_binlog.sinks.engine.identity import numbered, repeated, row_numbers, sharing
from pyspark_tidb_binlog.sinks.engine.keyed import IN_MEMORY, Span
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.matching import OldRows, differ, key_numbers
from pyspark_tidb_binlog.sinks.mysql.plan import EventRows, Images, PlanLimits, SpanPlan, builder_of, sliced, work_of
from pyspark_tidb_binlog.sinks.mysql.safe_plan import SafeSpan, SafeSpanPlan
from pyspark_tidb_binlog.sinks.mysql.statements import Effect, Origin, Phase, Statement


@dataclass(frozen=True, slots=True)
class PartPlan:
    """How executors plan a part. Picklable."""

    span: Span
    tables: Mapping[int, TableAt]
    flavour: Flavour
    limits: PlanLimits
    skipped_ts: frozenset[int]
    """commit_ts of the transactions of the span to skip."""
    gone: frozenset[int]
    """Ids of tables whose rows are not written."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """(table id, operation) of row changes that are not written."""
    hidden: HiddenRows | None = None
    """The images that conditions hide."""
    safe: SafeSpan | None = None
    """None: not in safe mode."""
    ring: bool = False
    """Whether transactions that came back in a ring were left out before."""

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` that concern the span, also those of transactions to skip."""
        return wanted(rows_between(rows, *self.span), self.gone, self.left_out)


class PartPlans:
    """The statements of one part. Each time they are planned anew, except that a part of one subset keeps its plan.

    The statements of each subset begin with one that does nothing. Many subsets may have no other statement, and the server would close the idle connection
    while they are planned.
    """

    def __init__(self, rows: pa.Table, how: PartPlan) -> None:
        """``rows``: of one part, with the columns of ``KEYED``."""
        rows = _told_apart(rows, how)
        self._how = how
        self._rows = rows
        wanted = _all_without(rows, how.skipped_ts) if how.safe else ends_without(rows, how.skipped_ts) | self._births(how.skipped_ts)
        few = rows.nbytes <= IN_MEMORY
        self._only = self._plan(without(rows, "commit_ts", how.skipped_ts).combine_chunks()) if few else None
        self._numbers = subset_numbers_of(rows, wanted) if not few else np.zeros(0, dtype=np.int64)

    @property
    def skipped(self) -> frozenset[int]:
        """The transactions that it is planned without."""
        return self._how.skipped_ts

    def deletes(self) -> Iterator[Statement]:
        """All deletes of the part."""
        for plan in self._plans():
            yield _ALIVE
            yield from plan.deletes

    def writes(self) -> Iterator[Statement]:
        """All writes of the part."""
        for plan in self._plans():
            yield _ALIVE
            yield from plan.writes()

    def corrections(self, before: frozenset[int], findings: list[Finding]) -> Iterator[Statement]:
        """What makes the committed deletes, planned without the transactions ``before``, those of ``deletes``; adds what stays uncertain to ``findings``.

        All rows are inserted again before any is deleted, because the deletes must also find them among equal rows without a key.
        """
        for subset in self._changed_rows(before):
            correction = self._correction(subset, before)
            findings += correction.doubts()
            yield _ALIVE
            yield from correction.restores()
        for subset in self._changed_rows(before):
            correction = self._correction(subset, before)
            yield _ALIVE
            yield from correction.deletes()

    def _changed_rows(self, before: frozenset[int]) -> Iterator[pa.Table]:
        """Of the rows that either kind of transaction touches: the first event, and the first and last one with and without them."""
        ends = [ends_without(self._rows, skipped) for skipped in (frozenset[int](), before, self.skipped)]
        touched = _touched(self._rows, before ^ self.skipped)
        return subsets(self._rows, subset_numbers_of(self._rows, touched & np.logical_or.reduce([*ends, self._births(frozenset())])))

    def _correction(self, rows: pa.Table, before: frozenset[int]) -> "DeleteCorrection":
        how, keys, events = self._how, rows.column("key").combine_chunks(), self._events(rows)
        return DeleteCorrection(events, how.tables, how.limits, keys, before, self.skipped, flavour=how.flavour)

    def partly_applied(self, before: frozenset[int]) -> list[Finding]:
        """What is in the target, or missing there, because this part was written without the transactions ``before``."""
        concerned = self._rows.filter(pa.array(np.isin(self._rows.column("commit_ts").to_numpy(), list(before ^ self.skipped))))
        counted = concerned.group_by(["commit_ts", "table_id"]).aggregate([([], "count_all")]).sort_by("commit_ts").to_pylist()
        tables = self._how.tables
        return [_partly(row, tables[row["table_id"]], left_out=row["commit_ts"] in before) for row in counted if row["table_id"] in tables]

    def _births(self, skipped: frozenset[int]) -> Mask:
        """Which of the part's events insert a row into a table with columns of its own: between two others they make it another row."""
        others = [i for i, table in self._how.tables.items() if table.others]
        born: Mask = np.zeros(self._rows.num_rows, dtype=bool)
        if others:
            born = np.isin(self._rows.column("table_id").to_numpy(), others) & (self._rows.column("op").to_numpy() == Op.INSERT)
            born &= ~np.isin(self._rows.column("commit_ts").to_numpy(), list(skipped))
        return born

    def _plans(self) -> Iterator[SpanPlan]:
        if self._only is not None:
            yield self._only
        for subset in subsets(self._rows, self._numbers):
            yield self._plan(subset)

    def _plan(self, rows: pa.Table) -> SpanPlan:
        how, keys = self._how, rows.column("key").combine_chunks()
        if keys.null_count:
            raise _keyless_rows(rows)
        events = self._events(rows)
        if how.safe is not None:
            return SafeSpanPlan(events, how.tables, how.limits, keys, flavour=how.flavour, how=how.safe)
        return SpanPlan(events, how.tables, how.limits, keys, flavour=how.flavour)

    def _events(self, rows: pa.Table) -> pa.Table:
        events, hidden = rows.select(ROW_EVENT.names), self._how.hidden
        return events if hidden is None else marked(events, hidden)

    def require_same(self, before: frozenset[int]) -> None:
        """Refuse other transactions to skip than ``before`` in safe mode: more is deleted there than can be inserted again.

        Raises:
            ApplyError: the deletes were planned without other transactions: ``before``.
        """
        if self._how.safe:
            raise ApplyError(
                f"the span {self._how.span} was begun in safe mode with syncer.ignore-txn-commit-ts = {sorted(before)}, and its deletes are committed. "
                f"Start with that value, and change it when the checkpoint has reached {self._how.span[1]}"
            )


_ALIVE = Statement(b"DO 0", 0, Phase.DELETE, Effect.REMOVES, Origin("", 0, (), ()), ends=bytes(8))


def _partly(counted: Mapping[str, int], at: TableAt, *, left_out: bool) -> Finding:
    how = f"{counted['count_all']} of its row changes were {'left out' if left_out else 'written'}"
    words = f"the transaction is skipped in part: {how} before syncer.ignore-txn-commit-ts was changed"
    return Finding(FindingKind.ROWS, words, table_name(at.schema, at.name), counted["commit_ts"])


def _with_keys(rows: pa.Table) -> pa.Table:
    """``rows`` with an empty key where a transaction that is skipped changes an unknown table."""
    keys = rows.column("key")
    return rows.set_column(rows.schema.get_field_index("key"), "key", pc.fill_null(keys, b"")) if keys.null_count else rows


def _told_apart(rows: pa.Table, how: PartPlan) -> pa.Table:
    """``rows`` with an identity of its own for each row, also for rows that share a ``_tidb_rowid``; this includes transactions to skip."""
    if not rows.num_rows or not sharing(how.tables):
        return rows
    keys = _with_keys(rows).column("key").combine_chunks()
    again = repeated(rows.column("table_id").to_numpy(), keys, how.tables) & rows.column("key").is_valid().to_numpy()
    if not again.any():
        return rows
    gapped = frozenset(how.tables) if how.ring else frozenset(table_id for table_id, _ in how.left_out)
    places, found = subset_numbers_of(rows, again), np.zeros(rows.num_rows, dtype=np.int64)
    for number, subset in enumerate(subsets(rows, places)):
        found[places == number] = _sharer_numbers(subset, how, gapped)
    if not found.any():
        return rows
    return rows.set_column(rows.schema.get_field_index("key"), "key", numbered(rows.column("key").combine_chunks(), found))


def _sharer_numbers(rows: pa.Table, how: PartPlan, gapped: frozenset[int]) -> Indexes:
    """``row_numbers``; without the transactions to skip where a row is damaged, which may be why they are skipped."""
    try:
        return row_numbers(rows, rows.column("key").combine_chunks(), how.tables, gapped)
    except Corruption:
        chosen = _all_without(rows, how.skipped_ts)
        if chosen.all():
            raise
        left, found = rows.filter(pa.array(chosen)).combine_chunks(), np.zeros(rows.num_rows, dtype=np.int64)
        found[chosen] = row_numbers(left, left.column("key").combine_chunks(), how.tables, frozenset(how.tables))
        return found


def ends_without(rows: pa.Table, skipped: frozenset[int]) -> Mask:
    """Which of ``rows`` are the first or the last event of their row, without the transactions ``skipped``."""
    events = _with_keys(rows.select(["commit_ts", "seq", "op", "table_id", "key"]))
    if not skipped:
        return ends_of(events)
    chosen = ~np.isin(events.column("commit_ts").to_numpy(), list(skipped))
    chosen[chosen] = ends_of(events.filter(pa.array(chosen)))
    return chosen


def _all_without(rows: pa.Table, skipped: frozenset[int]) -> Mask:
    """Which of ``rows`` are not of the transactions ``skipped``."""
    found: Mask = ~np.isin(rows.column("commit_ts").to_numpy(), list(skipped))
    return found


def _touched(rows: pa.Table, transactions: frozenset[int]) -> Mask:
    """Which of ``rows`` have the key of one that these transactions change."""
    theirs = np.isin(rows.column("commit_ts").to_numpy(), list(transactions))
    touched: Mask = pc.is_in(rows.column("key"), rows.column("key").filter(pa.array(theirs))).to_numpy()
    return touched


def subset_numbers_of(rows: pa.Table, needed: Mask) -> Indexes:
    """The subset of each of ``rows``: by key, in subsets of about ``IN_MEMORY`` bytes; -1 where the row is not ``needed``."""
    if bool(np.any(needed & rows.column("key").is_null().to_numpy())):
        raise _keyless_rows(rows.filter(pa.array(needed)))
    keys = _with_keys(rows).column("key").combine_chunks().filter(pa.array(needed))
    sizes = pc.binary_length(rows.column("row")).to_numpy()[needed].astype(np.int64) + 1
    numbers = np.full(rows.num_rows, -1, dtype=np.int64)
    numbers[needed] = subset_numbers(rows.column("table_id").to_numpy()[needed], keys, sizes, -(-rows.nbytes // IN_MEMORY))
    return numbers


def subsets(rows: pa.Table, numbers: Indexes) -> Iterator[pa.Table]:
    """The rows of each subset."""
    for number in range(int(numbers.max(initial=-1)) + 1):
        yield _only(rows, numbers == number).combine_chunks()


def _only(rows: pa.Table, mask: Mask) -> pa.Table:
    """The rows selected by ``mask``, filtered batch by batch: filtering the whole table would first combine it into one array."""
    if bool(mask.all()):
        return rows
    found, at = [], 0
    for batch in rows.to_batches():
        found.append(batch.filter(pa.array(mask[at : at + batch.num_rows])))
        at += batch.num_rows
    return pa.Table.from_batches(found, rows.schema)


def _keyless_rows(rows: pa.Table) -> SchemaMismatch:
    first = rows.drop_columns(["row"]).filter(pc.is_null(rows.column("key"))).slice(0, 1).to_pylist()[0]
    return SchemaMismatch(
        f"table id {first['table_id']}: a row event at commit_ts {first['commit_ts']} (schema version {first['schema_version']}) has no "
        "row identity, because the DDL history has no such table at that version. Check that spark.tidb-status is the history of this cluster. "
        "If it does not reach back to the table's CREATE TABLE, set syncer.load-schema-snapshot = true"
    )


# Deletes that are committed while other transactions are to be skipped than then.

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
        for table_id, to_delete in self._to_delete.items():
            table, deleted = self._builders[table_id].table, self._deleted.get(table_id)
            if deleted is not None:
                done = self._rows(deleted)[self._found(table, deleted)]
                same = np.isin(to_delete.events, deleted.events) | self._found(table, to_delete) & np.isin(self._rows(to_delete), done)
                to_delete = to_delete.only(~same)
            yield from self._builders[table_id].deletes(to_delete, self._source)

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
        rows, to_delete = self._rows(deleted)[self._found(table, deleted)], self._to_delete.get(table_id)
        if to_delete is not None:
            rows = rows[~np.isin(rows, self._rows(to_delete)[self._found(table, to_delete)])]
        return self._source.old_rows(table, rows)

    def _strangers(self, table: TableAt, deleted: OldRows) -> OldRows:
        """Those ``deleted`` images that their row never had in the target, and that now are not to be deleted: without an identity in the
        target, another row was deleted instead if it is like them.
        """
        to_delete = self._to_delete.get(table.table_id)
        if table.info.pk_is_handle or table.info.is_common_handle:
            return deleted.slice(0, 0)
        strangers = ~self._found(table, deleted)
        return deleted.only(strangers if to_delete is None else strangers & ~np.isin(deleted.events, to_delete.events))

    def _gone(self, skipped: Collection[int]) -> dict[int, OldRows]:
        """The rows to delete without the transactions ``skipped``, by table id."""
        chosen = np.flatnonzero(~np.isin(self._source.commit_ts, list(skipped)))
        found = {}
        reborn = frozenset(i for i, builder in self._builders.items() if builder.table.others)
        for c in fold(self._events.drop_columns(["row"]).take(pa.array(chosen)), reborn):
            changes = TableChanges(c.table_id, chosen[c.removed], chosen[c.before], chosen[c.after], chosen[c.added])
            if (gone := work_of(self._builders[c.table_id], changes, self._source).gone) is not None:
                found[c.table_id] = gone
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
