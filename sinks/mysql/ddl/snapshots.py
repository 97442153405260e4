"""Snapshots of the target's tables around a DDL; comparing two of them helps to decide whether the DDL ran. [db]

Promises: reads only. A snapshot holds, for each table name that a DDL affects, the server's description (``SHOW CREATE``, without the
AUTO_INCREMENT counter) and the server's ids of the table and of each partition, which change when a table is recreated (``table_ids``).
If they cannot be read, ``ids_known`` is False, and a DDL without a visible effect on the structure cannot be checked. A snapshot also names the server,
because the ids of two servers, as before and after a failover, cannot be compared.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT, read_tables, table_ids, tables_in
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_log = logging.getLogger(__name__)

_NO_NAME, _VIEW_BROKEN = 1300, 1356
"""A MariaDB has no emoji in names."""
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_TABLE = "CREATE TABLE"


@dataclass(frozen=True, slots=True)
class ObjectSnapshot:
    """One table, view or sequence; ``create`` is empty if it does not exist."""

    create: str
    ids: Mapping[str, int] = field(default_factory=dict)
    """The server's table ids: the table's under the empty name, a partition's under its name (on InnoDB as in ``#P#p0``, in one of two spellings)."""

    @property
    def which(self) -> frozenset[int]:
        """The ids alone, by which it is the same table under another name."""
        return frozenset(self.ids.values())


