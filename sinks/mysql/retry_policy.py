"""Which errors of the target are transient, and how long they are retried. Pure except for the pause and the log.

    for attempt in retrying(policy):
        with attempt:
            ...                         # again after a transient error

Promises: an operation is retried until at least ``retries`` retries were made AND ``seconds`` have passed, with pauses that double from 50
ms to 5 s (``BACKOFF``). The error and the time of its first occurrence are reported for progress. Permanent errors (missing privileges,
wrong password, unknown database, refused certificate) are never retried.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from pymysql.constants import CR, ER

from pyspark_tidb_binlog.schemas.backoff import Backoff
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError

_log = logging.getLogger(__name__)

BACKOFF = Backoff(0.05, 5.0)
_MOST_PATIENCE = 64
"""Maximum factor for the read timeout: an hour if the setting is a minute."""

_UNREACHABLE = frozenset({CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR})
_LOST = frozenset(
    {
        0,  # pymysql: the connection is closed on the client side
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        CR.CR_SERVER_LOST_EXTENDED,
        ER.SERVER_SHUTDOWN,
        ER.NET_READ_ERROR,
        ER.NET_READ_INTERRUPTED,
        ER.NET_ERROR_ON_WRITE,
        ER.NET_WRITE_INTERRUPTED,
        1927,  # MariaDB: connection was killed
        3032,  # MySQL: the server is in offline mode
        4031,  # MySQL: the connection was idle for wait_timeout
    }
)
_CONTENDED = frozenset(
    {
        ER.CHECKREAD,
        ER.LOCK_WAIT_TIMEOUT,
        ER.LOCK_DEADLOCK,
        ER.QUERY_INTERRUPTED,
        8002,  # TiDB: write conflict of SELECT FOR UPDATE
        8022,  # TiDB: commit failed, may be retried
        8027,  # TiDB: the server's schema is out of date
        8028,  # TiDB: schema changed during the transaction
        9004,  # TiDB: lock conflict
        9007,  # TiDB: write conflict
    }
)
_BUSY = frozenset(
    {
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.USER_LIMIT_REACHED,  # the account's own MAX_USER_CONNECTIONS, or what it may do within an hour
        ER.ERROR_DURING_COMMIT,
        1637,  # too many transactions at once
        3100,  # MySQL: group replication refuses the commit while its members change
        3101,  # MySQL: group replication rolled the commit back
        9001,  # TiDB: PD timeout
        9002,  # TiDB: TiKV timeout
        9003,  # TiDB: TiKV busy
        9005,  # TiDB: region unavailable
        9006,  # TiDB: the transaction was older than GC allows
    }
)
_LIMITED = frozenset(
    {
        1969,  # MariaDB: max_statement_time
        3024,  # MySQL, TiDB: max_execution_time
    }
)
"""The server's own limit of a statement's time, where it does not let a session lift it: no answer to what the statement says."""
_READ_ONLY = frozenset(
    {
        1792,  # MySQL: transactions are read-only by default
        1836,  # MySQL, TiDB: running in read-only mode
        3989,  # MySQL: ALTER DATABASE … READ ONLY = 1
    }
)
_WORDS = (
    (_UNREACHABLE, "not reachable"),
    (_LOST, "connection lost"),
    (_CONTENDED, "in conflict with another transaction"),
    (_BUSY, "busy"),
    (_LIMITED, "ending statements that take long"),
    (_READ_ONLY, "read-only"),
)
_SOME_OPTION = 1290
"""ER_OPTION_PREVENTS_STATEMENT: the server runs with some --option; only the message says which."""
_READ_ONLY_OPTION = re.compile(r"--(super[-_])?read[-_]only\b", re.IGNORECASE)
_NO_SUCH_COMMAND = 1047
"""ER_UNKNOWN_COM_ERROR, which Galera also uses for a node that is not in sync with its cluster."""


def passing(errno: int, words: str) -> str:
    """A transient error in a few words; empty for a permanent one."""
    if errno == _SOME_OPTION:
        return "read-only" if _READ_ONLY_OPTION.search(words) else ""
    if errno == _NO_SUCH_COMMAND:
        return "not in sync with its cluster" if "WSREP" in words else ""
    return next((text for numbers, text in _WORDS if errno in numbers), "")


def connection_lost(errno: int) -> bool:
    """Whether a transient error ends the connection, so that its session's locks and open transaction are gone."""
    return errno in _LOST or errno in _UNREACHABLE


