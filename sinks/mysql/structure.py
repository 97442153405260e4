"""The tables of the target, from information_schema: columns, keys, options, partitions, the server's ids. [db]

``read_tables`` reads what rows need, ``read_whole`` also what DDLs compare. Names are those at the target. A name is matched without regard to case if the
target has no table of exactly that name: TiDB ignores case, and a server may store all names in lower case.

Promises: three queries for all tables. A table that the target lacks, or that the account may not see, is not in the answer.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.tableinfo import WHOLE_COLUMN
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

TableName = tuple[str, str]
"""Database and table."""

OUTDATED = frozenset({1049, 1054, 1136, 1146, 1364})
"""Errors of a row's statement that a table other than the known one explains: unknown database, column; column count; unknown table; no default."""
ABSENT = frozenset({1049, 1146})
"""No such database, no such table."""
_TOGETHER = 40
"""Tables in one query. Each is a SELECT of its own, by name: MariaDB opens every table of a database for any other condition."""
_WORDS = re.compile(r"'((?:[^']|'')*)'")
_MEASURES = re.compile(r"\w+\((\d+)(?:, *(\d+))?\)")
_FAMILIES = {
    "whole": "tinyint smallint mediumint int integer bigint year bit",
    "decimal": "decimal numeric fixed",
    "float": "float double real",
    "moment": "date datetime timestamp",
    "time": "time",
    "text": "char varchar tinytext text mediumtext longtext enum set",
    "bytes": "binary varbinary tinyblob blob mediumblob longblob",
    "json": "json",
}
_FAMILY = {kind: family for family, kinds in _FAMILIES.items() for kind in kinds.split()}


class PartsOutdated(ApplyError):
    """A part of a span was refused with one of ``OUTDATED``; ``written``: what its other parts have committed, which is not written again."""

    def __init__(self, error: ApplyError, written: Written) -> None:
        """``error`` as it is, and what is not to be forgotten of the others."""
        super().__init__(str(error), error.errno, error.words, error.where)
        self.written = written


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a table at the target."""

    name: str
    type: str
    """In full, as the server shows it: ``int(11) unsigned``, ``enum('a','b')``."""
    nullable: bool
    default: str | None
    """As the server shows it; None = it has none."""
    generated: bool
    """Computed by the server: statements do not name it."""
    auto_increment: bool
    collation: str = ""
    """Empty: it is no text."""

    @property
    def unsigned(self) -> bool:
        """Whether it is a number without a sign."""
        return "unsigned" in self.type.lower()

    @property
    def charset(self) -> str:
        """The charset of its text, in lower case; empty: it is none."""
        return self.collation.lower().partition("_")[0]

    @property
    def kind(self) -> str:
        """The type's name alone, in lower case: ``int``, ``enum``."""
        return re.split(r"[ (]", self.type.lower(), maxsplit=1)[0]

    @property
    def family(self) -> str:
        """The kind of its values: ``whole``, ``decimal``, ``float``, ``moment``, ``time``, ``text``, ``bytes``, ``json``; else ``kind``."""
        return _FAMILY.get(self.kind, self.kind)

    @property
    def measures(self) -> tuple[int, int]:
        """The numbers in the parentheses of the type; -1, and 0 for the second one, where there is none."""
        found = _MEASURES.match(self.type)
        return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)

    @property
    def words(self) -> tuple[str, ...]:
        """The elements of an ENUM or SET."""
        return tuple(word.replace("''", "'") for word in _WORDS.findall(self.type)) if self.kind in ("enum", "set") else ()


