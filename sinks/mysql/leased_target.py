"""The target as one life of a Drainer, or a replay, writes to it: kept sessions, and transactions that check its lease first. [db]

Promises: nothing of ``transact`` is committed unless the lease is ours at that moment (``sinks.mysql.lease``). Transient errors are retried.
"""

from collections.abc import Callable
from typing import TypeVar

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.kept_sessions import KeptSessions
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy
from pyspark_tidb_binlog.sinks.mysql.session import Session, Sessions, run_retried, run_transaction

T = TypeVar("T")


def run_leased(sessions: Sessions, held: Lease, work: Callable[[Session], T], retry_policy: RetryPolicy) -> T:
    """``work`` in a transaction that has checked ``held``; it may be called again, after a commit whose answer was lost, too.

    Raises:
        LeaseLost: another life has it.
    """

    def fenced(session: Session) -> T:
        lease.check(session, held)
        return work(session)

    return run_transaction(sessions, fenced, retry_policy)


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

    def ask(self, work: Callable[[Session], T]) -> T:
        """``work`` with a session, without a transaction and without a look at the lease."""
        return run_retried(self.sessions.use, work, self.retry_policy)

    def transact(self, work: Callable[[Session], T], retry_policy: RetryPolicy | None = None) -> T:
        """As ``run_leased``, with this life's lease."""
        return run_leased(self.sessions.use, self.lease, work, retry_policy or self.retry_policy)

    def close(self) -> None:
        """Close the sessions and release the lease; safe to call twice."""
        self.sessions.close()
        if self._guard is not None:
            self._guard.close()
