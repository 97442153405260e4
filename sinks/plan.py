"""Row events of one span to the SQL statements that bring a target from the state before the span to the state after it.

Promises: pure; the same events in any order give the same statements. All deletes run before all writes.
Rules, for a table with a key (``TableInfo.target_key``): rows that are gone, and rows with another value in any unique key, are deleted by
key; every row that exists after the span is written with REPLACE. A row that keeps its unique keys needs no delete.
For a table without a key: every old image is deleted by all its columns, one row at a time, and every new image is inserted; equal rows are
interchangeable.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import columns as decode
from schemas.errors import SchemaMismatch
from schemas.events import Op
from schemas.history import TableAt
from schemas.tableinfo import ColumnInfo, TableInfo
from sinks.dialect import Flavour, delete_head, indexed_columns, key_head, match_condition, write_head
from sinks.fold import Indexes, TableChanges, fold
from sinks.literals import Cells, form_of, join_cells, literals, row_ends, text_of
from sinks.route import EVERYTHING, Route


class Phase(enum.StrEnum):
    """When a statement runs: every DELETE of a span before its first WRITE."""

    DELETE = "delete"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. ``rows`` is how many row images it stands for."""

    sql: bytes
    rows: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How big a statement may grow. A single row bigger than ``max_bytes`` still gets its statement."""

    max_bytes: int = 1024 * 1024
    max_rows: int = 2000
    max_keys: int = 1000
    """Keys of one DELETE: beyond some thousands MariaDB leaves the index for a scan of the table."""


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """What went into a plan and came out of it."""

    events: int = 0
    deleted: int = 0
    written: int = 0
    ignored: int = 0
    """Events of tables that are not replicated."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The statements of a span: ``deletes`` first, then ``writes``."""

    deletes: tuple[Statement, ...] = ()
    writes: tuple[Statement, ...] = ()
    counts: PlanCounts = field(default_factory=PlanCounts)


def plan_rows(
    events: pa.Table,
    tables: Mapping[int, TableAt],
    limits: PlanLimits,
    keys: pa.BinaryArray | None = None,
    *,
    flavour: Flavour = Flavour.MARIADB,
    route: Route = EVERYTHING,
) -> Plan:
    """Statements for ``events`` (``ROW_EVENT``; DDLs and punctuation are passed over), which lie between two DDL barriers.

    Args:
        events: row events of the span, in any order.
        tables: what the target's tables look like in this span, by table id.
        limits: statement sizes.
        keys: row identities, one per event; made by ``schemas.columns.row_keys`` when not given.
        flavour: whose SQL to write.
        route: which tables are replicated.

    Raises:
        SchemaMismatch: an event's table is not among ``tables``.
        Corruption: a row's bytes are damaged.
    """
    if keys is not None:
        events = events.append_column("key", keys)
    total = events.num_rows
    events = _wanted(events, tables, route)
    if keys is None:
        events = events.append_column("key", row_identities(events, tables))
    source = _Source(events)
    deletes: list[Statement] = []
    writes: list[Statement] = []
    for changes in fold(events):
        builder = TableBuilder(tables[changes.table_id], limits, flavour)
        gone, fresh = _images(builder, changes, source)
        deletes += builder.deletes(gone)
        writes += builder.writes(fresh)
    counts = PlanCounts(total, sum(s.rows for s in deletes), sum(s.rows for s in writes), total - events.num_rows)
    return Plan(tuple(deletes), tuple(writes), counts)


def row_identities(events: pa.Table, tables: Mapping[int, TableAt]) -> pa.BinaryArray:
    """``schemas.columns.row_keys`` over the events of many tables, in the events' order."""
    if events.num_rows == 0:
        return pa.array([], pa.binary())
    source = _Source(events)
    pieces: list[pa.BinaryArray] = []
    places: list[Indexes] = []
    for table_id in np.unique(source.table_ids).tolist():
        rows = np.flatnonzero(source.table_ids == table_id)
        pieces.append(decode.row_keys(tables[table_id], source.ops[rows], source.rows_at(rows)))
        places.append(rows)
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


class _Source:
    """The events' columns as arrays that can be taken from."""

    def __init__(self, events: pa.Table) -> None:
        self.ops = events["op"].to_numpy()
        self.table_ids = events["table_id"].to_numpy()
        self.versions = events["schema_version"].to_numpy()
        self._rows = events["row"].combine_chunks()

    def rows_at(self, indexes: Indexes) -> pa.BinaryArray:
        """Row bytes of some events."""
        if len(indexes) == len(self._rows) and bool(np.all(np.diff(indexes) == 1)):
            return self._rows
        return self._rows.take(pa.array(indexes))

    def old_images(self, table: TableAt, indexes: Indexes) -> pa.RecordBatch:
        """Rows as they stood before the events."""
        return decode.old_images(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes])

    def new_images(self, table: TableAt, indexes: Indexes) -> pa.RecordBatch:
        """Rows as they stood after the events."""
        return decode.new_images(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes])


def _wanted(events: pa.Table, tables: Mapping[int, TableAt], route: Route) -> pa.Table:
    """The row events of replicated tables; an unknown table is refused."""
    table_ids, ops = events["table_id"].to_numpy(), events["op"].to_numpy()
    rows = ops < Op.DDL
    dropped = []
    for table_id in np.unique(table_ids[rows]).tolist():
        table = tables.get(table_id)
        if table is None:
            raise _unknown_table(events, table_id)
        info = table.info
        if info.is_view or info.is_sequence or info.temp_table_type or not route.keeps(table.schema):
            dropped.append(table_id)
    if dropped:
        rows &= ~np.isin(table_ids, dropped)
    return events if bool(rows.all()) else events.filter(pa.array(rows))


