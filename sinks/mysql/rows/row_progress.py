"""The progress of each lane of a span applied row by row: the table ``spark_rows``. [db]

Promises: the functions change rows only in the caller's transaction. ``begin`` comes with the inconsistent checkpoint of the span's
beginning, ``advance`` with the operations of one transaction of a lane, ``finish`` with the consistent checkpoint of the span's end.
So a lane's number of done operations is exact whenever a process dies. The number means the same operations only under the same plan:
``plan`` is a fingerprint of all operations with their lanes and rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.session import Session

RELAYED = "relay"
"""How the plan of a span begins that is being replayed from the relay log; no other has it."""


class CommitsLost(ApplyError):
    """The target lacks what it had answered: a server that crashed without having written it, or a replica in its place that was behind."""


@dataclass(frozen=True, slots=True)
class OpenLanes:
    """A span that was begun row by row and is not finished."""

    after_ts: int
    """Exclusive."""
    upto_ts: int
    """Inclusive."""
    plan: str
    """Fingerprint of what its lanes do."""
    safe: bool
    """Whether it is applied in safe mode, because an earlier attempt with another plan was left half done."""
    done: tuple[int, ...]
    """Number of operations that each lane has done."""

    @property
    def relayed(self) -> bool:
        """Whether a replay of the relay log has begun it."""
        return self.plan.startswith(RELAYED)


def ensure_table(session: Session, schema: str) -> None:
    """Create the table if missing. DDL: must not be called inside a transaction."""
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} ("
        "cluster_id bigint unsigned NOT NULL, lane int NOT NULL, from_ts bigint unsigned NOT NULL, to_ts bigint unsigned NOT NULL, "
        "plan varchar(64) CHARACTER SET ascii NOT NULL, safe tinyint NOT NULL, done bigint NOT NULL, "
        "done_at timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), "
        f"PRIMARY KEY (cluster_id, lane)) {made_with('spark_rows')}"
    )
    require_sound(session, schema, "spark_rows")


def begin(session: Session, cluster_id: int, span: tuple[int, int], plan: str, lanes: int, schema: str, *, safe: bool) -> None:
    """Record that ``span`` is being applied on so many lanes; replaces any other record of the cluster."""
    finish(session, cluster_id, schema)
    values = ", ".join(["(%s, %s, %s, %s, %s, %s, 0)"] * lanes)
    args: list[object] = [v for lane in range(lanes) for v in (cluster_id, lane, *span, plan, int(safe))]
    session.execute(f"INSERT INTO {_table(schema)} (cluster_id, lane, from_ts, to_ts, plan, safe, done) VALUES {values}", args)


def advance(session: Session, cluster_id: int, lane: int, upto_ts: int, plan: str, done: tuple[int, int], schema: str) -> bool:
    """Move the lane's number of operations from ``done[0]`` to ``done[1]``; False: the number is already there, because the answer to that commit was lost.

    This waits for a transaction of the same lane that is still in progress on another connection.

    Raises:
        ApplyError: the lane is somewhere else, or its span is not open: nothing may be written.
    """
    sql = f"UPDATE {_table(schema)} SET done = %s WHERE cluster_id = %s AND lane = %s AND to_ts = %s AND plan = %s AND done = %s"
    if session.execute(sql, [done[1], cluster_id, lane, upto_ts, plan, done[0]]):
        return True
    found = session.query(
        f"SELECT to_ts, plan, done FROM {_table(schema)} WHERE cluster_id = %s AND lane = %s FOR UPDATE", [cluster_id, lane]
    )
    if found == [(upto_ts, plan, done[1])]:
        return False
    raise ApplyError(
        f"operations {done[0]} to {done[1]} of lane {lane} up to {upto_ts} are not written, because {schema}.spark_rows says {found} for this lane. Was the table edited, "
        "or the target restored, while the stream was running? Start the Drainer again: it continues from the target's checkpoint"
    )


def move(session: Session, cluster_id: int, held: OpenLanes, to: OpenLanes, schema: str, way_on: str) -> bool:
    """Move the record of one lane from ``held`` to ``to``; False: it is there already, because the answer to that commit was lost.

    This waits for a transaction of the same record that is still in progress on another connection. ``way_on``: what to do about lost commits.

    Raises:
        CommitsLost: the record is neither of both: nothing may be written.
    """
    sql = (
        f"UPDATE {_table(schema)} SET from_ts = %s, to_ts = %s, plan = %s, safe = %s, done = %s "
        "WHERE cluster_id = %s AND lane = 0 AND from_ts = %s AND to_ts = %s AND plan = %s AND done = %s"
    )
    new, old = (to.after_ts, to.upto_ts, to.plan, int(to.safe), to.done[0]), (held.after_ts, held.upto_ts, held.plan, held.done[0])
    if session.execute(sql, [*new, cluster_id, *old]):
        return True
    if load_any(session, cluster_id, schema, lock=True) == to:
        return False
    raise lost_commits(held, schema, way_on)


def lost_commits(held: OpenLanes, schema: str, way_on: str) -> CommitsLost:
    """The record is no longer ``held``; ``way_on``: what to do."""
    return CommitsLost(
        f"the target has lost transactions that it had committed: {schema}.spark_rows does not have the span that begins at {held.after_ts + 1}. Did the "
        f"server crash with innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind taken its place? {way_on}"
    )


def require_done(session: Session, cluster_id: int, upto_ts: int, plan: str, ends: Sequence[int], schema: str) -> None:
    """Check that each lane of the span up to ``upto_ts`` has done at least so many operations; call it in the transaction that relies on it.

    A server that crashed with ``innodb_flush_log_at_trx_commit`` other than 1, or a replica that took its place and was behind, lacks the last
    transactions that the server had answered.

    Raises:
        ApplyError: a lane has done fewer.
    """
    found = load_any(session, cluster_id, schema)
    there = found.done if found is not None and (found.upto_ts, found.plan) == (upto_ts, plan) else ()
    if len(there) < len(ends) or any(done < end for done, end in zip(there, ends, strict=False)):
        raise ApplyError(
            f"the target has lost transactions that it had committed: its lanes up to {upto_ts} had done {list(ends)} operations, but {schema}.spark_rows says "
            f"{list(there)}. Did the server crash with innodb_flush_log_at_trx_commit other than 1, or has a replica that was behind taken its "
            "place? Start the Drainer again: it continues from what the target has"
        )


def finish(session: Session, cluster_id: int, schema: str) -> None:
    """Delete the record; in the transaction that saves the span's end as the checkpoint."""
    session.execute(f"DELETE FROM {_table(schema)} WHERE cluster_id = %s", [cluster_id])


