"""The right to write to the target for a cluster: the lease row that every transaction checks before it writes. [db]

Promises: ``spark_lease`` holds one row per cluster. Taking the lease increments its epoch and stores the taker's ``life``, a new uuid, in
a separate transaction; it waits for every transaction that has already checked the lease. ``check`` comes first in every transaction
that writes rows, the record, DDL records or the checkpoint: it locks the row (shared, so that parts can run in parallel) until that
transaction ends, and raises ``LeaseLost`` when another life has the lease. ``sinks.mysql.lease_guard`` decides who may take it and when.

The life is compared, not only the epoch: in a target restored from a backup, the epoch continues from an older value.

``promote`` sets the life to ``promoted``. ``take`` is then refused until a person empties the life.

The row also holds the target's identity for this cluster: a uuid created with the row, and lost with it when the target is rebuilt.
"""

import os
import socket
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, LeaseLost
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.own_tables import made_with, require_sound
from pyspark_tidb_binlog.sinks.mysql.structure import ABSENT
from pyspark_tidb_binlog.sinks.mysql.target import Target

PROMOTED = "promoted"
"""The life of a target to which applications write."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease held by one life of a Drainer: the right to write to one target for one cluster. Picklable."""

    cluster_id: int
    schema: str
    """Database of the row: ``syncer.to.checkpoint.schema``."""
    epoch: int
    """How many times the lease has been taken, including this time."""
    life: str
    """uuid of this life of the Drainer."""
    target: str
    """The target's identity: uuid of our tables there for this cluster; a new one after the target was rebuilt."""


def lease_of(target: object) -> Lease:
    """The lease that ``target``, a sink that is being opened or is open, holds.

    Raises:
        ApplyError: it is written under none.
    """
    held = getattr(target, "lease", None)
    if not isinstance(held, Lease):
        raise ApplyError(f"{type(target).__name__} has no lease: it is not a MySQL-protocol server")
    return held


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that requests a lease; stored in the row for operators."""

    drainer: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The lease row on the target."""

    epoch: int
    life: str
    """Empty: the lease was released."""
    target: str
    words: str
    """The holder, and when it took the lease."""
    age: float
    """Seconds since the guard's lock was last acquired, by the server's clock."""


def ensure_table(session: Target, schema: str) -> None:
    """Create the database and the table if missing. DDL: must not be called inside a transaction."""
    session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}")
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(schema)} ("
        "cluster_id bigint unsigned NOT NULL PRIMARY KEY, epoch bigint unsigned NOT NULL, life varchar(36) CHARACTER SET ascii NOT NULL, "
        "drainer varchar(191) CHARACTER SET utf8mb4 NOT NULL, host varchar(255) CHARACTER SET utf8mb4 NOT NULL, pid bigint NOT NULL, "
        "target varchar(36) CHARACTER SET ascii NOT NULL, taken_at timestamp(3) NULL, renewed_at timestamp(3) NULL) "
        f"{made_with('spark_lease')}"
    )
    require_sound(session, schema, "spark_lease")


def take(session: Target, cluster_id: int, schema: str, holder: LeaseHolder) -> Lease:
    """Take the lease with the next epoch, in the caller's transaction; waits for transactions that have checked the previous epoch.

    Raises:
        ConfigError: the target is promoted.
    """
    columns = "(cluster_id, epoch, life, drainer, host, pid, target)"
    fresh = [cluster_id, 0, "", "", "", 0, str(uuid.uuid4())]
    session.execute(f"INSERT IGNORE INTO {_table(schema)} {columns} VALUES (%s, %s, %s, %s, %s, %s, %s)", fresh)
    ((epoch, target),) = session.query(f"SELECT epoch, target FROM {_table(schema)} WHERE cluster_id = %s FOR UPDATE", [cluster_id])
    if (row := look(session, cluster_id, schema)) is not None and row.life == PROMOTED:
        raise ConfigError(
            f"nothing is replicated to this target any more: it was promoted by {row.words}. {promoted_todo(cluster_id, schema)}"
        )
    lease = Lease(cluster_id, schema, int(epoch) + 1, str(uuid.uuid4()), str(target))
    session.execute(
        f"UPDATE {_table(schema)} SET epoch = %s, life = %s, drainer = %s, host = %s, pid = %s, taken_at = NOW(3), renewed_at = NOW(3) "
        "WHERE cluster_id = %s",
        [lease.epoch, lease.life, holder.drainer, holder.host, holder.pid, cluster_id],
    )
    return lease


def check(session: Target, lease: Lease) -> None:
    """Check that the lease is ours and lock it: in a transaction, it stays ours until the transaction ends.

    Raises:
        LeaseLost: another life has it; nothing may be written.
    """
    # TiDB has no shared row locks: concurrent parts conflict there at commit, and the later one is retried.
    lock = "FOR UPDATE" if session.flavour is Flavour.TIDB else "LOCK IN SHARE MODE"
    # Comes in every transaction, so it reads no more than it compares.
    try:
        found = session.query(f"SELECT life FROM {_table(lease.schema)} WHERE cluster_id = %s {lock}", [lease.cluster_id])
    except ApplyError as error:
        if error.errno not in ABSENT:
            raise
        found = []
    if found != [(lease.life,)]:
        _compare(look(session, lease.cluster_id, lease.schema, lock), lease)


