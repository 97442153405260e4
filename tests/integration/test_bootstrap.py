"""Tables copied at one snapshot and joined by the stream: the target then holds what the upstream holds, whatever is written meanwhile."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TableName, TableRoute
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest
from pyspark_tidb_binlog.jobs.lab.emulator.online import drop_index
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE, value_for
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


class Run(BootstrappedStream):
    """A stream whose servers are at hand."""

    server: PrivateMariaDB
    upstream_server: PrivateMariaDB

    def at(self, *statements: str) -> list[tuple[Any, ...]]:
        """What a person does at the target."""
        return run_sql(self.server, *statements)

    def same(self, *tables: str) -> None:
        """The target has the upstream's rows."""
        for table in tables or SMALL:
            wanted = rows_of(self.upstream_server, table)
            assert rows_of(self.server, table) == wanted and wanted, table

    def state(self) -> str:
        return str(self.at(f"SELECT state FROM {MARKS}.spark_bootstrap WHERE table_name = ''")[0][0])


Make = Callable[..., Run]
SMALL = ("shop.item", "shop.log", "shop.named")
RESTART = BootstrapRequest(restart=True)


def named(*tables: str) -> BootstrapRequest:
    return BootstrapRequest(tables=tuple(("shop", table) for table in tables))


@pytest.fixture(scope="module")
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


