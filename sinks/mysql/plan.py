"""Row events of one span to the SQL statements that bring a target from the state before the span to the state after it.

Promises: pure; the same events in any order give the same statements. All deletes run before all writes.
Rules (``sinks.mysql.matching``): rows that are gone, and rows with another value in any unique key, are deleted, each by the first unique key of which
its old image has every column and no NULL. A row that keeps its unique keys needs no delete if one of them finds it: it is changed in place. All
others that exist after the span are inserted.
A row without such a key is deleted by the columns that its image carries, one row at a time; rows that are equal in them are interchangeable.
Removed, added and changed rows stand in different statements, so that the server's counts tell whether each was as the binlogs say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import columns as decode
from schemas.arrowtypes import zero_value
from schemas.errors import SchemaMismatch
from schemas.events import Op
from schemas.history import TableAt
from schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from sinks.engine.fold import Indexes, TableChanges, fold
from sinks.mysql.dialect import (
    Flavour,
    change_tail,
    delete_head,
    indexed_columns,
    key_head,
    likeness_condition,
    match_condition,
    table_name,
    write_head,
)
from sinks.mysql.literals import Cells, form_of, join_cells, literals
from sinks.mysql.matching import NO_KEY, ByColumns, ByKey, OldRows, key_numbers, matches
from sinks.mysql.statements import Effect, Mask, Origin, Phase, Statement, split
from sinks.routing.route import EVERYTHING, Route


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
        work = _images(builder, changes, source)
        deletes += builder.deletes(work.gone, source)
        writes += builder.writes(work.changed, Effect.CHANGES)
        writes += builder.writes(work.added, Effect.ADDS)
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
        self.commit_ts = events["commit_ts"].to_numpy()
        self._rows = events["row"].combine_chunks()

    def rows_at(self, indexes: Indexes) -> pa.BinaryArray:
        """Row bytes of some events."""
        if len(indexes) == len(self._rows) and bool(np.all(np.diff(indexes) == 1)):
            return self._rows
        return self._rows.take(pa.array(indexes))

    def old_rows(self, table: TableAt, indexes: Indexes) -> OldRows:
        """Rows as they stood before the events."""
        return OldRows(decode.old_rows(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes]), indexes)

    def new_images(self, table: TableAt, indexes: Indexes) -> "Images":
        """Rows as they stood after the events."""
        rows = decode.new_images(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes])
        return Images(rows, self.commit_ts[indexes])


@dataclass(frozen=True, slots=True)
class Images:
    """Row images and the commit_ts of their events."""

    rows: pa.RecordBatch
    commit_ts: Indexes

    def slice(self, start: int, count: int) -> "Images":
        """Some that follow each other, without a copy."""
        return Images(self.rows.slice(start, count), self.commit_ts[start : start + count])

    def only(self, mask: Mask) -> "Images":
        """Some of them."""
        return self if bool(mask.all()) else Images(self.rows.filter(pa.array(mask)), self.commit_ts[mask])


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done with the rows of one table."""

    gone: OldRows
    """To delete: removed rows, and rows that come back with another key."""
    changed: Images
    """New images of rows that are there with the same unique keys."""
    added: Images
    """New images of rows that are not there, or not any more."""


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


def _images(builder: "TableBuilder", changes: TableChanges, source: _Source) -> _Work:
    table = builder.table
    fresh = source.new_images(table, np.concatenate([changes.after, changes.added]))
    kept, added = len(changes.after), len(changes.added)
    if builder.identity_is_the_only_key:
        return _Work(source.old_rows(table, changes.removed), fresh.slice(0, kept), fresh.slice(kept, added))
    old = source.old_rows(table, np.concatenate([changes.removed, changes.before]))
    if not builder.unique_names or not kept:
        return _Work(old, fresh.slice(0, 0), fresh)
    before = old.slice(len(changes.removed), kept)
    moved = _differ(before.images, fresh.rows.slice(0, kept), builder.unique_names) | (key_numbers(table, before) == NO_KEY)
    gone = old.only(np.concatenate([np.ones(len(changes.removed), dtype=bool), moved]))
    return _Work(gone, fresh.slice(0, kept).only(~moved), fresh.only(np.concatenate([moved, np.ones(added, dtype=bool)])))


