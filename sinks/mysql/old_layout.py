"""Migrates markers and DDL records of the layout before the lease, which are keyed by the Drainer's name, to the cluster id as key. [db]

Promises: ``adopt`` may be killed at any point and is completed by the next start. The old tables are first renamed, so that a Drainer of an
older release, which does not check the lease, fails at its next write; then each cluster moves its own rows, in one transaction that checks
its lease. The remaining rows are kept, since they may belong to another cluster; empty tables are dropped.

The rows of a cluster, whatever the Drainer was called: the unfinished span that begins at the cluster's checkpoint; all DDL records if the
target serves no other cluster, else those under the Drainer's own name whose job is in the cluster's DDL history.
"""

import logging
from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.mysql import lease, progress
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.progress import Mark
from pyspark_tidb_binlog.sinks.mysql.session import Session

_log = logging.getLogger(__name__)

PROGRESS, DDL = "spark_progress", "spark_ddl"
ASIDE = "_by_drainer"
"""Suffix of a renamed old table."""
_CHUNK = 1000


def set_aside(session: Session, schema: str) -> None:
    """Rename tables of the old layout. DDL: must not be called inside a transaction.

    Raises:
        ApplyError: a table with the new name already exists.
    """
    there = _columns(session, schema)
    for name in (PROGRESS, DDL):
        if "drainer" not in there.get(name, ()):
            continue
        if name + ASIDE in there:
            raise ApplyError(
                f"{schema}.{name} has the layout before the lease, but {schema}.{name + ASIDE} already exists, left by an earlier start "
                f"from another such table. If the target was restored, drop {schema}.{name + ASIDE} and start again"
            )
        _log.info("%s.%s is keyed by the Drainer's name: renaming it to %s for migration", schema, name, name + ASIDE)
        session.execute(f"RENAME TABLE {_table(schema, name)} TO {_table(schema, name + ASIDE)}")


def adopt(session: Session, held: Lease, drainer: str, history: SchemaHistory) -> None:
    """Move this cluster's rows from the renamed tables into the present ones, which must exist. No transaction may be open.

    Raises:
        ApplyError: several Drainers with other names have begun a span at the cluster's checkpoint.
    """
    there = _columns(session, held.schema)
    aside = [name for name in (PROGRESS, DDL) if name + ASIDE in there]
    if not aside:
        return
    session.begin()
    lease.check(session, held)
    others = session.query(f"SELECT 1 FROM {_table(held.schema, 'checkpoint')} WHERE clusterID <> %s", [held.cluster_id])
    if PROGRESS in aside:
        _adopt_span(session, held, drainer, only=not others)
    if DDL in aside:
        columns = [c for c in there[DDL + ASIDE] if c != "drainer" and c in there[DDL]]
        if others:
            _adopt_known_ddls(session, held, drainer, columns, history)
        else:
            _adopt_all_ddls(session, held, drainer, columns)
    session.commit()
    for name in aside:
        if not session.query(f"SELECT 1 FROM {_table(held.schema, name + ASIDE)} LIMIT 1"):
            session.execute(f"DROP TABLE {_table(held.schema, name + ASIDE)}")


def _adopt_span(session: Session, held: Lease, drainer: str, *, only: bool) -> None:
    old = _table(held.schema, PROGRESS + ASIDE)
    commit_ts = progress.lock_checkpoint(session, held.cluster_id, held.schema)
    begun = f"FROM {old} WHERE from_ts = %s AND to_ts > %s"
    names = {str(name) for (name,) in session.query(f"SELECT drainer {begun} AND phase = %s", [commit_ts, commit_ts, str(Mark.SPAN)])}
    if drainer in names:
        names = {drainer}
    if len(names) > 1:
        raise ApplyError(
            f"{held.schema}.{PROGRESS + ASIDE} holds unfinished spans of the Drainers {sorted(names)}, all begun at the checkpoint "
            f"{commit_ts} of cluster {held.cluster_id}: several Drainers wrote for it before leases existed. Set node-id to the one "
            "whose span is to be finished, and compare the tables with the upstream afterwards"
        )
    for name in names:
        columns = "from_ts, to_ts, part, parts, phase, done_at"
        mine = [commit_ts, commit_ts, name]
        session.execute(
            f"INSERT INTO {_table(held.schema, PROGRESS)} (cluster_id, {columns}) SELECT %s, {columns} {begun} AND drainer = %s",
            [held.cluster_id, *mine],
        )
        session.execute(f"DELETE {begun} AND drainer = %s", mine)
    if only:
        session.execute(f"DELETE FROM {old}")


def _adopt_all_ddls(session: Session, held: Lease, drainer: str, columns: Sequence[str]) -> None:
    """Of several records of one job the one under our own name is used, else a finished one."""
    old, names = _table(held.schema, DDL + ASIDE), ", ".join(columns)
    session.execute(
        f"INSERT IGNORE INTO {_table(held.schema, DDL)} (cluster_id, {names}) SELECT %s, {names} FROM {old} "
        "ORDER BY drainer <> %s, ended IS NULL, ended DESC",
        [held.cluster_id, drainer],
    )
    session.execute(f"DELETE FROM {old}")


def _adopt_known_ddls(session: Session, held: Lease, drainer: str, columns: Sequence[str], history: SchemaHistory) -> None:
    old, names = _table(held.schema, DDL + ASIDE), ", ".join(columns)
    rows = session.query(f"SELECT job_id, version FROM {old} WHERE drainer = %s", [drainer])
    known = [int(job_id) for job_id, version in rows if (job := history.job(int(job_id))) is not None and job.version == version]
    for start in range(0, len(known), _CHUNK):
        jobs = known[start : start + _CHUNK]
        where = f"FROM {old} WHERE drainer = %s AND job_id IN ({', '.join(['%s'] * len(jobs))})"
        session.execute(
            f"INSERT IGNORE INTO {_table(held.schema, DDL)} (cluster_id, {names}) SELECT %s, {names} {where}",
            [held.cluster_id, drainer, *jobs],
        )
        session.execute(f"DELETE {where}", [drainer, *jobs])


def _columns(session: Session, schema: str) -> dict[str, list[str]]:
    """The columns of each table in ``schema``, in order."""
    sql = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, ordinal_position"
    found: dict[str, list[str]] = {}
    for table, column in session.query(sql, [schema]):
        found.setdefault(str(table), []).append(str(column))
    return found


def _table(schema: str, name: str) -> str:
    return f"{quote_name(schema)}.{quote_name(name)}"
