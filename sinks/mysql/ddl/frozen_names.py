"""Decides in which form a DDL may be sent to a target with frozen tables, where names in its text may refer to something else.

Promises: pure. A frozen table may have another name or other column names on the target than upstream, or may not exist there, and its
upstream name may belong to another table there. A statement that would affect another table or column is never sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, On
from pyspark_tidb_binlog.schemas.ddl_tokens import significant
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenShape, RefusedJobs, on_target, renamed_columns, shape_of
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, TargetName


class DdlForm(StrEnum):
    """How a DDL is sent."""

    TEXT = "text"
    """As TiDB's text first, then derived."""
    INFOS = "infos"
    """Only derived from the table infos, which have the target's names."""
    NOTHING = "nothing"
    """Not sent: it changes nothing that exists on the target."""
    REFUSED = "refused"
    """Not sent: it would affect another object."""


@dataclass(frozen=True, slots=True)
class DdlDelivery:
    """How a DDL is sent, and why not as text."""

    form: DdlForm
    why: str = ""


_TEXT = DdlDelivery(DdlForm.TEXT)

_IN_INFOS = frozenset({JobEffect.ALTERS, JobEffect.RENAMES})
"""What can be seen from the table infos and their names alone."""

_LEAVES_ROWS = frozenset({JobEffect.DROPS, JobEffect.EMPTIES})
"""What leaves a table which TiDB can restore, until its GC removes it."""
"""Jobs that leave a table which TiDB can restore, until its GC removes it."""

_EXECUTED = frozenset({"text", "changes", "derived", "found"})
_NOT_EXECUTED = frozenset({"filtered", "nothing"})
"""``DdlOutcome.how``; of the others (``ignored``) a person may have executed the job, or not."""

Outcomes = Mapping[int, str]
"""``DdlOutcome.how`` by job, as ``sinks.mysql.ddl.ddl_record.load_outcomes``."""
NO_OUTCOMES: Outcomes = MappingProxyType({})

_NAMED = frozenset({JobEffect.DROPS, JobEffect.EMPTIES, JobEffect.RENAMES, JobEffect.EXCHANGES, JobEffect.RESTORES})


def named_by_infos(job: Job) -> bool:
    """Whether the job's statement has no column names and is built with the target's table names; RENAME_TABLES takes them from the text."""
    return job.kind.effect in _NAMED and job.kind.on is not On.DATABASE


def given(
    job: Job, query: str, history: SchemaHistory, refused: RefusedJobs, routes: Routes = NO_ROUTES, outcomes: Outcomes = NO_OUTCOMES
) -> DdlDelivery:
    """What may be sent for ``job`` after the ``refused`` ones; ``query``: the text that would be sent."""
    if job.type == JobType.RECOVER_TABLE and (why := _restores_another(job, history, refused, routes, outcomes)):
        return DdlDelivery(DdlForm.REFUSED, why)
    if not refused:
        return _TEXT
    if job.type == JobType.DROP_SCHEMA:
        return _dropped_schema(job, history, refused)
    if job.kind.effect is JobEffect.MAKES or job.type == JobType.RECOVER_TABLE:
        return _made(job, query, history, refused)
    changed = [t for i in history.tables_of_job(job) if (t := history.table_at(i, job.version - 1)) is not None]
    frozen = [(t, s) for t in changed if (s := shape_of(history, refused, t.table_id, t.version)) is not None]
    return _changed(job, history, refused, frozen) if frozen else _TEXT


def frozen_tables(history: SchemaHistory, refused: RefusedJobs, version: int) -> Iterator[tuple[TableAt, FrozenShape]]:
    """Every table that is frozen at ``version``: the upstream's definition and the shape on the target."""
    ids: set[int] = set()
    jobs = [job for i in refused if (job := history.job(i)) is not None]
    while jobs:
        for table_id in set(history.tables_of_job(jobs.pop())) - ids:
            ids.add(table_id)
            jobs += [j for j in history.jobs_of_table(table_id, -1, version) if j.kind.new_table_id or j.kind.effect is JobEffect.EXCHANGES]
    for table_id in sorted(ids):
        table, shape = history.table_at(table_id, version), shape_of(history, refused, table_id, version)
        if table is not None and shape is not None:
            yield table, shape


