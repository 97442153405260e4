"""The target as one life of a Drainer, or a replay, writes to it: kept sessions, and transactions that check its lease first. [db]

Promises: nothing that is ``fenced`` is committed unless the lease is ours at that moment (``sinks.mysql.lease``).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, RetryPolicy, retrying
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, Sessions, session_for, transaction


@contextmanager
def fenced(sessions: Sessions, held: Lease, attempt: Attempt) -> Iterator[Session]:
    """A session in a transaction that has checked ``held``, and is committed unless the block fails.

    Raises:
        LeaseLost: another life has it.
    """
    with transaction(sessions, attempt) as session:
        lease.check(session, held)
        yield session


class LeasedTarget:
    """One target, and the right to write to it."""

    def __init__(self, connect: Callable[[], Session], apply: ApplyConfig, retry_policy: RetryPolicy) -> None:
        """Does not access the target. ``connect`` opens a session."""
        self._connect = connect
        self._apply = apply
        self.retry_policy = retry_policy
        self.sessions = KeptSessions(connect, apply.lease_timeout)
        self._guard: LeaseGuard | None = None
        self._lease: Lease | None = None

    def take(self, cluster_id: int) -> Lease:
        """Take the lease of ``cluster_id``, and hold it until ``close``.

        Raises:
            LeaseHeld: another process holds it.
        """
        apply = self._apply
        holder = LeaseHolder(apply.drainer)
        self._guard = LeaseGuard(self._connect, cluster_id, apply.checkpoint_schema, holder, apply.lease_timeout, self.retry_policy)
        self._lease = self._guard.take()
        return self._lease

    @property
    def taken(self) -> bool:
        """Whether the lease was taken."""
        return self._lease is not None

    @property
    def lease(self) -> Lease:
        """The lease of this life.

        Raises:
            ApplyError: it is not taken.
        """
        if self._lease is None:
            raise ApplyError("the lease is not taken: nothing may be written before the target is opened")
        return self._lease

    @property
    def lost(self) -> LeaseLost | None:
        """Why nothing more may be written."""
        return self._guard.lost if self._guard is not None else None

    def retrying(self) -> Iterator[Attempt]:
        """Attempts by the policy of this target."""
        return retrying(self.retry_policy)

    def session(self, attempt: Attempt) -> AbstractContextManager[Session]:
        """A session without a transaction and without a look at the lease."""
        return session_for(self.sessions.use, attempt)

    def fenced(self, attempt: Attempt) -> AbstractContextManager[Session]:
        """A session in a transaction that has checked this life's lease (``fenced``)."""
        return fenced(self.sessions.use, self.lease, attempt)

    def close(self) -> None:
        """Close the sessions and release the lease; safe to call twice."""
        self.sessions.close()
        if self._guard is not None:
            self._guard.close()
