"""Judges what the target's server variables mean for a stream. Pure.

Promises: a variable that the server does not have is not judged. Values are those that a session of the
Drainer sees, after it has set its own (``sinks.mysql.session``).
"""

from collections.abc import Iterator, Mapping

from pyspark_tidb_binlog.schemas.remarks import Remark, hinders, note

_ON = frozenset({"ON", "1", "TRUE"})

NAMES = (
    "enforce_storage_engine",
    "explicit_defaults_for_timestamp",
    "innodb_default_row_format",
    "innodb_flush_log_at_trx_commit",
    "innodb_force_primary_key",
    "innodb_force_recovery",
    "innodb_read_only",
    "lower_case_table_names",
    "max_allowed_packet",
    "max_connections",
    "max_user_connections",
    "offline_mode",
    "read_only",
    "sql_generate_invisible_primary_key",
    "sql_require_primary_key",
    "super_read_only",
    "tidb_restricted_read_only",
    "tidb_super_read_only",
    "transaction_read_only",
    "tx_read_only",
    "wsrep_on",
)
"""What is asked."""

_LARGEST_ROW = 6 * 1024 * 1024
"""TiDB's default of ``txn-entry-size-limit``, in bytes: the largest row."""
_ROOM = 2
"""A byte of a value takes up to two in a statement."""
_ONLY_READS = {
    "super_read_only": "SET GLOBAL super_read_only = OFF",
    "innodb_read_only": "start the server without innodb-read-only",
    "tidb_restricted_read_only": "SET GLOBAL tidb_restricted_read_only = OFF",
    "tidb_super_read_only": "SET GLOBAL tidb_super_read_only = OFF",
    "transaction_read_only": "SET GLOBAL transaction_read_only = OFF",
    "tx_read_only": "SET GLOBAL tx_read_only = OFF",
}


def judged(values: Mapping[str, str], where: str, connections: int, *, may_write: bool, has_zones: bool) -> Iterator[Remark]:
    """What hinders the stream, or is worth knowing.

    Args:
        values: by name in lower case.
        where: the server, for the remarks.
        connections: how many the Drainer may have open at the same time.
        may_write: ``read_only`` does not stop the account.
        has_zones: the server knows named time zones.
    """
    yield from _read_only(values, where, may_write)
    yield from _limits(values, where, connections)
    yield from _innodb(values, where)
    yield from _tables(values, where)
    if not has_zones:
        what = "has no named time zones (time_zone): a DDL that depends on a session's time zone with summer time is refused"
        yield note(where, what, "load them: mysql_tzinfo_to_sql /usr/share/zoneinfo | mysql mysql")


def _on(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").upper() in _ON


def _read_only(values: Mapping[str, str], where: str, may_write: bool) -> Iterator[Remark]:
    for name, todo in _ONLY_READS.items():
        if _on(values, name):
            yield hinders(where, f"{name} is {values[name]}: nothing can be written", todo)
    shown = values.get("read_only", "")
    if shown.upper() not in ("", "OFF", "0"):
        if may_write:
            yield note(where, f"read_only is {shown}, but the account may write: this server may be a replica of another one")
        else:
            yield hinders(
                where, f"read_only is {shown}: nothing can be written", "SET GLOBAL read_only = OFF, or name the primary in syncer.to.host"
            )
    if _on(values, "offline_mode"):
        yield hinders(where, "offline_mode is ON: connections are closed", "SET GLOBAL offline_mode = OFF")


def _limits(values: Mapping[str, str], where: str, connections: int) -> Iterator[Remark]:
    packet = int(values.get("max_allowed_packet") or 0)
    if 0 < packet < _LARGEST_ROW * _ROOM:
        what = f"max_allowed_packet is {packet}: a row of TiDB may have {_LARGEST_ROW} bytes, and needs up to {_LARGEST_ROW * _ROOM} in a statement"
        yield hinders(where, what, f"SET GLOBAL max_allowed_packet = {64 << 20}")
    for name in ("max_connections", "max_user_connections"):
        most = int(values.get(name) or 0)
        if 0 < most < connections:
            what = f"{name} is {most}, and the Drainer opens up to {connections} connections"
            yield hinders(where, what, "raise it, or lower spark.parts or syncer.worker-count")


def _innodb(values: Mapping[str, str], where: str) -> Iterator[Remark]:
    if int(values.get("innodb_force_recovery") or 0):
        what = f"innodb_force_recovery is {values['innodb_force_recovery']}: InnoDB refuses changes or loses them"
        yield hinders(where, what, "repair the server and start it without this setting")
    forced = values.get("enforce_storage_engine", "")
    if forced and forced.upper() not in ("INNODB", "NULL"):
        what = f"enforce_storage_engine is {forced}: tables would not be InnoDB, and a crash would leave half of a transaction"
        yield hinders(where, what, "start the server without this setting")
    flush = values.get("innodb_flush_log_at_trx_commit", "")
    if flush in ("0", "2"):
        what = f"innodb_flush_log_at_trx_commit is {flush}: a crash of the machine takes back about a second of rows, together with the checkpoint"
        yield note(
            where,
            what,
            "nothing to do while the Pumps still hold these binlogs: what was lost is applied again, within a span at once, otherwise by the next start",
        )
    if values.get("innodb_default_row_format", "").lower() in ("compact", "redundant"):
        what = f"innodb_default_row_format is {values['innodb_default_row_format']}: a key over 767 bytes (192 characters) is refused"
        yield hinders(where, what, "SET GLOBAL innodb_default_row_format = dynamic")
    if _on(values, "wsrep_on"):
        yield note(
            where,
            "wsrep_on is ON (Galera): the commit of a transaction may be refused, and the transaction is then retried",
            "send all writes to one node",
        )


def _tables(values: Mapping[str, str], where: str) -> Iterator[Remark]:
    generated = _on(values, "sql_generate_invisible_primary_key")
    if generated:
        what = (
            "sql_generate_invisible_primary_key is ON: a table without a primary key gets a column my_row_id, and is created without its partitions. Unless the account "
            "has SESSION_VARIABLES_ADMIN, DROP PRIMARY KEY is refused, and so is such a table with an AUTO_INCREMENT column"
        )
        yield note(where, what, "SET GLOBAL sql_generate_invisible_primary_key = OFF, unless the server needs the keys")
    for name in ("innodb_force_primary_key", "sql_require_primary_key"):
        if _on(values, name) and not (generated and name == "sql_require_primary_key"):
            yield hinders(where, f"{name} is ON: a table without a primary key, which TiDB allows, is refused", f"SET GLOBAL {name} = OFF")
    if values.get("explicit_defaults_for_timestamp", "ON").upper() in ("OFF", "0"):
        what = "explicit_defaults_for_timestamp is OFF, and the account may not set it: the server adds defaults and NOT NULL to TIMESTAMP columns"
        yield hinders(where, what, "SET GLOBAL explicit_defaults_for_timestamp = ON")
    if values.get("lower_case_table_names") == "0":
        what = "lower_case_table_names is 0: names of tables are case-sensitive here, but not in TiDB"
        yield note(
            where,
            what,
            "a view, or a DDL that writes the table's name in another case, may be refused; only a new server can have another value",
        )
