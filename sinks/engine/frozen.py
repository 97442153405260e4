"""Tables frozen because one of their DDLs was not executed (``ddl-policy`` skip or quarantine, ``ignore-txn-commit-ts``, a rule).

    {"11": {"since": 3, "schema": "d", "name": "t", "columns": {"1": "id", "2": "v"}}}

The record of the DDL says: the upstream's table 11 is ``d.t`` at the target, which has these columns, by their ids upstream, since job 3. ``"columns": null``: the target has no
such table. The names are those upstream before that job; routes give the target's.

Promises: pure. Until a person sets the record of job ``since`` to done:

* A value is written to the column that is recorded under the id of its column upstream. It is written to no other, whatever columns are called by then.
* A later job of the table is not executed (``hit``). Nor is a job that would reach a frozen table by its name: one that makes a table of that name, gives its
  name to another table, refers to it, or drops its database. All tables of such a job are frozen, too.
* Rows of a table that the target lacks, or cannot tell apart, are not written. They are counted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobEffect, On
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, narrowed


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """A frozen table of the upstream, as it is at the target."""

    since: int
    """The job whose record freezes it."""
    schema: str
    name: str
    columns: Mapping[int, str] | None
    """Names of the columns that statements write, by their ids upstream; None: the target has no such table."""

    @property
    def words(self) -> str:
        """The reason, and what a person does about it."""
        label = f"{self.schema}.{self.name}"
        what = f"{label} is frozen" if self.columns is not None else f"the target has no table {label}"
        return (
            f"{what} since the DDL of job {self.since} was not executed. Make it as it is upstream, with its rows, and set the row of job {self.since} in "
            "spark_ddl to state = 'done', while the Drainer is stopped"
        )


FrozenTables = Mapping[int, FrozenTable]
"""By the id of the upstream's table."""
NONE_FROZEN: FrozenTables = MappingProxyType({})


def to_json(tables: FrozenTables) -> str:
    """Return the text that is recorded."""
    return json.dumps({i: asdict(table) for i, table in tables.items()}, ensure_ascii=False)


def from_json(text: str) -> FrozenTables:
    """Return the tables of a text of ``to_json``."""
    tables = {}
    for table_id, table in json.loads(text).items():
        names = table["columns"]
        columns = None if names is None else {int(i): name for i, name in names.items()}
        tables[int(table_id)] = FrozenTable(table["since"], table["schema"], table["name"], columns)
    return tables


def frozen_by(job: Job, history: SchemaHistory, frozen: FrozenTables, keeps: Callable[[TableAt], bool]) -> FrozenTables:
    """Return the tables that are frozen in addition if ``job`` is not executed; ``keeps``: whether a table is replicated."""
    found = {}
    for table_id in history.tables_of_job(job):
        after = history.table_at(table_id, job.version)
        was = history.table_at(table_id, job.version - 1) or history.table_at(job.table_id, job.version - 1)
        if after is None or table_id in frozen:
            continue
        if was is not None and keeps(was):
            columns = {c.id: c.name for c in was.info.target_columns()}
            found[table_id] = frozen.get(was.table_id) or FrozenTable(job.id, was.schema, was.name, columns)
        elif keeps(after):
            found[table_id] = FrozenTable(job.id, after.schema, after.name, None)
    return found


def hit(job: Job, history: SchemaHistory, frozen: FrozenTables, routes: Routes = NO_ROUTES) -> tuple[FrozenTable, ...]:
    """Return the frozen tables because of which ``job`` is not executed."""

    def place(schema: str, name: str) -> tuple[str, str]:
        to = routes.target(schema, name)
        return to.schema.lower(), to.name.lower()

    ids = history.tables_of_job(job) if frozen else ()
    by_place = {place(f.schema, f.name): f for f in frozen.values() if f.columns is not None}
    if job.kind.on is On.DATABASE:
        home = history.schema_at(job.schema_id, job.version - 1) if frozen and job.kind.effect is JobEffect.DROPS else None
        own = (frozen[i] for i in ids if i in frozen)
        inside = (f for (schema, _), f in by_place.items() if home is not None and schema == routes.database(home.name).lower())
        return (*(f for f in own if f.columns is not None), *inside)
    found = [] if job.kind.effect is JobEffect.MAKES else [frozen[i] for i in ids if i in frozen]
    for after in (t for i in ids if (t := history.table_at(i, job.version)) is not None):
        if after.table_id not in frozen and (taken := by_place.get(place(after.schema, after.name))) is not None:
            found.append(taken)
        was = history.table_at(after.table_id, job.version - 1)
        for key in set(after.info.foreign_keys) - set(was.info.foreign_keys if was is not None else ()):
            parent = history.find(key.ref_schema or after.schema, key.ref_table, job.version)
            if parent is not None and parent.table_id in frozen:
                found.append(frozen[parent.table_id])
    return tuple(found)


@dataclass(frozen=True, slots=True)
class UnwritableTable:
    """A table whose rows cannot be written to the target."""

    table_id: int
    table: str
    why: str


def fitted(step: RowsStep, frozen: FrozenTables) -> tuple[RowsStep, tuple[UnwritableTable, ...]]:
    """Return ``step`` with the tables as rows are written to them, and the tables whose rows cannot be written."""
    forms = {i: writable(table, frozen[i]) for i, table in step.tables.items() if i in frozen}
    unwritable = tuple(form for form in forms.values() if isinstance(form, UnwritableTable))
    tables = {i: t for i, table in step.tables.items() if isinstance(t := forms.get(i, table), TableAt)}
    return replace(step, tables=tables, gone=step.gone | {u.table_id for u in unwritable}), unwritable


def writable(table: TableAt, frozen: FrozenTable) -> TableAt | UnwritableTable:
    """Return ``table`` with the columns that are written, under their names at the target."""
    columns = frozen.columns or {}
    if frozen.columns is None or not {c.id for c in table.info.handle_columns()} <= columns.keys():
        why = "" if frozen.columns is None else ", whose primary key the target's table has not,"
        return UnwritableTable(
            table.table_id, f"{frozen.schema}.{frozen.name}", f"rows of {table.schema}.{table.name}{why} are not written: {frozen.words}"
        )
    return replace(table, schema=frozen.schema, name=frozen.name, info=_narrowed(table.info, columns), frozen=True)


def unwritten(table: TableAt, frozen: FrozenTable) -> tuple[str, ...]:
    """Return the columns of ``table`` that are not written."""
    return tuple(c.name for c in table.info.target_columns() if c.id not in (frozen.columns or {}))


def _narrowed(info: TableInfo, names: Mapping[int, str]) -> TableInfo:
    """``info`` with the columns of ``names`` alone, so called, and the keys over them."""
    info = narrowed(info, frozenset(c.name.lower() for c in info.public_columns() if c.id in names))
    columns = tuple(replace(c, name=names[c.id]) for c in info.columns)
    parts = [tuple(replace(part, name=columns[part.offset].name) for part in index.columns) for index in info.indexes]
    return replace(info, columns=columns, indexes=tuple(replace(i, columns=p) for i, p in zip(info.indexes, parts, strict=True)))
