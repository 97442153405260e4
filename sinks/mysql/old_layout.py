"""Markers and DDL records of the layout before the lease, which were keyed by the Drainer's name, brought under the cluster's id. [db]

Promises: ``adopt`` may be killed at any point and is ended by the next start. The old tables are first set aside under another name, so that a
Drainer of an older release, which knows no lease, fails at its next write; then each cluster takes what is its own, in one transaction that
proves its lease. What nobody has taken yet stays, since it may be another cluster's; tables that are empty go.

What is a cluster's own, whatever the Drainer was called: the unfinished span that begins at the cluster's checkpoint; all DDL records where the
target serves no other cluster, else those under the Drainer's own name whose job the cluster's DDL history has.
"""

import logging
from collections.abc import Sequence

from schemas.ddl_tokens import quote_name
from schemas.errors import ApplyError
from schemas.history import SchemaHistory
from sinks.mysql import lease, progress
from sinks.mysql.lease import Lease
from sinks.mysql.progress import Mark
from sinks.mysql.session import Session

_log = logging.getLogger(__name__)

PROGRESS, DDL = "spark_progress", "spark_ddl"
ASIDE = "_by_drainer"
"""What is added to an old table's name."""
_CHUNK = 1000


def set_aside(session: Session, schema: str) -> None:
    """Rename tables of the old layout. DDL: not to be called inside a transaction.

    Raises:
        ApplyError: an older copy of such a table already stands aside.
    """
    there = _columns(session, schema)
    for name in (PROGRESS, DDL):
        if "drainer" not in there.get(name, ()):
            continue
        if name + ASIDE in there:
            raise ApplyError(
                f"{schema}.{name} is of the layout before the lease, and {schema}.{name + ASIDE} holds what an earlier start left of another such table. "
                f"The target was restored? Then drop {schema}.{name + ASIDE} and start again"
            )
        _log.info("%s.%s is keyed by the Drainer's name: it is set aside as %s", schema, name, name + ASIDE)
        session.execute(f"RENAME TABLE {_table(schema, name)} TO {_table(schema, name + ASIDE)}")


def adopt(session: Session, held: Lease, drainer: str, history: SchemaHistory) -> None:
    """Take over what is this cluster's of the tables set aside; the present tables are there. No transaction may be open.

    Raises:
        ApplyError: several Drainers of other names have begun a span at the cluster's checkpoint.
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
            f"{held.schema}.{PROGRESS + ASIDE} holds unfinished spans of the Drainers {sorted(names)}, all begun at the checkpoint {commit_ts} of cluster "
            f"{held.cluster_id}: two Drainers wrote for it before there was a lease. Set syncer.drainer to the one whose span is to be finished, and compare "
            "the tables afterwards"
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
    """Of two records of one job the one under the own name counts, then the one of a DDL that was brought to an end."""
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
    """Table -> its columns in order, of all tables in ``schema``."""
    sql = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, ordinal_position"
    found: dict[str, list[str]] = {}
    for table, column in session.query(sql, [schema]):
        found.setdefault(str(table), []).append(str(column))
    return found


def _table(schema: str, name: str) -> str:
    return f"{quote_name(schema)}.{quote_name(name)}"
