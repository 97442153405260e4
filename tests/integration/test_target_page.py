"""``docs/target.md`` as a DBA follows it: its SQL over a real stream that writes as the account it makes; rights, tables and settings that it lists are the code's."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.sinks.mysql import rights, target_connection
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import take_snapshot
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.ddl_target import dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.private_mysql import MYSQLD

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

PAGE = (Path(__file__).parents[2] / "docs" / "target.md").read_text()
ORDERS = Table("orders", (Column("id", "bigint"), Column("what", "varchar(20)"), Column("qty", "int")), ("id",))
LOG = Table("log", (Column("line", "varchar(40)"),), ())
WAYS: tuple[dict[str, Any], ...] = (*MODES.values(), {"safe_mode": True})
"""How rows are applied, each in a life of its own."""


def statements(name: str, **words: str) -> list[str]:
    """Those of a block of SQL, with other ``words`` where the page has examples."""
    (text,) = re.findall(rf"^```sql {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for old, new in words.items():
        assert old in text, old
        text = text.replace(old, new)
    return [one.strip() for one in text.split(";\n") if one.strip()]


class Dba:
    """The server's own, who has made the account of the page."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self._connection = server.connect()
        self._server = server
        for statement in statements("account"):
            self(statement)

    def __call__(self, sql: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def run(self, name: str, **words: str) -> list[Any]:
        """The answers to a block."""
        return [self(statement) for statement in statements(name, **words)]

    @property
    def account(self) -> TargetConfig:
        return dataclasses.replace(self._server.target(), user="drainer", password="a password")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def dba(fresh_mariadb: PrivateMariaDB) -> Iterator[Dba]:
    made = Dba(fresh_mariadb)
    yield made
    made.close()


class Shop(EmulatedStream):
    """Orders, and a log without a key."""

    def __init__(self, spark: SparkSession, dba: Dba, config: DrainerConfig) -> None:
        super().__init__(spark, config)
        self._dba = dba
        self.create("shop", ORDERS, LOG)
        self._next = 0

    def order(self, rows: int = 3) -> None:
        """As many new ones, one of them changed again, and lines in the log."""
        first, self._next = self._next, self._next + rows
        self.change(lambda txn: [txn.insert("shop.orders", {"id": n, "what": f"thing {n}", "qty": n}) for n in range(first, self._next)])
        self.change(lambda txn: txn.update("shop.orders", first, {"qty": 1000 + first}))
        self.change(lambda txn: [txn.insert("shop.log", {"line": f"{first} {n}"}) for n in range(2)])

    def holds(self) -> None:
        """The target holds what the upstream does."""
        wanted = sorted((row["id"], row["what"], row["qty"]) for row in self.upstream.rows("shop.orders").values())
        assert sorted(self._dba("SELECT id, what, qty FROM shop.orders")) == wanted
        assert self._dba("SELECT COUNT(*) FROM shop.log") == ((len(self.upstream.rows("shop.log")),),)


@pytest.fixture
def shop(spark: SparkSession, dba: Dba) -> Iterator[Shop]:
    with Shop(spark, dba, DrainerConfig(target=dba.account)) as made:
        yield made


def test_a_stream_as_the_account_of_the_page_and_its_looks(shop: Shop, dba: Dba) -> None:
    for number, way in enumerate(WAYS):
        config = DrainerConfig(target=dba.account)
        shop.restart(dataclasses.replace(config, apply=dataclasses.replace(config.apply, **way)))
        shop.order()
        shop.apply()
        shop.upstream.ddl.add_column("shop.orders", Column(f"more_{number}", "int"))
        shop.upstream.ddl.rename("shop.log", f"shop.log_{number}")
        shop.upstream.ddl.rename(f"shop.log_{number}", "shop.log")
        shop.order()
        shop.apply()
        shop.holds()
        (((cluster, upto, lag, consistent),),) = dba.run("lag")
        assert (cluster, consistent) == (shop.upstream.cluster_id, "true") and 0 <= lag < 3600
        ms = dba(f"SELECT FROM_UNIXTIME({physical_ms(shop.sink.commit_ts)} / 1000)")
        assert upto.replace(microsecond=0) == ms[0][0].replace(microsecond=0)
        holders, ddls = dba.run("looks")
        assert [(row[0], row[5]) for row in holders] == [(cluster, 1)] and ddls == ()
    there = {name for (name,) in dba("SHOW TABLES FROM tidb_binlog")}
    assert there <= set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) and "spark_state" in there
    with connect(dba.account, DrainerConfig().apply) as one:
        assert take_snapshot(one, [], [("shop", "orders")]).ids_known, "PROCESS is granted"


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL gives a table a key of its own")
def test_a_server_that_gives_each_table_without_a_key_one_of_its_own(shop: Shop, dba: Dba) -> None:
    dba("SET GLOBAL sql_generate_invisible_primary_key = ON")
    dba("SET GLOBAL sql_require_primary_key = ON")
    for number, way in enumerate(WAYS):
        config = DrainerConfig(target=dba.account)
        shop.restart(dataclasses.replace(config, apply=dataclasses.replace(config.apply, **way)))
        shop.order()
        shop.upstream.ddl.add_column("shop.log", Column(f"more_{number}", "int"))
        shop.order()
        shop.apply()
        lines = sorted(shop.upstream.rows("shop.log"))
        shop.change(lambda txn, lines=lines: [txn.delete("shop.log", lines[0]), txn.update("shop.log", lines[-1], {"line": "another"})])
        assert shop.apply().findings == ()
        shop.holds()
        with dying("after-ddl"):
            shop.upstream.ddl.create_table("shop", dataclasses.replace(LOG, name=f"log_{number}"))
            shop.apply()
        shop.restart()
        shop.apply()
        assert dba(f"SHOW COLUMNS FROM shop.log_{number} LIKE 'my_row_id'") and not dba(f"SELECT * FROM shop.log_{number}")
    wanted = sorted(row["line"] for row in shop.upstream.rows("shop.log").values())
    assert sorted(line for (line,) in dba("SELECT line FROM shop.log")) == wanted


