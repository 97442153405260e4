"""Leases for tests that call the sinks' functions themselves: taken like a Drainer takes them, without the guard that keeps them."""

from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import CHECKPOINT_SCHEMA
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.session import Session


def take_lease(session: Session, cluster_id: int = 1, schema: str = CHECKPOINT_SCHEMA, drainer: str = "test") -> Lease:
    """The next epoch of ``cluster_id`` on the target."""
    lease.ensure_table(session, schema)
    session.begin()
    taken = lease.take(session, cluster_id, schema, LeaseHolder(drainer))
    session.commit()
    return taken


def held(session: Session, cluster_id: int = 1, schema: str = CHECKPOINT_SCHEMA) -> Lease:
    """The lease as it is; the first epoch where there is none yet."""
    row = lease.look(session, cluster_id, schema)
    return Lease(cluster_id, schema, row.epoch, row.life, row.target) if row else take_lease(session, cluster_id, schema)
