"""Who may take the lease of a cluster on a target: a server-side lock that only a living Drainer keeps. [db]

Promises: a Drainer holds the lock (``GET_LOCK``) on a connection of its own, which a thread uses every few seconds. The server ends a
connection, and with it the lock, at once when its process dies, and after ``syncer.lease-timeout`` (the session's ``wait_timeout``) when
it is silent: stopped, cut off, its machine gone. So another Drainer that does not get the lock within that time faces a living one, and is refused
with ``LeaseHeld``; one that gets it takes the lease. What the former one still sends is fenced by ``lease.check``, not by this lock.

Each taker also passes the lock under which DDLs run (``alone``): no epoch begins between a DDL's last look at the lease and its end. When a
process is stopped between the two, the server ends that connection first, and the statement is never run.

A server that restarts forgets locks. Then the holder takes its lock again, and another Drainer gives it ``lease-timeout`` for that.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from schemas.errors import ApplyError, LeaseHeld, LeaseLost, RetryableApplyError
from sinks.mysql import lease
from sinks.mysql.lease import Holder, Lease
from sinks.mysql.patience import Patience
from sinks.mysql.session import Session, retried
from sinks.mysql.target import Target

_log = logging.getLogger(__name__)

GUARD = "lease"
"""Kinds of server-side locks: that of the holder's own connection,"""
DDL = "ddl"
"""that of whoever executes a DDL or takes the lease,"""
LAYOUT = "layout"
"""and that of whoever changes our own tables, for all clusters (``cluster_id`` 0)."""
_SLICE = 5
"""Seconds that one question for a lock waits: less than any read timeout."""
_BEATS = 5
"""Uses of the guard's connection within one timeout."""
_MOMENT = 0.2
_CLOSE_SECONDS = 3.0


@contextmanager
def alone(session: Target, name: str) -> Iterator[None]:
    """Nobody else holds the server-side lock ``name`` (``lease.lock_name``) until the block ends; it is waited for.

    A statement of a crashed predecessor may still run on the server: its connection holds the lock until it ends.
    """
    while not _got(session, name, _SLICE):
        _log.warning("another connection is still executing a DDL on the target under the lock %s; waiting for it", name)
    try:
        yield
    finally:
        try:
            session.query("SELECT RELEASE_LOCK(%s)", [name])
        except RetryableApplyError:
            _log.debug("the connection is gone, and the lock with it")


class LeaseGuard:
    """Takes the lease and keeps it until ``close``; one per life of a Drainer."""

    def __init__(
        self, connect: Callable[[], Session], cluster_id: int, schema: str, holder: Holder, timeout: float, patience: Patience
    ) -> None:
        """Nothing is touched before ``take``.

        Args:
            connect: opens a session whose ``wait_timeout`` is ``timeout``.
            cluster_id: whose lease.
            schema: database of the lease's table.
            holder: who asks.
            timeout: seconds, ``syncer.lease-timeout``.
            patience: how long the taking is tried again after an error that may pass; its ``pause`` may end the waiting for another Drainer too.
        """
        self._connect = connect
        self._cluster_id = cluster_id
        self._schema = schema
        self._holder = holder
        self._timeout = timeout
        self._patience = patience
        self._name = lease.lock_name(GUARD, schema, cluster_id)
        self._session: Session | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: LeaseLost | None = None
        """Why this life may not write any more, as soon as it is known."""

    def take(self) -> Lease:
        """The lease, from now on kept.

        Raises:
            LeaseHeld: a living Drainer has it.
        """
        taken = retried(self._try_take, self._patience)
        self._thread = threading.Thread(target=self._run, args=(taken,), name="lease", daemon=True)
        self._thread.start()
        return taken

    def close(self) -> None:
        """Give the lease back; safe to call twice, and without ``take``. Where the target does not answer, the lease ends with this process's connection."""
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
            with alone(session, lease.lock_name(DDL, self._schema, self._cluster_id)):
                session.begin()
                taken = lease.take(session, self._cluster_id, self._schema, self._holder)
                session.commit()
            # What comes later on this connection must not stand in the way of those who prove the lease.
            session.execute("SET SESSION innodb_lock_wait_timeout = 1")
        except BaseException:
            session.close()
            raise
        self._session = session
        _log.info("took the lease of cluster %d as epoch %d", self._cluster_id, taken.epoch)
        return taken

    def _wait_for_guard(self, session: Session) -> None:
        patience = self._timeout + _SLICE
        until = time.monotonic() + patience
        waited = False
        while not _got(session, self._name, 1):
            self._patience.pause(0.0)
            row = lease.look(session, self._cluster_id, self._schema)
            words = row.words if row is not None else "a Drainer that is just starting"
            if time.monotonic() > until:
                raise LeaseHeld(
                    f"cluster {self._cluster_id} already has a living Drainer on this target: {words}. One Drainer writes for a cluster: stop that one and "
                    "start this one again. (Is it gone? Then its connection still lives somewhere between; look for it in the target's process list)"
                )
            if not waited:
                _log.warning("%s has the lease of cluster %d; waiting up to %.0f s for it to end", words, self._cluster_id, patience)
                waited = True

    def _wait_out_restart(self, session: Session) -> None:
        """Where the server was restarted after the lease was taken, a living holder may be about to come back for its lock."""
        while (wait := self._absent_for(session)) > 0:
            session.query("SELECT RELEASE_LOCK(%s)", [self._name])
            self._patience.pause(min(wait, _MOMENT))
            self._wait_for_guard(session)

    def _absent_for(self, session: Session) -> float:
        """Seconds that the holder before may still take to come back; 0 = it is gone."""
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
                _log.warning("the connection that keeps the lease is lost, a new one follows: %s", error)
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
                session.close()  # our own old connection may still have it, or somebody who is about to take the lease
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
        except ApplyError as error:
            _log.warning("the lease was not given back, it ends with the connection: %s", error)
        self._drop()

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _got(session: Target, name: str, seconds: int) -> bool:
    return bool(session.query("SELECT GET_LOCK(%s, %s)", [name, seconds])[0][0] == 1)
