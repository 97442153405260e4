"""A DDL for one target, and what the target has of it: what its plan is made of (``ddl_plan``). [db]

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

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import Alteration, altered_by, by_changes, by_text
from pyspark_tidb_binlog.sinks.mysql.ddl.partitions import ON_PARTITIONS
from pyspark_tidb_binlog.sinks.mysql.ddl.row_values import DdlClock, clock_of
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlForm, Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect, dialect_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT, TableName, TargetTable, read_tables, read_whole, table_ids, tables_in
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate
from pyspark_tidb_binlog.sinks.routing.routes import Routes

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

    def holds(self, table: TableAt) -> bool:
        """Whether the table existed, or is not part of the snapshot."""
        found = self.objects.get(table.label)
        return found is None or bool(found.create)

    def which(self, name: str) -> frozenset[int]:
        """The ids of a table; none if it is not part of the snapshot."""
        return self.objects[name].which if name in self.objects else frozenset()

    def of_another_server(self, other: "SchemaSnapshot") -> bool:
        """Whether they are of two servers, as far as both say what they are of."""
        return any(self.server[name] != other.server[name] for name in self.server.keys() & other.server.keys())

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


def take_snapshot(session: Target, databases: Iterable[str], tables: Iterable[TableName]) -> SchemaSnapshot:
    """A snapshot of these databases and tables of the target."""
    objects = {name: ObjectSnapshot(_show(session, f"SHOW CREATE DATABASE {quote_name(name)}")) for name in sorted(set(databases))}
    known = True
    for schema, table in sorted(set(tables)):
        create = _COUNTER.sub("", _show(session, f"SHOW CREATE TABLE {table_name(schema, table)}"))
        if create and not create.startswith(_TABLE):
            # What SHOW CREATE says of a view depends on the session's database, and whether its tables are there.
            sql = "SELECT view_definition, definer, security_type FROM information_schema.views WHERE table_schema = %s AND table_name = %s"
            create = ", ".join(as_text(value) for row in session.query(sql, [schema, table]) for value in row) or create
        ids = table_ids(session, schema, table) if create.startswith(_TABLE) else {}
        # A table without an id was not found: its engine is another one, or its tablespace does not have its name.
        known = known and (bool(ids) or not create.startswith(_TABLE))
        objects[f"{schema}.{table}"] = ObjectSnapshot(create, ids or {})
    return SchemaSnapshot(objects, known, _server(session) if any(one.ids for one in objects.values()) else {})


def _show(session: Target, statement: str) -> str:
    try:
        return str(session.query(statement)[0][1])
    except ServerRefused as error:
        if error.errno in ABSENT or error.errno == _NO_NAME:
            return ""
        if error.errno == _VIEW_BROKEN:
            return "a view of what is no longer there"
        raise


def _server(session: Target) -> Mapping[str, str]:
    """Read what distinguishes the server, with its data, from others: MySQL's UUID, which is in the data directory.

    A MariaDB has no UUID. Replicas have different ``server_id``, nodes of Galera different names. The tables of the database ``mysql`` have the time at
    which the data directory was made (visible with a privilege on it). Its ``server_uid`` belongs to the host's network card, so a new container has another.
    """
    if session.flavour is Flavour.TIDB:
        return {}
    mysql = session.flavour is Flavour.MYSQL
    names = ("server_uuid",) if mysql else ("server_id", "wsrep_on", "wsrep_node_name")
    rows = session.query(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({', '.join(['%s'] * len(names))})", names)
    found = {as_text(name): as_text(value) for name, value in rows}
    if not mysql:
        if found.pop("wsrep_on", "OFF") != "ON":
            found.pop("wsrep_node_name", None)
        sql = "SELECT UNIX_TIMESTAMP(create_time) FROM information_schema.tables WHERE table_schema = 'mysql' AND table_name = 'db'"
        found |= dict(("made", str(made)) for (made,) in session.query(sql) if made is not None)
    return found


def column_names(session: Target, schema: str, table: str) -> tuple[str, ...]:
    """The columns of a table on the target, in order; empty if there is no such table."""
    found = read_tables(session, [(schema, table)]).get((schema, table))
    return tuple(c.name for c in found.columns) if found else ()


def is_empty(session: Target, schema: str, table: str) -> bool:
    """Whether the table has no rows; False for a table that does not exist."""
    try:
        return not session.query(f"SELECT 1 FROM {table_name(schema, table)} LIMIT 1")
    except ServerRefused as error:
        _log.debug("cannot read %s.%s: %s", schema, table, error)
        return False


@dataclass(frozen=True, slots=True)
class TargetDdl:
    """One DDL for one target."""

    step: DdlStep
    subject: Subject
    dialect: Dialect
    history: SchemaHistory
    config: ApplyConfig
    in_doubt: bool = False
    """Another Drainer may have executed it, and later ones, before it crashed."""

    @property
    def withheld(self) -> bool:
        """Whether it is not executed, whatever the target has: a filter refuses it, or it meets a frozen table."""
        return self.step.decision.fate is DdlFate.REFUSED or self.subject.given.form is DdlForm.FROZEN


def ddl_of(
    session: Target, step: DdlStep, history: SchemaHistory, config: ApplyConfig, frozen: FrozenTables, *, in_doubt: bool = False
) -> TargetDdl:
    """The DDL of ``step`` for the target of ``session``."""
    subject = subject_of(step, history, frozen, Routes.of(config))
    dialect = dialect_of(session, config)
    if subject.job.kind.effect is JobEffect.RENAMES:
        dialect = replace(dialect, folds_names=bool(int(session.query("SELECT @@lower_case_table_names = 1")[0][0])))
    return TargetDdl(step, subject, dialect, history, config, in_doubt)


@dataclass(frozen=True, slots=True)
class TargetHere:
    """State of the target that the plan of a DDL needs."""

    clock: DdlClock
    now: SchemaSnapshot = NOTHING_KEPT
    table: TargetTable | None = None
    """The job's own table before the job; None: the target lacks it, or will refuse what it has of the job's changes."""
    after: Mapping[TableName, TargetTable] = field(default_factory=dict)
    """The tables under their names after the job; read where an earlier attempt or another Drainer may have executed the job."""
    altered: Alteration | None = None
    """The job's changes, where they were asked whether the table is to be read."""