@dataclass(frozen=True, slots=True)
class TargetKey:
    """One key of a table at the target."""

    name: str
    columns: tuple[tuple[str, int], ...]
    """In order: name, empty for an expression, and length of the prefix (``WHOLE_COLUMN``: there is none)."""
    unique: bool = True

    @property
    def primary(self) -> bool:
        """Whether it is the primary key."""
        return self.name.upper() == "PRIMARY"

    @property
    def names(self) -> frozenset[str]:
        """Its columns, in lower case."""
        return frozenset(name.lower() for name, _ in self.columns)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as it is at the target."""

    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    """In the table's order."""
    unique_keys: tuple[TargetKey, ...]
    """The primary key first, then by name, without regard to case."""
    engine: str = "InnoDB"
    """Empty: it is a view."""
    transactional: bool = True
    """Whether ROLLBACK takes its rows back, according to the server."""
    comment: str = ""
    collation: str = ""
    """Of new columns that have none of their own."""
    other_keys: tuple[TargetKey, ...] = ()
    """Those that are not unique."""
    foreign_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Their columns in lower case, by name; this and the rest only by ``read_whole``."""
    json: frozenset[str] = frozenset()
    """Lower-case names of the columns of a MariaDB that are JSON: a LONGTEXT with a CHECK."""
    partition_method: str = ""
    """``KEY``, ``LINEAR HASH``, ``RANGE COLUMNS``; empty: it has no partitions."""
    partitions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What each says of its values, by name."""

    def column(self, name: str) -> TargetColumn | None:
        """The column of this name, without regard to case."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)

    def key(self, name: str) -> TargetKey | None:
        """The key of this name, without regard to case."""
        return next((k for k in (*self.unique_keys, *self.other_keys) if k.name.lower() == name.lower()), None)


def read_tables(session: Target, names: Iterable[TableName]) -> dict[TableName, TargetTable]:
    """The tables and views ``names`` that the target has and shows to the account, by the names that were asked for."""
    wanted = sorted(set(names))
    found: dict[TableName, TargetTable] = {}
    for first in range(0, len(wanted), _TOGETHER):
        found |= _read(session, wanted[first : first + _TOGETHER])
    return found


def read_whole(session: Target, schema: str, name: str) -> TargetTable | None:
    """The table with all that DDLs compare; None if the target has none. By the name that the server has, where another one differs only in case."""
    if (found := _read(session, [(schema, name)]).get((schema, name))) is None:
        return None
    asked = (_FOREIGN, _PARTITIONS, *((_JSON,) if session.flavour is Flavour.MARIADB else ()))
    keys, partitions, *json = (_asked(session, [(schema, name)], sql).get((0, (found.schema, found.name)), []) for sql in asked)
    foreign: dict[str, tuple[str, ...]] = {}
    for key, column in keys:
        foreign[as_text(key)] = (*foreign.get(as_text(key), ()), as_text(column).lower())
    return replace(
        found,
        foreign_keys=foreign,
        json=frozenset(as_text(column).lower() for rows in json for (column,) in rows),
        partition_method=next((as_text(method) for _, method, _ in partitions), ""),
        partitions={as_text(part): _text(values) or "" for part, _, values in partitions},
    )


def is_absent(session: Target, schema: str, name: str) -> bool:
    """Whether the target certainly has no such table: information_schema also leaves out tables on which the account has no right.

    Raises:
        ApplyError: the table exists, or may exist, and the account may not read it.
    """
    try:
        session.query(f"SELECT 1 FROM {quote_name(schema)}.{quote_name(name)} LIMIT 0")
    except ServerRefused as error:
        if error.errno in ABSENT:
            return True
        raise
    return False


_COLUMNS = (
    "SELECT {n}, table_schema, table_name, ordinal_position, column_name, column_type, is_nullable, column_default, extra, collation_name "
    "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
)
_KEYS = (
    "SELECT {n}, table_schema, table_name, seq_in_index, index_name, column_name, non_unique, sub_part FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s"
)
_OPTIONS = (
    "SELECT {n}, t.table_schema, t.table_name, 0, COALESCE(e.transactions, ''), COALESCE(t.engine, ''), t.table_comment, t.table_collation "
    "FROM information_schema.tables t LEFT JOIN information_schema.engines e ON CONVERT(e.engine USING utf8mb4) = CONVERT(t.engine USING utf8mb4) "
    "WHERE t.table_schema = %s AND t.table_name = %s"
)
_FOREIGN = (
    "SELECT {n}, table_schema, table_name, ordinal_position, constraint_name, column_name FROM information_schema.key_column_usage "
    "WHERE table_schema = %s AND table_name = %s AND referenced_table_name IS NOT NULL"
)
_JSON = (
    "SELECT {n}, constraint_schema, table_name, 0, constraint_name FROM information_schema.check_constraints "
    "WHERE constraint_schema = %s AND table_name = %s AND check_clause LIKE 'json_valid%%'"
)
_PARTITIONS = (
    "SELECT {n}, table_schema, table_name, partition_ordinal_position, partition_name, partition_method, partition_description "
    "FROM information_schema.partitions WHERE table_schema = %s AND table_name = %s AND partition_name IS NOT NULL"
)
_WITHOUT = frozenset({"NO"})
"""What ``engines.transactions`` says of an engine without transactions; for an engine that is not loaded it says nothing."""


def with_transactions(label: str) -> str:
    """The statement that gives a table transactions; ``label``: its name, quoted."""
    return f"ALTER TABLE {label} ENGINE = InnoDB"


_Rows = list[tuple[Any, ...]]


def _read(session: Target, names: Sequence[TableName]) -> dict[TableName, TargetTable]:
    columns, keys, options = (_asked(session, names, sql) for sql in (_COLUMNS, _KEYS, _OPTIONS))
    found = {}
    for number, name in enumerate(names):
        # An account without a right to any column sees the table, and none of its columns.
        spelled = {there for n, there in columns if n == number}
        if spelled:
            chosen = name if name in spelled else min(spelled)
            at = number, chosen
            found[name] = _table(chosen, columns[at], keys.get(at, []), options.get(at, []))
    return found


def _asked(session: Target, names: Sequence[TableName], sql: str) -> dict[tuple[int, TableName], _Rows]:
    """What a SELECT says of each table, in order; by the table's number in ``names`` and its name there."""
    rows = session.query(" UNION ALL ".join(sql.format(n=n) for n in range(len(names))), [part for name in names for part in name])
    found: dict[tuple[int, TableName], _Rows] = {}
    for number, schema, name, _, *said in sorted(rows, key=lambda row: int(row[3])):
        found.setdefault((int(number), (as_text(schema), as_text(name))), []).append(tuple(said))
    return found


