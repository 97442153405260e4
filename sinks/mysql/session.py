"""Connections to the target, with the session variables that our SQL depends on, and their transactions. [db]

Promises: every server or network error is raised as ``ApplyError``, or as ``RetryableApplyError`` if a retry may succeed, with the error
number, the beginning of the statement and the server's message, without row values unless ``log-row-data`` is set. Nothing here retries
(``retry_policy.retrying``).
"""

import logging
import math
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND, CR, ER, SERVER_STATUS
from pymysql.cursors import SSCursor
from pymysql.err import raise_mysql_exception

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.conf.sql_mode import ALWAYS, NEVER, ROUNDS_TIMES, for_all, for_rows, refusals
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, RetryableApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.redaction import statement_head, without_values
from pyspark_tidb_binlog.schemas.tls import TlsSettings, is_refused
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, flavour_of
from pyspark_tidb_binlog.sinks.mysql.effects import StatementResult, Warned
from pyspark_tidb_binlog.sinks.mysql.marks import TransactionMark
from pyspark_tidb_binlog.sinks.mysql.placeholders import bound
from pyspark_tidb_binlog.sinks.mysql.retry_policy import Attempt, passing, timed_out
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns, RowPackets

_log = logging.getLogger(__name__)

_NOT_OURS_TO_SET = frozenset({ER.UNKNOWN_SYSTEM_VARIABLE, 1227, 1238})
"""The variable does not exist, our user may not set it, or it is read-only."""
_CONNECT_SECONDS = 10
"""PyMySQL's own limit over TCP."""
_FIRST_TIMEOUT = 10.0
"""Seconds that the first statement on a kept session may take: no longer than connecting to a host that has vanished."""
_ALL_ROWS = (1 << 64) - 1
"""``sql_select_limit`` that cuts nothing: with DEFAULT the global value would, and a read would lack rows without a word."""
_HEAD = 200
"""Characters of a statement shown in an error."""
PACKET_TOO_LARGE = 1153
_READ_BYTES = 256 * 1024
_SEARCHED = 100_000
"""Length of the prefix of a statement that is searched for its first value: column names come before it."""

_OURS = frozenset(
    {
        "time_zone",
        "sql_mode",
        "foreign_key_checks",
        "check_constraint_checks",
        "unique_checks",
        "sql_select_limit",
        "sql_notes",
        "sql_if_exists",
        "completion_type",
        "autocommit",
        "character_set_client",
        "character_set_connection",
        "collation_connection",
        "wait_timeout",
    }
)
"""Session variables that literals, planning and the lease depend on."""

_IF_KNOWN = (
    ("in_predicate_conversion_threshold", "0"),  # MariaDB: a long IN list stays a list of ranges instead of a join with a temporary table
    ("range_optimizer_max_mem_size", "0"),  # MySQL: the same
    ("max_error_count", "65535"),  # every warning of a statement is kept until it is read
    ("sql_notes", "1"),  # a value that loses digits is a note, which this leaves out of the count of warnings
    ("lc_messages", "'en_US'"),  # what a warning or a refusal says of a column is looked for in its words
    ("sql_big_selects", "1"),  # a read that max_join_size takes for long is not refused
    ("sql_safe_updates", "0"),  # rows without a key are changed by all their columns
    ("sql_auto_is_null", "0"),  # IS NULL finds NULL
    ("completion_type", "0"),  # COMMIT ends the transaction, and opens or closes nothing else
    ("sql_quote_show_create", "1"),  # definitions are read with their names quoted
    ("check_constraint_checks", "0"),  # MariaDB: its CHECK of a JSON column refuses documents that the upstream holds
    ("max_statement_time", "0"),  # MariaDB: a long DDL is no refused one
    ("max_execution_time", "0"),  # MySQL, TiDB: the same of reads
    ("sql_if_exists", "0"),  # MariaDB: a DDL on what is missing fails instead of doing nothing
    ("system_versioning_asof", "DEFAULT"),  # MariaDB: rows are read as they are; a session's DEFAULT is this, not the global value
    ("tidb_constraint_check_in_place", "1"),  # TiDB: a duplicate is rejected by its INSERT, not at commit
    ("default_storage_engine", "InnoDB"),  # DDLs name no engine, and a non-transactional table would keep half of a transaction
    ("innodb_strict_mode", "1"),  # a DDL whose rows may not fit is refused, and not each long row
    ("show_gipk_in_create_table_and_information_schema", "0"),  # MySQL: a primary key that the server makes itself is not the upstream's
    ("restrict_fk_on_non_standard_key", "0"),  # MySQL: a foreign key may refer to a key that is not unique, as in TiDB
    ("explicit_defaults_for_timestamp", "1"),  # a TIMESTAMP declared without NULL or NOT NULL is nullable, as in TiDB
    ("allow_auto_random_explicit_insert", "1"),  # this and the following: TiDB, same values as in the Drainer
    ("tidb_txn_mode", "'optimistic'"),
    ("tidb_placement_mode", "'ignore'"),
)