def look(session: Target, ddl: TargetDdl, *, was_begun: bool) -> TargetHere:
    """Read what the target has; ``was_begun``: an earlier attempt may have executed the DDL."""
    subject = ddl.subject
    if ddl.withheld:
        return TargetHere(DdlClock(subject))
    clock, old = clock_of(session, subject), subject.old
    if by_changes(subject, ddl.dialect):
        altered = None if was_begun or ddl.in_doubt else altered_by(clock.subject, ddl.dialect)
        unread = old is None or (altered is not None and altered.refused_twice and not by_text(altered, clock.subject))
        return TargetHere(clock, table=None if unread or old is None else read_whole(session, old.schema, old.name), altered=altered)
    table = read_whole(session, old.schema, old.name) if old is not None and subject.job.kind.effect in ON_PARTITIONS else None
    now = snapshot_of(session, subject)
    return TargetHere(clock, now, table, read_after(session, subject.after) if was_begun or ddl.in_doubt else {})


def read_after(session: Target, tables: tuple[TableAt, ...]) -> dict[TableName, TargetTable]:
    """The structure of those of ``tables`` that the target has."""
    found = {(t.schema, t.name): read_whole(session, t.schema, t.name) for t in tables}
    return {name: table for name, table in found.items() if table is not None}


def snapshot_of(session: Target, subject: Subject) -> SchemaSnapshot:
    """The target's databases and tables that the job affects, as they are; of a database that is dropped only which tables it has."""
    names = {(t.schema, t.name) for t in (*subject.before, *subject.after)}
    if subject.job.type != JobType.DROP_SCHEMA or not names:
        return take_snapshot(session, [] if names else [subject.schema], names)
    there = {schema: tables_in(session, schema) for schema in {schema for schema, _ in names}}
    tables = {f"{s}.{t}": ObjectSnapshot("there" if t.lower() in there[s] else "") for s, t in sorted(names)}
    return SchemaSnapshot({**tables, **take_snapshot(session, [subject.schema], ()).objects}, ids_known=False)
