"""A connection to the target in the one state that our SQL is written for, and transactions that are tried again. [db]

Promises: every error of the server or the wire leaves as ``ApplyError``, as ``RetryableApplyError`` when the same again may work, with
the error number, the statement's beginning and the server's words, without values of rows unless ``log-row-data`` is set. Nothing is
retried behind the caller's back except by ``run_transaction``.
"""

import itertools
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import pymysql
from pymysql.constants import CR, ER

from conf.model import ApplyConfig, TargetConfig
from conf.sql_mode import ALWAYS, ROUNDS_TIMES, refusals
from schemas.ddl_tokens import quote_name
from schemas.errors import ApplyError, ConfigError, RetryableApplyError
from schemas.redaction import statement_head, without_values
from sinks.mysql.dialect import Flavour, flavour_of
from sinks.mysql.effects import Answer, Warned
from sinks.mysql.patience import FEW, LONGEST_PAUSE, Patience, Waited, passing, what_is_wrong

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_OURS_TO_SET = frozenset({ER.UNKNOWN_SYSTEM_VARIABLE, 1227, 1238})
"""There is no such variable, we may not set it, or nobody may."""
_MOST_TIMES = 64
"""An hour, where the settings say a minute."""
_HEAD = 200
"""Characters of a statement that an error shows."""
_SEARCHED = 100_000
"""Bytes in which its first value is looked for: names of columns come before."""

