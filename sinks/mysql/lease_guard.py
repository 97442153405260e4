"""The right to write to a target: who may take the lease of a cluster, and what is written under it. [db]

Promises: a Drainer holds the lock (``GET_LOCK``) on a dedicated connection, which a thread uses every few seconds. The server closes that
connection, which releases the lock, at once when the process dies, and after ``spark.lease-timeout`` (the session's ``wait_timeout``)
when the connection is idle: process stopped, network cut, machine down. So a Drainer that does not get the lock within that time has a
running competitor and is refused with ``LeaseHeld``; one that gets it takes the lease. Late statements of the previous holder are fenced
by ``lease.check``, not by this lock.

Taking the lease also requires the lock under which DDLs run (``alone``), so no new epoch begins between a DDL's last check of the lease and
its end. If a process is suspended between the two, the server closes its connection first, and the statement is never executed.

``LeasedTarget`` is the target as one life of a Drainer, or a replay, writes to it. Nothing that is ``fenced`` is committed unless the lease is ours then.

A restarted server has lost its locks. The holder then acquires its lock again, and another Drainer waits ``lease-timeout`` for that.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.lease import Lease, LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW, Attempt, RetryPolicy, TransientError, retrying
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, Sessions, session_for, transaction
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_log = logging.getLogger(__name__)

GUARD = "lease"
"""Kind of server-side lock: held by the lease holder's dedicated connection."""
DDL = "ddl"
"""Kind of server-side lock: held while a DDL is executed or the lease is taken."""
_SLICE = 5
"""Seconds that one GET_LOCK waits: less than any read timeout."""
_BEATS = 5
"""Uses of the guard's connection per timeout."""
_OLDEST = (
    "SELECT p.id, p.user, p.host, DATE_FORMAT(x.trx_started, '%%Y-%%m-%%d %%H:%%i:%%s') FROM information_schema.innodb_trx x "
    "JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id WHERE p.id NOT IN (%s, CONNECTION_ID()) ORDER BY x.trx_started LIMIT 1"
)
"""The session that a metadata lock is waited for: who has read a table in a transaction keeps DDLs from it. Exactly, only ``performance_schema`` knows."""
METADATA_LOCK = "metadata lock"
"""What a DDL waits for while a transaction has read its table: a word of the server's."""
_MOMENT = 0.2
_CLOSE_SECONDS = 3.0


@contextmanager
def alone(session: Target, name: str, policy: RetryPolicy = FEW) -> Iterator[None]:
    """Hold the server-side lock ``name`` (``lease.lock_name``) for the duration of the block; waits until it is free.

    A statement of a crashed predecessor may still run on the server: its connection holds the lock until the statement ends. ``policy.tell`` gets
    what it waits for. ``policy.pause`` is called with 0.0 every ``_SLICE`` seconds of the wait, and ends it by raising.
    """
    since = 0.0
    while not _got(session, name, _SLICE):
        since = since or time.time()
        policy.pause(0.0)
        words = f"the lock {name} on the target: {doing_of(session, name)}"
        _log.warning("waiting for %s", words)
        policy.tell(TransientError(words, since))
    if since:
        policy.tell(None)
    try:
        yield
    finally:
        try:
            session.query("SELECT RELEASE_LOCK(%s)", [name])
        except RetryableApplyError:
            _log.debug("the connection is lost, which released the lock")


def doing_of(session: Target, name: str) -> str:
    """What the connection that holds the lock ``name`` does, as far as the server says it to the account; who keeps it from a metadata lock."""
    try:
        sql = "SELECT id, COALESCE(state, '') FROM information_schema.processlist WHERE id = IS_USED_LOCK(%s)"
        found = session.query(sql, [name])
        if not found:
            return "another connection holds it, and may still execute a DDL"
        holder, state = int(found[0][0]), as_text(found[0][1])
        words = f"connection {holder} there executes a DDL ({state or 'no state'})"
        if METADATA_LOCK not in state:
            return words
        oldest = session.query(_OLDEST, [holder])
    except RetryableApplyError:
        raise
    except ApplyError as error:
        return f"another connection holds it, and may still execute a DDL (the server does not say more: {error.words})"
    if not oldest:
        return f"{words}. No transaction is open, so a session may have LOCK TABLES: end it"
    thread, user, host, started = oldest[0]
    return (
        f"{words}. The oldest open transaction is that of session {int(thread)} ({as_text(user)}@{as_text(host)}) since {as_text(started)} UTC: "
        f"if it has read the table, the DDL waits for its end. End it there, or KILL {int(thread)}"
    )


def is_held(session: Session, cluster_id: int, schema: str) -> bool:
    """Whether a running Drainer holds the lease. Asked by trying the lock, which is released at once."""
    name = lease.lock_name(GUARD, schema, cluster_id)
    free = _got(session, name, 0)
    if free:
        session.query("SELECT RELEASE_LOCK(%s)", [name])
    return not free


