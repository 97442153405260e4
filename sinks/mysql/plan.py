"""Plans the SQL statements that bring a target from the state before a span to the state after it, from the span's row events.

Promises: pure; the same events in any order give the same statements. All deletes run before all writes. Rules (``sinks.mysql.matching``):

* A deleted row, and a row whose value in any unique key changes, is deleted by the first unique key of which its old image has every column and no NULL;
  else by the columns that its image carries, with a LIMIT: rows equal in these columns are interchangeable.
* A row that keeps its unique keys, at least one of which identifies it, is changed in place. All other rows that exist after the span are inserted.
* In a table with unique keys that only the target has (``TableAt.own_keys``) nothing is changed in place: a missing row would overwrite another.
* In a table with columns that only the target has (``TableAt.others``) a row whose unique keys change gets their defaults, which is a finding. A row that is
  deleted and inserted again is a new row.
* Deleted, inserted and changed rows are in separate statements, so that the server's counts show whether each had its effect.

``planned`` plans everything at once; a ``SpanPlan`` decodes the rows to write while its statements are read. What concerns a table alone, such as the
beginnings of its statements, is decided once (``TableBuilder``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas import decoder as decode
from pyspark_tidb_binlog.schemas import reference_decoder
from pyspark_tidb_binlog.schemas.arrowtypes import kind_of, zero_value
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.row_layout import Once
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.engine import identity
from pyspark_tidb_binlog.sinks.engine.batch import with_rows
from pyspark_tidb_binlog.sinks.engine.fold import Indexes, Mask, TableChanges, fold
from pyspark_tidb_binlog.sinks.engine.identity import EventColumns, identities
from pyspark_tidb_binlog.sinks.mysql.dialect import (
    JSON_DEPTH,
    Flavour,
    change_tail,
    delete_head,
    has_signed_sets,
    indexed_columns,
    key_condition,
    key_head,
    likeness_condition,
    listed,
    match_condition,
    table_name,
    write_head,
)
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, deeper, form_of, join_cells, join_conditions, literals
from pyspark_tidb_binlog.sinks.mysql.matching import NO_KEY, ByColumns, ByKey, OldRows, differ, key_numbers, matches
from pyspark_tidb_binlog.sinks.mysql.statements import WHERE, Effect, Noted, Origin, Phase, RowTexts, Statement


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Maximum size of a statement. A single row bigger than ``max_bytes`` still gets a statement of its own."""

    max_bytes: int = 1024 * 1024
    max_rows: int = 2000
    max_keys: int = 1000
    """Keys of one DELETE: beyond a few thousand MariaDB scans the table instead of using the index."""

    def within(self, max_allowed_packet: int) -> "PlanLimits":
        """The same for a server with this limit: there is room for the packet header, and for one that measures statements in its own charset."""
        return replace(self, max_bytes=min(self.max_bytes, max_allowed_packet * 3 // 4))


@dataclass(frozen=True, slots=True)
class Plan:
    """The statements of a span: ``deletes`` first, then ``writes``."""

    deletes: tuple[Statement, ...] = ()
    writes: tuple[Statement, ...] = ()


def planned(span: "SpanPlan") -> Plan:
    """Return all statements of ``span`` at once."""
    return Plan(span.deletes, tuple(span.writes()))


class SpanPlan:
    """The statements for ``events`` (``ROW_EVENT``), which lie between two DDL barriers: the deletes, and the writes as they are asked for.

    Args:
        events: row events of the span, in any order.
        tables: the target's table definitions in this span, by table id.
        limits: statement sizes.
        keys: row identities, one per event; computed by ``sinks.engine.identity.identities`` if None.
        flavour: the SQL dialect.
        gapped: without ``keys``: ids of tables of which events may be missing, because they are not to be applied.
        source: what the events' rows are read from; None: from their bytes. With one, ``keys`` are given, and all tables hold rows.

    Raises:
        SchemaMismatch: an event's table is not among ``tables``.
        Corruption: a row's bytes are damaged; those of rows to write are found by ``writes``.
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
        source: "RowSource | None" = None,
    ) -> None:
        if keys is not None:
            events = events.append_column("key", keys)
        events = with_rows(events, tables)
        if keys is None:
            events = events.append_column("key", identities(events, tables, gapped))
        source = source or EventRows(events)
        self._tables, self._limits, self._flavour = tables, limits, flavour
        self._work = self._works(events, source)
        gone = ((work.builder, work.gone) for work in self._work if work.gone is not None)
        self.deletes = tuple(statement for builder, old in gone for statement in builder.deletes(old, source))
        """All deletes of the span; they run before its first write."""

    def _works(self, events: pa.Table, source: "RowSource") -> "list[TableWork]":
        """What is to be done per table; ``events`` with the column ``key``."""
        reborn = frozenset(i for i, table in self._tables.items() if table.others)
        folded = fold(events, reborn)
        return [work_of(builder_of(self._tables[changes.table_id], self._limits, self._flavour), changes, source) for changes in folded]

    def writes(self) -> Iterator[Statement]:
        """The writes, the same ones at each call."""
        for work in self._work:
            for effect, found, resets in (
                (Effect.CHANGES, work.changed, False),
                (Effect.ADDS, work.reset, True),
                (Effect.ADDS, work.added, False),
            ):
                for images in found:
                    yield from work.builder.writes(images, effect, resets=resets)


SLICE = 8_000
"""Rows to write that are converted at a time: whole statements of ``PlanLimits.max_rows``, and few enough to stay in the CPU cache."""


class OldRowSource(Protocol):
    """Events, and the rows before them."""

    versions: Indexes
    commit_ts: Indexes

    def old_rows(self, table: TableAt, indexes: Indexes) -> OldRows:
        """The rows before the events."""


class RowSource(OldRowSource, Protocol):
    """Events, and the rows before and after them."""

    ops: Indexes
    table_ids: Indexes

    def new_images(self, table: TableAt, indexes: Indexes) -> "Images":
        """The rows after the events."""


class EventRows(EventColumns):
    """The rows of events as bytes (``RowSource``)."""

    def old_rows(self, table: TableAt, indexes: Indexes) -> OldRows:
        """The rows before the events."""
        decoded = reference_decoder.old_rows if len(indexes) <= identity.FEW_ROWS else decode.old_rows
        return OldRows(decoded(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes]), indexes)

    def new_images(self, table: TableAt, indexes: Indexes) -> "Images":
        """The rows after the events."""
        decoded = reference_decoder.new_images if len(indexes) <= identity.FEW_ROWS else decode.new_images
        rows = decoded(table, self.ops[indexes], self.rows_at(indexes), self.versions[indexes])
        return Images(rows, self.commit_ts[indexes])


@dataclass(frozen=True, slots=True)
class Images:
    """Row images and the commit_ts of their events."""

    rows: pa.RecordBatch
    commit_ts: Indexes

    def slice(self, start: int, count: int) -> "Images":
        """Consecutive images, without a copy."""
        return Images(self.rows.slice(start, count), self.commit_ts[start : start + count])

    def only(self, mask: Mask) -> "Images":
        """The images selected by ``mask``."""
        return self if bool(mask.all()) else Images(self.rows.filter(pa.array(mask)), self.commit_ts[mask])


@dataclass(frozen=True, slots=True)
class TableWork:
    """The rows of one table to delete, change and insert."""

    builder: "TableBuilder"
    gone: OldRows | None
    """To delete: deleted rows, and rows that are inserted again with another key; None: the span only inserts."""
    changed: Iterable[Images]
    """New images of rows that exist with the same unique keys."""
    added: Iterable[Images]
    """New images of rows that do not exist, or no longer after the deletes."""
    reset: Iterable[Images] = ()
    """New images of rows that are inserted again with another key, and lose what columns that only the target has held."""


@dataclass(frozen=True, slots=True)
class NewRows:
    """The rows after some events, decoded slice by slice."""

    source: RowSource
    table: TableAt
    events: Indexes

    def __iter__(self) -> Iterator[Images]:
        for first in range(0, len(self.events), SLICE):
            yield self.source.new_images(self.table, self.events[first : first + SLICE])


def sliced(images: Images) -> Iterable[Images]:
    """``images`` in slices, without a copy."""
    return tuple(images.slice(first, min(SLICE, images.rows.num_rows - first)) for first in range(0, images.rows.num_rows, SLICE))


def work_of(builder: "TableBuilder", changes: TableChanges, source: RowSource) -> TableWork:
    """What is to be done for these net changes."""
    table, kept = builder.table, len(changes.after)
    added = NewRows(source, table, changes.added)
    if not kept and not len(changes.removed):
        return TableWork(builder, None, (), added)
    if builder.identity_is_the_only_key:
        return TableWork(builder, source.old_rows(table, changes.removed), NewRows(source, table, changes.after), added)
    old = source.old_rows(table, np.concatenate([changes.removed, changes.before]))
    if not kept:
        return TableWork(builder, old, (), added)
    # Decoded already here: what replaces a deleted row must not turn out to be damaged after the delete is committed.
    after = source.new_images(table, changes.after)
    if not builder.unique_names or table.own_keys:
        again = sliced(after)
        return TableWork(builder, old, (), added, again) if table.others else TableWork(builder, old, (), (*again, *added))
    before = old.slice(len(changes.removed), kept)
    moved = differ(before.images, after.rows, builder.unique_names) | (key_numbers(table, before) == NO_KEY)
    gone = old.only(np.concatenate([np.ones(len(changes.removed), dtype=bool), moved]))
    if table.others:
        return TableWork(builder, gone, sliced(after.only(~moved)), added, sliced(after.only(moved)))
    added = NewRows(source, table, np.concatenate([changes.after[moved], changes.added]))
    return TableWork(builder, gone, sliced(after.only(~moved)), added)


class TableBuilder:
    """Builds the statements for one table from decoded images."""

    def __init__(
        self, table: TableAt, limits: PlanLimits, flavour: Flavour = Flavour.MARIADB, *, safe: bool = False, superseded: bool = False
    ) -> None:
        """``safe``: the rows may be there in any state, so they are cleared and replaced; ``superseded``: see ``Statement``."""
        self.table = table
        self.info: TableInfo = table.info
        self.limits = limits
        self.flavour = flavour
        self.columns = self.info.target_columns()
        self._forms = [form_of(c, kind_of(c).arrow) for c in self.columns]
        self._keys = self.info.unique_keys()
        self._name = table_name(table.schema, table.name)
        self._safe = safe
        self._superseded = superseded
        # If a key includes a generated column, images do not show whether a row keeps its keys, so every row is deleted and inserted.
        keys = () if self.info.has_computed_key else self._keys
        self.unique_names = tuple(dict.fromkeys(c.name for key in keys for c in key))
        # An update never changes an integer handle, so there is nothing to compare.
        handle = self.info.handle_columns() if self.info.pk_is_handle else ()
        self.identity_is_the_only_key = bool(handle) and self.unique_names == tuple(c.name for c in handle) and not table.own_keys
        self._documents = [c for c in self.columns if c.tp == ColumnType.JSON and flavour in _TOO_DEEP]
        self._enums = [c.name for c in self.columns if c.tp == ColumnType.ENUM]
        self._held_otherwise = {*table.narrow, *(c.id for c in self._documents if flavour is Flavour.MYSQL)}
        """Ids of columns of which the target cannot hold every value (``_taken``)."""
        names = [c.name for c in self.columns]
        head, changes = write_head(table.schema, table.name, names), change_tail(names)
        changing = self._shape(head, Effect.CHANGES, self.columns)
        self._writing = {
            Effect.ADDS: (self._shape(head, Effect.ADDS, self.columns), b""),
            Effect.RESTORES: (self._shape(head, Effect.RESTORES, self.columns), b""),
            Effect.CHANGES: (replace(changing, deprecated=len(names)) if flavour is Flavour.MYSQL else changing, changes),
        }
        """What the statements of each effect have in common, and what ends them."""

    def deletes(self, old: OldRows, source: OldRowSource) -> list[Statement]:
        """Statements that delete these rows."""
        found: list[Statement] = []
        for match in matches(self.table, old, source.versions) if len(old) else ():
            for piece in (match.rows.slice(start, rows) for start, rows in _pieces(match.rows.images)):
                found += self._by_key(match.key, piece, source) if isinstance(match, ByKey) else self._by_columns(match, piece, source)
        return found

    def writes(self, new: Images, effect: Effect, *, resets: bool = False) -> list[Statement]:
        """Statements that write these images, of rows that exist (``CHANGES``) or not (``ADDS``); ``resets``: a finding is that other columns lose values."""
        if not new.rows.num_rows:
            return []
        found = []
        for start, count in _pieces(new.rows):
            found += self.written(new.slice(start, count), effect, resets=resets).split(self.limits.max_bytes)
        return found

    def written(self, new: Images, effect: Effect, *, resets: bool = False) -> RowTexts:
        """The texts of ``writes``."""
        shape, tail = self._writing[effect]
        cells = self._cells(new.rows)
        rows = join_cells(b"(", cells, [b","] * len(cells), b"),")
        noted = self._noted(new.rows) if self._documents else []
        if resets:
            words = _MOVED + ", ".join(self.table.others)
            noted.append((FindingKind.VALUE, words, np.ones(new.rows.num_rows, dtype=bool)))
        return RowTexts(shape, tail, rows, new.commit_ts, self.limits.max_rows, self._zero_enums(new.rows) if self._enums else [], noted)

    def updated(self, match: ByKey | ByColumns, new: Images, source: OldRowSource) -> RowTexts:
        """The texts of an UPDATE for each row that ``match`` finds, to its image in ``new``: the row keeps what the target alone has."""
        cells = self._cells(new.rows)
        leads = [f"{quote_name(c.name)}=".encode() for c in self.columns]
        settings = join_cells(leads[0], cells, [b"," + lead for lead in leads[1:]], b"")
        if isinstance(match, ByKey):
            conditions, tail, key = self._by_conditions(match.key, match.rows.images, b"", b""), b"", match.key
        else:
            conditions, tail, key = self._conditions(match, match.rows, source), b" LIMIT 1", ()
        shape = replace(self._shape(f"UPDATE {self._name} SET ".encode(), Effect.UPDATES, (), key), between=b"")
        rows = pc.binary_join_element_wise(settings, conditions, pa.scalar(WHERE, pa.binary()))
        begins = pc.binary_length(settings).to_numpy().astype(np.int64) + len(WHERE)
        return RowTexts(shape, tail, rows, new.commit_ts, 1, self._zero_enums(new.rows), self._noted(new.rows), begins)

    def removed(self, match: ByKey | ByColumns, source: OldRowSource) -> RowTexts:
        """The texts of DELETEs that each find one row for each of ``match``."""
        old, (schema, name) = match.rows, (self.table.schema, self.table.name)
        commit_ts = source.commit_ts[old.events]
        if isinstance(match, ByColumns):
            shape = replace(self._shape(delete_head(schema, name), Effect.REMOVES, ()), between=b"")
            return RowTexts(shape, b" LIMIT 1", self._conditions(match, old, source), commit_ts, 1)
        key = match.key
        if listed(key, self.flavour, self.table.recoded):
            shape = self._shape(key_head(schema, name, [c.name for c in key]), Effect.REMOVES, key, key)
            # A MariaDB reads the whole table for a list of one key of several columns.
            tail = b",(" + b",".join([b"NULL"] * len(key)) + b"))" if len(key) > 1 and self.flavour is Flavour.MARIADB else b")"
            cells = self._sought(old.images, key)
            opening, closing = (b"(", b")") if len(key) > 1 else (b"", b"")
            rows = join_cells(opening, cells, [b","] * len(cells), closing + shape.between)
        else:
            shape, tail = replace(self._shape(delete_head(schema, name), Effect.REMOVES, (), key), between=b" OR "), b""
            rows = self._by_conditions(key, old.images, b"(", b")" + shape.between)
        return RowTexts(shape, tail, rows, commit_ts, self.limits.max_keys)

    def _by_conditions(self, key: Sequence[ColumnInfo], images: pa.RecordBatch, opening: bytes, closing: bytes) -> pa.BinaryArray:
        cells = self._sought(images, key)
        terms = [(b" AND " if n else b"", key_condition(c, self.flavour), here) for n, (c, here) in enumerate(zip(key, cells, strict=True))]
        return join_conditions(opening, terms, closing)

    def _shape(self, head: bytes, effect: Effect, columns: Sequence[ColumnInfo], key: Sequence[ColumnInfo] = ()) -> Statement:
        # A frozen table may have unique keys that the upstream lacks: a conflicting row is then reported with all columns, and replaced.
        key = key or (self._keys[0] if self._keys else columns if self.table.frozen else ())
        names = tuple(c.name for c in columns), tuple(c.name for c in key)
        origin = Origin(self._name, int(self.table.version), *names, self.table.own_keys, self.table.folded)
        phase = Phase.DELETE if effect is Effect.REMOVES else Phase.WRITE
        if self._safe:
            effect = Effect.CLEARS if phase is Phase.DELETE else Effect.SETTLES
            head = head if phase is Phase.DELETE else b"REPLACE" + head.removeprefix(b"INSERT")
        return Statement(head, 0, phase, effect, origin, superseded=self._superseded)

    def _by_key(self, key: tuple[ColumnInfo, ...], old: OldRows, source: OldRowSource) -> list[Statement]:
        return self.removed(ByKey(key, old), source).split(self.limits.max_bytes)

    def _by_columns(self, match: ByColumns, old: OldRows, source: OldRowSource) -> list[Statement]:
        """One statement for all equal rows: its LIMIT preserves further equal rows in the table."""
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

    def _conditions(self, match: ByColumns, old: OldRows, source: OldRowSource) -> pa.BinaryArray:
        """The WHERE condition of each row, and an ORDER BY that prefers the likeliest of the matching rows."""
        indexed = indexed_columns(self.info)
        certain = [(match_condition(c, self.flavour, c.name in indexed), c, old.images) for c in match.certain]
        guesses = [(match_condition(c, self.flavour, indexed=False), c, old.images) for c in match.preferred]
        guesses += [guess for c in match.lacked if c.id not in self.table.leaving for guess in self._guess(c, old, source)]
        leads = [b" AND "] * len(certain) + [b" ORDER BY ", *[b" DESC, "] * len(guesses)]
        leads[:1] = [b""] if certain else [b"TRUE ORDER BY "]
        terms = [(lead, texts, self._sought(images, [c])[0]) for lead, (texts, c, images) in zip(leads, certain + guesses, strict=False)]
        return join_conditions(b"", terms, b" DESC" if guesses else b"")

    def _guess(self, column: ColumnInfo, old: OldRows, source: OldRowSource) -> list[tuple[tuple[bytes, ...], ColumnInfo, pa.RecordBatch]]:
        """The likely value of a column that the images lack: the former value converted by a MODIFY COLUMN, else the default."""
        writer = replace(self.table, info=self.table.written_as(int(source.versions[old.events[0]])))
        former = next((c for c in writer.info.target_columns() if c.name == column.name and c.id != column.id), None)
        if former is None:
            return [(match_condition(column, self.flavour, indexed=False), column, old.images)]
        return [(likeness_condition(column), former, source.old_rows(writer, old.events).images)]

    def _cells(self, images: pa.RecordBatch) -> list[Cells]:
        values = ((c, images.column(c.name), form) for c, form in zip(self.columns, self._forms, strict=True))
        return [literals(self._taken(c, v) if c.id in self._held_otherwise else v, form) for c, v, form in values]

    def _sought(self, images: pa.RecordBatch, columns: Sequence[ColumnInfo]) -> list[Cells]:
        """Literals for comparisons."""
        values = ((c, self._comparable(c, self._taken(c, images.column(c.name)))) for c in columns)
        return [literals(v, form_of(c, v.type)) for c, v in values]

    def _comparable(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """Values for comparisons."""
        signed = column.tp == ColumnType.SET and has_signed_sets(self.flavour)
        return pc.cast(values, pa.int64(), safe=False) if signed else values

    def _taken(self, column: ColumnInfo, values: pa.Array) -> pa.Array:
        """``values`` as the target can hold them: JSON null for a document that is too deep, the zero value for NULL where a frozen table has NOT NULL."""
        if column.tp == ColumnType.JSON and self.flavour is Flavour.MYSQL and (deep := deeper(values, JSON_DEPTH[self.flavour])).any():
            values = pc.if_else(pa.array(deep), pa.scalar("null", values.type), values)
        if column.id not in self.table.narrow or not values.null_count:
            return values
        return pc.fill_null(values, pa.scalar(zero_value(column), values.type))

    def _noted(self, images: pa.RecordBatch) -> list[Noted]:
        """What is to be said of these new rows whatever the server answers."""
        return noted_in([(c, images.column(c.name)) for c in self._documents], self.flavour)

    def _zero_enums(self, images: pa.RecordBatch) -> list[tuple[str, Mask]]:
        """The ENUM columns, and the rows in which they are 0."""
        return [(name, pc.fill_null(pc.equal(images.column(name), 0), False).to_numpy(zero_copy_only=False)) for name in self._enums]


_MOVED = "the row was deleted and inserted, so the columns that only the target has lost their values and got their defaults: "
_TOO_DEEP = {
    Flavour.MARIADB: (
        FindingKind.FAILOVER,
        "the document in {column} is nested deeper than {depth}. The row is as upstream, but a session of an application cannot update it (error 4025) "
        "unless it sets check_constraint_checks = 0",
    ),
    Flavour.MYSQL: (
        FindingKind.VALUE,
        "the document in {column} is nested deeper than {depth}, which MySQL cannot hold (error 3157). It was replaced by JSON null",
    ),
}


def noted_in(columns: Iterable[tuple[ColumnInfo, pa.Array]], flavour: Flavour) -> list[Noted]:
    """The findings about values that are written, which the server does not warn of."""
    if flavour not in _TOO_DEEP:
        return []
    (kind, words), depth = _TOO_DEEP[flavour], JSON_DEPTH[flavour]
    found = ((c.name, deeper(values, depth)) for c, values in columns if c.tp == ColumnType.JSON)
    return [(kind, words.format(column=name, depth=depth), deep) for name, deep in found if deep.any()]


builder_of = Once(TableBuilder)
"""The builder of a table with these limits and this flavour."""


_CHUNK_BYTES = 256 * 1024 * 1024
"""Images are converted to text in pieces of this size: Arrow's binary arrays are limited to 2 GiB, and escaping may double a text."""


def _pieces(images: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """The first row and the length of each piece."""
    step = max(1, images.num_rows * _CHUNK_BYTES // max(images.nbytes, 1))
    for start in range(0, images.num_rows, step):
        yield start, min(step, images.num_rows - start)