@pytest.fixture
def stream(spark: SparkSession, mariadb: PrivateMariaDB, source: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr("pyspark_tidb_binlog.jobs.stream.table_loader._TRIES", 2)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.lease_guard._SLICE", 1)
    made: list[Run] = []
    drop(mariadb)

    def make(**more: Any) -> Run:
        settings = {"checkpoint_schema": MARKS, "on_finding": "stop", "lease_timeout": 2.0} | more
        made.append(Run(spark, DrainerConfig(target=mariadb.target(), apply=ApplyConfig(**settings)), source))
        made[-1].server, made[-1].upstream_server = mariadb, source
        return made[-1]

    yield make
    for one in made:
        one.restart()
        one.mirror.close()
    drop(mariadb)


def drop(server: PrivateMariaDB) -> None:
    for name in ("shop", "mart", "hollow", MARKS):
        run_sql(server, f"DROP DATABASE IF EXISTS {name}")


def shop(run: Run, *tables: Table) -> None:
    run.mirror.create_database("shop")
    for table in tables:
        run.mirror.create_table("shop", table)


def filled(run: Run, count: int = 40) -> None:
    """Rows of the small tables."""

    def insert(txn: Any) -> None:
        for number in range(1, count + 1):
            txn.insert(
                "shop.item", {"id": (1 << 64) - number if number % 2 else number, "v": number, "f": 0.1 * number, "t": f"it's {number}\\"}
            )
            txn.insert("shop.log", {"a": number % 5, "b": "x"})
            txn.insert("shop.named", {"k": f"k{number % 3}", "n": number, "v": bytes([0, number, 0x27, 0x5C])})

    run.change(insert)


def more_changes(run: Run, number: int) -> None:
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


@pytest.fixture
def run(stream: Make) -> Run:
    """A stream of the small tables, which have rows; nothing is at the target."""
    made = stream()
    shop(made, ITEM, KEYLESS, NAMED)
    filled(made)
    return made


@pytest.mark.shows("drainer --bootstrap-all")
def test_a_first_load_with_writes_going_on(run: Run) -> None:
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
    assert run.state() == "joined"
    assert run.change(lambda txn: txn.insert("shop.log", {"a": 77, "b": None})) > began
    run.mirror.add_column("shop.log", Column("c", "int"))
    run.change(lambda txn: txn.insert("shop.log", {"a": 78, "b": None, "c": 5}))
    report = run.apply()
    assert report.row_events > 0 and not report.findings
    run.same()


@pytest.mark.shows("drainer --bootstrap-all")
def test_every_type_as_it_is(stream: Make) -> None:
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
    wanted = by_value(TYPES, rows_of(run.upstream_server, "shop.types"))
    assert by_value(TYPES, rows_of(run.server, "shop.types")) == wanted and len(wanted) == 60


@pytest.mark.shows("drainer --bootstrap")
def test_one_table_again_at_the_checkpoint(run: Run) -> None:
    run.apply()
    more_changes(run, 1)
    run.apply()
    run.at("DELETE FROM shop.item WHERE v % 3 = 0", "UPDATE shop.log SET b = 'wrong'")
    run.at("ALTER TABLE shop.log ADD COLUMN ours INT DEFAULT 9")
    checkpoint = run.sink.commit_ts
    more_changes(run, 2)
    run.mirror.tick()
    assert run.begin(BootstrapRequest(tables=(("SHOP", "item"), ("shop", "LOG")))) == checkpoint
    assert rows_of(run.server, "shop.log") and {row[-1] for row in rows_of(run.server, "shop.log")} == {b"9"}
    run.at("ALTER TABLE shop.log DROP COLUMN ours")
    run.apply()
    run.same()
    assert [r.findings for r in run.reports if r.findings] == []


def test_a_table_that_ddls_changed_behind_a_filter_is_not_copied_into_its_old_definition(run: Run) -> None:
    words = Table("words", (Column("id", "bigint"), Column("u", "int"), Column("v", "varchar(5)")), ("id",), unique=(("u",),))
    run.mirror.create_table("shop", words)
    run.change(lambda txn: txn.insert("shop.words", {"id": 1, "u": 1, "v": "v1"}))
    run.apply()
    run.at("ALTER TABLE shop.words ADD COLUMN ours INT, ADD KEY mine (ours)")
    run.begin(ignore_table=(TableName("shop", "words"),))
    run.upstream.ddl.alter("shop.words", drop_index("u1"))
    run.upstream.ddl.modify_column("shop.words", Column("v", "varchar(20)"))
    run.mirror.alter("shop.words", "DROP INDEX u1, MODIFY v VARCHAR(20)")
    run.change(lambda txn: txn.insert("shop.words", {"id": 2, "u": 1, "v": "a longer one"}))
    run.apply()
    run.mirror.tick()
    again = named("words")
    for mended in ("ALTER TABLE shop.words MODIFY v VARCHAR(20)", "ALTER TABLE shop.words DROP INDEX u1"):
        with pytest.raises(BootstrapRefused, match=r"shop\.words: .*key u1 still there.*drop the table at the target"):
            run.begin(again, ignore_table=())
        assert len(run.at("SELECT * FROM shop.words")) == 1, "nothing is emptied"
        run.at(mended)
    run.begin(again, ignore_table=())
    assert run.at("SELECT id, u, v FROM shop.words") == [(1, 1, "v1"), (2, 1, "a longer one")]


@pytest.mark.shows("drainer --bootstrap")
def test_routes_columns_and_conditions(stream: Make) -> None:
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
    assert run.at("SHOW DATABASES LIKE 'hollow'")
    wanted = {(h, r["v"]) for h, r in run.upstream.rows("shop.item").items() if r["v"] > 10 and r["t"] is not None}
    assert set(run.at("SELECT * FROM mart.thing")) == {(h % (1 << 64), v) for h, v in wanted}
    assert len(run.at("SELECT * FROM mart.log")) == 40
    assert run.at("SHOW TABLES FROM mart LIKE 'named'") == []
    run.change(lambda txn: txn.update("shop.item", 2, {"v": 50}))
    run.apply()
    assert run.at("SELECT v FROM mart.thing WHERE id = 2") == [(50,)]


@pytest.mark.shows("drainer --bootstrap")
def test_what_is_refused(run: Run) -> None:
    with pytest.raises(BootstrapRefused, match="fill the target with --bootstrap-all"):
        run.begin(named("item"))
    run.at("CREATE DATABASE shop", "CREATE TABLE shop.log (a INT)", "INSERT INTO shop.log VALUES (1)")
    with pytest.raises(BootstrapRefused, match=r"rows in shop\.log\. Drop"):
        run.begin(ALL)
    run.at("DELETE FROM shop.log")
    with pytest.raises(BootstrapRefused, match=r"shop\.log at the target: it has no column b"):
        run.begin(ALL)
    run.at("DROP TABLE shop.log")
    begun = run.begin()  # what is begun is finished, asked for or not
    assert begun == int(run.at(f"SELECT snapshot_ts FROM {MARKS}.spark_bootstrap LIMIT 1")[0][0])
    run.same()
    with pytest.raises(BootstrapRefused, match=r"shop\.items: no such table .* did you mean shop\.item\?"):
        run.begin(named("items"))
    run.mirror.collect(run.mirror.tick())
    with pytest.raises(SnapshotCollected, match="GC has passed it"):
        run.begin(named("item"))
    run.same()
    assert run.begin(ALL) == begun
    run.restart()
    run.mirror.collect(0)
    run.mirror.account = run.server.target()
    run.request = named("item")
    with pytest.raises(BootstrapRefused, match="is the target itself"):
        assert run.sink
    run.same()
    run.mirror.account = run.upstream_server.target()
    run.begin()
    with pytest.raises(LeaseHeld, match="already has a running Drainer"):
        run.beside(named("item"))
    run.same()
    run.at(f"ALTER TABLE {MARKS}.spark_bootstrap DROP COLUMN made, COMMENT = 'layout 0'")
    with pytest.raises(ApplyError, match=rf"`{MARKS}`\.`spark_bootstrap` at the target has the comment 'layout 0'"):
        run.begin()
    run.at(f"DROP TABLE {MARKS}.spark_bootstrap")
    run.begin()
    run.begin(named("item"))
    run.same()


POINTS = (
    "after-bootstrap-begin:1,after-bootstrap-empty:2,before-bootstrap-commit:3,after-bootstrap-chunk:4,after-bootstrap-chunk:9,after-bootstrap-table:2,"
    "before-bootstrap-record:1"
)


@pytest.mark.shows("drainer --bootstrap-all")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["first load", "tables"])
def test_killed_at_every_step_it_goes_on_exactly(kind: str, stream: Make, tmp_path: Path) -> None:
    run = stream()
    shop(run, ITEM, KEYLESS, NAMED, LOOSE)
    filled(run)
    run.change(lambda txn: [txn.insert("shop.loose", {"id": n, "v": n}) for n in range(30)])
    if kind == "tables":
        run.apply()
        run.mirror.tick()
        run.at("DELETE FROM shop.item WHERE v % 3 = 0", "UPDATE shop.log SET b = 'wrong'")
    run.restart()
    run.request = ALL if kind == "first load" else named("*")
    deaths = 0
    while run_life(run.life(tmp_path / "history.json"), tmp_path, POINTS):
        deaths += 1
        more_changes(run, deaths)
        run.request = BootstrapRequest()
    assert deaths == POINTS.count(":")
    assert [r for r in run.at(f"SELECT state FROM {MARKS}.spark_bootstrap WHERE unit >= 0")] == []
    more_changes(run, 50)
    run.begin()
    run.apply()
    run.same(*SMALL, "shop.loose")
    assert [r.findings for r in run.reports if r.findings] == []