class LeaseGuard:
    """Takes the lease and holds it until ``close``; one per life of a Drainer."""

    def __init__(
        self, connect: Callable[[], Session], cluster_id: int, schema: str, holder: LeaseHolder, timeout: float, retry_policy: RetryPolicy
    ) -> None:
        """Does not access the target before ``take``.

        Args:
            connect: opens a session whose ``wait_timeout`` is ``timeout``.
            cluster_id: the cluster of the lease.
            schema: database of the lease table.
            holder: the requesting process.
            timeout: seconds, ``spark.lease-timeout``.
            retry_policy: how long ``take`` is retried after a transient error; its ``pause`` may also end the wait for another Drainer.
        """
        self._connect = connect
        self._cluster_id = cluster_id
        self._schema = schema
        self._holder = holder
        self._timeout = timeout
        self._retry_policy = retry_policy
        self._name = lease.lock_name(GUARD, schema, cluster_id)
        self._session: Session | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: LeaseLost | None = None
        """Why this life may not write any more, once detected."""

    def take(self) -> Lease:
        """Take the lease and hold it from then on.

        Raises:
            LeaseHeld: another running Drainer holds it.
        """
        for attempt in retrying(self._retry_policy):
            with attempt:
                taken = self._try_take()
        self._thread = threading.Thread(target=self._run, args=(taken,), name="lease", daemon=True)
        self._thread.start()
        return taken

    def close(self) -> None:
        """Release the lease; safe to call twice, and without ``take``. If the target does not answer, the lock ends with the connection."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            self._thread = None

    def _try_take(self) -> Lease:
        session = self._connect()
        try:
            session.execute("SET SESSION autocommit = 1")
            lease.ensure_table(session, self._schema)
            self._wait_for_guard(session)
            self._wait_out_restart(session)
            with alone(session, lease.lock_name(DDL, self._schema, self._cluster_id), self._retry_policy):
                session.begin()
                taken = lease.take(session, self._cluster_id, self._schema, self._holder)
                session.commit()
            # Later statements on this connection must not wait long for the row locks of transactions that check the lease.
            session.execute("SET SESSION innodb_lock_wait_timeout = 1")
        except BaseException:
            session.close()
            raise
        self._session = session
        _log.info("took the lease of cluster %d as epoch %d", self._cluster_id, taken.epoch)
        return taken

    def _wait_for_guard(self, session: Session) -> None:
        longest = self._timeout + _SLICE
        until = time.monotonic() + longest
        waited = False
        while not _got(session, self._name, 1):
            self._retry_policy.pause(0.0)
            row = lease.look(session, self._cluster_id, self._schema)
            words = row.words if row is not None else "a Drainer that is just starting"
            if time.monotonic() > until:
                raise LeaseHeld(
                    f"cluster {self._cluster_id} already has a running Drainer on this target: {words}. Only one Drainer may write for a "
                    "cluster: stop that one and start this one again. If it is already stopped, its connection is still open, perhaps in "
                    "a proxy: find the connection in the target's process list and kill it"
                )
            if not waited:
                told = f"the lease of cluster {self._cluster_id}, for up to {longest:.0f} s: {words} has it"
                _log.warning("waiting for %s", told)
                self._retry_policy.tell(TransientError(told, time.time()))
                waited = True
        if waited:
            self._retry_policy.tell(None)

    def _wait_out_restart(self, session: Session) -> None:
        """Wait where the server was restarted after the lease was taken: its holder may still be running and about to acquire its lock again."""
        while (wait := self._absent_for(session)) > 0:
            session.query("SELECT RELEASE_LOCK(%s)", [self._name])
            self._retry_policy.pause(min(wait, _MOMENT))
            self._wait_for_guard(session)

    def _absent_for(self, session: Session) -> float:
        """Seconds in which the previous holder may still acquire its lock again; 0 = it has stopped."""
        row = lease.look(session, self._cluster_id, self._schema)
        if row is None or not row.life:
            return 0.0
        status = session.query("SHOW GLOBAL STATUS LIKE 'Uptime'")
        if not status:
            return 0.0
        uptime = float(status[0][1])
        return self._timeout - uptime if row.age > uptime + 1 else 0.0

    def _run(self, taken: Lease) -> None:
        while not self._closing.wait(self._timeout / _BEATS):
            try:
                self._beat(taken)
            except LeaseLost as error:
                _log.error("%s", error)
                self.lost = error
                self._drop()
                return
            except ApplyError as error:
                _log.warning("the connection that holds the lease was lost; reconnecting: %s", error)
                self._drop()
        self._give_back(taken)

    def _beat(self, taken: Lease) -> None:
        if self._session is None:
            self._come_back(taken)
        else:
            lease.check_unlocked(self._session, taken)

    def _come_back(self, taken: Lease) -> None:
        session = self._connect()
        try:
            session.execute("SET SESSION autocommit = 1, innodb_lock_wait_timeout = 1")
            lease.check_unlocked(session, taken)
            if not _got(session, self._name, 1):
                session.close()  # held by our previous connection, or by a Drainer that is about to take the lease
                return
            lease.check_unlocked(session, taken)
            lease.renew(session, taken)
        except BaseException:
            session.close()
            raise
        self._session = session

    def _give_back(self, taken: Lease) -> None:
        try:
            if self._session is not None:
                lease.give_back(self._session, taken)
                self._remove_marks(self._session)
        except ApplyError as error:
            _log.warning("the lease could not be released; its lock ends with the connection: %s", error)
        self._drop()

    @staticmethod
    def _remove_marks(session: Session) -> None:
        if session.mark is not None:
            session.begin()
            session.mark.remove_all(session)
            session.commit()

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _got(session: Target, name: str, seconds: int) -> bool:
    return bool(session.query("SELECT GET_LOCK(%s, %s)", [name, seconds])[0][0] == 1)


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