def _restores_another(job: Job, history: SchemaHistory, refused: RefusedJobs, routes: Routes, outcomes: Outcomes) -> str:
    """Why a TiDB would not restore the table that the upstream restored; empty if it would.

    It restores the table that was last dropped or truncated under a name there, whatever the upstream's job named.
    """
    restored = history.restored_by(job)
    if restored is None:
        return "the DDL history does not hold the DROP or TRUNCATE of this table"
    was, drop = restored
    name = routes.target(was.schema, was.name)
    if shape_of(history, refused, was.table_id, drop.version - 1) is not None:
        return f"{name.schema}.{name.name} was frozen on the target when the upstream dropped it in job {drop.id}"
    by_hand = (
        "the target may restore other rows. Restore the table there by hand: RECOVER TABLE BY JOB with the number of the target's own job"
    )
    if outcomes.get(drop.id) not in _EXECUTED:
        return f"job {drop.id} dropped it, but spark_ddl does not record this as executed here, or tables were copied since: {by_hand}"
    for later in history.jobs_between(drop.version, job.version - 1):
        other = (
            history.table_at(later.table_id, later.version - 1) if later.kind.on is On.TABLE and later.kind.effect in _LEAVES_ROWS else None
        )
        if other is None or outcomes.get(later.id) in _NOT_EXECUTED:
            continue
        if _folded(routes.target(other.schema, other.name)) == _folded(name):
            return f"job {drop.id} dropped it, and later job {later.id} dropped another table {name.schema}.{name.name}: {by_hand}"
    after = history.table_at(was.table_id, job.version)
    to = routes.target(after.schema, after.name) if after is not None else name
    if to.schema != name.schema:
        return f"it is restored as {to.schema}.{to.name}, but TiDB restores a table of {name.schema} only in {name.schema}"
    return ""


def _folded(name: TargetName) -> tuple[str, str]:
    return name.schema.lower(), name.name.lower()


def _dropped_schema(job: Job, history: SchemaHistory, refused: RefusedJobs) -> DdlDelivery:
    """A table that the upstream has moved out of the database may still be in it on the target."""
    schema = history.schema_at(job.schema_id, job.version - 1)
    name = (schema.name if schema else job.schema_name).lower()
    for table, shape in frozen_tables(history, refused, job.version):
        if shape.info is not None and shape.schema.lower() == name:
            return DdlDelivery(
                DdlForm.REFUSED, f"{shape.schema}.{shape.name} is the frozen table of the upstream's {table.schema}.{table.name}"
            )
    return _TEXT


def _made(job: Job, query: str, history: SchemaHistory, refused: RefusedJobs) -> DdlDelivery:
    coming = [t for i in history.tables_of_job(job) if (t := history.table_at(i, job.version)) is not None]
    names = {(t.schema.lower(), t.name.lower()) for t in coming}
    tokens = significant(query)
    spoken = {t.name.lower() for t in tokens} if any(t.word == "LIKE" for t in tokens) else set()
    found = _TEXT
    for table, shape in frozen_tables(history, refused, job.version):
        if shape.info is not None and (shape.schema.lower(), shape.name.lower()) in names:
            return DdlDelivery(
                DdlForm.REFUSED, f"{shape.schema}.{shape.name} is the frozen table of the upstream's {table.schema}.{table.name}"
            )
        if job.type == JobType.CREATE_TABLE and spoken & {table.name.lower(), shape.name.lower()}:
            found = DdlDelivery(
                DdlForm.INFOS, f"{shape.schema}.{shape.name} is frozen, so CREATE TABLE ... LIKE would differ from the upstream's table"
            )
    return found


def _changed(job: Job, history: SchemaHistory, refused: RefusedJobs, frozen: list[tuple[TableAt, FrozenShape]]) -> DdlDelivery:
    absent = next((s for _, s in frozen if s.info is None), None)
    if absent is not None:
        alone = len(history.tables_of_job(job)) == 1 or job.kind.new_table_id
        return DdlDelivery(DdlForm.NOTHING if alone else DdlForm.REFUSED, f"the target has no table {absent.schema}.{absent.name}")
    if job.type != JobType.RENAME_TABLES and job.kind.effect in _IN_INFOS and all(_stays(t, job, history, refused) for t, _ in frozen):
        return DdlDelivery(DdlForm.NOTHING, "the DDL does not change the frozen table")
    moved = next((why for t, s in frozen if (why := _other_name(t, s))), "")
    if job.type == JobType.RENAME_TABLES and moved:
        return DdlDelivery(DdlForm.REFUSED, moved)
    if named_by_infos(job):
        return _TEXT
    other = moved or next((why for t, s in frozen if (why := _other_columns(t, s))), "")
    return DdlDelivery(DdlForm.INFOS, other) if other else _TEXT


def _stays(table: TableAt, job: Job, history: SchemaHistory, refused: RefusedJobs) -> bool:
    after = history.table_at(table.table_id, job.version)
    was = on_target(history, refused, table, table.version)
    now = on_target(history, refused, after, job.version) if after else None
    if was is None or now is None or (was.schema, was.name) != (now.schema, now.name):
        return False
    return replace(was.info, name=now.info.name) == now.info


def _other_name(table: TableAt, shape: FrozenShape) -> str:
    same = (table.schema.lower(), table.name.lower()) == (shape.schema.lower(), shape.name.lower())
    return "" if same else f"{table.schema}.{table.name} is {shape.schema}.{shape.name} on the target"


def _other_columns(table: TableAt, shape: FrozenShape) -> str:
    names = ", ".join(f"{a} is {b}" for a, b in renamed_columns(table.info, shape))
    return f"columns of {shape.schema}.{shape.name} have other names on the target: {names}" if names else ""
