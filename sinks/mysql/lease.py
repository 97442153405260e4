"""Who may write to the target for a cluster: the lease row that every transaction proves before it writes. [db]

Promises: ``spark_lease`` holds one row per cluster. Taking the lease raises its epoch and writes the taker's ``life``, a new uuid, in a
transaction of its own; it waits for every transaction that has proved the lease before. ``check`` comes first in every transaction
that writes rows, markers, DDL records or the checkpoint: it holds the row (shared, so that parts run side by side) until that
transaction ends, and ends it with ``LeaseLost`` when another life has the lease. ``sinks.mysql.lease_guard`` says who may take it and when.

A life is compared, not the epoch alone: a target that was restored from a backup counts its epochs again from an older one.

The row also holds the target's identity for this cluster: a uuid made with the row, and gone with it when the target is rebuilt.
"""

import os
import socket
import uuid
import zlib
from dataclasses import dataclass, field

from schemas.ddl_tokens import quote_name
from schemas.errors import ApplyError, LeaseLost
from sinks.mysql.dialect import Flavour
from sinks.mysql.target import Target

_ABSENT = frozenset({1049, 1146})
"""No such database, no such table."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to one target for one cluster, as one life of a Drainer has it: picklable."""

    cluster_id: int
    schema: str
    """Database of the row: ``syncer.checkpoint-schema``."""
    epoch: int
    """How many times the lease has been taken, with this one."""
    life: str
    """uuid of this life of the Drainer."""
    target: str
    """uuid of the target's own tables for this cluster: another one after it was rebuilt."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks for a lease, as the row tells it to people."""

    drainer: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The lease as the target has it."""

    epoch: int
    life: str
    """Empty: it was given back."""
    target: str
    words: str
    """Who took it, and when."""
    age: float
    """Seconds since its guard was taken, by the server's clock."""


def ensure_table(session: Target, schema: str) -> None:
    """Create the database and the table where missing. DDL: not to be called inside a transaction."""
    session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} ("
        "cluster_id bigint unsigned NOT NULL PRIMARY KEY, epoch bigint unsigned NOT NULL, life varchar(36) CHARACTER SET ascii NOT NULL, "
        "drainer varchar(191) CHARACTER SET utf8mb4 NOT NULL, host varchar(255) CHARACTER SET utf8mb4 NOT NULL, pid bigint NOT NULL, "
        "target varchar(36) CHARACTER SET ascii NOT NULL, taken_at timestamp(3) NULL, renewed_at timestamp(3) NULL) ENGINE=InnoDB"
    )


def take(session: Target, cluster_id: int, schema: str, holder: Holder) -> Lease:
    """The next epoch, written in the caller's transaction; waits for the transactions that still prove the epoch before."""
    columns = "(cluster_id, epoch, life, drainer, host, pid, target)"
    fresh = [cluster_id, 0, "", "", "", 0, str(uuid.uuid4())]
    session.execute(f"INSERT IGNORE INTO {_table(schema)} {columns} VALUES (%s, %s, %s, %s, %s, %s, %s)", fresh)
    ((epoch, target),) = session.query(f"SELECT epoch, target FROM {_table(schema)} WHERE cluster_id = %s FOR UPDATE", [cluster_id])
    lease = Lease(cluster_id, schema, int(epoch) + 1, str(uuid.uuid4()), str(target))
    session.execute(
        f"UPDATE {_table(schema)} SET epoch = %s, life = %s, drainer = %s, host = %s, pid = %s, taken_at = NOW(3), renewed_at = NOW(3) "
        "WHERE cluster_id = %s",
        [lease.epoch, lease.life, holder.drainer, holder.host, holder.pid, cluster_id],
    )
    return lease


def check(session: Target, lease: Lease) -> None:
    """Prove the lease: in a transaction, it stays ours until that ends.

    Raises:
        LeaseLost: another life has it; nothing may be written.
    """
    # TiDB has no shared row locks: parts that overlap there meet at commit, and the later one is tried again.
    lock = "FOR UPDATE" if session.flavour is Flavour.TIDB else "LOCK IN SHARE MODE"
    _compare(look(session, lease.cluster_id, lease.schema, lock), lease)


def check_unlocked(session: Target, lease: Lease) -> None:
    """``check`` for a moment's look, which waits for nobody."""
    _compare(look(session, lease.cluster_id, lease.schema), lease)


def look(session: Target, cluster_id: int, schema: str, lock: str = "") -> LeaseRow | None:
    """The row as it is; None when there is none, or no table."""
    age = "TIMESTAMPDIFF(MICROSECOND, renewed_at, NOW(6))"
    sql = f"SELECT epoch, life, target, drainer, host, pid, taken_at, {age} FROM {_table(schema)} WHERE cluster_id = %s {lock}"
    try:
        rows = session.query(sql, [cluster_id])
    except ApplyError as error:
        if error.errno not in _ABSENT:
            raise
        rows = []
    if not rows:
        return None
    epoch, life, target, drainer, host, pid, taken_at, micros = rows[0]
    return LeaseRow(int(epoch), life, target, f"drainer {drainer!r} on {host} (pid {pid}) since {taken_at} UTC", float(micros or 0) / 1e6)


def renew(session: Target, lease: Lease) -> None:
    """Write that the guard of this lease was taken again, after the server had lost it."""
    session.execute(
        f"UPDATE {_table(lease.schema)} SET renewed_at = NOW(3) WHERE cluster_id = %s AND life = %s", [lease.cluster_id, lease.life]
    )


def give_back(session: Target, lease: Lease) -> None:
    """End this life's right to write; what is left of it anywhere then loses too."""
    session.execute(f"UPDATE {_table(lease.schema)} SET life = '' WHERE cluster_id = %s AND life = %s", [lease.cluster_id, lease.life])


def lock_name(kind: str, schema: str, cluster_id: int) -> str:
    """The name of a server-side lock: at most 64 characters, of this cluster and this checkpoint schema alone."""
    return f"tidb_binlog.{kind}.{cluster_id}.{zlib.crc32(schema.lower().encode()):08x}"


def _compare(row: LeaseRow | None, lease: Lease) -> None:
    if row is not None and row.life == lease.life:
        return
    ours = f"cluster {lease.cluster_id} on this target (epoch {lease.epoch}): this Drainer writes nothing more"
    if row is None or row.epoch < lease.epoch:
        raise LeaseLost(
            f"the lease of {ours}, because {lease.schema}.spark_lease has gone back or is empty. The target was restored or rebuilt under the stream: "
            "start the Drainer again"
        )
    if row.epoch == lease.epoch and not row.life:
        raise LeaseLost(f"the lease of {ours}; it was given back when the stream was closed")
    since = "" if row.life else ", and given back since"
    raise LeaseLost(
        f"the lease of {ours}; it was taken, as epoch {row.epoch}, by {row.words}{since}. One Drainer writes for a cluster: if this is the one to go on, "
        "stop that one and start this one again"
    )


def _table(schema: str) -> str:
    return f"{quote_name(schema)}.`spark_lease`"
