"""Opens connections to the target, and sets the session variables that our SQL depends on. [db]"""

import logging
import math
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.conf.sql_mode import ALWAYS, NEVER, ROUNDS_TIMES, for_all, for_rows, refusals
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, flavour_of
from pyspark_tidb_binlog.sinks.mysql.target import Target

_log = logging.getLogger(__name__)

_NOT_OURS_TO_SET = frozenset({ER.UNKNOWN_SYSTEM_VARIABLE, 1227, 1238})
"""The variable does not exist, our user may not set it, or it is read-only."""
_CONNECT_SECONDS = 10
"""PyMySQL's own limit over TCP."""
_ALL_ROWS = (1 << 64) - 1
"""``sql_select_limit`` that cuts nothing: with DEFAULT the global value would, and a read would lack rows without a word."""

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


class Server(NamedTuple):
    """What is known of a server."""

    flavour: Flavour
    """Which product it is."""
    version: str
    """As it names it."""
    max_allowed_packet: int
    """Maximum bytes of one statement."""


def require_settable(target: TargetConfig) -> None:
    """Refuse ``params`` that would set a variable on which our SQL depends.

    Raises:
        ConfigError: they do.
    """
    for name, _ in target.params:
        if name.lower() in _OURS:
            raise ConfigError(
                f"syncer.to.params may not set {name}: the Drainer's statements depend on its value. For sql_mode use syncer.sql-mode, "
                "for wait_timeout spark.lease-timeout"
            )


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


def open_connection(target: TargetConfig) -> "pymysql.connections.Connection[Any]":
    """Connect, over TCP or a Unix socket; raises the driver's errors, or ``OSError``."""
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


def set_variables(session: Target, target: TargetConfig, apply: ApplyConfig, *, for_ddls: bool) -> Server:
    """Set the variables of a new session; the driver has already sent SET NAMES utf8mb4 and switched autocommit off.

    Raises:
        ConfigError: the resulting sql_mode is incompatible with our SQL.
        ApplyError: the server refuses a variable.
    """
    # A suspended process holds its locks as long as its connections are open, so the server must close idle connections.
    values = [",".join(filter(None, (apply.sql_mode, ALWAYS))), math.ceil(apply.lease_timeout)]
    fixed = f"time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 1, sql_select_limit = {_ALL_ROWS}"
    session.execute(f"SET SESSION {fixed}, sql_mode = %s, wait_timeout = %s", values)
    version, packet, sql_mode = session.query("SELECT VERSION(), @@max_allowed_packet, @@SESSION.sql_mode")[0]
    _check_sql_mode(str(sql_mode), apply)
    _without_harmful_modes(session, str(sql_mode), for_all(str(sql_mode)) if for_ddls else for_rows(str(sql_mode)))
    server = Server(flavour_of(str(version)), str(version), int(packet))  # old TiDB versions return the size as text
    _relax_isolation(session, server.flavour)
    if server.flavour is Flavour.MARIADB:
        _round_times(session)
    _set_if_known(session, (server.version, target.user))
    _set_params(session, target)
    return server


_refused_by: dict[tuple[str, str], frozenset[str]] = {}
"""By server version and account: the variables of ``_IF_KNOWN`` that it does not have, or that the account may not set."""


def _set_if_known(session: Target, account: tuple[str, str]) -> None:
    """Set the variables in one statement if the server accepts all that it is not known to refuse, otherwise in one for each."""
    refused = _refused_by.get(account, frozenset())
    wanted = [(name, value) for name, value in _IF_KNOWN if name not in refused]
    if _refusal(session, wanted):
        errors = {name: _refusal(session, [(name, value)]) for name, value in wanted}
        _refused_by[account] = refused | {name for name, errno in errors.items() if errno}


def _refusal(session: Target, values: Sequence[tuple[str, str]]) -> int:
    """Set these variables; 0, or the number of the error for which none was set."""
    try:
        session.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in values))
    except ApplyError as error:
        if error.errno not in _NOT_OURS_TO_SET:
            raise
        return error.errno
    return 0


def _set_params(session: Target, target: TargetConfig) -> None:
    if not target.params:
        return
    bare = [value.lstrip("-").replace(".", "", 1).isdigit() for _, value in target.params]
    sets = [f"{quote_name(name)} = {value if plain else '%s'}" for (name, value), plain in zip(target.params, bare, strict=True)]
    texts = [value for (_, value), plain in zip(target.params, bare, strict=True) if not plain]
    session.execute("SET SESSION " + ", ".join(sets), texts or None)


def _round_times(session: Target) -> None:
    try:
        session.execute(f"SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',{ROUNDS_TIMES}')")
    except ApplyError as error:
        if error.errno != ER.WRONG_VALUE_FOR_VAR:  # before MariaDB 10.4
            raise


_told: set[tuple[str, str]] = set()
"""Values of sql_mode, and what the log has said about each."""


def _without_harmful_modes(session: Target, effective: str, kept: str) -> None:
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


def _relax_isolation(session: Target, flavour: Flavour) -> None:
    """READ COMMITTED takes no gap locks, so parallel parts rarely conflict; a server with statement-based logging does not support it."""
    variables = dict(session.query("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')"))
    logs_statements = variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT"
    if flavour is not Flavour.TIDB and not logs_statements:
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
