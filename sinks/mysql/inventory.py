"""The databases and tables of the target as a whole, for ``drainer --check``; ``structure`` reads their columns and keys. [db]

Promises: reads ``information_schema`` once, whatever the number of tables; reads and changes nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

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
    """What there is that the account may see."""
    databases = frozenset(as_text(name).lower() for (name,) in session.query("SELECT schema_name FROM information_schema.schemata"))
    where = f"WHERE LOWER(table_schema) NOT IN {_SYSTEM}"
    tables = session.query(f"SELECT table_schema, table_name, engine FROM information_schema.tables {where}")
    triggers = session.query("SELECT event_object_schema, event_object_table, trigger_name FROM information_schema.triggers")
    return Inventory(
        databases,
        {_place(schema, table): as_text(engine or "") for schema, table, engine in tables},
        {_place(schema, table): as_text(name) for schema, table, name in triggers},
    )


def _place(schema: Any, table: Any) -> Place:
    return as_text(schema).lower(), as_text(table).lower()
