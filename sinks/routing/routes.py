"""The target's names and columns of replicated tables: ``[[spark.route]]``. Pure.

Promises: a route names one table, or with an empty ``tbl-name`` every table of one database; names are compared without regard to case. No two
names of the upstream become one name at the target: a start refuses settings that show such a case, ``shared`` finds all others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, read_name, significant
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

_MESSAGES = ("file", "kafka")


class RoutedTable(Protocol):
    """A table under its name upstream."""

    @property
    def schema(self) -> str:
        """Its database."""

    @property
    def name(self) -> str:
        """Its name."""


@dataclass(frozen=True, slots=True)
class TargetName:
    """The name of a table at the target."""

    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one Drainer; picklable. The default changes nothing."""

    databases: tuple[tuple[str, str], ...] = ()
    """(upstream, in lower case; target)."""
    tables: tuple[tuple[str, str, TargetName], ...] = ()
    """(database and table upstream, in lower case; target)."""
    columns: tuple[tuple[str, str, frozenset[str]], ...] = ()
    """(database and table upstream, columns), in lower case: tables with only some columns replicated."""
    conditions: tuple[tuple[str, str, str], ...] = ()
    """(database and table upstream, in lower case; expression of Spark SQL): tables with only some rows replicated."""

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The routes from the settings.

        Raises:
            ConfigError: one of them is wrong in itself, or two contradict each other.
        """
        if config.routes and config.db_type in _MESSAGES:
            raise ConfigError(
                f"spark.route: with syncer.db-type = {config.db_type!r} the texts of DDLs keep the upstream's names, so routes are refused. Remove the "
                "routes, and rename where the binlogs are read"
            )
        for route in config.routes:
            _check(route)
            if route.where and not config.net_change:
                raise ConfigError(
                    f"spark.route of {route.db_name}.{route.tbl_name}: where needs the net change of a row. Remove where, or set spark.net-change = true"
                )
        databases = tuple((r.db_name.lower(), r.to_db) for r in config.routes if not r.tbl_name)
        of_database = dict(databases)
        tables = tuple(
            (
                r.db_name.lower(),
                r.tbl_name.lower(),
                TargetName(r.to_db or of_database.get(r.db_name.lower(), r.db_name), r.to_tbl or r.tbl_name),
            )
            for r in config.routes
            if r.tbl_name
        )
        _once([(d, "") for d, _ in databases] + [(d, t) for d, t, _ in tables], "from")
        _once([(to.lower(), "") for _, to in databases] + [(n.schema.lower(), n.name.lower()) for *_, n in tables], "to")
        columns = tuple(
            (r.db_name.lower(), r.tbl_name.lower(), frozenset(c.lower() for c in r.columns)) for r in config.routes if r.columns
        )
        conditions = tuple((r.db_name.lower(), r.tbl_name.lower(), r.where) for r in config.routes if r.where)
        return cls(databases, tables, columns, conditions)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.databases or self.tables or self.columns or self.conditions)

    def columns_of(self, table: RoutedTable) -> frozenset[str]:
        """The columns of a table that are replicated, in lower case; empty = all of them. It has its name upstream."""
        name = (table.schema.lower(), table.name.lower())
        return next((columns for d, t, columns in self.columns if (d, t) == name), frozenset())

    def database(self, schema: str) -> str:
        """The name at the target of a database."""
        return dict(self.databases).get(schema.lower(), schema)

    def condition_of(self, table: RoutedTable) -> str:
        """The condition for a table's rows; empty = all of them. It has its name upstream."""
        name = (table.schema.lower(), table.name.lower())
        return next((where for d, t, where in self.conditions if (d, t) == name), "")

    def target(self, schema: str, name: str) -> TargetName:
        """The name at the target of a table."""
        routed = next((to for d, t, to in self.tables if (d, t) == (schema.lower(), name.lower())), None)
        return routed or TargetName(self.database(schema), name)

    def moved(self, table: TableAt) -> TableAt:
        """``table`` under its name at the target."""
        if not self:
            return table
        to, columns = self.target(table.schema, table.name), self.columns_of(table)
        info = narrowed(table.info, columns) if columns else table.info
        return replace(table, schema=to.schema, name=to.name, info=self._with_sequences(info))

    def _with_sequences(self, info: TableInfo) -> TableInfo:
        """``info`` with the target's names of the sequences that its defaults take numbers from."""
        if not any(_counts(column) for column in info.columns):
            return info
        return replace(info, columns=tuple(replace(c, default=self._counting(str(c.default))) if _counts(c) else c for c in info.columns))

    def _counting(self, default: str) -> str:
        name, _ = read_name(significant(default), 2)
        to = self.target(name.schema, name.name)
        return f"nextval({quote_name(to.schema)}.{quote_name(to.name)})"

    def wrong(self, tables: Iterable[TableAt], history: SchemaHistory) -> str:
        """Why ``tables``, which have their names upstream, cannot be replicated by these routes, in words; empty if they can."""
        upstream = list(tables)
        lists = ((table, self.columns_of(table)) for table in upstream)
        known = ((table, names, column_names(history, table)) for table, names in lists if names)
        return self.shared(upstream) or next((why for table, names, ever in known if (why := why_not_narrowed(table, names, ever))), "")

    def shared(self, tables: Iterable[TableAt]) -> str:
        """Two of ``tables``, which have their names upstream, that would be one table at the target, in words; empty if there are none."""
        seen: dict[tuple[str, str], TableAt] = {}
        for table in tables:
            to = self.target(table.schema, table.name)
            other = seen.setdefault((to.schema.lower(), to.name.lower()), table)
            if other.table_id != table.table_id:
                return (
                    f"{other.schema}.{other.name} and {table.schema}.{table.name} would both be {to.schema}.{to.name} at the target, where their rows would "
                    "replace each other. Give each table a name of its own, or leave one of them out with syncer.ignore-table"
                )
        return ""


