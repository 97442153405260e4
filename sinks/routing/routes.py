"""Under which names, and with which columns, tables are replicated: ``[[spark.route]]``. Pure.

Promises: a route names one table, or with an empty ``tbl-name`` every table of one database; names are compared without regard to case. No two
names of the upstream become one at the target: what can be seen of that in the settings is refused at start, the rest by ``shared``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig, TableRoute
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt

_MESSAGES = ("file", "kafka")


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

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The routes from the settings.

        Raises:
            ConfigError: one of them is wrong in itself, or two contradict each other.
        """
        if config.routes and config.db_type in _MESSAGES:
            raise ConfigError(
                f"spark.route: with syncer.db-type = {config.db_type!r} the texts of DDLs are handed on as they are, under the upstream's names; remove the "
                "routes, and rename where the binlogs are read"
            )
        for route in config.routes:
            _check(route)
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
        return cls(databases, tables)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.databases or self.tables)

    def database(self, schema: str) -> str:
        """The name at the target of a database."""
        return dict(self.databases).get(schema.lower(), schema)

    def target(self, schema: str, name: str) -> TargetName:
        """The name at the target of a table."""
        found = next((to for d, t, to in self.tables if (d, t) == (schema.lower(), name.lower())), None)
        return found or TargetName(self.database(schema), name)

    def moved(self, table: TableAt) -> TableAt:
        """``table`` under its name at the target."""
        if not self:
            return table
        to = self.target(table.schema, table.name)
        return replace(table, schema=to.schema, name=to.name)

    def all_moved(self, tables: Mapping[int, TableAt]) -> Mapping[int, TableAt]:
        """The same for many."""
        return {i: self.moved(table) for i, table in tables.items()} if self else tables

    def shared(self, tables: Iterable[TableAt]) -> str:
        """Two of ``tables``, which have their names upstream, that would be one table at the target, in words; empty if there are none."""
        seen: dict[tuple[str, str], TableAt] = {}
        for table in tables:
            to = self.target(table.schema, table.name)
            other = seen.setdefault((to.schema.lower(), to.name.lower()), table)
            if other.table_id != table.table_id:
                return (
                    f"{other.schema}.{other.name} and {table.schema}.{table.name} would both be {to.schema}.{to.name} at the target, where rows of one would "
                    "replace rows of the other"
                )
        return ""


NO_ROUTES = Routes()


def _check(route: TableRoute) -> None:
    what = f"spark.route of {route.db_name}.{route.tbl_name or '*'}"
    if not route.db_name:
        raise ConfigError("spark.route: db-name is missing")
    if any(name.startswith("~") or "*" in name for name in (route.db_name, route.tbl_name, route.to_db, route.to_tbl)):
        raise ConfigError(f"{what}: names are taken as they are, patterns are not known here; write a route for each table")
    if route.columns or route.where:
        raise ConfigError(
            f"{what}: columns and where are not built in this release; replicate whole rows, or leave the table out with ignore-table"
        )
    if not route.tbl_name and (route.to_tbl or not route.to_db):
        raise ConfigError(f"{what}: a route of a whole database has to-db and no to-tbl")
    if not (route.to_db or route.to_tbl):
        raise ConfigError(f"{what}: it names no target; set to-db, to-tbl or both")


def _once(names: Iterable[tuple[str, str]], which: str) -> None:
    seen: set[tuple[str, str]] = set()
    for name in names:
        if name in seen:
            shown = ".".join(filter(None, name))
            raise ConfigError(f"spark.route: two routes lead {which} {shown}; tables cannot be merged, give each a name of its own")
        seen.add(name)