def _table(name: TableName, columns: _Rows, keys: _Rows, options: _Rows) -> TargetTable:
    parts: dict[tuple[str, bool], list[tuple[str, int]]] = {}
    for key, column, non_unique, prefix in keys:
        parts.setdefault((as_text(key), not int(non_unique)), []).append((_text(column) or "", int(prefix or WHOLE_COLUMN)))
    made = sorted((TargetKey(key, tuple(of), unique) for (key, unique), of in parts.items()), key=lambda k: (not k.primary, k.name.upper()))
    transactions, engine, comment, collation = (_text(value) or "" for value in options[0]) if options else ("", "", "", "")
    return TargetTable(
        *name,
        tuple(_column(*row) for row in columns),
        tuple(key for key in made if key.unique),
        engine,
        transactions.upper() not in _WITHOUT,
        comment,
        collation,
        tuple(key for key in made if not key.unique),
    )


def _column(*row: Any) -> TargetColumn:
    name, type_, nullable, default, extra, collation = map(_text, row)
    may_be_null, said = (nullable or "").upper() == "YES", (extra or "").upper()
    return TargetColumn(
        name or "",
        type_ or "",
        may_be_null,
        # MariaDB shows the default NULL of a nullable column as this word.
        None if default is None or (default == "NULL" and may_be_null) else default,
        bool(re.search(r"\b(VIRTUAL|STORED|PERSISTENT)\b", said)),
        "AUTO_INCREMENT" in said,
        collation or "",
    )


def _text(value: Any) -> str | None:
    return None if value is None else as_text(value)


def kinds_of(session: Target, schema: str, name: str) -> list[str]:
    """``BASE TABLE``, ``VIEW`` or the like; empty if there is none that the account may see. Also of a view that cannot be used, which shows no column."""
    sql = "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    return [as_text(kind).upper() for (kind,) in session.query(sql, [schema, name])]


def tables_in(session: Target, schema: str) -> frozenset[str]:
    """The tables of a database, in lower case."""
    rows = session.query("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", [schema])
    return frozenset(as_text(name).lower() for (name,) in rows)


def databases_of(session: Target) -> frozenset[str]:
    """The databases that the account may see, in lower case."""
    return frozenset(as_text(name).lower() for (name,) in session.query("SELECT schema_name FROM information_schema.schemata"))


_PLAIN = re.compile(r"[0-9A-Za-z_]+")
_FOLDS = "@@lower_case_table_names"
"""0: names of tables may differ only in case."""


def table_ids(session: Target, schema: str, table: str) -> dict[str, int] | None:
    """The server's ids of the table and its partitions, which change when a table is made anew; None if they cannot be read.

    They come from ``innodb_sys_tables`` (MySQL 8: ``innodb_tables``, TiDB: ``tables`` and ``partitions``) and need the PROCESS privilege, but at a TiDB.
    """
    try:
        return _tidb_ids(session, schema, table) if session.flavour is Flavour.TIDB else _innodb_ids(session, schema, table)
    except ServerRefused:
        # No PROCESS privilege, or a server without these tables.
        return None


def _innodb_ids(session: Target, schema: str, table: str) -> dict[str, int]:
    """Ids from InnoDB, which stores names in the ``filename`` charset, and partitions as ``table#P#partition``; MySQL as ``table#p#partition``."""
    full = f"{schema}/{table}"
    view = "innodb_sys_tables" if session.flavour is Flavour.MARIADB else "innodb_tables"
    by_file = f"SELECT name, table_id, {_FOLDS} FROM information_schema.{view} WHERE name = %s OR name LIKE %s"
    found = _ids_by_part(session, by_file, full) if _PLAIN.fullmatch(schema) and _PLAIN.fullmatch(table) else {}
    if found:
        return found
    if session.flavour is Flavour.MYSQL:
        # It has no function for the ``filename`` charset, but shows the names of tablespaces as they are.
        by_space = (
            f"SELECT s.name, t.table_id, {_FOLDS} FROM information_schema.innodb_tables t JOIN information_schema.innodb_tablespaces s ON s.space = t.space "
            "WHERE s.name = %s OR s.name LIKE %s"
        )
        return _ids_by_part(session, by_space, full)
    encoded = "CONVERT(CONVERT(%s USING filename) USING binary)"
    (name,) = session.query(f"SELECT CONCAT({encoded}, '/', {encoded})", [schema, table])[0]
    return _ids_by_part(session, by_file, as_text(name))