def _differ(old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]) -> Mask:
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
        # With a key over a generated column no image shows whether a row keeps its keys: none is compared then, and every row makes way.
        keys = () if self.info.has_computed_key else self.info.unique_keys()
        self.unique_names = tuple(dict.fromkeys(c.name for key in keys for c in key))
        # An update never changes an integer handle, so there is nothing to compare.
        handle = self.info.handle_columns() if self.info.pk_is_handle else ()
        self.identity_is_the_only_key = bool(handle) and self.unique_names == tuple(c.name for c in handle)

    def deletes(self, old: OldRows, source: _Source) -> list[Statement]:
        """Statements that remove these rows."""
        found: list[Statement] = []
        for match in matches(self.table, old, source.versions):
            for piece in (match.rows.slice(start, rows) for start, rows in _pieces(match.rows.images)):
                found += self._by_key(match.key, piece, source) if isinstance(match, ByKey) else self._by_columns(match, piece, source)
        return found

    def writes(self, new: Images, effect: Effect) -> list[Statement]:
        """Statements that write these images, of rows that are there (``CHANGES``) or not (``ADDS``)."""
        names = [c.name for c in self.columns]
        tail = change_tail(names) if effect is Effect.CHANGES else b""
        shape = self._shape(write_head(self.table.schema, self.table.name, names), effect, self.columns)
        limits = self.limits.max_bytes, self.limits.max_rows
        found = []
        for start, count in _pieces(new.rows):
            piece = new.slice(start, count)
            cells = self._cells(piece.rows, self.columns)
            rows = join_cells(b"(", cells, [b","] * len(cells), b"),")
            found += split(shape, tail, rows, piece.commit_ts, limits, self._zero_enums(piece.rows))
        return found

    def _shape(self, head: bytes, effect: Effect, columns: Sequence[ColumnInfo], key: Sequence[ColumnInfo] = ()) -> Statement:
        unique = self.info.unique_keys()
        # A frozen table may have keys of its own: a row in the way is then told of by its columns, and pushed out.
        key = key or (unique[0] if unique else columns if self.table.frozen else ())
        table = table_name(self.table.schema, self.table.name)
        origin = Origin(table, int(self.table.version), tuple(c.name for c in columns), tuple(c.name for c in key))
        return Statement(head, 0, Phase.DELETE if effect is Effect.REMOVES else Phase.WRITE, effect, origin)

    def _by_key(self, key: Sequence[ColumnInfo], old: OldRows, source: _Source) -> list[Statement]:
        cells = self._sought(old.images, key)
        opening, closing = (b"(", b"),") if len(key) > 1 else (b"", b",")
        rows = join_cells(opening, cells, [b","] * len(cells), closing)
        head = key_head(self.table.schema, self.table.name, [c.name for c in key])
        shape = self._shape(head, Effect.REMOVES, key, key)
        return split(shape, b")", rows, source.commit_ts[old.events], (self.limits.max_bytes, self.limits.max_keys))

    def _by_columns(self, match: ByColumns, old: OldRows, source: _Source) -> list[Statement]:
        """One statement for all equal rows: LIMIT keeps other equal rows of the table alive."""
        shape = self._shape(delete_head(self.table.schema, self.table.name), Effect.REMOVES, ())
        columns = {"condition": self._conditions(match, old, source), "ts": source.commit_ts[old.events]}
        found = pa.table(columns).group_by("condition", use_threads=False).aggregate([("ts", "count"), ("ts", "max")])
        conditions, counts = found.column("condition").to_pylist(), found.column("ts_count").to_pylist()
        newest = found.column("ts_max").to_numpy().astype("<i8")
        return [
            replace(
                shape,
                sql=b"".join((shape.sql, condition, b" LIMIT %d" % count)),
                rows=count,
                commit_ts=newest[i : i + 1].tobytes(),
                begin=len(shape.sql),
                ends=np.array([len(shape.sql) + len(condition)], dtype="<i8").tobytes(),
            )
            for i, (condition, count) in enumerate(zip(conditions, counts, strict=True))
        ]

    def _conditions(self, match: ByColumns, old: OldRows, source: _Source) -> pa.BinaryArray:
        """For each row what must hold of it, and the order of those of which it does."""
        indexed = indexed_columns(self.info)
        terms = [(b" AND ", match_condition(c, self.flavour, c.name in indexed), c, old.images) for c in match.certain]
        guesses = [(match_condition(c, self.flavour, indexed=False), c, old.images) for c in match.preferred]
        guesses += [guess for c in match.lacked if c.id not in self.table.leaving for guess in self._guess(c, old, source)]
        terms += [(b" DESC, " if place else b" ORDER BY ", *guess) for place, guess in enumerate(guesses)]
        cells: list[Cells] = []
        between: list[bytes] = []
        opening = b"" if match.certain else b"TRUE"
        for place, (lead, (first, *others), column, images) in enumerate(terms):
            text = first if place == 0 and match.certain else lead + first
            if cells:
                between[-1] += text
            else:
                opening += text
            cells += self._sought(images, [column]) * len(others)
            between += others
        closing = between[-1] + (b" DESC" if guesses else b"")
        return join_cells(opening, cells, between, closing)

    def _guess(self, column: ColumnInfo, old: OldRows, source: _Source) -> list[tuple[tuple[bytes, ...], ColumnInfo, pa.RecordBatch]]:
        """What a column that the images lack may hold: what a MODIFY COLUMN made of its former value, else its default."""
        writer = replace(self.table, info=self.table.written_as(int(source.versions[old.events[0]])))
        former = next((c for c in writer.info.target_columns() if c.name == column.name and c.id != column.id), None)
        if former is None:
            return [(match_condition(column, self.flavour, indexed=False), column, old.images)]
        return [(likeness_condition(column), former, source.old_rows(writer, old.events).images)]

    def _cells(self, images: pa.RecordBatch, columns: Sequence[ColumnInfo]) -> list[Cells]:
        return [_cells_of(c, self._taken(c, images.column(c.name))) for c in columns]

    def _sought(self, images: pa.RecordBatch, columns: Sequence[ColumnInfo]) -> list[Cells]:
        """Literals to compare with."""
        return [_cells_of(c, self._comparable(c, self._taken(c, images.column(c.name)))) for c in columns]

    def _comparable(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """MariaDB compares a SET with a number as signed, so one of 64 members needs its bits as such a number."""
        signed = self.flavour is Flavour.MARIADB and column.tp == ColumnType.SET
        return pc.cast(values, pa.int64(), safe=False) if signed else values

    def _taken(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """NULLs that a frozen table does not take as its zero value."""
        frozen = self.table.frozen
        if frozen is None or column.id not in frozen.narrow or not values.null_count:
            return values
        return pc.fill_null(values, pa.scalar(zero_value(column), values.type))

    def _zero_enums(self, images: pa.RecordBatch) -> list[tuple[str, Mask]]:
        enums = [c.name for c in self.columns if c.tp == ColumnType.ENUM]
        return [(name, pc.fill_null(pc.equal(images.column(name), 0), False).to_numpy(zero_copy_only=False)) for name in enums]


def _cells_of(column: ColumnInfo, values: pa.Array) -> Cells:
    return literals(values, form_of(column, values.type))


_CHUNK_BYTES = 256 * 1024 * 1024
"""Images are made into text in pieces of this size: Arrow's binary arrays end at 2 GiB, and escaping may double a text."""


def _pieces(images: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """The first row and the length of each piece."""
    step = max(1, images.num_rows * _CHUNK_BYTES // max(images.nbytes, 1))
    for start in range(0, images.num_rows, step):
        yield start, min(step, images.num_rows - start)
