"""The target of one copy: its sessions, its record, and transactions that have checked the lease. [db]"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyRecord
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.lease_guard import fenced
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, patient, retrying
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, connect, session_for


class CopyTarget:
    """One target, for one thread. Whatever it gives belongs to the latest of its ``attempts``."""

    def __init__(self, config: DrainerConfig, held: Lease, pause: Callable[[float], None]) -> None:
        """``pause``: between two attempts; it may raise."""
        self.apply = config.apply
        self.lease = held
        self.sessions = KeptSessions(lambda: connect(config.target, config.apply), config.apply.lease_timeout)
        self._ddl_sessions = KeptSessions(lambda: connect(config.target, config.apply, for_ddls=True), config.apply.lease_timeout)
        self.policy = patient(config.apply.retry_seconds, pause)
        self._attempt = Attempt(self.policy)

    def attempts(self) -> Iterator[Attempt]:
        """Attempts for ``retry-seconds``; each one goes on from the record, as a later life would."""
        for attempt in retrying(self.policy):
            self._attempt = attempt
            yield attempt

    @contextmanager
    def record(self) -> Iterator[CopyRecord]:
        """The record, outside of a transaction."""
        with session_for(self.sessions.use, self._attempt) as session:
            yield CopyRecord(session, self.lease.cluster_id, self.lease.schema)

    @contextmanager
    def transaction(self) -> Iterator[CopyRecord]:
        """The record in a transaction that has checked the lease, and is committed unless the block fails."""
        with fenced(self.sessions.use, self.lease, self._attempt) as session:
            yield CopyRecord(session, self.lease.cluster_id, self.lease.schema)

    @contextmanager
    def tables(self) -> Iterator[TargetTables]:
        """The tables, over a session for DDLs."""
        with session_for(self._ddl_sessions.use, self._attempt) as session:
            yield TargetTables(session, self.apply, self.lease)

    def close(self) -> None:
        """Close the sessions."""
        self.sessions.close()
        self._ddl_sessions.close()