NO_ROUTES = Routes()


def _counts(column: ColumnInfo) -> bool:
    return column.default_is_expr and str(column.default).lower().startswith("nextval(")


def narrowed(info: TableInfo, columns: frozenset[str]) -> TableInfo:
    """``info`` with only these columns, and the keys that consist of them; without partitions and foreign keys, which may need others."""
    kept = {c.id for c in info.columns if c.name.lower() in columns}
    return replace(info.with_only(kept).without_partitions(), foreign_keys=())


def column_names(history: SchemaHistory, table: TableAt) -> frozenset[str]:
    """Every name, in lower case, that a column of the table has at some version, also before a TRUNCATE."""
    name = (table.schema.lower(), table.name.lower())
    entries = (entry for track in history.tracks.values() for entry in track.entries if isinstance(entry, TableSnapshot))
    same = (entry for entry in entries if (entry.schema.lower(), entry.name.lower()) == name)
    return frozenset(c.name.lower() for entry in same for c in entry.info.public_columns())


def why_not_narrowed(table: TableAt, columns: frozenset[str], ever: frozenset[str] = frozenset()) -> str:
    """Why a table cannot be replicated with only these columns; empty if it can. ``ever``: names that its columns have had, or get later."""
    names = {c.name.lower() for c in table.info.public_columns()}
    key = [c.name for c in table.info.handle_columns() if c.name.lower() not in columns]
    label = f"{table.schema}.{table.name}"
    strange = columns - names - ever if columns & names else columns
    if strange:
        return f"{label} has no column {', '.join(sorted(strange))}; correct the columns of its route"
    if key:
        return f"the route of {label} lacks the columns {', '.join(key)} of the primary key that identifies its rows; add them to the route"
    needed = [c.name for c in table.info.public_columns() if c.generated and c.name.lower() in columns]
    return (
        f"{needed[0]} of {label} is computed from other columns, which the target may lack; remove it from the columns of the route"
        if needed
        else ""
    )


def _check(route: TableRoute) -> None:
    what = f"spark.route of {route.db_name}.{route.tbl_name or '*'}"
    if not route.db_name:
        raise ConfigError("spark.route: db-name is missing")
    if any(name.startswith("~") or "*" in name for name in (route.db_name, route.tbl_name, route.to_db, route.to_tbl)):
        raise ConfigError(f"{what}: names are literal, patterns are not supported; write a route for each table")
    if not route.tbl_name and (route.to_tbl or route.columns or route.where or not route.to_db):
        raise ConfigError(f"{what}: a route of a whole database needs to-db, and may not have to-tbl, columns or where")
    if not (route.to_db or route.to_tbl or route.columns or route.where):
        raise ConfigError(f"{what}: it changes nothing; set to-db, to-tbl, columns or where")


def _once(names: Iterable[tuple[str, str]], which: str) -> None:
    seen: set[tuple[str, str]] = set()
    for name in names:
        if name in seen:
            shown = ".".join(filter(None, name))
            raise ConfigError(f"spark.route: two routes lead {which} {shown}, but tables cannot be merged; give each a name of its own")
        seen.add(name)
