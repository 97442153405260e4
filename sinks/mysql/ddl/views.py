"""Views that the target refuses: they are left out, because they hold no rows, and tried again after a DDL that may make what they lack. [db]

Promises: ``spark_ddl`` says which are left out (``LEFT_OUT``). Another try runs before its DDL is recorded as done, and is recorded with it: after a crash
both are made again, and a view that stands counts as made.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import tokenize
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DONE, LEFT_OUT, table_of
from pyspark_tidb_binlog.sinks.mysql.ddl.ladder import make
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import EXISTS_TABLE, SentDdl, execute
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_ddl import TargetDdl
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.structure import kinds_of
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes

_log = logging.getLogger(__name__)

_MAY_HELP = (JobEffect.MAKES, JobEffect.RENAMES, JobEffect.RESTORES)


def view_waits(label: str, words: str) -> str:
    """The loss."""
    return f"{label}: the view is left out, and tried again after each CREATE and RENAME: {words}"


def out_of_place(subject: Subject, history: SchemaHistory, config: ApplyConfig) -> str:
    """Why a view that the job makes would not read at the target what it reads upstream; empty if it would, or the job makes none."""
    if subject.job.type != JobType.CREATE_VIEW or subject.info is None or subject.info.view is None:
        return ""
    select, selection = subject.info.view.select, Selection.of(config)
    if routed := selection.routed_name(select):
        return f"it names {routed}, which has another name at the target"
    tokens = [t for t in tokenize(select, backslash_escapes=False) if not t.blank]
    names = {(a.name, b.name) for a, dot, b in zip(tokens, tokens[1:], tokens[2:], strict=False) if dot.text == "."}
    tables = (history.find(*name, subject.job.version) for name in sorted(names))
    strange = next((t for t in tables if t is not None and not selection.keeps(t)), None)
    return f"it names {strange.label}, which is not replicated" if strange else ""


def has_view(session: Target, view: TableAt) -> bool:
    """Whether the target has a view of this name with these columns."""
    columns = tuple(c.name for c in view.info.public_columns())
    return kinds_of(session, view.schema, view.name) == ["VIEW"] and column_names(session, view.schema, view.name) == columns


def made_by_now(session: Target, ddl: TargetDdl, cluster_id: int) -> Mapping[int, tuple[str, ...]]:
    """Make the left-out views that the target takes now, after ``ddl``; the losses of each, by the job that was left out."""
    job = ddl.subject.job
    if job.kind.effect not in _MAY_HELP:
        return {}
    waiting, made = _waiting(session, ddl, cluster_id), dict[int, tuple[str, ...]]()
    while taken := {i: losses for i, view in waiting.items() if (losses := _made(session, view, ddl.dialect)) is not None}:
        made |= taken
        waiting = {i: view for i, view in waiting.items() if i not in taken}  # a view may need another
    return made


def note_made(session: Target, config: ApplyConfig, cluster_id: int, made: Mapping[int, tuple[str, ...]]) -> None:
    """Record, in the caller's transaction, that these views are there."""
    for job_id, losses in made.items():
        session.execute(
            f"UPDATE {table_of(config)} SET note = 'text', losses = %s WHERE cluster_id = %s AND job_id = %s",
            [json.dumps(losses, ensure_ascii=False), cluster_id, job_id],
        )


def _waiting(session: Target, ddl: TargetDdl, cluster_id: int) -> dict[int, Subject]:
    """The left-out views that are there upstream after ``ddl``, as they are then, by the job that was left out."""
    config, history, job = ddl.config, ddl.history, ddl.subject.job
    sql = f"SELECT job_id FROM {table_of(config)} WHERE cluster_id = %s AND state = %s AND note = %s ORDER BY version"
    routes, views = Routes.of(config), dict[int, Subject]()
    for (job_id,) in session.query(sql, [cluster_id, DONE, LEFT_OUT]):
        for table_id in history.touched.get(int(job_id), ()) if job_id > 0 else (-int(job_id),):
            view = history.table_at(table_id, job.version)
            if job_id == job.id or view is None or not view.info.is_view:
                continue
            made = replace(table_as_job(view, history), type=int(JobType.CREATE_VIEW), version=job.version)
            at_target = routes.moved(view)
            subject = Subject(made, "", at_target.schema, at_target.name, (), (at_target,))
            if not out_of_place(subject, history, config):
                views[int(job_id)] = subject
    return views


def _made(session: Target, subject: Subject, dialect: Dialect) -> tuple[str, ...] | None:
    """Make the view unless it is there; its losses; None: the target still refuses it."""
    try:
        session.use(subject.schema)
        losses = make(SentDdl(session, subject, dialect), execute)
    except ServerRefused as error:
        if error.errno != EXISTS_TABLE or not has_view(session, subject.after[0]):
            return None
        losses = ()
    _log.info("%s is made: the target takes it now", subject.label)
    return losses
