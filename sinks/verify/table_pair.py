"""Which tables are compared, by which columns and key, and which are no copy by intent. Pure.

Promises: what is no copy by intent is named and not compared: rows that a route or a rule leaves out, and frozen tables. Columns that a route leaves out, that are
computed, or that the target may lack (``sync-mode = 2``) are not compared, either. Columns that only the target has are the target's own. Definitions are compared
before any row (``structure``).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, KeyRange, where_sql
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetKey, TargetTable
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.verify.canonical import Form, HashedColumn, form_of_both, is_large, orders, read_as, sort_alike, sum_sql
from pyspark_tidb_binlog.sinks.verify.definition import NotCompared, Standard, unlike
from pyspark_tidb_binlog.sinks.verify.explanation import reason


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """A column on both sides."""

    upstream: TargetColumn
    target: TargetColumn
    form: Form


@dataclass(frozen=True, slots=True)
class TableSide:
    """A table as one server reads it."""

    label: str
    """Its name, quoted."""
    reads: tuple[str, ...]
    """An expression for each column."""
    sums: str
    """The number of rows, and the sum of their hashes; empty: the server cannot hash all columns."""
    handle: Handle | None
    """The key whose ranges are read; None: there is none."""

    def sums_sql(self, within: KeyRange) -> bytes:
        """Sum up a range."""
        return f"SELECT {self.sums} FROM {self.label}".encode() + self._where(within)

    def rows_sql(self, within: KeyRange) -> bytes:
        """Read a range, in no order."""
        return f"SELECT {', '.join(self.reads)} FROM {self.label}".encode() + self._where(within)

    def boundary_sql(self, within: KeyRange, behind: int) -> bytes:
        """Read the key that has so many rows of the range before it."""
        assert self.handle is not None
        names = ", ".join(self.handle.names)
        head = f"SELECT {', '.join(self.handle.expressions)} FROM {self.label}".encode()
        return head + self._where(within) + f" ORDER BY {names} LIMIT 1 OFFSET {behind}".encode()

    def _where(self, within: KeyRange) -> bytes:
        return where_sql(self.handle, within) if self.handle is not None else b""


@dataclass(frozen=True, slots=True)
class TablePair:
    """A table on both sides."""

    target_name: tuple[str, str]
    columns: tuple[ColumnPair, ...]
    key: tuple[int, ...]
    """Places of the key's columns; empty: equal rows are counted."""
    upstream: TableSide
    target: TableSide
    left_out: tuple[NotCompared, ...] = ()
    """Columns that are not compared, and what differs in the definition."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What the settings and the record leave out."""

    frozen: FrozenTables
    standard: Standard
    selection: Selection
    """The settings' filters and routes."""

    def against(self, table: TargetTable) -> str:
        """Why the rows of a table of the upstream are no copy by intent; empty: they are one."""
        selection, name = self.selection, (table.schema.lower(), table.name.lower())
        if where := selection.routes.condition_of(table):
            return f"its route replicates only rows with {where}"
        if ops := selection.rules.ignored_rows(table.schema, table.name):
            return f"rules leave out {' and '.join(sorted(op.name.lower() for op in ops))} of its rows"
        return next((f.words for f in self.frozen.values() if (f.schema.lower(), f.name.lower()) == name), "")


def pair_of(upstream: TargetTable, target: TargetTable | None, intent: Intent) -> TablePair | NotCompared:
    """The table on both sides, or why it is not compared."""
    if words := intent.against(upstream):
        return NotCompared(words, by_intent=True)
    if target is None:
        to = intent.selection.routes.target(upstream.schema, upstream.name)
        why = reason(intent.standard.recorded, (upstream.schema, upstream.name), (to.schema, to.name), upstream.name)
        return NotCompared(f"the target has no such table{f': {why}' if why else ''}", by_intent=bool(why))
    if not target.transactional:
        return NotCompared(f"its engine {target.engine} at the target has no snapshots", by_intent=False)
    columns, left_out = list[ColumnPair](), list[NotCompared]()
    wanted = intent.selection.routes.columns_of(upstream)
    for found in _paired(upstream, target, wanted):
        if isinstance(found, ColumnPair):
            columns.append(found)
        else:
            left_out.append(found)
    left_out += unlike(upstream, target, wanted, intent.standard)
    if not columns:
        return NotCompared("no column can be compared", by_intent=False)
    key = _key(upstream, target, columns)
    large = [is_large(p.upstream) or is_large(p.target) for p in columns]
    there = [HashedColumn(p.upstream, p.form, many) for p, many in zip(columns, large, strict=True)]
    here = [HashedColumn(p.target, p.form, many) for p, many in zip(columns, large, strict=True)]
    standard = intent.standard
    sides = _side(upstream, there, key, standard.upstream), _side(target, here, key, standard.dialect.flavour)
    return TablePair((target.schema, target.name), tuple(columns), key, *sides, tuple(left_out))


def _paired(upstream: TargetTable, target: TargetTable, wanted: Collection[str]) -> Iterator[ColumnPair | NotCompared]:
    """The columns that both have. A column that the target lacks is a difference of the definition."""
    for column in upstream.columns:
        if wanted and column.name.lower() not in wanted:
            yield NotCompared(f"{column.name}: its route leaves it out", by_intent=True)
            continue
        if (there := target.column(column.name)) is None:
            continue
        if column.generated or there.generated:
            yield NotCompared(f"{column.name}: it is computed", by_intent=True)
        elif (form := form_of_both(column, there)) is None:
            yield NotCompared(f"{column.name}: {column.type} and {there.type} have no common form", by_intent=False)
        else:
            yield ColumnPair(column, there, form)


def _key(upstream: TargetTable, target: TargetTable, columns: list[ColumnPair]) -> tuple[int, ...]:
    """The columns of the first unique key without NULL that both tables have."""
    places = {pair.upstream.name.lower(): place for place, pair in enumerate(columns)}
    there = {_names(key) for key in target.unique_keys}
    for key in upstream.unique_keys:
        names = _names(key)
        if names and names in there and all(name in places for name in names):
            pairs = [columns[places[name]] for name in names]
            both = [c for pair in pairs for c in (pair.upstream, pair.target)]
            if all(pair.form.in_sql and sort_alike(pair.upstream, pair.target) for pair in pairs) and all(
                orders(c) and not c.nullable for c in both
            ):
                return tuple(places[name] for name in names)
    return ()


def _names(key: TargetKey) -> tuple[str, ...]:
    """The names of a key's columns, in lower case; empty: it is over prefixes or expressions."""
    whole = all(name and length == WHOLE_COLUMN for name, length in key.columns)
    return tuple(name.lower() for name, _ in key.columns) if whole else ()


def _side(table: TargetTable, columns: list[HashedColumn], key: tuple[int, ...], flavour: Flavour) -> TableSide:
    reads = tuple(read_as(c.column) for c in columns)
    sums = sum_sql(columns, flavour) if all(c.form.in_sql for c in columns) else ""
    names = tuple(quote_name(columns[i].column.name) for i in key)
    forms = tuple(columns[i].form.literal for i in key)
    handle = Handle(names, tuple(reads[i] for i in key), forms, integer=False) if key else None
    return TableSide(table_name(table.schema, table.name), reads, sums, handle)
