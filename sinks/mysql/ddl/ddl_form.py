"""Decides in which form a DDL is sent to the target: as text, from the table infos, or not at all.

Promises: pure. No text is examined for what it would do to a frozen table: a job that meets one (``sinks.engine.frozen``) is not executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect, On
from pyspark_tidb_binlog.schemas.history import Job, JobType, SchemaHistory
from pyspark_tidb_binlog.sinks.engine.frozen import FrozenTables, hit
from pyspark_tidb_binlog.sinks.routing.replicated import like_source
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, TargetName


class DdlForm(StrEnum):
    """How a DDL is sent."""

    TEXT = "text"
    """As TiDB's text first, then derived."""
    INFOS = "infos"
    """Only derived from the table infos, which have the target's names."""
    NOTHING = "nothing"
    """Not sent: it changes nothing that exists on the target."""
    FROZEN = "frozen"
    """Not sent: it meets a frozen table."""
    REFUSED = "refused"
    """Not sent: it would affect another object."""


@dataclass(frozen=True, slots=True)
class DdlDelivery:
    """How a DDL is sent, and why not as text."""

    form: DdlForm
    why: str = ""


_LEAVES_ROWS = frozenset({JobEffect.DROPS, JobEffect.EMPTIES})
"""What leaves a table which TiDB can restore, until its GC removes it."""

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
    job: Job, query: str, history: SchemaHistory, frozen: FrozenTables, routes: Routes = NO_ROUTES, outcomes: Outcomes = NO_OUTCOMES
) -> DdlDelivery:
    """In which form ``job`` is sent to a target with these ``frozen`` tables; ``query``: the text that would be sent."""
    if hits := hit(job, history, frozen, routes):
        before, after = ({i for i in history.tables_of_job(job) if history.table_at(i, v)} for v in (job.version - 1, job.version))
        if before and after <= before <= frozen.keys() and all(frozen[i].columns is None for i in before):
            return DdlDelivery(DdlForm.NOTHING, hits[0].words)
        return DdlDelivery(DdlForm.FROZEN, "; ".join(dict.fromkeys(f.words for f in hits)))
    if job.type == JobType.RECOVER_TABLE and (why := _restores_another(job, history, routes, outcomes)):
        return DdlDelivery(DdlForm.REFUSED, why)
    if frozen and job.type == JobType.CREATE_TABLE and like_source(query) is not None:
        return DdlDelivery(DdlForm.INFOS, "a table is frozen, and one made by LIKE could differ from the upstream's")
    return DdlDelivery(DdlForm.TEXT)


def _restores_another(job: Job, history: SchemaHistory, routes: Routes, outcomes: Outcomes) -> str:
    """Why a TiDB would not restore the table that the upstream restored; empty if it would.

    It restores the table that was last dropped or truncated under a name there, whatever the upstream's job named.
    """
    restored = history.restored_by(job)
    if restored is None:
        return "the DDL history does not hold the DROP or TRUNCATE of this table"
    was, drop = restored
    name = routes.target(was.schema, was.name)
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