def _ids_by_part(session: Target, sql: str, full: str) -> dict[str, int]:
    """The ids of the table and its partitions, and not of others: the server's comparison takes e and é, and e and E, for the same."""
    partitions = full.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%") + "#%"
    found = {}
    for raw, table_id, folds in session.query(sql, [full, partitions]):
        name, own = (as_text(raw).lower(), full.lower()) if int(folds) else (as_text(raw), full)
        part = name[len(own) :]
        if name.startswith(own) and part[:3] in ("", "#p#", "#P#"):
            found[part] = int(table_id)
    return found


def _tidb_ids(session: Target, schema: str, table: str) -> dict[str, int]:
    where = "WHERE table_schema = %s AND table_name = %s"
    rows = session.query(f"SELECT '', tidb_table_id FROM information_schema.tables {where}", [schema, table])
    rows += session.query(f"SELECT partition_name, tidb_partition_id FROM information_schema.partitions {where}", [schema, table])
    return {str(name): int(table_id) for name, table_id in rows if table_id is not None and name is not None}


def with_instant_columns(session: Target, ids: Collection[int]) -> frozenset[int]:
    """The MySQL tables and partitions of ``ids`` to which columns came, or from which they went, without their rows being written anew."""
    if not ids:
        return frozenset()
    try:
        rows = session.query(
            "SELECT table_id FROM information_schema.innodb_tables WHERE (instant_cols > 0 OR total_row_versions > 0) "
            f"AND table_id IN ({', '.join(map(str, ids))})"
        )
    except ServerRefused:
        return frozenset()  # a server before 8.0.29
    return frozenset(int(table_id) for (table_id,) in rows)


Place = tuple[str, str]
"""Database and table, in lower case."""
_SYSTEM = "('information_schema', 'performance_schema', 'mysql', 'sys', 'metrics_schema')"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Databases and tables, by names in lower case."""

    databases: frozenset[str]
    engines: Mapping[Place, str]
    """The engine of each table; empty for a view."""
    triggers: Mapping[Place, str]
    """The name of one trigger of each table that has any."""


def inventory_of(session: Target) -> Inventory:
    """What there is that the account may see, for ``drainer --check``. ``information_schema`` is read once, whatever the number of tables."""
    where = f"WHERE LOWER(table_schema) NOT IN {_SYSTEM}"
    tables = session.query(f"SELECT table_schema, table_name, engine FROM information_schema.tables {where}")
    triggers = session.query("SELECT event_object_schema, event_object_table, trigger_name FROM information_schema.triggers")
    return Inventory(
        databases_of(session),
        {_place(schema, table): as_text(engine or "") for schema, table, engine in tables},
        {_place(schema, table): as_text(name) for schema, table, name in triggers},
    )


def counters_of(session: Target, but: Collection[str]) -> Iterator[tuple[str, str, str, int]]:
    """Database, table and column of each AUTO_INCREMENT outside the databases ``but``, and the next number; 0: the server does not say."""
    if session.flavour is Flavour.MYSQL:
        session.execute("SET SESSION information_schema_stats_expiry = 0")  # or it says what was true a day ago
    rows = session.query(
        "SELECT c.table_schema, c.table_name, c.column_name, t.auto_increment FROM information_schema.columns c JOIN information_schema.tables t "
        f"ON t.table_schema = c.table_schema AND t.table_name = c.table_name WHERE c.extra LIKE '%%auto_increment%%' AND LOWER(c.table_schema) NOT IN {_SYSTEM} "
        "ORDER BY 1, 2",
        [],
    )
    return ((as_text(d), as_text(t), as_text(c), int(n or 0)) for d, t, c, n in rows if as_text(d).lower() not in but)


def sequences_of(session: Target, but: Collection[str]) -> Iterator[tuple[str, str]]:
    """Database and name of each sequence of a MariaDB outside the databases ``but``."""
    if session.flavour is not Flavour.MARIADB:
        return iter(())
    where = f"table_type = 'SEQUENCE' AND LOWER(table_schema) NOT IN {_SYSTEM}"
    rows = session.query(f"SELECT table_schema, table_name FROM information_schema.tables WHERE {where} ORDER BY 1, 2")
    found = ((as_text(schema), as_text(name)) for schema, name in rows)
    return (one for one in found if one[0].lower() not in but)


def _place(schema: Any, table: Any) -> Place:
    return as_text(schema).lower(), as_text(table).lower()