@pytest.mark.shows("drainer --bootstrap-restart")
def test_a_first_load_is_begun_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with dying("after-bootstrap-empty"):
        run.begin(ALL)
    more_changes(run, 1)
    run.mirror.collect(run.mirror.tick())
    with pytest.raises(SnapshotCollected, match="--bootstrap-restart"):
        run.begin()
    again, former = RESTART, "CREATE TABLE shop.item (id BIGINT UNSIGNED, v INT, f FLOAT, t VARCHAR(20))"
    with monkeypatch.context() as patch, pytest.raises(ApplyError, match=r"shop\.item is there, although it was dropped: .* lost"):
        losing(patch, TargetTables, "drop", lambda: run.at(former))
        run.begin(again)
    assert run.begin(again) > 0 and run.at("SHOW KEYS FROM shop.item")
    more_changes(run, 2)
    run.apply()
    run.same()


def test_a_copy_that_is_begun_again_in_vain_is_still_to_be_done(run: Run) -> None:
    run.apply()
    run.mirror.tick()
    with dying("after-bootstrap-empty"):
        run.begin(named("item"))
    run.mirror.collect(run.mirror.tick())
    for request in (RESTART, BootstrapRequest()):
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
    run.same()


def test_what_is_left_out_in_the_middle_of_its_copy_is_copied_when_it_comes_back(run: Run) -> None:
    run.apply()
    run.mirror.tick()
    with dying("after-bootstrap-empty"):
        run.begin(named("item", "log"))
    without = {"ignore_table": (TableName("shop", "item"),)}
    run.begin(**without)
    run.same("shop.log", "shop.named")
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run.begin(named("named"), **without)
    more_changes(run, 2)
    run.begin(ignore_table=())
    run.apply()
    run.same()
    assert run.at(f"SELECT COUNT(*) FROM {MARKS}.spark_bootstrap WHERE state NOT IN ('done', 'joined')") == [(0,)]


