"""Tables copied at one snapshot and joined by the stream: the target then holds what the upstream holds, whatever is written meanwhile."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.emulator.online import drop_index
from pyspark_tidb_binlog.binlog_source.emulator.schema import Column, Table
from pyspark_tidb_binlog.binlog_source.emulator.values import EVERY_TYPE, value_for
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TableName, TableRoute
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import (
    ApplyError,
    BootstrapRefused,
    LeaseHeld,
    ReplicationError,
    RetryableApplyError,
    SnapshotCollected,
)
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap
from pyspark_tidb_binlog.sinks.bootstrap.target_tables import TargetTables, WantedTable
from tests.support.bootstrap_life import run_life
from tests.support.bootstrapped_stream import BootstrappedStream, by_value
from tests.support.ddl_target import dying
from tests.support.lost_answers import losing
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import rows_of, run_sql

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "bootstrap_marks"
ITEM = Table("item", (Column("id", "bigint unsigned"), Column("v", "int"), Column("f", "float"), Column("t", "varchar(20)")), ("id",))
KEYLESS = Table("log", (Column("a", "int"), Column("b", "varchar(10)")))
NAMED = Table("named", (Column("k", "varchar(20)"), Column("n", "int"), Column("v", "varbinary(9)")), ("k", "n"))
TYPES = Table("types", (Column("id", "bigint"), *(Column(f"c{i}", kind) for i, kind in enumerate(EVERY_TYPE))), ("id",))
LOOSE = Table("loose", (Column("id", "bigint"), Column("v", "int")), ("id",), clustered=False)
ALL = BootstrapRequest(everything=True)


@pytest.fixture(scope="module")
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


@pytest.fixture
def stream(
    spark: SparkSession, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., BootstrappedStream]]:
    monkeypatch.setattr("pyspark_tidb_binlog.jobs.stream.table_loader._TRIES", 2)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.lease_guard._SLICE", 1)
    made: list[BootstrappedStream] = []
    drop(mariadb)

    def make(**more: Any) -> BootstrappedStream:
        settings = {"checkpoint_schema": MARKS, "on_finding": "stop", "lease_timeout": 2.0} | more
        made.append(BootstrappedStream(spark, DrainerConfig(target=mariadb.target(), apply=ApplyConfig(**settings)), source))
        return made[-1]

    yield make
    for one in made:
        one.restart()
        one.mirror.close()
    drop(mariadb)


def drop(server: PrivateMariaDB) -> None:
    for name in ("shop", "mart", "hollow", MARKS):
        run_sql(server, f"DROP DATABASE IF EXISTS {name}")


def shop(run: BootstrappedStream, *tables: Table) -> None:
    run.mirror.create_database("shop")
    for table in tables:
        run.mirror.create_table("shop", table)


def filled(run: BootstrappedStream, count: int = 40) -> None:
    """Rows of the small tables."""

    def insert(txn: Any) -> None:
        for number in range(1, count + 1):
            txn.insert(
                "shop.item", {"id": (1 << 64) - number if number % 2 else number, "v": number, "f": 0.1 * number, "t": f"it's {number}\\"}
            )
            txn.insert("shop.log", {"a": number % 5, "b": "x"})
            txn.insert("shop.named", {"k": f"k{number % 3}", "n": number, "v": bytes([0, number, 0x27, 0x5C])})

    run.change(insert)


def more_changes(run: BootstrappedStream, number: int) -> None:
    """One transaction of every kind."""
    items = sorted(run.upstream.rows("shop.item"))
    logs = sorted(run.upstream.rows("shop.log"))
    named = sorted(run.upstream.rows("shop.named"))

    def work(txn: Any) -> None:
        txn.insert("shop.item", {"id": 1000 + number, "v": number, "f": 1 / 3, "t": None})
        txn.update("shop.item", items[number % len(items)], {"v": -number})
        txn.delete("shop.item", items[(number + 7) % len(items)])
        txn.insert("shop.log", {"a": number % 5, "b": "x"})
        txn.delete("shop.log", logs[number % len(logs)])
        txn.update("shop.named", named[number % len(named)], {"v": b"new"})

    run.change(work)


def same(run: BootstrappedStream, source: PrivateMariaDB, target: PrivateMariaDB, *tables: str) -> None:
    for table in tables:
        wanted = rows_of(source, table)
        assert rows_of(target, table) == wanted and wanted, table


@pytest.fixture
def run(stream: Callable[..., BootstrappedStream]) -> BootstrappedStream:
    """A stream of the small tables, which have rows; nothing is at the target."""
    made = stream()
    shop(made, ITEM, KEYLESS, NAMED)
    filled(made)
    return made


def state(server: PrivateMariaDB) -> str:
    return str(run_sql(server, f"SELECT state FROM {MARKS}.spark_bootstrap WHERE table_name = ''")[0][0])


SMALL = ("shop.item", "shop.log", "shop.named")


@pytest.mark.shows("drainer --bootstrap-all")
def test_a_first_load_with_writes_going_on(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            more_changes(run, number := number + 1)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        began = run.begin(ALL)
    finally:
        over.set()
        writing.join()
    assert state(mariadb) == "joined"
    assert run.change(lambda txn: txn.insert("shop.log", {"a": 77, "b": None})) > began
    run.mirror.add_column("shop.log", Column("c", "int"))
    run.change(lambda txn: txn.insert("shop.log", {"a": 78, "b": None, "c": 5}))
    report = run.apply()
    assert report.row_events > 0 and not report.findings
    same(run, source, mariadb, *SMALL)


@pytest.mark.shows("drainer --bootstrap-all")
def test_every_type_as_it_is(stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    run, chance = stream(), random.Random(5)
    shop(run, TYPES)
    history = run.history()
    info = history.find("shop", "types", history.newest_version)
    assert info is not None
    columns = info.info.target_columns()
    for number in range(60):
        values = {c.name: value_for(c, chance) for c in columns} | {"id": number}
        run.change(lambda txn, values=values: txn.insert("shop.types", values))
    run.begin(ALL)
    wanted = by_value(TYPES, rows_of(source, "shop.types"))
    assert by_value(TYPES, rows_of(mariadb, "shop.types")) == wanted and len(wanted) == 60


@pytest.mark.shows("drainer --bootstrap")
def test_one_table_again_at_the_checkpoint(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    run.apply()
    more_changes(run, 1)
    run.apply()
    run_sql(mariadb, "DELETE FROM shop.item WHERE v % 3 = 0")
    run_sql(mariadb, "UPDATE shop.log SET b = 'wrong'")
    run_sql(mariadb, "ALTER TABLE shop.log ADD COLUMN ours INT DEFAULT 9")
    checkpoint = run.sink.commit_ts
    more_changes(run, 2)
    run.mirror.tick()
    assert run.begin(BootstrapRequest(tables=(("SHOP", "item"), ("shop", "LOG")))) == checkpoint
    assert rows_of(mariadb, "shop.log") and {row[-1] for row in rows_of(mariadb, "shop.log")} == {b"9"}
    run_sql(mariadb, "ALTER TABLE shop.log DROP COLUMN ours")
    run.apply()
    same(run, source, mariadb, *SMALL)
    assert [r.findings for r in run.reports if r.findings] == []


def test_a_table_that_ddls_changed_behind_a_filter_is_not_copied_into_its_old_definition(
    run: BootstrappedStream, mariadb: PrivateMariaDB
) -> None:
    words = Table("words", (Column("id", "bigint"), Column("u", "int"), Column("v", "varchar(5)")), ("id",), unique=(("u",),))
    run.mirror.create_table("shop", words)
    run.change(lambda txn: txn.insert("shop.words", {"id": 1, "u": 1, "v": "v1"}))
    run.apply()
    run_sql(mariadb, "ALTER TABLE shop.words ADD COLUMN ours INT, ADD KEY mine (ours)")
    run.begin(ignore_table=(TableName("shop", "words"),))
    run.upstream.ddl.alter("shop.words", drop_index("u1"))
    run.upstream.ddl.modify_column("shop.words", Column("v", "varchar(20)"))
    run.mirror.alter("shop.words", "DROP INDEX u1, MODIFY v VARCHAR(20)")
    run.change(lambda txn: txn.insert("shop.words", {"id": 2, "u": 1, "v": "a longer one"}))
    run.apply()
    run.mirror.tick()
    again = BootstrapRequest(tables=(("shop", "words"),))
    for mended in ("ALTER TABLE shop.words MODIFY v VARCHAR(20)", "ALTER TABLE shop.words DROP INDEX u1"):
        with pytest.raises(BootstrapRefused, match=r"shop\.words: .*key u1 still there.*drop the table at the target"):
            run.begin(again, ignore_table=())
        assert len(run_sql(mariadb, "SELECT * FROM shop.words")) == 1, "nothing is emptied"
        run_sql(mariadb, mended)
    run.begin(again, ignore_table=())
    assert run_sql(mariadb, "SELECT id, u, v FROM shop.words") == [(1, 1, "v1"), (2, 1, "a longer one")]


@pytest.mark.shows("drainer --bootstrap")
def test_routes_columns_and_conditions(stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB) -> None:
    routes = (
        TableRoute("shop", "item", "mart", "thing", ("id", "v"), "v > 10 AND t IS NOT NULL"),
        TableRoute("shop", "log", "mart", "log"),
    )
    run = stream(routes=routes, ignore_table=(TableName("shop", "named"),))
    shop(run, ITEM, KEYLESS, NAMED)
    filled(run)
    run.mirror.create_database("hollow")
    run.mirror.tick()
    run.begin(ALL)
    assert run_sql(mariadb, "SHOW DATABASES LIKE 'hollow'")
    wanted = {(h, r["v"]) for h, r in run.upstream.rows("shop.item").items() if r["v"] > 10 and r["t"] is not None}
    assert set(run_sql(mariadb, "SELECT * FROM mart.thing")) == {(h % (1 << 64), v) for h, v in wanted}
    assert len(run_sql(mariadb, "SELECT * FROM mart.log")) == 40
    assert run_sql(mariadb, "SHOW TABLES FROM mart LIKE 'named'") == []
    run.change(lambda txn: txn.update("shop.item", 2, {"v": 50}))
    run.apply()
    assert run_sql(mariadb, "SELECT v FROM mart.thing WHERE id = 2") == [(50,)]


@pytest.mark.shows("drainer --bootstrap")
def test_what_is_refused(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    with pytest.raises(BootstrapRefused, match="fill the target with --bootstrap-all"):
        run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    run_sql(mariadb, "CREATE DATABASE shop")
    run_sql(mariadb, "CREATE TABLE shop.log (a INT)")
    run_sql(mariadb, "INSERT INTO shop.log VALUES (1)")
    with pytest.raises(BootstrapRefused, match=r"rows in shop\.log\. Drop"):
        run.begin(ALL)
    run_sql(mariadb, "DELETE FROM shop.log")
    with pytest.raises(BootstrapRefused, match=r"shop\.log at the target: it has no column b"):
        run.begin(ALL)
    run_sql(mariadb, "DROP TABLE shop.log")
    begun = run.begin()  # what is begun is finished, asked for or not
    assert begun == int(run_sql(mariadb, f"SELECT snapshot_ts FROM {MARKS}.spark_bootstrap LIMIT 1")[0][0])
    same(run, source, mariadb, *SMALL)
    with pytest.raises(BootstrapRefused, match=r"shop\.items: no such table .* did you mean shop\.item\?"):
        run.begin(BootstrapRequest(tables=(("shop", "items"),)))
    run.mirror.collect(run.mirror.tick())
    with pytest.raises(SnapshotCollected, match="GC has passed it"):
        run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    same(run, source, mariadb, *SMALL)
    assert run.begin(ALL) == begun
    run.restart()
    run.mirror.collect(0)
    run.mirror.account = mariadb.target()
    run.request = BootstrapRequest(tables=(("shop", "item"),))
    with pytest.raises(BootstrapRefused, match="is the target itself"):
        assert run.sink
    same(run, source, mariadb, *SMALL)
    run.mirror.account = source.target()
    run.begin()
    with pytest.raises(LeaseHeld, match="already has a running Drainer"):
        run.beside(BootstrapRequest(tables=(("shop", "item"),)))
    same(run, source, mariadb, *SMALL)
    run_sql(mariadb, f"ALTER TABLE {MARKS}.spark_bootstrap DROP COLUMN made, COMMENT = 'layout 0'")
    with pytest.raises(ApplyError, match=rf"`{MARKS}`\.`spark_bootstrap` at the target has the comment 'layout 0'"):
        run.begin()
    run_sql(mariadb, f"DROP TABLE {MARKS}.spark_bootstrap")
    run.begin()
    run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    same(run, source, mariadb, *SMALL)


POINTS = (
    "after-bootstrap-begin:1,after-bootstrap-empty:2,before-bootstrap-commit:3,after-bootstrap-chunk:4,after-bootstrap-chunk:9,after-bootstrap-table:2,"
    "before-bootstrap-record:1"
)


@pytest.mark.shows("drainer --bootstrap-all")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["first load", "tables"])
def test_killed_at_every_step_it_goes_on_exactly(
    kind: str, stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB, source: PrivateMariaDB, tmp_path: Path
) -> None:
    run = stream()
    shop(run, ITEM, KEYLESS, NAMED, LOOSE)
    filled(run)
    run.change(lambda txn: [txn.insert("shop.loose", {"id": n, "v": n}) for n in range(30)])
    if kind == "tables":
        run.apply()
        run.mirror.tick()
        run_sql(mariadb, "DELETE FROM shop.item WHERE v % 3 = 0")
        run_sql(mariadb, "UPDATE shop.log SET b = 'wrong'")
    run.restart()
    run.request = ALL if kind == "first load" else BootstrapRequest(tables=(("shop", "*"),))
    deaths = 0
    while run_life(run.life(tmp_path / "history.json"), tmp_path, POINTS):
        deaths += 1
        more_changes(run, deaths)
        run.request = BootstrapRequest()
    assert deaths == POINTS.count(":")
    assert [r for r in run_sql(mariadb, f"SELECT state FROM {MARKS}.spark_bootstrap WHERE unit >= 0")] == []
    more_changes(run, 50)
    run.begin()
    run.apply()
    same(run, source, mariadb, *SMALL, "shop.loose")
    assert [r.findings for r in run.reports if r.findings] == []


@pytest.mark.shows("drainer --bootstrap-restart")
def test_a_first_load_is_begun_again(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dying("after-bootstrap-empty"):
        run.begin(ALL)
    more_changes(run, 1)
    run.mirror.collect(run.mirror.tick())
    with pytest.raises(SnapshotCollected, match="--bootstrap-restart"):
        run.begin()
    again, former = BootstrapRequest(restart=True), "CREATE TABLE shop.item (id BIGINT UNSIGNED, v INT, f FLOAT, t VARCHAR(20))"
    with monkeypatch.context() as patch, pytest.raises(ApplyError, match=r"shop\.item is there, although it was dropped: .* lost"):
        losing(patch, TargetTables, "drop", lambda: run_sql(mariadb, former))
        run.begin(again)
    assert run.begin(again) > 0 and run_sql(mariadb, "SHOW KEYS FROM shop.item")
    more_changes(run, 2)
    run.apply()
    same(run, source, mariadb, *SMALL)


def test_a_copy_that_is_begun_again_in_vain_is_still_to_be_done(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run.apply()
    run.mirror.tick()
    with dying("after-bootstrap-empty"):
        run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    run.mirror.collect(run.mirror.tick())
    for request in (BootstrapRequest(restart=True), BootstrapRequest()):
        with pytest.raises(ReplicationError, match="GC has passed it"):
            run.begin(request)
    more_changes(run, 1)
    run.begin(ignore_table=(TableName("shop", "item"),))
    run.apply()
    run.mirror.tick()
    run.mirror.collect(run.mirror.tick())
    with pytest.raises(SnapshotCollected):
        run.begin(ignore_table=())
    run.mirror.collect(0)
    run.begin()
    same(run, source, mariadb, *SMALL)


def test_what_is_left_out_in_the_middle_of_its_copy_is_copied_when_it_comes_back(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run.apply()
    run.mirror.tick()
    with dying("after-bootstrap-empty"):
        run.begin(BootstrapRequest(tables=(("shop", "item"), ("shop", "log"))))
    without = {"ignore_table": (TableName("shop", "item"),)}
    run.begin(**without)
    same(run, source, mariadb, "shop.log", "shop.named")
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run.begin(BootstrapRequest(tables=(("shop", "named"),)), **without)
    more_changes(run, 2)
    run.begin(ignore_table=())
    run.apply()
    same(run, source, mariadb, *SMALL)
    assert run_sql(mariadb, f"SELECT COUNT(*) FROM {MARKS}.spark_bootstrap WHERE state NOT IN ('done', 'joined')") == [(0,)]


def test_a_table_with_other_words_at_the_target_is_refused(
    stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run = stream()
    shop(run, Table("worded", (Column("id", "bigint"), Column("e", "enum('a','b')")), ("id",)))
    run.change(lambda txn: txn.insert("shop.worded", {"id": 1, "e": "a"}))
    run_sql(mariadb, "CREATE DATABASE shop")
    run_sql(mariadb, "CREATE TABLE shop.worded (id BIGINT PRIMARY KEY, e ENUM('b','a'))")
    with pytest.raises(BootstrapRefused, match=r"shop\.worded at the target: the ENUM or SET words of e differ"):
        run.begin(ALL)
    run_sql(mariadb, "DROP TABLE shop.worded")
    run.begin()
    assert run_sql(mariadb, "SELECT e FROM shop.worded") == [("a",)]


def test_another_route_in_the_middle_of_a_copy_is_refused(
    stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run = stream()
    shop(run, ITEM)
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n, "f": 0, "t": ""}) for n in range(40)])
    run_sql(mariadb, "CREATE DATABASE mart")
    run_sql(mariadb, "CREATE TABLE mart.thing (id BIGINT UNSIGNED PRIMARY KEY, v INT, f FLOAT, t VARCHAR(20))")
    run_sql(mariadb, "INSERT INTO mart.thing VALUES (99, 1, 1, 'theirs')")
    with dying("before-bootstrap-record"):
        run.begin(ALL)
    other = (TableRoute("shop", "item", "mart", "thing"),)
    with pytest.raises(BootstrapRefused, match=r"shop\.item: copied, wholly or in part"):
        run.begin(routes=other)
    run.mirror.tick()
    with pytest.raises(BootstrapRefused, match=r"rows in mart\.thing"):
        run.begin(BootstrapRequest(restart=True), routes=other)
    with dying("after-bootstrap-begin"):
        run.begin(BootstrapRequest(restart=True), routes=())
    with pytest.raises(BootstrapRefused, match=r"shop\.item: copied, wholly or in part"):
        run.begin(routes=other)
    assert run_sql(mariadb, "SELECT t FROM mart.thing") == [("theirs",)]
    run.begin(routes=())
    same(run, source, mariadb, "shop.item")


def test_a_table_that_the_target_refused_is_of_whoever_makes_it(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: TargetTables, wanted: WantedTable) -> None:
        raise ApplyError("the target refuses it")

    with monkeypatch.context() as patched, pytest.raises(ApplyError, match="refuses it"):
        patched.setattr(TargetTables, "_make", refuse)
        run.begin(ALL)
    run_sql(mariadb, "CREATE TABLE shop.item (id BIGINT UNSIGNED PRIMARY KEY, v INT, f FLOAT, t VARCHAR(20), KEY theirs (v))")
    run_sql(mariadb, "INSERT INTO shop.item VALUES (1, 1, 1, 'theirs')")
    for again in (BootstrapRequest(), BootstrapRequest(restart=True)):
        with pytest.raises(BootstrapRefused, match=r"rows in shop\.item"):
            run.begin(again)
    assert run_sql(mariadb, "SELECT t FROM shop.item") == [("theirs",)]


def test_what_is_added_to_a_table_of_the_stream_stays_when_its_copy_is_begun_again(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run.apply()
    run.mirror.tick()
    run_sql(mariadb, "DROP TABLE shop.item")
    two = (("shop", "item"), ("shop", "log"))
    with dying("after-bootstrap-table"):
        run.begin(BootstrapRequest(tables=two))
    run_sql(mariadb, "ALTER TABLE shop.item ADD KEY theirs (v)")
    run.mirror.tick()
    run.begin(BootstrapRequest(tables=two, restart=True))
    same(run, source, mariadb, *SMALL)
    assert run_sql(mariadb, "SHOW INDEX FROM shop.item WHERE Key_name = 'theirs'")


@pytest.mark.shows("drainer --bootstrap-restart")
def test_what_an_earlier_start_made_is_removed_where_the_upstream_has_it_no_more_or_otherwise(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    run_sql(mariadb, "CREATE DATABASE shop")
    run_sql(mariadb, "CREATE TABLE shop.log (a INT, b VARCHAR(10), KEY theirs (a))")
    with dying("before-bootstrap-record"):
        run.begin(ALL)
    for table in ("shop.item", "shop.log", "shop.named"):
        run.mirror.drop_table(table)
    run.mirror.create_table("shop", Table("item", ITEM.columns, ("id",), unique=(("t", "v"),)))
    run.change(lambda txn: txn.insert("shop.item", {"id": 7, "v": 1, "f": 0, "t": "x"}))
    run.begin(BootstrapRequest(restart=True))
    same(run, source, mariadb, "shop.item")
    assert run_sql(mariadb, "SHOW TABLES FROM shop") == [("item",), ("log",)] and not run_sql(mariadb, "SELECT * FROM shop.log")
    assert {row[2] for row in run_sql(mariadb, "SHOW KEYS FROM shop.item")} == {"PRIMARY", "u1"}


def as_before_its_checkpoint(run: BootstrappedStream, server: PrivateMariaDB, state: str) -> None:
    """The record says ``state``, and the target has no checkpoint."""
    run.restart()
    run_sql(server, f"UPDATE {MARKS}.spark_bootstrap SET state = '{state}' WHERE table_name = ''")
    run_sql(server, f"DELETE FROM {MARKS}.checkpoint")


def test_a_first_load_that_is_done_and_not_joined(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    began = run.begin(ALL, ignore_table=(TableName("shop", "item"),))
    as_before_its_checkpoint(run, mariadb, "done")
    more_changes(run, 1)
    assert run.begin(ignore_table=()) == began  # what filters let in since is copied at the same snapshot
    run.apply()
    same(run, source, mariadb, *SMALL)
    as_before_its_checkpoint(run, mariadb, "done")
    run_sql(mariadb, "TRUNCATE TABLE shop.log")
    with pytest.raises(
        BootstrapRefused, match=r"shop\.log: .* records this table as copied, but at the target it is empty or does not exist"
    ):
        run.begin()
    run_sql(mariadb, "DROP DATABASE shop")
    with pytest.raises(BootstrapRefused, match=r"shop\.item, shop\.log, shop\.named: .* records this table as copied"):
        run.begin()
    assert run.begin(BootstrapRequest(restart=True)) > began
    same(run, source, mariadb, *SMALL)


@pytest.mark.shows("drainer --bootstrap-restart")
def test_a_first_load_whose_checkpoint_is_lost(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    run.begin(ALL)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    as_before_its_checkpoint(run, mariadb, "joined")
    with pytest.raises(BootstrapRefused, match=r"rows in shop\.item, .* --bootstrap-restart removes what"):
        run.begin(ALL)
    with pytest.raises(BootstrapRefused, match="--bootstrap-all --bootstrap-restart"):
        run.begin(BootstrapRequest(restart=True))
    run.begin(BootstrapRequest(everything=True, restart=True))
    more_changes(run, 2)
    run.apply()
    same(run, source, mariadb, *SMALL)


def test_a_target_that_is_emptied_in_the_middle_of_its_copy(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB
) -> None:
    with dying("after-bootstrap-table"):
        run.begin(ALL)
    done = f"SELECT table_name FROM {MARKS}.spark_bootstrap WHERE unit = -1 AND state = 'done' AND table_name <> ''"
    ((table,),) = run_sql(mariadb, done)
    run_sql(mariadb, f"DELETE FROM shop.{table}")
    with pytest.raises(BootstrapRefused, match=rf"shop\.{table}: .* records this table as copied"):
        run.begin()
    run.begin(BootstrapRequest(restart=True))
    same(run, source, mariadb, *SMALL)


def test_a_table_that_is_another_one_by_the_history(stream: Callable[..., BootstrappedStream], mariadb: PrivateMariaDB) -> None:
    run = stream()
    shop(run, ITEM)
    filled_ids = run.mirror.sql("SELECT table_id FROM mirror.shapes WHERE table_name = 'item'")
    run.mirror.sql("UPDATE mirror.shapes SET table_id = 99999")
    with pytest.raises(
        BootstrapRefused, match=rf"shop\.item has the id 99999 in the upstream's snapshot, and {filled_ids[0][0]} in the DDL history"
    ):
        run.begin(ALL)
    assert run_sql(mariadb, "SHOW DATABASES LIKE 'shop'") == []


def test_an_upstream_of_another_cluster_is_refused(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    run.apply()
    run.mirror.tick()
    run.servers = {"another": "10.0.0.9:4000"}
    with pytest.raises(BootstrapRefused, match=r"servers 10\.0\.0\.1:4000 \(the-mirror\); cluster \d+ has 10\.0\.0\.9:4000 \(another\)"):
        run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    same(run, source, mariadb, *SMALL)
    run.servers = {}
    with caplog.at_level("WARNING"):
        run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    assert "cannot verify that spark.upstream" in caplog.text
    same(run, source, mariadb, *SMALL)


def test_tables_that_are_renamed_dropped_and_truncated_after_the_snapshot(run: BootstrappedStream, mariadb: PrivateMariaDB) -> None:
    with dying("after-bootstrap-begin"):
        run.begin(ALL)
    ddl = run.upstream.ddl
    ddl.rename("shop.item", "shop.thing")
    ddl.drop_table("shop.log")
    ddl.truncate("shop.named")
    for table in SMALL:
        run.mirror.note_dropped(table)
    txn = run.upstream.begin()
    txn.insert("shop.thing", {"id": 99_999, "v": 1, "f": 0, "t": "new"})
    txn.insert("shop.named", {"k": "new", "n": 1, "v": b"new"})
    txn.commit()
    run.begin()
    assert [run_sql(mariadb, f"SELECT COUNT(*) FROM {table}") for table in SMALL] == [[(40,)]] * 3
    run.apply()
    assert sorted(run_sql(mariadb, "SHOW TABLES FROM shop")) == [("named",), ("thing",)]
    assert run_sql(mariadb, "SELECT COUNT(*), MAX(t = 'new') FROM shop.thing") == [(41, 1)]
    assert run_sql(mariadb, "SELECT k FROM shop.named") == [("new",)]


def test_a_transient_error_behind_the_making_of_a_table(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt takes the table for that of the copy, as a later life would."""
    made, errors = TargetTables.make_ready, [RetryableApplyError("the answer is lost", 2013, "Lost connection", "target")]

    def fail_once(self: TargetTables, wanted: WantedTable, *, may_empty: bool) -> tuple[str, ...]:
        losses = made(self, wanted, may_empty=may_empty)
        if errors:
            raise errors.pop()
        return losses

    monkeypatch.setattr(TargetTables, "make_ready", fail_once)
    run.begin(ALL)
    assert not errors
    assert run_sql(mariadb, f"SELECT MIN(made) FROM {MARKS}.spark_bootstrap WHERE table_name <> ''") == [(1,)]
    same(run, source, mariadb, *SMALL)


