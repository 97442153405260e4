"""Keeps a session open between two uses, because opening a session takes as long as many statements. [db]

Promises: a session is used for one piece of work at a time, in the process that opened it. At the beginning of each use it is like a new session, except
for its current database (``Session.database``). It is kept only after a use without any error, without an open transaction, and while it is younger than
``KEPT_SECONDS`` and half of ``spark.lease-timeout``; otherwise it is closed. So it never outlives the server's ``wait_timeout``, even if the process was
suspended, and a target that moved to another address, or whose settings changed, is noticed after that time. If the server closed it earlier, the first
statement of its next use fails and that use gets a new session (``session.session_for``). Checks that guard a transaction (``lease.check``) run in each
use, not when the session opens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

KEPT_SECONDS = 30.0
"""Maximum age of a session at the beginning of a use."""


class KeptSessions:
    """Sessions with one target for one kind of work; keeps the last one."""

    def __init__(self, open_session: Callable[[], Session], lease_timeout: float) -> None:
        """``lease_timeout``: seconds, the ``wait_timeout`` of the sessions."""
        self._open_session = open_session
        self._seconds = min(KEPT_SECONDS, lease_timeout / 2)
        self._kept: list[Session] = []
        self._closed = False

    @contextmanager
    def use(self) -> Iterator[Session]:
        """A session for the block, kept or new; the block commits what it wants to have committed."""
        session = self._take() or self._open_session()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        if session.settle() and session.age < self._seconds and not self._kept and not self._closed:
            session.kept = True
            self._kept.append(session)
        else:
            session.close()

    def close(self) -> None:
        """Close the kept session, and the one in use at the end of that use; safe to call twice."""
        self._closed = True
        while (session := self._take()) is not None:
            session.close()

    def _take(self) -> Session | None:
        """The kept session; None: there is none that this process opened and that is young enough."""
        try:
            session = self._kept.pop()
        except IndexError:
            return None
        if not session.ours:
            session.abandon()
        elif session.age < self._seconds:
            return session
        else:
            session.close()
        return self._take()


_of_this_process: dict[tuple[TargetConfig, ApplyConfig], KeptSessions] = {}


def kept_sessions(target: TargetConfig, apply: ApplyConfig) -> KeptSessions:
    """The sessions of this process with these settings; for executors, whose worker processes outlive their tasks."""
    key = (target, apply)
    if key not in _of_this_process:
        _of_this_process[key] = KeptSessions(lambda: connect(target, apply), apply.lease_timeout)
    return _of_this_process[key]
