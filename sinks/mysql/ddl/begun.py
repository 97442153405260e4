"""DDLs that an earlier life of the Drainer began, and what a start will do about them: for ``drainer --check``. [db]

Promises: reads only. It judges each DDL by its row in ``spark_ddl`` and the target, as ``sinks.mysql.ddl.executor`` does.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import Job
from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note
from pyspark_tidb_binlog.sinks.engine.choice import decided
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import altered_by, by_changes
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, REFUSED
from pyspark_tidb_binlog.sinks.mysql.ddl.delivery import DdlForm
from pyspark_tidb_binlog.sinks.mysql.ddl.execution_check import EarlierTry, ExecutionCheck, snapshot_of
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls
from pyspark_tidb_binlog.sinks.mysql.ddl.other_partitions import holds_other_rows, on_single_partitions
from pyspark_tidb_binlog.sinks.mysql.ddl.present import Presence
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot, partition_method
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of, keeping_padding
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject, subject_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target
from pyspark_tidb_binlog.sinks.routing.replicated import DdlFate, Selection
from pyspark_tidb_binlog.sinks.routing.routes import Routes


def begun(session: Target, waiting: WaitingDdls, config: ApplyConfig, cluster_id: int) -> Iterator[tuple[Job, Remark]]:
    """Those that a start will not execute: their effect is in the target, or nobody can tell.

    Raises:
        ApplyError: ``spark_ddl`` cannot be read.
    """
    marks = f"{quote_name(config.checkpoint_schema)}.spark_ddl"
    rows = session.query(
        f"SELECT job_id, commit_ts, early, state, picture, tries FROM {marks} WHERE cluster_id = %s AND state IN (%s, %s) AND picture IS NOT NULL",
        [cluster_id, INTENT, REFUSED],
    )
    records = {int(row[0]): row[1:] for row in rows}
    for step in waiting.steps() if records else ():
        if step.job.id not in records:
            continue
        commit_ts, early, state, picture, tries = records[step.job.id]
        step = decided(replace(step, commit_ts=int(commit_ts), early=bool(early)), waiting.history, Selection.of(config))
        if step.decision.fate not in (DdlFate.APPLIED, DdlFate.DERIVED) or step.skip_ts in config.ignore_txn_commit_ts:
            continue
        subject = subject_of(step, waiting.history, waiting.frozen, Routes.of(config))
        dialect = keeping_padding(session, dialect_of(session, config), subject.before)
        if subject.given.form in (DdlForm.NOTHING, DdlForm.FROZEN) or (
            dialect.flavour is not Flavour.TIDB and _scattered(session, subject)
        ):
            continue
        earlier = EarlierTry(state == REFUSED, bool(json.loads(tries or "[]")), SchemaSnapshot.from_json(picture))
        where = f"DDL of job {step.job.id} on {subject.label}"
        try:
            if _has_run(session, step, subject, dialect, earlier, marks):
                yield step.job, note(where, "an earlier life began it, and the target shows its effect: it is not executed again")
        except RetryableApplyError:
            raise
        except ApplyError as error:
            yield step.job, hinders(where, str(error), "decide this before you start the stream")


def _has_run(session: Target, step: DdlStep, subject: Subject, dialect: Dialect, earlier: EarlierTry, marks: str) -> bool:
    if not by_changes(subject, dialect):
        return ExecutionCheck(session, step, subject, dialect, marks).has_run(earlier, snapshot_of(session, subject))
    altered, old = altered_by(subject, dialect), subject.old
    there = read_whole(session, old.schema, old.name) if old else None
    return altered is not None and there is not None and not altered.clauses(Presence(altered, there).missing())


def _scattered(session: Target, subject: Subject) -> bool:
    old = subject.old
    return (
        old is not None
        and on_single_partitions(subject)
        and bool(holds_other_rows(subject, partition_method(session, old.schema, old.name)))
    )
