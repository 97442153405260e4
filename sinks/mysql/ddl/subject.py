"""What a DDL operates on at the target: its job, its tables before and after it, their names there, and in which form it may be sent. Pure.

No text is examined for what it would do to a frozen table: a job that meets one (``sinks.engine.frozen``) is not executed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType, On
from pyspark_tidb_binlog.schemas.ddl_tokens import significant
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.engine.choice import schema_of
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTables, hit
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate
from pyspark_tidb_binlog.sinks.routing.routes import NO_ROUTES, Routes, TargetName


class DdlForm(StrEnum):
    """Forms in which a DDL is sent."""

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
    """Form in which a DDL is sent, and why not as text."""

    form: DdlForm
    why: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Job of a DDL, and its tables as they are on the target before and after the job."""

    job: Job
    query: str
    schema: str
    """Database to USE; empty if the job has none."""
    name: str
    before: tuple[TableAt, ...]
    """The tables it changes, before the job; empty if it only creates tables."""
    after: tuple[TableAt, ...]
    """The tables it changes, after the job."""
    given: DdlDelivery = field(default=DdlDelivery(DdlForm.TEXT))
    """The form in which it is sent."""
    routes: Routes = NO_ROUTES
    """From the names upstream to those at the target."""
    former: TableInfo | None = None
    """The job's own table before the job, upstream."""

    @property
    def label(self) -> str:
        """``schema.table`` for messages."""
        return f"{self.schema}.{self.name}" if self.name else self.schema

    @property
    def of_views(self) -> bool:
        """Whether it is about views alone, which hold no rows."""
        tables = (*self.before, *self.after)
        return self.job.kind.on is On.VIEW or (bool(tables) and all(t.info.is_view for t in tables))

    @property
    def info(self) -> TableInfo | None:
        """The job's own table after the job, upstream."""
        return self.job.table_info

    @property
    def old(self) -> TableAt | None:
        """The job's own table on the target before the job."""
        wanted = self.job.table_info.id if self.job.table_info else self.job.table_id
        by_id = {t.table_id: t for t in self.before}
        return by_id.get(wanted) or by_id.get(self.job.table_id)

    @property
    def new(self) -> TableAt | None:
        """The job's own table on the target after the job."""
        wanted = self.job.table_info.id if self.job.table_info else self.job.table_id
        return next((t for t in self.after if t.table_id == wanted), None)


def subject_of(step: DdlStep, history: SchemaHistory, frozen: FrozenTables = NONE_FROZEN, routes: Routes = NO_ROUTES) -> Subject:
    """Look up the subject of ``step`` in the history; tables with ``routes`` are as on the target. ``frozen``: the frozen tables."""
    job = step.job
    ids = [i for i in history.tables_of_job(job) if i not in step.decision.strangers]
    before = tuple(t for i in ids if (t := step.before.table(i, history)) is not None)
    there = tuple(t for i in ids if (t := history.table_at(i, job.version)) is not None)
    after = tuple(referring(t, routes.target) for t in there)
    refused = DdlDelivery(DdlForm.REFUSED, step.decision.why) if step.decision.fate is DdlFate.REFUSED else None
    delivery = refused or given(job, step.query, history, frozen, routes)
    name = job.table_info.name if job.table_info else next((t.name for t in before if t.table_id == job.table_id), job.table_name)
    subject = Subject(job, step.query, schema_of(step, history), name, before, after, delivery)
    own = next((t.table_id for t in (subject.old, subject.new) if t is not None), 0)
    subject = replace(subject, former=next((t.info for t in before if t.table_id == own), None))
    return _routed(subject, routes, otherwise=after != there) if routes else subject


def referring(table: TableAt, place: Callable[[str, str], TargetName]) -> TableAt:
    """``table`` with what its foreign keys refer to as it is called at the target; ``place``: by database and name upstream."""
    keys = []
    for key in table.info.foreign_keys:
        to = place(key.ref_schema or table.schema, key.ref_table)
        keys.append(replace(key, ref_schema=to.schema, ref_table=to.name))
    return replace(table, info=replace(table.info, foreign_keys=tuple(keys))) if keys else table


def _routed(subject: Subject, routes: Routes, *, otherwise: bool) -> Subject:
    """``subject`` under the names of the target; ``otherwise``: a table to which it refers has another name there."""
    schema, name, given = routes.database(subject.schema), subject.name, subject.given
    if subject.before or subject.after:
        own = routes.target(subject.schema, subject.name)
        schema, name = own.schema, own.name
    before, after = (tuple(map(routes.moved, tables)) for tables in (subject.before, subject.after))
    found = replace(subject, schema=schema, name=name, before=before, after=after)
    narrowed = any(map(routes.columns_of, (*subject.before, *subject.after)))
    if given.form is not DdlForm.TEXT or subject.job.kind.on is On.VIEW:
        pass
    elif narrowed and [(t.schema, t.name, t.info) for t in before] == [(t.schema, t.name, t.info) for t in after]:
        given = DdlDelivery(DdlForm.NOTHING, "it does not change the columns that are replicated")
    elif narrowed:
        given = DdlDelivery(DdlForm.INFOS, "only some columns of the table are replicated")
    elif otherwise or found != subject:
        given = DdlDelivery(DdlForm.INFOS, "it names a table that has another name at the target")
    return replace(found, given=given, routes=routes)


def _is_copy(job: Job, query: str) -> bool:
    """Whether it is CREATE TABLE t LIKE s, or CREATE TABLE t (LIKE s)."""
    words = [t.word or t.text for t in significant(query)] if job.type == JobType.CREATE_TABLE else []
    before = list(takewhile(lambda word: word != "LIKE", words))
    return len(before) < len(words) and (before.count("(") == 0 or before.count("(") == 1 and before[-1] == "(")


def given(job: Job, query: str, history: SchemaHistory, frozen: FrozenTables, routes: Routes = NO_ROUTES) -> DdlDelivery:
    """The form in which ``job`` is sent to a target with these ``frozen`` tables; ``query``: the text that would be sent."""
    if hits := hit(job, history, frozen, routes):
        before, after = ({i for i in history.tables_of_job(job) if history.table_at(i, v)} for v in (job.version - 1, job.version))
        if before and after <= before <= frozen.keys() and all(frozen[i].columns is None for i in before):
            return DdlDelivery(DdlForm.NOTHING, hits[0].words)
        return DdlDelivery(DdlForm.FROZEN, "; ".join(dict.fromkeys(f.words for f in hits)))
    if _is_copy(job, query):
        return DdlDelivery(DdlForm.INFOS, "the target's table after LIKE may differ from the upstream's, or it is one of another name")
    return DdlDelivery(DdlForm.TEXT)
