"""Reads from ``spark_ddl`` on the target what became of a stream's DDLs: for people, and for RECOVER TABLE. [db]

Promises: reads only; needs no lease, and the stream may run or be stopped. A target without the table has no records.
"""

import json
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.ddl.delivery import Outcomes
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.target import Target

_NO_SUCH = frozenset({1049, 1146})
"""No such database, no such table."""
_NOT_AS_WRITTEN = ("derived", "ignored")


@dataclass(frozen=True, slots=True)
class RecordedDdl:
    """One DDL that has left something to know."""

    cluster_id: int
    job_id: int
    commit_ts: int
    state: str
    """``refused`` (the stream stops before it), ``intent`` (it is running, or a crash interrupted it), ``skipped``, ``quarantined``, ``not synced``, ``done``."""
    how: str
    """``text``, ``derived``, ``found``, ``nothing``, ``filtered``, ``ignored``, ``policy``, ``sync-ddl``; empty while it is not done."""
    query: str
    """TiDB's text."""
    executed: str
    """What the target was given; empty = nothing."""
    losses: tuple[str, ...]
    """What the target could not take."""
    refusals: tuple[str, ...]
    """The server's messages, oldest first."""


def remarkable(session: Session, schema: str, cluster_id: int = 0) -> list[RecordedDdl]:
    """The DDLs that were not executed as TiDB wrote them, or not in full, by commit_ts; ``cluster_id`` 0: of every cluster."""
    wanted = "(state <> 'done' OR note IN (%s, %s) OR (losses IS NOT NULL AND losses NOT IN ('', '[]')))"
    values: list[object] = [*_NOT_AS_WRITTEN, *([cluster_id] if cluster_id else [])]
    cluster = " AND cluster_id = %s" if cluster_id else ""
    try:
        rows = session.query(
            f"SELECT cluster_id, job_id, commit_ts, state, note, query, executed, losses, tries FROM {quote_name(schema)}.spark_ddl "
            f"WHERE {wanted}{cluster} ORDER BY commit_ts, job_id",
            values,
        )
    except ApplyError as error:
        if error.errno in _NO_SUCH:
            return []
        raise
    return [_recorded(row) for row in rows]


def load_outcomes(session: Target, schema: str, cluster_id: int) -> Outcomes:
    """Of the DDLs that are done since tables were last copied to the target: a copy empties and drops tables by itself."""
    marks, copied = f"{quote_name(schema)}.spark_ddl", "spark_bootstrap"
    later = f"SELECT 1 FROM {quote_name(schema)}.{copied} c WHERE c.cluster_id = d.cluster_id AND c.unit = -1 AND c.changed_at >= d.ended"
    since = f" AND NOT EXISTS ({later})" if column_names(session, schema, copied) else ""
    rows = session.query(f"SELECT job_id, note FROM {marks} d WHERE cluster_id = %s AND state = 'done'{since}", [cluster_id])
    return {int(job_id): str(how) for job_id, how in rows}


def _recorded(row: tuple[Any, ...]) -> RecordedDdl:
    cluster, job, ts, state, note, query, executed, losses, tries = row
    refusals = tuple(f"{one['at']} {one['step']}: {one['words']} ({one['sql']})" for one in json.loads(tries or "[]"))
    lost = tuple(json.loads(losses or "[]"))
    return RecordedDdl(int(cluster), int(job), int(ts), str(state), note or "", str(query), executed or "", lost, refusals)