def read_only(error: RetryableApplyError) -> bool:
    """Whether the target takes no writes at present, as amid a switch-over."""
    return error.errno in _READ_ONLY or error.errno == _SOME_OPTION


@dataclass(frozen=True, slots=True)
class TransientError:
    """A transient error that is being retried."""

    what: str
    """``target 10.0.0.5:3306: read-only``"""
    since: float
    """``time.time`` of the first error."""

    def __str__(self) -> str:
        """The error in words, for logs and progress."""
        return f"{self.what} since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.since))}"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long an operation is retried."""

    retries: int = 10
    seconds: float = 0.0
    pause: Callable[[float], None] = time.sleep
    """Sleeps for that many seconds; may raise to stop retrying."""
    tell: Callable[[TransientError | None], None] = lambda error: None
    """Called with the error before each pause, and with None once the operation succeeds."""

    def gives_up(self, attempt: int, elapsed: float) -> bool:
        """Whether to stop after the failure of attempt number ``attempt`` (from 0), ``elapsed`` seconds after the first attempt began."""
        return attempt >= self.retries and elapsed >= self.seconds


RETRIES = 60
"""The fewest retries of what the settings bound by time: slow statements may take all of it in a few tries."""


def patient(
    seconds: float, pause: Callable[[float], None] = time.sleep, tell: Callable[[TransientError | None], None] = lambda error: None
) -> RetryPolicy:
    """The policy that the setting ``retry-seconds`` asks for."""
    return RetryPolicy(RETRIES, seconds, pause, tell)


FEW = RetryPolicy()
"""Ten retries."""
ONCE = RetryPolicy(retries=0)
"""No retry."""


@dataclass(slots=True)
class Attempt:
    """One try after the other. Its block swallows an error after which another try follows: code behind the block also runs after a failed try."""

    policy: RetryPolicy
    once: Collection[int] = ()
    """Errors that are no transient ones, after the first of which another try follows at once."""
    errors: int = field(default=0, init=False)
    """Transient errors so far."""
    patience: int = field(default=1, init=False)
    """Factor for the read timeout: twice the last one after a read timeout, because with the same timeout no try might ever succeed."""
    refused: ApplyError | None = field(default=None, init=False)
    """The one of ``once`` that has come."""
    again: bool = field(default=False, init=False)
    """Whether another try follows."""
    began: float = field(default_factory=time.monotonic, init=False)
    since: float = field(default_factory=time.time, init=False)

    def __enter__(self) -> Self:
        self.again = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            if self.errors:
                self.policy.tell(None)
        elif isinstance(error, RetryableApplyError):
            self.again = not self.policy.gives_up(self.errors, time.monotonic() - self.began)
            if self.again:
                self._wait(error)
        elif isinstance(error, ApplyError) and error.errno in self.once and self.refused is None:
            # The traceback would keep the rows of the try.
            self.refused, self.again = error.with_traceback(None), True
        return self.again

    def _wait(self, error: RetryableApplyError) -> None:
        wait = BACKOFF.pause(self.errors)
        self.errors += 1
        if timed_out(error.errno, error.words):
            self.patience = min(self.patience * 2, _MOST_PATIENCE)
        _log.warning("attempt %d on the target failed, retrying in %.2f s: %s", self.errors, wait, error)
        self.policy.tell(TransientError(what_is_wrong(error), self.since))
        self.policy.pause(wait)


def retrying(policy: RetryPolicy, once: Collection[int] = ()) -> Iterator[Attempt]:
    """Yield an attempt until one succeeds; the last error is raised. A commit whose answer was lost may have succeeded, so an attempt first looks
    for its own marker and does nothing if the marker exists.
    """
    attempt = Attempt(policy, once)
    while True:
        yield attempt
        if not attempt.again:
            return


def what_is_wrong(error: RetryableApplyError) -> str:
    """``error`` for the progress line."""
    said = (
        "no answer within syncer.to.read-timeout"
        if timed_out(error.errno, error.words)
        else passing(error.errno, error.words or str(error))
    )
    return f"target {error.where}: {said or f'error {error.errno}'}"


def timed_out(errno: int, words: str) -> bool:
    """Whether the server did not answer within the read timeout, according to the driver's message."""
    return errno == CR.CR_SERVER_LOST and "timed out" in words