class Session:
    """One connection, autocommit off. Not thread-safe."""

    def __init__(self, connection: "pymysql.connections.Connection[Any]", where: str, *, log_row_data: bool = False) -> None:
        """Wrap an open connection; ``where`` names the server in errors, ``log_row_data`` permits row values in them."""
        self._connection = connection
        self._where = where
        self._log_row_data = log_row_data
        self._failed = False
        self._between_transactions = False
        self._waits_longer = False
        self._opened_with_autocommit = False
        self._pid = os.getpid()
        self._opened_at = time.monotonic()
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
        """
        connection: Any = self._connection
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

    def too_large(self, sql: bytes) -> str:
        """Why the server would close the connection instead of answering ``sql``, and what to do; empty: it takes as long a statement."""
        # The limit includes one byte for the protocol command.
        if not len(sql) + 1 > self.max_allowed_packet > 0:
            return ""
        return (
            f"the row needs a statement of {len(sql):,} bytes, but the target's max_allowed_packet is {self.max_allowed_packet:,}. Raise it there "
            "(SET GLOBAL max_allowed_packet, up to 1 GiB) and start again"
        )

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
        self._opened_with_autocommit = self.autocommit

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
        if self._failed or self._waits_longer:
            return False
        try:
            # Without autocommit, any statement after a COMMIT may have begun a transaction.
            if self._has(SERVER_STATUS.SERVER_STATUS_IN_TRANS) or not (self._between_transactions or self.autocommit):
                self.rollback()
        except ApplyError as error:
            _log.debug("a session is not kept: %s", error)
            return False
        return self.autocommit == self._opened_with_autocommit and not self._has(SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    @property
    def has_savepoints(self) -> bool:
        """Whether a part of a transaction can be rolled back. A TiDB that writes binlogs refuses SAVEPOINT."""
        return self.flavour is not Flavour.TIDB

    @property
    def autocommit(self) -> bool:
        """Whether the server commits each statement outside a transaction, according to its last answer."""
        return self._has(SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT)

    def _has(self, status: int) -> bool:
        connection: Any = self._connection
        return bool(connection.server_status & status)

    @property
    def ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self._pid == os.getpid()

    @property
    def age(self) -> float:
        """Seconds since it was opened, including those in which the process was suspended."""
        return time.monotonic() - self._opened_at

    def abandon(self) -> None:
        """Close this process's copy of the connection without a message to the server: another process uses it."""
        connection: Any = self._connection
        connection._force_close()

    def close(self) -> None:
        """Close the connection without committing; safe to call twice."""
        if self.mark is not None:
            self.mark.release(clean=not self._failed and not self._has(SERVER_STATUS.SERVER_STATUS_IN_TRANS))
        if self._connection.open:
            self._connection.close()

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
    for name, _ in target.params:
        if name.lower() in _OURS:
            raise ConfigError(
                f"syncer.to.params may not set {name}: the Drainer's statements depend on its value. For sql_mode use syncer.sql-mode, "
                "for wait_timeout spark.lease-timeout"
            )
    try:
        connection = _open(target)
    except (pymysql.err.MySQLError, OSError) as error:
        raise _as_apply_error(error, where, f"cannot connect to the target {where} as {target.user!r}", show=True) from error
    session = Session(connection, where, log_row_data=apply.log_row_data)
    session.mark = TransactionMark(apply.channel_id) if apply.loopback_control else None
    try:
        _prepare(session, target, apply, for_ddls=for_ddls)
    except (ApplyError, ConfigError):
        session.close()
        raise
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


_tls_contexts: dict[tuple[tuple[str, Any], ...], ssl.SSLContext] = {}


class _TlsOnceConnection(Connection):
    """Builds the driver's TLS context once per process for the same settings: loading the machine's CA certificates takes about 20 ms."""

    def _create_ssl_ctx(self, sslp: Mapping[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
        if isinstance(sslp, ssl.SSLContext):
            return sslp
        key = tuple(sorted(sslp.items()))
        if key not in _tls_contexts:
            driver: Any = super()
            _tls_contexts[key] = driver._create_ssl_ctx(sslp)
        return _tls_contexts[key]


def _open(target: TargetConfig) -> "pymysql.connections.Connection[Any]":
    tls = None if target.socket else TlsSettings.of(target.security)
    connection = _TlsOnceConnection(
        host=target.host,
        port=target.port,
        user=target.user,
        password=target.password.encode(),  # PyMySQL encodes text as latin1, servers expect UTF-8
        charset="utf8mb4",
        autocommit=False,
        read_timeout=target.read_timeout,
        write_timeout=target.read_timeout,
        ssl=None if tls is None else tls.client(),  # required and verified; the password is sent after it
        defer_connect=True,
    )
    if not target.socket:
        connection.connect()
        return connection
    # Passes its own socket, because PyMySQL leaves a Unix socket open when the server does not answer.
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A server that stands still takes no connections: without a limit the attempt would last as long.
        local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECT_SECONDS, 0))
        local.connect(target.socket)
        local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        connection.connect(local)
    except BaseException:
        local.close()
        raise
    return connection