def test_what_may_be_deleted_is_not_missed(shop: Shop, dba: Dba) -> None:
    shop.order()
    shop.upstream.ddl.add_column("shop.orders", Column("more", "int"))
    shop.apply()
    shop.restart()
    dba.run("cleanup")
    assert dba("SELECT COUNT(*) FROM tidb_binlog.spark_ddl WHERE state = 'done'") == ((0,),)
    shop.order()
    shop.apply()
    shop.holds()


def test_one_table_again(shop: Shop, dba: Dba) -> None:
    """As the page has it: with the Drainer stopped, the rows that the upstream had at the checkpoint's commitTS. What refers to them stays."""
    shop.order()
    shop.apply()
    dba("DELETE FROM shop.orders WHERE id = 1")
    dba(
        "CREATE TABLE shop.items (id INT PRIMARY KEY, order_id BIGINT, FOREIGN KEY (order_id) REFERENCES shop.orders (id) ON DELETE CASCADE)"
    )
    dba("INSERT INTO shop.items VALUES (1, 0), (2, 2)")
    dba("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO', foreign_key_checks = 0")
    dba("ALTER TABLE shop.orders MODIFY id BIGINT NOT NULL AUTO_INCREMENT")
    dba("SET SESSION sql_mode = DEFAULT, foreign_key_checks = DEFAULT")
    shop.restart()
    rows = ", ".join(f"({row['id']}, '{row['what']}', {row['qty']})" for row in shop.upstream.rows("shop.orders").values())
    dba.run("resync", **{"-- the dump's INSERTs\n": f"INSERT INTO shop.orders VALUES {rows};\n"})
    assert dba("SELECT COUNT(*) FROM shop.items") == ((2,),)
    shop.order()
    shop.apply()
    shop.holds()


def test_from_nothing_and_from_a_dump(shop: Shop, dba: Dba) -> None:
    shop.order()
    shop.apply()
    at = shop.sink.commit_ts
    rows, lines = dba("SELECT id, what, qty FROM shop.orders"), dba("SELECT line FROM shop.log")
    shop.order()
    shop.apply()
    shop.restart()
    dba.run("rebuild")
    shop.apply()
    shop.holds()
    shop.restart()
    dba.run("rebuild")
    dba("CREATE DATABASE shop")
    dba("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, what VARCHAR(20), qty INT)")
    dba("CREATE TABLE shop.log (line VARCHAR(40))")
    dba(f"INSERT INTO shop.orders VALUES {', '.join(map(str, rows))}")
    written = ", ".join(f"('{line}')" for (line,) in lines)
    dba(f"INSERT INTO shop.log VALUES {written}")
    dba.run("dump", **{"(7,": f"({shop.upstream.cluster_id},", "470654364857401344": str(at)})
    assert json.loads(dba("SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])["commitTS"] == at
    shop.apply()
    shop.holds()


def test_the_page_names_what_the_code_uses() -> None:
    wanted = [f"{one}" for one in rights.statements(rights.WantedRights(["shop"], "tidb_binlog"), "'drainer'@'%'")]
    assert statements("account")[1:] == wanted
    assert [name for name, _ in target_connection._IF_KNOWN if f"`{name}`" not in PAGE] == []
    settings = {"time_zone", "sql_mode", "foreign_key_checks", "unique_checks", "autocommit", "wait_timeout"}
    assert settings < target_connection._OURS and [name for name in settings if f"`{name}`" not in PAGE] == []