def write(session: Target, lease: Lease, sql: str, values: Sequence[Any]) -> None:
    """Execute ``sql``, an ``INSERT`` or ``REPLACE ... SELECT`` without FROM, as a transaction of its own. The statement checks the lease itself.

    At a TiDB the check locks nothing: what is to be fenced there to the end of the statement needs the DDL lock (``lease_guard.alone``), too.

    Raises:
        LeaseLost: another life has the lease; nothing was written.
    """
    lock = "" if session.flavour is Flavour.TIDB else " LOCK IN SHARE MODE"
    ours = f" FROM {_table(lease.schema)} WHERE cluster_id = %s AND life = %s{lock}"
    while not session.write(sql + ours, [*values, lease.cluster_id, lease.life]):
        check(session, lease)


def check_unlocked(session: Target, lease: Lease) -> None:
    """Like ``check``, but without a lock: never waits, and says nothing about later."""
    _compare(look(session, lease.cluster_id, lease.schema), lease)


def look(session: Target, cluster_id: int, schema: str, lock: str = "") -> LeaseRow | None:
    """Read the row; None when there is no row or no table."""
    age = "TIMESTAMPDIFF(MICROSECOND, renewed_at, NOW(6))"
    sql = f"SELECT epoch, life, target, drainer, host, pid, taken_at, {age} FROM {_table(schema)} WHERE cluster_id = %s {lock}"
    try:
        rows = session.query(sql, [cluster_id])
    except ApplyError as error:
        if error.errno not in ABSENT:
            raise
        rows = []
    if not rows:
        return None
    epoch, life, target, drainer, host, pid, taken_at, micros = rows[0]
    who = f"drainer {drainer!r} on {host} (pid {pid}) since {taken_at} UTC"
    words = f"ctl promote on {host} at {taken_at} UTC" if life == PROMOTED else who
    return LeaseRow(int(epoch), life, target, words, float(micros or 0) / 1e6)


def renew(session: Target, lease: Lease) -> None:
    """Record that the guard's lock of this lease was acquired again after the server had released it; a transaction of its own."""
    session.begin()
    session.execute(
        f"UPDATE {_table(lease.schema)} SET renewed_at = NOW(3) WHERE cluster_id = %s AND life = %s", [lease.cluster_id, lease.life]
    )
    session.commit()


def give_back(session: Target, lease: Lease) -> None:
    """Release the lease: any process that still writes under this life then gets ``LeaseLost``; a transaction of its own."""
    session.begin()
    session.execute(f"UPDATE {_table(lease.schema)} SET life = '' WHERE cluster_id = %s AND life = %s", [lease.cluster_id, lease.life])
    session.commit()


def promote(session: Target, lease: Lease) -> None:
    """End the stream for good: from now on ``take`` is refused; a transaction of its own."""
    session.begin()
    check(session, lease)
    session.execute(f"UPDATE {_table(lease.schema)} SET life = %s, taken_at = NOW(3) WHERE cluster_id = %s", [PROMOTED, lease.cluster_id])
    session.commit()


def promoted_todo(cluster_id: int, schema: str) -> str:
    """How a stream goes on into a promoted target anyway."""
    return (
        "Applications may have changed its rows since, and the stream would overwrite them. To replicate here anyway, make the rows as they are upstream, "
        f"and run UPDATE {_table(schema)} SET life = '' WHERE cluster_id = {cluster_id}"
    )


def lock_name(kind: str, schema: str, cluster_id: int) -> str:
    """The name of a server-side lock: at most 64 characters, specific to this cluster and this checkpoint schema."""
    return f"tidb_binlog.{kind}.{cluster_id}.{zlib.crc32(schema.lower().encode()):08x}"


def _compare(row: LeaseRow | None, lease: Lease) -> None:
    if row is not None and row.life == lease.life:
        return
    ours = f"cluster {lease.cluster_id} on this target (epoch {lease.epoch}) is lost, so this Drainer stops writing"
    if row is None or row.epoch < lease.epoch:
        raise LeaseLost(
            f"the lease of {ours}: {lease.schema}.spark_lease is empty or has an older epoch. The target was restored or rebuilt while the "
            "stream was running. Restart the Drainer"
        )
    if row.epoch == lease.epoch and not row.life:
        raise LeaseLost(f"the lease of {ours}: it was released when the stream was closed")
    since = "" if row.life else ", and released since"
    raise LeaseLost(
        f"the lease of {ours}: {row.words} took it as epoch {row.epoch}{since}. Only one Drainer may write for a cluster. To "
        "continue with this one, stop that one and start this one again"
    )


@cache
def _table(schema: str) -> str:
    return f"{quote_name(schema)}.`spark_lease`"