@dataclass(frozen=True, slots=True)
class SchemaSnapshot:
    """Everything that a DDL may change, by ``schema.table`` (a database by ``schema``)."""

    objects: Mapping[str, ObjectSnapshot]
    ids_known: bool
    server: Mapping[str, str] = field(default_factory=dict)
    """What distinguishes the server from others, by name; empty if the server has no such thing, or there are no ids."""

    def to_json(self) -> str:
        """The text for the intent row."""
        objects = {name: {"create": t.create, "ids": dict(sorted(t.ids.items()))} for name, t in self.objects.items()}
        found = {"ids_known": self.ids_known, "server": dict(self.server), "objects": objects}
        return json.dumps(found, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "SchemaSnapshot":
        """Parse the text of an intent row."""
        parsed = json.loads(text)
        objects = {name: ObjectSnapshot(t["create"], t["ids"]) for name, t in parsed["objects"].items()}
        return cls(objects, parsed["ids_known"], parsed["server"])

    def holds(self, schema: str, table: str) -> bool:
        """Whether the table existed, or is not part of the snapshot."""
        found = self.objects.get(f"{schema}.{table}")
        return found is None or bool(found.create)

    def only(self, schema: str, table: str) -> "SchemaSnapshot":
        """The snapshot of one table alone."""
        return replace(self, objects={f"{schema}.{table}": self.objects[f"{schema}.{table}"]})

    def of_another_server(self, other: "SchemaSnapshot") -> bool:
        """Whether they are of two servers, as far as both say what they are of."""
        return any(self.server[name] != other.server[name] for name in self.server.keys() & other.server.keys())

    def surely_of_the_server(self, other: "SchemaSnapshot") -> bool:
        """Whether both are of one server; False if one of them lacks what identifies the data directory."""
        return self.server == other.server and bool(self.server.keys() & {"server_uuid", "made"})

    def ids_comparable(self, other: "SchemaSnapshot") -> bool:
        """Whether both have ids, of one server."""
        return self.ids_known and other.ids_known and not self.of_another_server(other)

    def same_as(self, other: "SchemaSnapshot") -> bool:
        """Whether both show the same; ids are compared only if they are comparable."""
        if self.objects.keys() != other.objects.keys():
            return False
        with_ids = self.ids_comparable(other)
        return all(
            one.create == other.objects[name].create and (not with_ids or one.which == other.objects[name].which)
            for name, one in self.objects.items()
        )


NOTHING_KEPT = SchemaSnapshot({}, ids_known=False)
"""What an intent records of the target before a DROP: the texts of all tables of a database may be too long for one statement."""


def take_snapshot(session: Target, databases: Iterable[str], tables: Iterable[tuple[str, str]]) -> SchemaSnapshot:
    """A snapshot of these databases and tables of the target."""
    objects = {name: ObjectSnapshot(_show(session, f"SHOW CREATE DATABASE {quote_name(name)}", 1)) for name in sorted(set(databases))}
    known = True
    for schema, table in sorted(set(tables)):
        create = _COUNTER.sub("", _show(session, f"SHOW CREATE TABLE {table_name(schema, table)}", 1))
        if create and not create.startswith(_TABLE):
            create = _view(session, schema, table) or create
        ids = table_ids(session, schema, table) if create.startswith(_TABLE) else {}
        # A table without an id was not found: its engine is another one, or its tablespace does not have its name.
        known = known and (bool(ids) or not create.startswith(_TABLE))
        objects[f"{schema}.{table}"] = ObjectSnapshot(create, ids or {})
    return SchemaSnapshot(objects, known, _server(session) if any(one.ids for one in objects.values()) else {})


def _view(session: Target, schema: str, name: str) -> str:
    """A view; empty if it is none. What SHOW CREATE says of one depends on the session's database, and whether its tables are there."""
    sql = "SELECT view_definition, definer, security_type FROM information_schema.views WHERE table_schema = %s AND table_name = %s"
    return ", ".join(as_text(value) for row in session.query(sql, [schema, name]) for value in row)


def take_names(session: Target, tables: Iterable[tuple[str, str]]) -> SchemaSnapshot:
    """A snapshot of these tables without their descriptions: one query for each database, however many tables it has."""
    wanted = sorted(set(tables))
    there = {schema: tables_in(session, schema) for schema in sorted({schema for schema, _ in wanted})}
    return SchemaSnapshot({f"{s}.{t}": ObjectSnapshot("there" if t.lower() in there[s] else "") for s, t in wanted}, ids_known=False)


def column_names(session: Target, schema: str, table: str) -> tuple[str, ...]:
    """The columns of a table on the target, in order; empty if there is no such table."""
    found = read_tables(session, [(schema, table)]).get((schema, table))
    return tuple(c.name for c in found.columns) if found else ()


def is_empty(session: Target, schema: str, table: str, partition: str = "") -> bool:
    """Whether the table, or one partition of it, has no rows; False for a table that does not exist."""
    part = f" PARTITION ({quote_name(partition)})" if partition else ""
    try:
        return not session.query(f"SELECT 1 FROM {table_name(schema, table)}{part} LIMIT 1")
    except ServerRefused as error:
        _log.debug("cannot read %s.%s: %s", schema, table, error)
        return False


def _server(session: Target) -> Mapping[str, str]:
    """Read what distinguishes the server, with its data, from others: MySQL's UUID, which is in the data directory.

    A MariaDB has no UUID. Replicas have different ``server_id``, nodes of Galera different names. The tables of the database ``mysql`` have the time at
    which the data directory was made (visible with a privilege on it). Its ``server_uid`` belongs to the host's network card, so a new container has another.
    """
    if session.flavour is Flavour.TIDB:
        return {}
    if session in _servers:
        return _servers[session]
    mysql = session.flavour is Flavour.MYSQL
    names = ("server_uuid",) if mysql else ("server_id", "wsrep_on", "wsrep_node_name")
    rows = session.query(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({', '.join(['%s'] * len(names))})", names)
    found = {as_text(name): as_text(value) for name, value in rows}
    if not mysql and found.pop("wsrep_on", "OFF") != "ON":
        found.pop("wsrep_node_name", None)
    if not mysql:
        sql = "SELECT UNIX_TIMESTAMP(create_time) FROM information_schema.tables WHERE table_schema = 'mysql' AND table_name = 'db'"
        found |= dict(("made", str(made)) for (made,) in session.query(sql) if made is not None)
    return _servers.setdefault(session, found)


_servers: WeakKeyDictionary[Target, Mapping[str, str]] = WeakKeyDictionary()
"""By session, which stays with its server."""


def _show(session: Target, statement: str, column: int) -> str:
    try:
        rows = session.query(statement)
    except ServerRefused as error:
        if error.errno in ABSENT or error.errno == _NO_NAME:
            return ""
        if error.errno == _VIEW_BROKEN:
            return "a view of what is no longer there"
        raise
    return str(rows[0][column])
