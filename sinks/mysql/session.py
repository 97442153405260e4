"""Connections to the target, with the session variables that our SQL depends on, and their transactions. [db]

Promises: every server or network error is raised as ``ApplyError``, or as ``RetryableApplyError`` if a retry may succeed, with the error
number, the beginning of the statement and the server's message, without row values unless ``log-row-data`` is set. Nothing here retries
(``retry_policy.retrying``).
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import pymysql
from pymysql.constants import COMMAND, CR, SERVER_STATUS
from pymysql.cursors import SSCursor
from pymysql.err import raise_mysql_exception

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.redaction import statement_head, without_values
from pyspark_tidb_binlog.schemas.tls import is_refused
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult, Warned
from pyspark_tidb_binlog.sinks.mysql.marks import TransactionMark
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, passing, timed_out
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns, RowPackets
from pyspark_tidb_binlog.sinks.mysql.target_connection import open_connection, require_settable, set_variables

_log = logging.getLogger(__name__)

_PARTS = re.compile(r"(`(?:[^`]|``)*`|'(?:[^'\\]|\\.|'')*'|%s|%%)", re.DOTALL)


_FIRST_TIMEOUT = 10.0
"""Seconds that the first statement on a kept session may take: no longer than connecting to a host that has vanished."""
_HEAD = 200
"""Characters of a statement shown in an error."""
PACKET_TOO_LARGE = 1153
_IN_TRANSACTION, _AUTOCOMMIT = SERVER_STATUS.SERVER_STATUS_IN_TRANS, SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT
_READ_BYTES = 256 * 1024
_SEARCHED = 100_000
"""Length of the prefix of a statement that is searched for its first value: column names come before it."""


class Session:
    """One connection, autocommit off. Not thread-safe."""

    has_savepoints = True
    """Whether a part of a transaction can be rolled back."""

    def __init__(self, connection: "pymysql.connections.Connection[Any]", where: str, *, log_row_data: bool = False) -> None:
        """Wrap an open connection; ``where`` names the server in errors, ``log_row_data`` permits row values in them."""
        self._connection = connection
        self._where = where
        self._log_row_data = log_row_data
        self._failed = False
        self._between_transactions = False
        self._waits_longer = False
        self._opened_with = 0
        """The status flag of autocommit."""
        self.process = os.getpid()
        """The one that opened it, and not one that was forked from that."""
        self.opened_at = time.monotonic()
        """Counts also the seconds in which the process is suspended."""
        self.mark: TransactionMark | None = None
        """Marks every transaction; None: without ``loopback-control``."""
        self.kept = False
        """It was used before: the server may have closed it meanwhile."""
        self.database = ""
        """The current database, as chosen with ``use``; empty: none was chosen."""
        self.max_allowed_packet = 0
        """Maximum bytes of one statement."""
        self.flavour = Flavour.MYSQL
        """Which server product this is."""
        self.version = ""
        """The server's version, as it names it."""

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        """Run a statement without a result set; the number of affected rows."""
        with self._classified(sql):
            if args is not None:
                sql = bound(sql if isinstance(sql, str) else sql.decode(), args, self._connection.escape)
            # Bypasses the cursor, which would search a statement of a megabyte for placeholders.
            return int(self._connection.query(sql))

    def answer(self, sql: bytes, meanwhile: Callable[[], None] | None = None) -> StatementResult:
        """Run a statement without a result set; the server's response with its warnings, which are queried only if there are any.

        ``meanwhile`` is called after sending, while the server executes the statement; it must not use the session, nor raise.
        A statement for which the server would close the connection is not sent (``PACKET_TOO_LARGE``).
        """
        connection: Any = self._connection
        # The limit includes one byte for the protocol command.
        if len(sql) + 1 > self.max_allowed_packet > 0:
            raise ApplyError(
                f"the row needs a statement of {len(sql):,} bytes, but the target's max_allowed_packet is {self.max_allowed_packet:,}. Raise it there "
                "(SET GLOBAL max_allowed_packet, up to 1 GiB) and start again",
                PACKET_TOO_LARGE,
            )
        with self._classified(sql):
            # The two halves of ``Connection.query``.
            connection._execute_command(COMMAND.COM_QUERY, sql)
            if meanwhile is not None:
                meanwhile()
            affected = int(connection._read_query_result())
        result = connection._result
        count, info = int(result.warning_count), bytes(result.message or b"").decode("utf-8", "replace")
        if not count:
            return StatementResult(affected, info)
        warnings = self.query("SHOW WARNINGS")
        return StatementResult(affected, info, count, tuple(Warned(int(errno), str(words)) for _, errno, words in warnings))

    def query(self, sql: str | bytes, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its whole result set."""
        with self._classified(sql), self._connection.cursor() as cursor:
            cursor.execute(sql if args is None else bound(sql if isinstance(sql, str) else sql.decode(), args, self._connection.escape))
            return list(cursor.fetchall())

    @contextmanager
    def stream(self, sql: bytes | str) -> Iterator[Iterator[Columns]]:
        """Run a statement whose result set is too big for memory; gives its rows, some at a time, as the server's text in the connection's charset.

        The block may not use the session for anything else. A block that ends before the last row closes the session, because
        all rows would have to be read first.
        """
        connection: Any = self._connection
        with self._classified(sql):
            cursor = connection.cursor(SSCursor)
            cursor.execute(sql)
        result = cursor._result
        rows = RowPackets(len(result.fields))
        try:
            yield self._blocks(sql, rows)
        finally:
            # Or the driver would read the rest when it collects them.
            result.unbuffered_active, result.connection, cursor.connection = False, None, None
            if not rows.ended:
                connection._force_close()
                self._failed = True

    def _blocks(self, sql: bytes | str, rows: RowPackets) -> Iterator[Columns]:
        connection: Any = self._connection
        with self._classified(sql):
            while not rows.ended:
                try:
                    data = connection._rfile.read1(_READ_BYTES)
                except OSError as error:
                    raise pymysql.err.OperationalError(
                        CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})"
                    ) from error
                if not data:
                    raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
                yield from rows.feed(data)
            if rows.refused:
                raise_mysql_exception(rows.refused)

    def use(self, database: str) -> None:
        """Make ``database`` the current one."""
        self.execute(f"USE {quote_name(database)}")
        self.database = database

    def begin(self) -> None:
        """Open a transaction, and mark it where the target is in a ring: nothing is written outside of one."""
        if self.mark is None:
            self.execute("BEGIN")
        else:
            self.mark.begin(self)

    def write(self, sql: str, args: Sequence[Any] | None = None) -> int:
        """Run a statement that writes rows, as a transaction of its own, and marked where the target is in a ring; the number of affected rows."""
        if self.mark is None and self.autocommit:
            return self.execute(sql, args)
        self.begin()
        rows = self.execute(sql, args)
        self.commit()
        return rows

    def commit(self) -> None:
        """Commit the transaction. After a ``RetryableApplyError`` the outcome is unknown: look at the record."""
        self.execute("COMMIT")
        self._between_transactions = True

    def rollback(self) -> None:
        """Roll back the transaction."""
        self.execute("ROLLBACK")
        self._between_transactions = True

    def opened(self) -> None:
        """Note that the settings are made: ``settle`` expects these, and a setting that the server refused is not an error of a use."""
        self._failed = False
        connection: Any = self._connection
        self._opened_with = connection.server_status & _AUTOCOMMIT

    def wait_longer(self, times: int) -> None:
        """Multiply the read timeout by ``times``."""
        connection: Any = self._connection
        connection._read_timeout *= times
        self._waits_longer = True

    def starts(self, first: Callable[["Session"], None]) -> bool:
        """Begin a use of the session with ``first``; False: the kept session fails and nothing was done, so use another session.

        On a kept session any error counts, also an error that a new session would give too: the new session then reports it.
        """
        connection: Any = self._connection
        timeout = connection._read_timeout
        if self.kept:
            connection._read_timeout = min(timeout, _FIRST_TIMEOUT)
        try:
            first(self)
        except ApplyError as error:
            if not self.kept:
                raise
            _log.debug("a kept session is replaced: %s", error)
            return False
        finally:
            connection._read_timeout = timeout
        return True

    def settle(self) -> bool:
        """Roll back an open transaction, and return whether the session is as it was when it was opened, except for ``database``.

        It is not after any error (the state of the connection may be unknown), or with a longer read timeout.
        """
        connection: Any = self._connection
        if self._failed or self._waits_longer:
            return False
        try:
            # Without autocommit, any statement after a COMMIT may have begun a transaction.
            if connection.server_status & _IN_TRANSACTION or not (self._between_transactions or self._opened_with):
                self.rollback()
        except ApplyError as error:
            _log.debug("a session is not kept: %s", error)
            return False
        return bool(connection.server_status & (_AUTOCOMMIT | _IN_TRANSACTION) == self._opened_with)

    @property
    def autocommit(self) -> bool:
        """Whether the server commits each statement outside a transaction, according to its last answer."""
        connection: Any = self._connection
        return bool(connection.server_status & _AUTOCOMMIT)

    def abandon(self) -> None:
        """Close this process's copy of the connection without a message to the server: another process uses it."""
        connection: Any = self._connection
        connection._force_close()

    def close(self) -> None:
        """Close the connection without committing; safe to call twice."""
        connection: Any = self._connection
        if self.mark is not None:
            self.mark.release(clean=not self._failed and not connection.server_status & _IN_TRANSACTION)
        if connection.open:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _classified(self, sql: bytes | str) -> Iterator[None]:
        self._between_transactions = False
        try:
            yield
        except pymysql.err.MySQLError as error:
            self._failed = True
            show = self._log_row_data
            refused = _as_apply_error(error, self._where, f"target {self._where} refused {_head(sql, show)!r}", show)
            # The driver's error contains the server's message with row values, and tracebacks are logged.
            raise refused from (error if show else None)


def connect(target: TargetConfig, apply: ApplyConfig, *, for_ddls: bool = False) -> Session:
    """Open a session on the target: UTC, our sql_mode, no foreign key checks, utf8mb4, autocommit off.

    Args:
        target: where.
        apply: the settings of the sessions.
        for_ddls: keep the modes that are for DDLs alone (``conf.sql_mode.FOR_DDLS``).

    Raises:
        ConfigError: ``params`` sets a variable that our SQL depends on, or the resulting sql_mode is incompatible with our SQL.
        ApplyError: the server cannot be reached (retryable) or rejects the connection.
    """
    where = target.socket or f"{target.host}:{target.port}"
    require_settable(target)
    try:
        connection = open_connection(target)
    except (pymysql.err.MySQLError, OSError) as error:
        raise _as_apply_error(error, where, f"cannot connect to the target {where} as {target.user!r}", show=True) from error
    session = Session(connection, where, log_row_data=apply.log_row_data)
    session.mark = TransactionMark(apply.channel_id) if apply.loopback_control else None
    try:
        session.flavour, session.version, session.max_allowed_packet = set_variables(session, target, apply, for_ddls=for_ddls)
    except (ApplyError, ConfigError):
        session.close()
        raise
    if session.flavour is Flavour.TIDB:
        session.has_savepoints = False  # one that writes binlogs refuses SAVEPOINT
    session.opened()
    return session


Sessions = Callable[[], AbstractContextManager[Session]]
"""Gives a session for one piece of work: ``connect`` opens it and closes it afterwards, ``KeptSessions.use`` may keep it."""


def begin_use(session: Session) -> None:
    """The first statement of a use that does not begin with a transaction: needed only to notice that a kept session was closed."""
    if session.kept:
        session.rollback()


def begin_ddl(schema: str, session: Session) -> None:
    """The first statement of a DDL's use of a session: afterwards the current database is ``schema``, the DDL's own, or there is none.

    A kept session has the database of the previous DDL. If the target has no ``schema``, that database would remain current, and names without a
    database would belong to it. So the error then replaces the session.
    """
    if session.database:
        session.use(schema)
    else:
        begin_use(session)


@contextmanager
def session_for(sessions: Sessions, attempt: Attempt, first: Callable[[Session], None] = begin_use) -> Iterator[Session]:
    """A session whose use has begun with ``first``. A kept session that fails in it is replaced, because nothing was sent before."""
    while True:
        with sessions() as session:
            if attempt.patience > 1:
                session.wait_longer(attempt.patience)
            if session.starts(first):
                yield session
                return


@contextmanager
def transaction(sessions: Sessions, attempt: Attempt) -> Iterator[Session]:
    """A session in a transaction, which is committed unless the block fails."""
    with session_for(sessions, attempt, Session.begin) as session:
        yield session
        session.commit()


KEPT_SECONDS = 30.0
"""Maximum age of a session at the beginning of a use."""


class KeptSessions:
    """Sessions with one target for one kind of work; keeps the last one, because opening a session takes as long as many statements.

    Promises: a session is used for one piece of work at a time, in the process that opened it. At the beginning of each use it is like a new session,
    except for its current database (``Session.database``). It is kept only after a use without any error, without an open transaction, and while it is
    younger than ``KEPT_SECONDS`` and half of ``spark.lease-timeout``; otherwise it is closed. So it never outlives the server's ``wait_timeout``, even
    if the process was suspended, and a target that moved to another address, or whose settings changed, is noticed after that time. If the server closed
    it earlier, the first statement of its next use fails and that use gets a new session (``session_for``). Checks that guard a transaction
    (``lease.check``) run in each use, not when the session opens.
    """

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
        if session.settle() and time.monotonic() - session.opened_at < self._seconds and not self._kept and not self._closed:
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
        if session.process != os.getpid():
            session.abandon()
        elif time.monotonic() - session.opened_at < self._seconds:
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


def bound(sql: str, args: Sequence[Any], literal: Callable[[Any], str]) -> str:
    """``sql`` with the literals of ``args`` in place of ``%s``; ``%%`` is one ``%``, as in the driver.

    Quoted names stay as they are, also with a ``%``: names of databases and tables come from settings and from the upstream, and the driver would
    read that ``%`` as a placeholder.

    Raises:
        TypeError: there are not as many values as places for them.
    """
    # With a group, ``split`` gives what is between two parts, and each part, in turn.
    texts = _PARTS.split(sql)
    places = [number for number, text in enumerate(texts) if text == "%s"]
    if len(places) != len(args):
        raise TypeError(f"{len(args)} values for {len(places)} places in {sql[:200]!r}")
    for number in range(1, len(texts), 2):
        if not texts[number].startswith("`"):
            texts[number] = texts[number].replace("%%", "%")
    for number, value in zip(places, args, strict=True):
        texts[number] = literal(value)
    return "".join(texts)


def _as_apply_error(error: pymysql.err.MySQLError | OSError, where: str, what: str, show: bool) -> ApplyError:
    if isinstance(error, OSError):
        return RetryableApplyError(f"{what}: {error}", CR.CR_CONNECTION_ERROR, where=where)
    errno = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    words = error.args[1] if len(error.args) > 1 and error.args[1] else str(error) or "the connection is closed"
    kind = RetryableApplyError if passing(errno, str(words)) and not is_refused(str(words)) else ServerRefused
    hint = "; syncer.to.read-timeout limits the time of a statement; the next retry doubles it" if timed_out(errno, str(words)) else ""
    return kind(f"{what}: error {errno}, {words if show else without_values(str(words))}{hint}", errno, str(words), where)


def _head(sql: bytes | str, show: bool) -> str:
    text = sql[:_SEARCHED].decode("utf-8", "replace") if isinstance(sql, bytes) else sql[:_SEARCHED]
    if not show:
        text = statement_head(text)
    return text[:_HEAD] + (f"… ({len(sql)} long)" if len(sql) > _HEAD else "")