def test_a_table_that_is_not_there_empty_although_the_target_has_answered_so(
    run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        losing(patch, TargetTables, "make_ready", lambda: run_sql(mariadb, "DROP TABLE IF EXISTS shop.item, shop.log, shop.named"))
        with pytest.raises(ApplyError, match="does not exist or has rows, .* lost transactions"):
            run.begin(ALL)
    run.begin()
    same(run, source, mariadb, *SMALL)
    with monkeypatch.context() as patch:
        losing(patch, TargetTables, "make_ready", lambda: run_sql(mariadb, "INSERT INTO shop.log VALUES (5, 'before')"))
        with pytest.raises(ApplyError, match=r"shop\.log does not exist or has rows, .* lost transactions"):
            run.begin(BootstrapRequest(tables=(("shop", "log"),)))
    run.begin()
    same(run, source, mariadb, *SMALL)


@pytest.mark.parametrize("lost", ["its end", "a table", "everything"])
def test_a_first_load_whose_end_is_lost_when_the_checkpoint_is_made(
    lost: str, run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        run_sql(mariadb, f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned' WHERE table_name = ''")
        if lost == "a table":
            run_sql(mariadb, "DROP TABLE shop.log")
            run_sql(mariadb, f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned', made = 0 WHERE table_name = 'log'")
        if lost == "everything":
            run_sql(mariadb, "DROP DATABASE shop")
            run_sql(mariadb, f"DELETE FROM {MARKS}.spark_bootstrap")

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", lose)
        run.begin(ALL)
    assert state(mariadb) == "joined"
    same(run, source, mariadb, *SMALL)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run_sql(mariadb, "UPDATE shop.log SET b = 'stays'")
    run.begin(BootstrapRequest(tables=(("shop", "item"),)))
    same(run, source, mariadb, "shop.item")
    assert run_sql(mariadb, "SELECT DISTINCT b FROM shop.log") == [("stays",)]


@pytest.mark.parametrize("there", [False, True])
def test_a_table_that_a_later_life_lets_in_and_the_target_loses(
    there: bool, run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``there``: somebody has made it at the target, empty."""
    run.begin(ALL, ignore_table=(TableName("shop", "log"),))
    as_before_its_checkpoint(run, mariadb, "done")
    if there:
        run_sql(mariadb, "CREATE TABLE shop.log (a INT, b VARCHAR(10))")

    def lose() -> None:
        run_sql(mariadb, "DELETE FROM shop.log" if there else "DROP TABLE shop.log")
        run_sql(mariadb, f"DELETE FROM {MARKS}.spark_bootstrap WHERE table_name = 'log'")

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", lose)
        run.begin(ignore_table=())
    assert state(mariadb) == "joined"
    same(run, source, mariadb, *SMALL)


def test_a_first_load_half_done_behind_the_checkpoint(run: BootstrappedStream, mariadb: PrivateMariaDB, source: PrivateMariaDB) -> None:
    run.begin(ALL)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run.restart()
    run_sql(mariadb, f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned' WHERE table_name IN ('', 'log')")
    with pytest.raises(BootstrapRefused, match=r"Start with --bootstrap-restart: .* If the tables were filled"):
        run.begin()
    run.begin(BootstrapRequest(restart=True))
    assert state(mariadb) == "joined"
    same(run, source, mariadb, *SMALL)
    run.restart()
    run_sql(mariadb, f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned', kind = 'first', snapshot_ts = 5 WHERE table_name = ''")
    run.begin()  # every table is copied, and the record is behind
    assert state(mariadb) == "joined"
    same(run, source, mariadb, *SMALL)
