"""What a server's tables hold, as the server shows it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.session import connect

Query = Callable[..., list[tuple[Any, ...]]]


def run_sql(server: PrivateMariaDB, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements on one connection of their own; the rows of the last."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


@contextmanager
def asking(server: PrivateMariaDB, *databases: str) -> Iterator[Query]:
    """Runs statements; these databases are there neither before nor afterwards."""
    drops = [f"DROP DATABASE IF EXISTS {name}" for name in databases]
    run_sql(server, *drops)
    yield partial(run_sql, server)
    run_sql(server, *drops)


def refusing(table: str, condition: str) -> tuple[str, ...]:
    """The statements after which ``db.table`` refuses rows for which ``condition`` is true. A MariaDB does not check a CHECK in our sessions."""
    schema, _, name = table.partition(".")
    refuse = f"IF {condition} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this row is refused'; END IF"
    return tuple(f"CREATE TRIGGER {schema}.{name}_{verb} BEFORE {verb} ON {table} FOR EACH ROW {refuse}" for verb in ("INSERT", "UPDATE"))


def rows_of(server: PrivateMariaDB, table: str) -> Counter[tuple[bytes | None, ...]]:
    """Every row of a table, and how often it is there."""
    found: Counter[tuple[bytes | None, ...]] = Counter()
    with connect(server.target(), ApplyConfig()) as session, session.stream(f"SELECT * FROM {table}") as blocks:
        for block in blocks:
            found.update(zip(*(column.to_pylist() for column in block), strict=True))
    return found


def balances_of(server: PrivateMariaDB) -> dict[tuple[str, int], int]:
    """Of the case ``bank``: (table, id) -> balance."""
    halves = (f"SELECT '{table}', id, balance FROM g_bank.{table}" for table in ("checking", "savings"))
    return {(table, row_id): balance for table, row_id, balance in run_sql(server, " UNION ALL ".join(halves))}