def _prepare(session: Session, target: TargetConfig, apply: ApplyConfig, *, for_ddls: bool) -> None:
    """The driver has already sent SET NAMES utf8mb4 and switched autocommit off."""
    # A suspended process holds its locks as long as its connections are open, so the server must close idle connections.
    values = [",".join(filter(None, (apply.sql_mode, ALWAYS))), math.ceil(apply.lease_timeout)]
    fixed = f"time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 1, sql_select_limit = {_ALL_ROWS}"
    session.execute(f"SET SESSION {fixed}, sql_mode = %s, wait_timeout = %s", values)
    version, packet, sql_mode = session.query("SELECT VERSION(), @@max_allowed_packet, @@SESSION.sql_mode")[0]
    _check_sql_mode(str(sql_mode), apply)
    _without_harmful_modes(session, str(sql_mode), for_all(str(sql_mode)) if for_ddls else for_rows(str(sql_mode)))
    session.version = str(version)
    session.flavour = flavour_of(session.version)
    session.max_allowed_packet = int(packet)  # old TiDB versions return it as text
    _relax_isolation(session)
    if session.flavour is Flavour.MARIADB:
        _round_times(session)
    _set_if_known(session, target.user)
    _set_params(session, target)


_refused_by: dict[tuple[str, str], frozenset[str]] = {}
"""By server version and account: the variables of ``_IF_KNOWN`` that it does not have, or that the account may not set."""


def _set_if_known(session: Session, user: str) -> None:
    """Set the variables in one statement if the server accepts all that it is not known to refuse, otherwise in one for each."""
    refused = _refused_by.get((session.version, user), frozenset())
    wanted = [(name, value) for name, value in _IF_KNOWN if name not in refused]
    if _refusal(session, wanted):
        errors = {name: _refusal(session, [(name, value)]) for name, value in wanted}
        _refused_by[session.version, user] = refused | {name for name, errno in errors.items() if errno}


def _refusal(session: Session, values: Sequence[tuple[str, str]]) -> int:
    """Set these variables; 0, or the number of the error for which none was set."""
    try:
        session.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in values))
    except ApplyError as error:
        if error.errno not in _NOT_OURS_TO_SET:
            raise
        return error.errno
    return 0


def _set_params(session: Session, target: TargetConfig) -> None:
    if not target.params:
        return
    bare = [value.lstrip("-").replace(".", "", 1).isdigit() for _, value in target.params]
    sets = [f"{quote_name(name)} = {value if plain else '%s'}" for (name, value), plain in zip(target.params, bare, strict=True)]
    texts = [value for (_, value), plain in zip(target.params, bare, strict=True) if not plain]
    session.execute("SET SESSION " + ", ".join(sets), texts or None)


def _round_times(session: Session) -> None:
    try:
        session.execute(f"SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',{ROUNDS_TIMES}')")
    except ApplyError as error:
        if error.errno != ER.WRONG_VALUE_FOR_VAR:  # before MariaDB 10.4
            raise


_told: set[tuple[str, str]] = set()
"""Values of sql_mode, and what the log has said about each."""


def _without_harmful_modes(session: Session, effective: str, kept: str) -> None:
    """The upstream holds the values that rows have: no mode may refuse or change them, neither in a write nor in the copy that an ALTER TABLE makes."""
    if kept == effective:
        return
    session.execute("SET SESSION sql_mode = %s", [kept])
    left = set(effective.split(",")) - {"", *kept.split(",")}
    told = [
        (left - NEVER, "applies to DDLs only; rows are written without it"),
        (left & NEVER, "is left out, because the upstream holds such dates"),
    ]
    for names, words in told:
        if names and (effective, words) not in _told:
            _told.add((effective, words))
            _log.warning("syncer.sql-mode: %s in the sql_mode of the target's sessions %s", ", ".join(sorted(names)), words)


def _check_sql_mode(effective: str, apply: ApplyConfig) -> None:
    """Check the effective sql_mode: the setting may contain a number or a name that the server expands to further modes."""
    why = refusals(effective)
    if ALWAYS not in effective.upper().split(","):
        why += (f"{ALWAYS} is missing: without it a 0 in an AUTO_INCREMENT column becomes another value",)
    if why:
        raise ConfigError(f"with syncer.sql-mode = {apply.sql_mode!r} the target's session has sql_mode {effective!r}: {'; '.join(why)}")


def _relax_isolation(session: Session) -> None:
    """READ COMMITTED takes no gap locks, so parallel parts rarely conflict; a server with statement-based logging does not support it."""
    variables = dict(session.query("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"))
    logs_statements = variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT"
    if session.flavour is not Flavour.TIDB and not logs_statements:
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


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