def test_a_table_with_other_words_at_the_target_is_refused(stream: Make) -> None:
    run = stream()
    shop(run, Table("worded", (Column("id", "bigint"), Column("e", "enum('a','b')")), ("id",)))
    run.change(lambda txn: txn.insert("shop.worded", {"id": 1, "e": "a"}))
    run.at("CREATE DATABASE shop", "CREATE TABLE shop.worded (id BIGINT PRIMARY KEY, e ENUM('b','a'))")
    with pytest.raises(BootstrapRefused, match=r"shop\.worded at the target: the ENUM or SET words of e differ"):
        run.begin(ALL)
    run.at("DROP TABLE shop.worded")
    run.begin()
    assert run.at("SELECT e FROM shop.worded") == [("a",)]


def test_another_route_in_the_middle_of_a_copy_is_refused(stream: Make) -> None:
    run = stream()
    shop(run, ITEM)
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n, "f": 0, "t": ""}) for n in range(40)])
    run.at("CREATE DATABASE mart", "CREATE TABLE mart.thing (id BIGINT UNSIGNED PRIMARY KEY, v INT, f FLOAT, t VARCHAR(20))")
    run.at("INSERT INTO mart.thing VALUES (99, 1, 1, 'theirs')")
    with dying("before-bootstrap-record"):
        run.begin(ALL)
    other = (TableRoute("shop", "item", "mart", "thing"),)
    with pytest.raises(BootstrapRefused, match=r"shop\.item: copied, wholly or in part"):
        run.begin(routes=other)
    run.mirror.tick()
    with pytest.raises(BootstrapRefused, match=r"rows in mart\.thing"):
        run.begin(RESTART, routes=other)
    with dying("after-bootstrap-begin"):
        run.begin(RESTART, routes=())
    with pytest.raises(BootstrapRefused, match=r"shop\.item: copied, wholly or in part"):
        run.begin(routes=other)
    assert run.at("SELECT t FROM mart.thing") == [("theirs",)]
    run.begin(routes=())
    run.same("shop.item")


def test_a_table_that_the_target_refused_is_of_whoever_makes_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TargetTables, wanted: WantedTable) -> None:
        raise ApplyError("the target refuses it")

    with monkeypatch.context() as patched, pytest.raises(ApplyError, match="refuses it"):
        patched.setattr(TargetTables, "_make", refuse)
        run.begin(ALL)
    run.at("CREATE TABLE shop.item (id BIGINT UNSIGNED PRIMARY KEY, v INT, f FLOAT, t VARCHAR(20), KEY theirs (v))")
    run.at("INSERT INTO shop.item VALUES (1, 1, 1, 'theirs')")
    for again in (BootstrapRequest(), RESTART):
        with pytest.raises(BootstrapRefused, match=r"rows in shop\.item"):
            run.begin(again)
    assert run.at("SELECT t FROM shop.item") == [("theirs",)]


def test_what_is_added_to_a_table_of_the_stream_stays_when_its_copy_is_begun_again(run: Run) -> None:
    run.apply()
    run.mirror.tick()
    run.at("DROP TABLE shop.item")
    two = (("shop", "item"), ("shop", "log"))
    with dying("after-bootstrap-table"):
        run.begin(BootstrapRequest(tables=two))
    run.at("ALTER TABLE shop.item ADD KEY theirs (v)")
    run.mirror.tick()
    run.begin(BootstrapRequest(tables=two, restart=True))
    run.same()
    assert run.at("SHOW INDEX FROM shop.item WHERE Key_name = 'theirs'")


