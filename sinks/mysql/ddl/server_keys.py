"""The key that a MySQL adds to a table without a primary key (``sql_generate_invisible_primary_key``), where it is in a DDL's way. [db]

The key is a hidden column ``my_row_id``, which sessions do not see (``show_gipk_in_create_table_and_information_schema`` is 0). The upstream does not
know it: the upstream's own primary key replaces it. If the server cannot add such a key to a table, the table is created without it, where
the account may ask for that (``SESSION_VARIABLES_ADMIN``). A table with partitions gets the key, and loses its partitions.
"""

import logging

from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target

_log = logging.getLogger(__name__)

_TWO_PRIMARY_KEYS = 1068
_CANNOT_GIVE = frozenset({4108, 4109})
"""A column of the table has its name; the table has an AUTO_INCREMENT column already, as the key does."""
_NOT_SUPPORTED, _OF_A_DROP = 1235, "@@sql_generate_invisible_primary_key"
_KEY_REQUIRED = 3750
_SETTING = "SET SESSION sql_generate_invisible_primary_key = "


def execute_ddl(session: Target, sql: str) -> None:
    """Execute a DDL; what the server refuses because it cannot give the table a key is executed without one."""
    try:
        session.execute(sql)
    except RetryableApplyError:
        raise
    except ApplyError as error:
        if not _about_its_key(session, error) or not _set(session, 0):
            raise
        _log.info("the server cannot be told to add no primary key of its own: %s", error)
        try:
            session.execute(sql)
        except ApplyError as without:
            raise error if without.errno == _KEY_REQUIRED else without from without
        finally:
            _set(session, 1)


def in_place_of_its_key(session: Target, table: TableAt, sql: str, error: ApplyError) -> str:
    """``sql``, an ALTER TABLE that adds the upstream's primary key, with the server's key dropped, where ``sql`` is refused because of that; else empty."""
    if error.errno != _TWO_PRIMARY_KEYS or session.flavour is not Flavour.MYSQL:
        return ""
    there = read_tables(session, [(table.schema, table.name)]).get((table.schema, table.name))
    head = f"ALTER TABLE {quoted(table.schema, table.name)} "
    return "" if there and any(key.primary for key in there.unique_keys) else sql.replace(head, f"{head}DROP COLUMN `my_row_id`, ", 1)


def _about_its_key(session: Target, error: ApplyError) -> bool:
    if session.flavour is not Flavour.MYSQL:
        return False
    return error.errno in _CANNOT_GIVE or (error.errno == _NOT_SUPPORTED and _OF_A_DROP in error.words)


def _set(session: Target, value: int) -> bool:
    """Whether the session gives such keys, or does not, from here on: an account without the right may not choose."""
    try:
        session.execute(f"{_SETTING}{value}")
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("%s", error)
        return False
    return True