_OURS = frozenset(
    {
        "time_zone",
        "sql_mode",
        "foreign_key_checks",
        "unique_checks",
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
    ("tidb_constraint_check_in_place", "1"),  # TiDB: a duplicate is refused by its INSERT, not at the commit
    ("default_storage_engine", "InnoDB"),  # statements name no engine, and a table without transactions would keep half of one
    ("explicit_defaults_for_timestamp", "1"),  # a TIMESTAMP without a word about NULL may be NULL, as in TiDB
    ("allow_auto_random_explicit_insert", "1"),  # the rest: TiDB, as the Drainer sets them
    ("tidb_txn_mode", "'optimistic'"),
    ("tidb_placement_mode", "'ignore'"),
)


class Session:
    """One connection, autocommit off. Not for use by two threads at a time."""

    def __init__(self, connection: "pymysql.connections.Connection[Any]", where: str, *, log_row_data: bool = False) -> None:
        """Wrap an open connection; ``where`` names the server in errors, ``log_row_data`` lets them show values of rows."""
        self._connection = connection
        self._where = where
        self._log_row_data = log_row_data
        self.max_allowed_packet = 0
        """Bytes that one statement may have."""
        self.flavour = Flavour.MYSQL
        """Whose server this is."""

    def execute(self, sql: bytes | str, args: Sequence[Any] | None = None) -> int:
        """Run a statement without a result; the number of rows it says it affected."""
        with self._classified(sql):
            if args is not None:
                with self._connection.cursor() as cursor:
                    return int(cursor.execute(sql if isinstance(sql, str) else sql.decode(), args))
            # Straight to the connection: a cursor would look through a megabyte of statement for placeholders.
            return int(self._connection.query(sql))

    def answer(self, sql: bytes) -> Answer:
        """Run a statement without a result; all that the server says of it. Warnings are asked for only where there are some."""
        with self._classified(sql):
            affected = int(self._connection.query(sql))
        result: Any = self._connection._result  # type: ignore[attr-defined]
        count = int(result.warning_count)
        if not count:
            return Answer(affected, _info_of(result))
        warnings = self.query("SHOW WARNINGS")
        return Answer(affected, _info_of(result), count, tuple(Warned(int(errno), str(words)) for _, errno, words in warnings))

    def query(self, sql: str, args: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement with a result and read all of it."""
        with self._classified(sql), self._connection.cursor() as cursor:
            cursor.execute(sql, args)
            return list(cursor.fetchall())

    def begin(self) -> None:
        """Open a transaction."""
        self.execute("BEGIN")

    def commit(self) -> None:
        """Commit it. After a ``RetryableApplyError`` nobody knows whether it was: look at the marker."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        """Undo it."""
        self.execute("ROLLBACK")

    def wait_longer(self, times: int) -> None:
        """Let each statement take ``times`` as long as the settings say."""
        connection: Any = self._connection
        connection._read_timeout *= times

    def close(self) -> None:
        """Drop the connection, and with it whatever was not committed; safe to call twice."""
        if self._connection.open:
            self._connection.close()

    def __enter__(self) -> Self:
        """The session itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @contextmanager
    def _classified(self, sql: bytes | str) -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            show = self._log_row_data
            refused = _as_apply_error(error, self._where, f"target {self._where} refused {_head(sql, show)!r}", show)
            # The driver's own error has the words in it, and traces are logged.
            raise refused from (error if show else None)


def connect(target: TargetConfig, apply: ApplyConfig) -> Session:
    """Open a session on the target: UTC, our sql_mode, no foreign key checks, utf8mb4, autocommit off.

    Raises:
        ConfigError: ``params`` holds a variable that our SQL depends on, or the server has an sql_mode that it cannot be run in.
        ApplyError: the server cannot be reached (retryable) or refuses us.
    """
    where = target.socket or f"{target.host}:{target.port}"
    for name, _ in target.params:
        if name.lower() in _OURS:
            raise ConfigError(
                f"syncer.to.params may not set {name}: the statements are written for our own value (sql_mode has its setting syncer.sql-mode, "
                "wait_timeout follows syncer.lease-timeout)"
            )
    try:
        connection = _open(target)
    except (pymysql.err.MySQLError, OSError) as error:
        raise _as_apply_error(error, where, f"cannot connect to the target {where} as {target.user!r}", show=True) from error
    session = Session(connection, where, log_row_data=apply.log_row_data)
    try:
        _prepare(session, target, apply)
    except (ApplyError, ConfigError):
        session.close()
        raise
    return session


def run_transaction(session_factory: Callable[[], Session], work: Callable[[Session], T], patience: Patience = FEW) -> T:
    """Run ``work`` in a transaction of a fresh session and commit; on an error that may pass, all of it again.

    A commit whose answer is lost may have happened, so ``work`` looks for its own marker first and does nothing when it finds it.

    Args:
        session_factory: opens a session.
        work: what is done between BEGIN and COMMIT.
        patience: how often and how long it is tried again; the last error then leaves.
    """

    def transaction(session: Session) -> T:
        session.begin()
        result = work(session)
        session.commit()
        return result

    return run_retried(session_factory, transaction, patience)


def run_retried(session_factory: Callable[[], Session], work: Callable[[Session], T], patience: Patience) -> T:
    """Run ``work`` with a fresh session, and with another one after an error that may pass; the last error leaves.

    A statement that got no answer in time has twice the time in the next try: the same again might never end.
    """
    times = 1

    def once() -> T:
        nonlocal times
        with session_factory() as session:
            if times > 1:
                session.wait_longer(times)
            try:
                return work(session)
            except RetryableApplyError as error:
                times = min(times * 2, _MOST_TIMES) if _timed_out(error.errno, error.words) else times
                raise

    return retried(once, patience)


def retried(work: Callable[[], T], patience: Patience) -> T:
    """Call ``work``, and again after an error that may pass; the last error leaves."""
    begun, began_at = time.monotonic(), time.time()
    for attempt in itertools.count():
        try:
            result = work()
        except RetryableApplyError as error:
            if patience.gives_up(attempt, time.monotonic() - begun):
                raise
            wait = min(0.05 * 2 ** min(attempt, 10), LONGEST_PAUSE)
            _log.warning("work on the target failed, try %d, again in %.2f s: %s", attempt + 1, wait, error)
            patience.tell(Waited(what_is_wrong(error), began_at))
            patience.pause(wait)
        else:
            if attempt:
                patience.tell(None)
            return result
    raise AssertionError("the loop above returns or raises")


def _open(target: TargetConfig) -> "pymysql.connections.Connection[Any]":
    connection = pymysql.connect(
        host=target.host,
        port=target.port,
        user=target.user,
        password=target.password.encode(),  # PyMySQL would take text as latin1, servers take UTF-8
        charset="utf8mb4",
        autocommit=False,
        read_timeout=target.read_timeout,
        write_timeout=target.read_timeout,
        defer_connect=True,
    )
    if not target.socket:
        connection.connect()
        return connection
    # PyMySQL leaves its own Unix socket open when the server does not answer.
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.connect(target.socket)
        connection.connect(local)
    except BaseException:
        local.close()
        raise
    return connection


def _prepare(session: Session, target: TargetConfig, apply: ApplyConfig) -> None:
    session.execute("SET NAMES utf8mb4")
    # A process that was stopped holds locks for as long as its connections live: the server ends them when they are silent.
    values = [",".join(filter(None, (apply.sql_mode, ALWAYS))), math.ceil(apply.lease_timeout)]
    session.execute("SET SESSION time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 1, sql_mode = %s, wait_timeout = %s", values)
    version, packet, sql_mode = session.query("SELECT VERSION(), @@max_allowed_packet, @@SESSION.sql_mode")[0]
    _check_sql_mode(str(sql_mode), apply)
    session.flavour = flavour_of(str(version))
    session.max_allowed_packet = int(packet)  # an old TiDB gives it as text
    _relax_isolation(session)
    if session.flavour is Flavour.MARIADB:
        _round_times(session)
    for name, value in _IF_KNOWN:
        try:
            session.execute(f"SET SESSION {name} = {value}")
        except ApplyError as error:
            if error.errno not in _NOT_OURS_TO_SET:
                raise
    for name, value in target.params:
        bare = value.lstrip("-").replace(".", "", 1).isdigit()
        session.execute(f"SET SESSION {quote_name(name)} = " + (value if bare else "%s"), None if bare else [value])


def _round_times(session: Session) -> None:
    try:
        session.execute(f"SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',{ROUNDS_TIMES}')")
    except ApplyError as error:
        if error.errno != ER.WRONG_VALUE_FOR_VAR:  # before MariaDB 10.4
            raise


def _check_sql_mode(effective: str, apply: ApplyConfig) -> None:
    """What the server made of the setting: a number or a name that only it knows may stand for more."""
    why = refusals(effective)
    if ALWAYS not in effective.upper().split(","):
        why += (f"no {ALWAYS}, without which a 0 in an AUTO_INCREMENT column becomes another value",)
    if why:
        raise ConfigError(f"with syncer.sql-mode = {apply.sql_mode!r} the target's session has sql_mode {effective!r}: {'; '.join(why)}")


def _relax_isolation(session: Session) -> None:
    """READ COMMITTED locks no gaps, so parallel parts rarely meet; a server that logs statements cannot take it."""
    variables = dict(session.query("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"))
    logs_statements = variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT"
    if session.flavour is not Flavour.TIDB and not logs_statements:
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _as_apply_error(error: pymysql.err.MySQLError | OSError, where: str, what: str, show: bool) -> ApplyError:
    if isinstance(error, OSError):
        return RetryableApplyError(f"{what}: {error}", CR.CR_CONNECTION_ERROR, where=where)
    errno = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    words = error.args[1] if len(error.args) > 1 and error.args[1] else str(error) or "the connection is closed"
    kind = RetryableApplyError if passing(errno, str(words)) else ApplyError
    hint = (
        "; a statement may take as long as syncer.to.read-timeout says, twice that in the next try" if _timed_out(errno, str(words)) else ""
    )
    return kind(f"{what}: error {errno}, {words if show else without_values(str(words))}{hint}", errno, str(words), where)


def _timed_out(errno: int, words: str) -> bool:
    """Whether the server gave no answer within the read timeout; the driver's words end so."""
    return errno == CR.CR_SERVER_LOST and "timed out" in words


def _info_of(result: Any) -> str:
    return bytes(result.message or b"").decode("utf-8", "replace")


def _head(sql: bytes | str, show: bool) -> str:
    text = sql[:_SEARCHED].decode("utf-8", "replace") if isinstance(sql, bytes) else sql[:_SEARCHED]
    if not show:
        text = statement_head(text)
    return text[:_HEAD] + (f"… ({len(sql)} long)" if len(sql) > _HEAD else "")