@pytest.mark.shows("drainer --bootstrap-restart")
def test_what_an_earlier_start_made_is_removed_where_the_upstream_has_it_no_more_or_otherwise(run: Run) -> None:
    run.at("CREATE DATABASE shop", "CREATE TABLE shop.log (a INT, b VARCHAR(10), KEY theirs (a))")
    with dying("before-bootstrap-record"):
        run.begin(ALL)
    for table in ("shop.item", "shop.log", "shop.named"):
        run.mirror.drop_table(table)
    run.mirror.create_table("shop", Table("item", ITEM.columns, ("id",), unique=(("t", "v"),)))
    run.change(lambda txn: txn.insert("shop.item", {"id": 7, "v": 1, "f": 0, "t": "x"}))
    run.begin(RESTART)
    run.same("shop.item")
    assert run.at("SHOW TABLES FROM shop") == [("item",), ("log",)] and not run.at("SELECT * FROM shop.log")
    assert {row[2] for row in run.at("SHOW KEYS FROM shop.item")} == {"PRIMARY", "u1"}


def as_before_its_checkpoint(run: Run, state: str) -> None:
    """The record says ``state``, and the target has no checkpoint."""
    run.restart()
    run.at(f"UPDATE {MARKS}.spark_bootstrap SET state = '{state}' WHERE table_name = ''", f"DELETE FROM {MARKS}.checkpoint")


def test_a_first_load_that_is_done_and_not_joined(run: Run) -> None:
    began = run.begin(ALL, ignore_table=(TableName("shop", "item"),))
    as_before_its_checkpoint(run, "done")
    more_changes(run, 1)
    assert run.begin(ignore_table=()) == began  # what filters let in since is copied at the same snapshot
    run.apply()
    run.same()
    as_before_its_checkpoint(run, "done")
    run.at("TRUNCATE TABLE shop.log")
    with pytest.raises(
        BootstrapRefused, match=r"shop\.log: .* records this table as copied, but at the target it is empty or does not exist"
    ):
        run.begin()
    run.at("DROP DATABASE shop")
    with pytest.raises(BootstrapRefused, match=r"shop\.item, shop\.log, shop\.named: .* records this table as copied"):
        run.begin()
    assert run.begin(RESTART) > began
    run.same()


@pytest.mark.shows("drainer --bootstrap-restart")
def test_a_first_load_whose_checkpoint_is_lost(run: Run) -> None:
    run.begin(ALL)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    as_before_its_checkpoint(run, "joined")
    with pytest.raises(BootstrapRefused, match=r"rows in shop\.item, .* --bootstrap-restart removes what"):
        run.begin(ALL)
    with pytest.raises(BootstrapRefused, match="--bootstrap-all --bootstrap-restart"):
        run.begin(RESTART)
    run.begin(BootstrapRequest(everything=True, restart=True))
    more_changes(run, 2)
    run.apply()
    run.same()


def test_a_target_that_is_emptied_in_the_middle_of_its_copy(run: Run) -> None:
    with dying("after-bootstrap-table"):
        run.begin(ALL)
    done = f"SELECT table_name FROM {MARKS}.spark_bootstrap WHERE unit = -1 AND state = 'done' AND table_name <> ''"
    ((table,),) = run.at(done)
    run.at(f"DELETE FROM shop.{table}")
    with pytest.raises(BootstrapRefused, match=rf"shop\.{table}: .* records this table as copied"):
        run.begin()
    run.begin(RESTART)
    run.same()


def test_a_table_that_is_another_one_by_the_history(stream: Make) -> None:
    run = stream()
    shop(run, ITEM)
    filled_ids = run.mirror.sql("SELECT table_id FROM mirror.shapes WHERE table_name = 'item'")
    run.mirror.sql("UPDATE mirror.shapes SET table_id = 99999")
    with pytest.raises(
        BootstrapRefused, match=rf"shop\.item has the id 99999 in the upstream's snapshot, and {filled_ids[0][0]} in the DDL history"
    ):
        run.begin(ALL)
    assert run.at("SHOW DATABASES LIKE 'shop'") == []


