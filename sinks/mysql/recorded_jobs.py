"""The DDL jobs that a target has, by its checkpoint and its record of DDLs (``spark_ddl``). [db]

Promises: reads only. The checkpoint's schema version covers the jobs up to it. Two kinds are looked up by id: jobs executed before their
binlogs, and those whose binlogs may follow those of higher versions, or be lost (``SchemaHistory.behind``).
"""

from dataclasses import replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import INTENT, REFUSED, load_applied
from pyspark_tidb_binlog.sinks.mysql.target import Target


def applied_at(session: Target, config: ApplyConfig, cluster_id: int, stand: tuple[int, int], history: SchemaHistory) -> AppliedJobs:
    """The jobs that are executed on the target where its checkpoint says ``stand`` = (commit_ts, schema version)."""
    commit_ts, version = stand
    applied = load_applied(session, config, cluster_id, version)
    marks = f"{quote_name(config.checkpoint_schema)}.spark_ddl"
    began = session.query(f"SELECT commit_ts FROM {marks} WHERE cluster_id = %s AND job_id = 0", [cluster_id])
    applied = replace(applied, since=int(began[0][0]) if began else commit_ts)
    doubtful = [job.id for job in history.behind(version, commit_ts, applied.since)]
    if doubtful:
        rows = session.query(
            f"SELECT job_id FROM {marks} WHERE cluster_id = %s AND state NOT IN (%s, %s) "
            f"AND job_id IN ({', '.join(['%s'] * len(doubtful))})",
            [cluster_id, INTENT, REFUSED, *doubtful],
        )
        applied = replace(applied, early=applied.early | {int(job_id) for (job_id,) in rows})
    return applied.at(commit_ts, history)