def load(session: Session, cluster_id: int, commit_ts: int, schema: str) -> OpenLanes | None:
    """The span that is open behind the checkpoint ``commit_ts``; None also for one of data from before the checkpoint was moved."""
    found = load_any(session, cluster_id, schema)
    return found if found is not None and found.after_ts <= commit_ts < found.upto_ts else None


def load_any(session: Session, cluster_id: int, schema: str, *, lock: bool = False) -> OpenLanes | None:
    """The span that is recorded, wherever it is; None: there is none."""
    sql = (
        f"SELECT from_ts, to_ts, plan, safe, done FROM {_table(schema)} WHERE cluster_id = %s ORDER BY lane{' FOR UPDATE' if lock else ''}"
    )
    rows = session.query(sql, [cluster_id])
    if not rows:
        return None
    after_ts, upto_ts, plan, safe, _ = rows[0]
    return OpenLanes(int(after_ts), int(upto_ts), str(plan), bool(safe), tuple(int(row[4]) for row in rows))


def recorded_beyond(session: Session, cluster_id: int, commit_ts: int, schema: str, *, around: bool) -> int:
    """The end of a span that was begun, but not at the checkpoint ``commit_ts``, and reaches beyond it; 0: there is none.

    ``around``: count only a span that contains the checkpoint.
    """
    where = "from_ts < %s" if around else "from_ts <> %s"
    sql = f"SELECT COALESCE(MAX(to_ts), 0) FROM {_table(schema)} WHERE cluster_id = %s AND to_ts > %s AND {where}"
    return int(session.query(sql, [cluster_id, commit_ts, commit_ts])[0][0])


def _table(schema: str) -> str:
    return f"{quote_name(schema)}.`spark_rows`"