def test_an_upstream_of_another_cluster_is_refused(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.apply()
    run.mirror.tick()
    run.servers = {"another": "10.0.0.9:4000"}
    with pytest.raises(BootstrapRefused, match=r"servers 10\.0\.0\.1:4000 \(the-mirror\); cluster \d+ has 10\.0\.0\.9:4000 \(another\)"):
        run.begin(named("item"))
    run.same()
    run.servers = {}
    with caplog.at_level("WARNING"):
        run.begin(named("item"))
    assert "cannot verify that spark.upstream" in caplog.text
    run.same()


def test_tables_that_are_renamed_dropped_and_truncated_after_the_snapshot(run: Run) -> None:
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
    assert [run.at(f"SELECT COUNT(*) FROM {table}") for table in SMALL] == [[(40,)]] * 3
    run.apply()
    assert sorted(run.at("SHOW TABLES FROM shop")) == [("named",), ("thing",)]
    assert run.at("SELECT COUNT(*), MAX(t = 'new') FROM shop.thing") == [(41, 1)]
    assert run.at("SELECT k FROM shop.named") == [("new",)]


def test_a_transient_error_behind_the_making_of_a_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert run.at(f"SELECT MIN(made) FROM {MARKS}.spark_bootstrap WHERE table_name <> ''") == [(1,)]
    run.same()


def test_a_table_that_is_not_there_empty_although_the_target_has_answered_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        losing(patch, TargetTables, "make_ready", lambda: run.at("DROP TABLE IF EXISTS shop.item, shop.log, shop.named"))
        with pytest.raises(ApplyError, match="does not exist or has rows, .* lost transactions"):
            run.begin(ALL)
    run.begin()
    run.same()
    with monkeypatch.context() as patch:
        losing(patch, TargetTables, "make_ready", lambda: run.at("INSERT INTO shop.log VALUES (5, 'before')"))
        with pytest.raises(ApplyError, match=r"shop\.log does not exist or has rows, .* lost transactions"):
            run.begin(named("log"))
    run.begin()
    run.same()


@pytest.mark.parametrize("lost", ["its end", "a table", "everything"])
def test_a_first_load_whose_end_is_lost_when_the_checkpoint_is_made(lost: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        run.at(f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned' WHERE table_name = ''")
        if lost == "a table":
            run.at("DROP TABLE shop.log", f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned', made = 0 WHERE table_name = 'log'")
        if lost == "everything":
            run.at("DROP DATABASE shop", f"DELETE FROM {MARKS}.spark_bootstrap")

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", lose)
        run.begin(ALL)
    assert run.state() == "joined"
    run.same()
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run.at("UPDATE shop.log SET b = 'stays'")
    run.begin(named("item"))
    run.same("shop.item")
    assert run.at("SELECT DISTINCT b FROM shop.log") == [("stays",)]


@pytest.mark.parametrize("there", [False, True])
def test_a_table_that_a_later_life_lets_in_and_the_target_loses(there: bool, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``there``: somebody has made it at the target, empty."""
    run.begin(ALL, ignore_table=(TableName("shop", "log"),))
    as_before_its_checkpoint(run, "done")
    if there:
        run.at("CREATE TABLE shop.log (a INT, b VARCHAR(10))")

    def lose() -> None:
        run.at("DELETE FROM shop.log" if there else "DROP TABLE shop.log")
        run.at(f"DELETE FROM {MARKS}.spark_bootstrap WHERE table_name = 'log'")

    with monkeypatch.context() as patch:
        losing(patch, Bootstrap, "run", lose)
        run.begin(ignore_table=())
    assert run.state() == "joined"
    run.same()


def test_a_first_load_half_done_behind_the_checkpoint(run: Run) -> None:
    run.begin(ALL)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    run.restart()
    run.at(f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned' WHERE table_name IN ('', 'log')")
    with pytest.raises(BootstrapRefused, match=r"Start with --bootstrap-restart: .* If the tables were filled"):
        run.begin()
    run.begin(RESTART)
    assert run.state() == "joined"
    run.same()
    run.restart()
    run.at(f"UPDATE {MARKS}.spark_bootstrap SET state = 'planned', kind = 'first', snapshot_ts = 5 WHERE table_name = ''")
    run.begin()  # every table is copied, and the record is behind
    assert run.state() == "joined"
    run.same()