def _unknown_table(events: pa.Table, table_id: int) -> SchemaMismatch:
    here = events.filter(pc.equal(events["table_id"], table_id))
    first, version = pc.min(here["commit_ts"]).as_py(), pc.max(here["schema_version"]).as_py()
    return SchemaMismatch(
        f"table id {table_id}: {here.num_rows} row events from commit_ts {first} on (schema version {version}), but the DDL history has no such table there; "
        "check that ddl-history is the history of this cluster and reaches back to the table's CREATE TABLE"
    )


def _images(builder: "TableBuilder", changes: TableChanges, source: _Source) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Old images to delete and new images to write."""
    fresh = source.new_images(builder.table, np.concatenate([changes.after, changes.added]))
    if builder.key and builder.identity_is_the_only_key:
        return source.old_images(builder.table, changes.removed), fresh
    old = source.old_images(builder.table, np.concatenate([changes.removed, changes.before]))
    if not builder.key:
        return old, fresh
    moved = _differ(old.slice(len(changes.removed)), fresh.slice(0, len(changes.after)), builder.unique_names)
    return old.filter(pa.array(np.concatenate([np.ones(len(changes.removed), dtype=bool), moved]))), fresh


def _differ(old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows whose images are not equal in some of these columns; NULL equals NULL."""
    moved = np.zeros(old.num_rows, dtype=bool)
    for name in names:
        a, b = old.column(name), new.column(name)
        same = pc.fill_null(pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b)))
        moved |= ~same.to_numpy(zero_copy_only=False)
    return moved


class TableBuilder:
    """Makes the statements for one table from decoded images."""

    def __init__(self, table: TableAt, limits: PlanLimits, flavour: Flavour = Flavour.MARIADB) -> None:
        self.table = table
        self.info: TableInfo = table.info
        self.limits = limits
        self.flavour = flavour
        self.columns = self.info.target_columns()
        self.key = self.info.target_key()
        unique = dict.fromkeys(c.name for key in (self.key, *self.info.unique_keys()) for c in key)
        self.unique_names = tuple(unique)
        # An update never changes an integer handle, so there is nothing to compare.
        handle = self.info.handle_columns() if self.info.pk_is_handle else ()
        self.identity_is_the_only_key = self.unique_names == tuple(c.name for c in handle)

    def deletes(self, old: pa.RecordBatch) -> list[Statement]:
        """Statements that remove the rows with these images."""
        return [s for chunk in _chunks(old) for s in (self._by_key(chunk) if self.key else self._by_row(chunk))]

    def writes(self, new: pa.RecordBatch) -> list[Statement]:
        """Statements that write these images."""
        head = write_head(self.table.schema, self.table.name, [c.name for c in self.columns], replace=bool(self.key))
        found = []
        for chunk in _chunks(new):
            cells = self._cells(chunk, self.columns)
            rows = join_cells(b"(", cells, [b","] * len(cells), b"),")
            found += self._split(head, rows, b"", Phase.WRITE, self.limits.max_rows)
        return found

    def _by_key(self, old: pa.RecordBatch) -> list[Statement]:
        cells = self._cells(old, self.key)
        opening, closing = (b"(", b"),") if len(self.key) > 1 else (b"", b",")
        rows = join_cells(opening, cells, [b","] * len(cells), closing)
        head = key_head(self.table.schema, self.table.name, [c.name for c in self.key])
        return self._split(head, rows, b")", Phase.DELETE, self.limits.max_keys)

    def _by_row(self, old: pa.RecordBatch) -> list[Statement]:
        """One statement for all equal rows: LIMIT keeps other equal rows of the table alive."""
        head = delete_head(self.table.schema, self.table.name)
        counted = pc.value_counts(self._conditions(old))
        return [
            Statement(b"".join((head, condition, b" LIMIT %d" % count)), count, Phase.DELETE)
            for condition, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)
        ]

    def _conditions(self, old: pa.RecordBatch) -> pa.BinaryArray:
        indexed = indexed_columns(self.info)
        cells: list[Cells] = []
        between: list[bytes] = []
        opening = b""
        for column, values in zip(self.columns, self._cells(old, self.columns), strict=True):
            first, *others = match_condition(column, self.flavour, column.name in indexed)
            if cells:
                between[-1] += b" AND " + first
            else:
                opening = first
            cells += [values] * len(others)
            between += others
        return join_cells(opening, cells, between, between[-1])

    def _cells(self, images: pa.RecordBatch, columns: Sequence[ColumnInfo]) -> list[Cells]:
        return [literals(values, form_of(c, values.type)) for c in columns for values in (images.column(c.name),)]

    def _split(self, head: bytes, rows: pa.BinaryArray, tail: bytes, phase: Phase, max_rows: int) -> list[Statement]:
        """Statements of consecutive rows; each row's text ends in a comma, the last one's of a statement is cut off."""
        ends, text = row_ends(rows), text_of(rows)
        room = self.limits.max_bytes - len(head) - len(tail)
        found = []
        first = 0
        while first < len(rows):
            begin = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, begin + room, side="right"))
            end = min(max(end, first + 1), first + max_rows)
            sql = b"".join((head, text[begin : int(ends[end - 1]) - 1], tail))
            found.append(Statement(sql, end - first, phase))
            first = end
        return found


_CHUNK_BYTES = 256 * 1024 * 1024
"""Images are made into text in pieces of this size: Arrow's binary arrays end at 2 GiB, and escaping may double a text."""


def _chunks(images: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if images.num_rows == 0:
        return
    step = max(1, images.num_rows * _CHUNK_BYTES // max(images.nbytes, 1))
    for start in range(0, images.num_rows, step):
        yield images.slice(start, step)
