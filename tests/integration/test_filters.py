"""Filters over the whole applier: on a real MariaDB from the driver, in parts and row by row, and in files."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, EventFilterRule, FileConfig, TableMigrateRule, TableName, TableRoute
from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, DdlRefused
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from tests.support.ddl_target import dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.private_mysql import NO_PAD_BIN
from tests.support.target_rows import Query, asking

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "filter_marks"
DATABASES = ("shop", "other", "mart", "mart2", MARKS)
ITEM = Table("item", (Column("id", "bigint"), Column("v", "int")), ("id",))
KEYLESS = Table("log", (Column("a", "int"), Column("b", "varchar(10)")))
Make = Callable[..., EmulatedStream]


@pytest.fixture
def query(mariadb: PrivateMariaDB) -> Iterator[Query]:
    with asking(mariadb, *DATABASES) as query:
        yield query


@pytest.fixture
def stream(spark: SparkSession, mariadb: PrivateMariaDB, query: Query) -> Iterator[Callable[..., EmulatedStream]]:
    with ExitStack() as lives:
        yield lambda *mode, **more: lives.enter_context(EmulatedStream(spark, settings(mariadb, *mode, **more)))


def settings(mariadb: PrivateMariaDB, mode: str = "driver", **more: Any) -> DrainerConfig:
    apply = ApplyConfig(**{"checkpoint_schema": MARKS, "on_finding": "stop"} | MODES[mode] | more)
    return DrainerConfig(target=mariadb.target(), apply=apply)


def tables_of(query: Query, schema: str) -> list[str]:
    return sorted(name for (name,) in query(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"))


@pytest.mark.shows("syncer.replicate-do-db", "syncer.ignore-table")
@pytest.mark.parametrize("mode", MODES)
def test_only_the_tables_that_pass_are_there(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, replicate_do_db=("~^SHOP$",), ignore_table=(TableName("shop", "~^LO"),))
    run.create("shop", ITEM, KEYLESS)
    run.create("other", ITEM)

    def both(txn: Any) -> None:
        for number in range(1, 6):
            txn.insert("shop.log", {"a": number, "b": "x"})
            txn.insert("shop.item", {"id": number, "v": 0})
            txn.insert("other.item", {"id": number, "v": 0})

    run.change(both)
    run.apply()
    run.change(lambda txn: (txn.update("shop.item", 1, {"v": 1}), txn.delete("shop.item", 2), txn.delete("other.item", 1)))
    run.upstream.ddl.add_column("shop.log", Column("c", "int"))
    run.apply()
    assert query("SELECT id, v FROM shop.item ORDER BY id") == [(1, 1), (3, 0), (4, 0), (5, 0)]
    assert tables_of(query, "shop") == ["item"] and query("SHOW DATABASES LIKE 'other'") == []
    assert run.sink.commit_ts == run.reports[-1].upto_ts and all(not r.findings for r in run.reports)


@pytest.mark.shows("syncer.replicate-do-table", "known wrong: everything is filtered")
@pytest.mark.parametrize("mode", MODES)
def test_the_checkpoint_moves_when_everything_is_filtered(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, replicate_do_table=(TableName("nothing", "t"),))
    run.create("shop", ITEM, KEYLESS)
    for number in range(1, 4):
        last = run.change(lambda txn, n=number: txn.insert("shop.item", {"id": n, "v": n}))
        report = run.apply()
        assert report.row_events == report.rows_written == 0
        ((checkpoint,),) = query(f"SELECT checkPoint FROM {MARKS}.checkpoint")
        assert f'"commitTS":{report.upto_ts},' in checkpoint and '"consistent":true' in checkpoint and report.upto_ts > last
    assert query("SHOW DATABASES LIKE 'shop'") == []
    run.restart()
    assert run.sink.commit_ts == report.upto_ts


@pytest.mark.parametrize("mode", ["driver", "parts"])
def test_rows_that_do_not_pass_are_not_even_keyed(mode: str, stream: Make, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their images may be damaged: nobody reads them."""
    run = stream(mode, ignore_table=(TableName("shop", "log"),))
    run.create("shop", ITEM, KEYLESS)
    run.apply()
    txn = run.upstream.begin()
    txn.insert("shop.item", {"id": 1, "v": 1})
    txn.insert("shop.log", {"a": 1, "b": "spoiled"})
    txn.commit()
    payloads = run.payloads
    at = next(i for i, p in enumerate(payloads) if b"spoiled" in p)
    payloads[at] = payloads[at].replace(b"\x02\x0espoiled", b"\x02\xffspoiled")
    assert b"\x02\xffspoiled" in payloads[at]
    run.apply()
    assert query("SELECT * FROM shop.item") == [(1, 1)]


@pytest.mark.shows("syncer.ignore-txn-commit-ts")
@pytest.mark.parametrize("mode", MODES)
def test_a_transaction_is_left_out_by_its_commit_ts(mode: str, stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream(mode)
    run.create("shop", ITEM, KEYLESS)
    run.apply()
    skipped = run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": 1}) for n in (1, 2)])
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": 1}) for n in (3, 4)])
    run.restart(settings(mariadb, mode, ignore_txn_commit_ts=(skipped,)))
    run.apply()
    assert query("SELECT id FROM shop.item ORDER BY id") == [(3,), (4,)]


RULE = {
    "table_migrate_rule": (TableMigrateRule(("r",), "sh?p", "it*"),),
}


def rule(*events: str, sql: tuple[str, ...] = ()) -> dict[str, Any]:
    return RULE | {"binlog_filter_rule": (EventFilterRule("r", events, sql),)}


@pytest.mark.shows("syncer.binlog-filter-rule")
@pytest.mark.parametrize("mode", MODES)
def test_deletes_are_left_out_by_a_rule(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, **rule("delete"))
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n}) for n in (1, 2, 3)] + [txn.insert("shop.log", {"a": 1, "b": "x"})])
    run.apply()
    handle = next(iter(run.upstream.rows("shop.log")))
    run.change(lambda txn: (txn.delete("shop.item", 1), txn.update("shop.item", 2, {"v": 20}), txn.delete("shop.log", handle)))
    run.apply()
    assert query("SELECT * FROM shop.item ORDER BY id") == [(1, 1), (2, 20), (3, 3)] and query("SELECT * FROM shop.log") == []


def test_a_ddl_that_a_rule_leaves_out_freezes_its_table(stream: Make, query: Query) -> None:
    run = stream(**rule("drop table", sql=("ADD COLUMN.*secret",)), ddl_policy="skip", on_finding="record")
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: txn.insert("shop.item", {"id": 1, "v": 1}))
    run.upstream.ddl.add_column("shop.item", Column("secret", "int"))
    run.upstream.ddl.add_column("shop.item", Column("w", "int"))
    run.change(lambda txn: txn.insert("shop.item", {"id": 2, "v": 2, "secret": 7, "w": 3}))
    report = run.apply()
    assert query("SELECT * FROM shop.item ORDER BY id") == [(1, 1), (2, 2)]
    assert [f for f in report.findings if "the table is frozen on the target" in f.words]
    assert [f for f in report.findings if "shop.item is frozen since" in f.words]
    run.upstream.ddl.drop_table("shop.item")
    run.apply()
    assert len(query("SELECT * FROM shop.item")) == 2


def test_a_table_that_leaves_the_filter_goes_and_one_that_comes_in_is_refused(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream(ignore_table=(TableName("shop", "~^_"),))
    run.create("shop", ITEM, KEYLESS)
    ddl = run.upstream.ddl
    ddl.create_table("shop", dataclasses.replace(ITEM, name="_item_new"))
    run.change(lambda txn: (txn.insert("shop.item", {"id": 1, "v": 1}), txn.insert("shop._item_new", {"id": 1, "v": 1})))
    ddl.rename("shop.item", "shop._item_old")
    run.apply()
    assert tables_of(query, "shop") == ["_item_old", "log"]
    ddl.rename("shop._item_new", "shop.item")
    run.change(lambda txn: txn.update("shop.item", 1, {"v": 2}))
    refused = r"shop\._item_new becomes shop\.item, but shop\._item_new is not replicated.*ignore-txn-commit-ts = \[(\d+)\]"
    with pytest.raises(DdlRefused, match=refused) as first:
        run.apply()
    assert tables_of(query, "shop") == ["_item_old", "log"]
    query(f"CREATE TABLE shop.item (id BIGINT PRIMARY KEY, v INT) DEFAULT CHARSET utf8mb4 COLLATE {NO_PAD_BIN}")
    run.restart()
    with pytest.raises(DdlRefused, match=refused):
        run.apply()  # a table of that name may still lack its rows
    query("INSERT INTO shop.item VALUES (1, 1)")
    (commit_ts,) = re.findall(r"ignore-txn-commit-ts = \[(\d+)\]", str(first.value))
    run.restart(settings(mariadb, ignore_table=(TableName("shop", "~^_"),), ignore_txn_commit_ts=(int(commit_ts),)))
    report = run.apply()
    assert query("SELECT * FROM shop.item") == [(1, 2)] and not report.findings


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_a_table_that_comes_in_has_no_rows_where_its_ddl_is_skipped(policy: str, stream: Make, query: Query) -> None:
    run = stream(ignore_table=(TableName("shop", "~^_"),), ddl_policy=policy, on_finding="record")
    run.create("shop", ITEM, KEYLESS)
    ddl = run.upstream.ddl
    ddl.create_table("shop", dataclasses.replace(ITEM, name="_new"))
    run.apply()
    ddl.rename("shop._new", "shop.fresh")
    run.change(lambda txn: (txn.insert("shop.fresh", {"id": 1, "v": 1}), txn.insert("shop.item", {"id": 1, "v": 1})))
    report = run.apply()
    assert query("SELECT * FROM shop.item") == [(1, 1)] and tables_of(query, "shop") == ["item", "log"]
    assert [f.wanted for f in report.findings if "rows of shop.fresh are not written" in f.words] == [1]


def test_files_hold_what_passes(spark: SparkSession, tmp_path: Path) -> None:
    apply = ApplyConfig(db_type="file", ignore_table=(TableName("shop", "log"),), **rule("delete", "drop table"))
    config = DrainerConfig(apply=apply, files=FileConfig(dir=str(tmp_path / "binlogs")), data_dir=str(tmp_path / "data"))
    with EmulatedStream(spark, config) as run:
        run.create("shop", ITEM, KEYLESS)
        run.change(lambda txn: (txn.insert("shop.item", {"id": 1, "v": 1}), txn.insert("shop.log", {"a": 1, "b": "x"})))
        run.change(lambda txn: txn.delete("shop.item", 1))
        run.upstream.ddl.drop_table("shop.item")
        report = run.apply()
        assert run.sink.commit_ts == report.upto_ts
    found = [pb.Binlog.FromString(record.payload) for record in walk(tmp_path / "binlogs")]
    assert [f.ddl_query.decode() for f in found if f.tp == pb.DDL] == ["CREATE DATABASE `shop`;;", found[1].ddl_query.decode()]
    assert b"`item`" in found[1].ddl_query
    assert [[(e.table_name, e.tp) for e in f.dml_data.events] for f in found if f.tp == pb.DML] == [[("item", pb.Insert)]]


ROUTED = {"routes": (TableRoute("shop", "item", "mart", "thing"), TableRoute("other", "", "mart2", ""))}


@pytest.mark.shows("spark.route")
@pytest.mark.parametrize("mode", MODES)
def test_tables_have_other_names_at_the_target(mode: str, stream: Make, query: Query) -> None:
    query("CREATE DATABASE mart")
    run = stream(mode, **ROUTED)
    run.create("shop", ITEM, KEYLESS)
    run.create("other", dataclasses.replace(ITEM, name="a"))
    ddl = run.upstream.ddl
    run.change(lambda txn: [txn.insert(name, {"id": n, "v": n}) for n in (1, 2, 3) for name in ("shop.item", "other.a")])
    run.apply()
    run.change(lambda txn: (txn.update("shop.item", 1, {"v": 9}), txn.delete("other.a", 2), txn.insert("shop.log", {"a": 1, "b": "x"})))
    ddl.add_column("shop.item", Column("w", "int", default=5))
    ddl.alter("other.a", online.add_index("i", "v", unique=True))
    run.change(lambda txn: txn.insert("shop.item", {"id": 4, "v": 4, "w": 4}))
    ddl.rename("other.a", "other.b")
    run.change(lambda txn: txn.update("other.b", 3, {"v": 30}))
    run.apply()
    assert query("SELECT * FROM mart.thing ORDER BY id") == [(1, 9, 5), (2, 2, 5), (3, 3, 5), (4, 4, 4)]
    assert query("SELECT * FROM mart2.b ORDER BY id") == [(1, 1), (3, 30)] and query("SELECT COUNT(*) FROM shop.log") == [(1,)]
    assert tables_of(query, "shop") == ["log"] and tables_of(query, "mart2") == ["b"] and query("SHOW DATABASES LIKE 'other'") == []
    ddl.truncate("shop.item")
    ddl.rename("shop.item", "other.c")
    run.change(lambda txn: txn.insert("other.c", {"id": 7, "v": 7, "w": 7}))
    ddl.drop_table("other.b")
    run.apply()
    assert query("SELECT * FROM mart2.c") == [(7, 7, 7)]
    assert tables_of(query, "mart") == [] and tables_of(query, "mart2") == ["c"]
    assert all(not report.findings for report in run.reports)


def test_a_table_that_would_join_another_one_is_refused(stream: Make, query: Query) -> None:
    run = stream(routes=(TableRoute("shop", "item", "", "log2"),))
    run.create("shop", ITEM, KEYLESS)
    run.apply()
    run.upstream.ddl.create_table("shop", dataclasses.replace(ITEM, name="log2"))
    with pytest.raises(DdlRefused, match=r"shop\.item and shop\.log2 would both be shop\.log2 at the target"):
        run.apply()


def test_a_span_in_parts_is_finished_by_the_filters_it_was_begun_with(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream("parts")
    run.create("shop", ITEM, KEYLESS)
    run.apply()
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n}) for n in range(1, 9)])
    with dying("before-deletes"):
        run.apply()
    for more in ({"ignore_table": (TableName("shop", "item"),)}, {"routes": (TableRoute("shop", "item", "", "x"),)}):
        run.restart(settings(mariadb, "parts", **more))
        with pytest.raises(
            ApplyError, match=r"was begun with other filters or routes.*until the checkpoint has passed \d+.*They were: .*now: "
        ):
            run.apply()
        assert query("SELECT * FROM shop.item") == []
    run.restart(settings(mariadb, "parts"))
    run.apply()
    assert query("SELECT * FROM shop.item ORDER BY id") == [(n, n) for n in range(1, 9)]
    run.restart(settings(mariadb, "parts", ignore_table=(TableName("shop", "item"),)))
    run.change(lambda txn: txn.delete("shop.item", 1))
    run.apply()
    assert len(query("SELECT * FROM shop.item")) == 8


@pytest.mark.shows("spark.route")
@pytest.mark.parametrize("mode", MODES)
def test_only_some_columns_are_there(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, routes=(TableRoute("shop", "wide", columns=("ID", "v")), TableRoute("shop", "loose", columns=("a",))))
    ddl = run.upstream.ddl
    columns = (Column("name", "varchar(20)"), Column("id", "bigint"), Column("v", "int"), Column("secret", "int", not_null=True))
    loose = Table("loose", (Column("a", "int"), Column("b", "int")))
    run.create("shop", Table("wide", columns, ("id",), unique=(("name",),)), loose)

    def fill(txn: Any) -> None:
        for n in range(1, 5):
            txn.insert("shop.wide", {"name": f"n{n}", "id": n, "v": n, "secret": n})
            txn.insert("shop.loose", {"a": n % 2, "b": n})

    run.change(fill)
    run.apply()
    assert query("SELECT * FROM shop.wide ORDER BY id") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    handles = list(run.upstream.rows("shop.loose"))
    run.change(lambda txn: (txn.update("shop.wide", 1, {"name": "x"}), txn.update("shop.wide", 2, {"v": 20, "secret": 0})))
    run.change(lambda txn: txn.delete("shop.wide", 3))
    run.change(lambda txn: (txn.delete("shop.loose", handles[0]), txn.update("shop.loose", handles[1], {"b": 9})))
    ddl.add_column("shop.wide", Column("more", "int", default=1))
    ddl.drop_column("shop.wide", "secret")
    ddl.modify_column("shop.wide", Column("v", "bigint"))
    run.change(lambda txn: txn.insert("shop.wide", {"name": "n5", "id": 5, "v": 1 << 40}))
    run.apply()
    assert query("SELECT * FROM shop.wide ORDER BY id") == [(1, 1), (2, 20), (4, 4), (5, 1 << 40)]
    assert query("SELECT * FROM shop.loose ORDER BY a") == [(0,), (0,), (1,)]
    assert all(not report.findings for report in run.reports)


PRICED = (Column("id", "bigint"), Column("price", "decimal(10,2)"), Column("kind", "varchar(10)"), Column("at", "datetime"))
AGAIN = "may give another answer"
WHERE = "price >= 10 AND kind IN ('a', 'ä') AND (at IS NULL OR at < timestamp'2024-01-01 00:00:00')"


@pytest.mark.shows("spark.route")
@pytest.mark.parametrize("mode", ["driver", "parts"])
def test_rows_that_cross_a_condition_come_and_go(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, routes=(TableRoute("shop", "priced", "", "dear", ("id", "price"), WHERE),))
    run.create("shop", Table("priced", PRICED, ("id",)))

    def put(txn: Any, number: int, price: str, kind: str = "a", at: str | None = None) -> None:
        txn.insert("shop.priced", {"id": number, "price": Decimal(price), "kind": kind, "at": at})

    some = ((1, "10.00"), (2, "9.99"), (3, "11", "b"), (4, "12", "ä"), (5, "13", "a", "2024-06-01 00:00:00"))
    run.change(lambda txn: [put(txn, *row) for row in some])
    run.change(lambda txn: [put(txn, n, "50") for n in (6, 7, 8)])
    run.apply()
    assert query("SELECT id FROM shop.dear ORDER BY id") == [(1,), (4,), (6,), (7,), (8,)]

    def change(txn: Any) -> None:
        txn.update("shop.priced", 1, {"price": Decimal("1")})  # leaves
        txn.update("shop.priced", 2, {"price": Decimal("20")})  # comes
        txn.update("shop.priced", 3, {"price": Decimal("30")})  # stays away
        txn.update("shop.priced", 4, {"price": Decimal("40")})  # stays
        txn.delete("shop.priced", 5)  # was never there
        txn.delete("shop.priced", 6)

    run.change(change)
    run.change(lambda txn: txn.update("shop.priced", 7, {"kind": "b"}))
    run.change(lambda txn: txn.update("shop.priced", 7, {"kind": None}))
    run.change(lambda txn: txn.update("shop.priced", 8, {"kind": "b"}))
    run.change(lambda txn: txn.update("shop.priced", 8, {"kind": "a", "price": Decimal("60")}))  # away and back within the batch
    run.apply()
    assert query("SELECT * FROM shop.dear ORDER BY id") == [(2, Decimal("20.00")), (4, Decimal("40.00")), (8, Decimal("60.00"))]
    assert all(not report.findings for report in run.reports)


@pytest.mark.parametrize("mode", ["driver", "parts"])
def test_a_condition_on_rows_without_a_key(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, routes=(TableRoute("shop", "log", where="a > 1"),))
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: [txn.insert("shop.log", {"a": a, "b": "x"}) for a in (1, 2, 2, 3)])
    run.apply()
    by_value = sorted(run.upstream.rows("shop.log").items(), key=lambda one: one[1]["a"])
    (low, _), (one, _), (_, _), (high, _) = by_value
    run.change(lambda txn: (txn.update("shop.log", low, {"a": 5}), txn.update("shop.log", one, {"a": 0}), txn.delete("shop.log", high)))
    run.apply()
    assert query("SELECT a FROM shop.log ORDER BY a") == [(2,), (5,)] and all(not report.findings for report in run.reports)


WRONG_WHERE = [
    ("nothing > 1", "is not valid.*nothing"), ("v >", "is not valid"), ("sum(v) > 1", "is not valid"), ("v", "is not valid"), ("v > 1) OR (true", "is not valid"),
    ("v > rand()", AGAIN), ("v > `rand` /* */ ()", AGAIN), ("v > uniform(0, 9)", AGAIN), ("reflect('java.lang.System', 'nanoTime') > '1'", AGAIN),
    ("current_date > date'2024-01-01'", AGAIN), ("current_user = 'x'", AGAIN), ("timestamp/**/'now' > timestamp'2024-01-01'", AGAIN),
    ("date' Today' > date'2024-01-01'", AGAIN), ("v IN (SELECT id FROM range(3))", AGAIN),
]  # fmt: skip


def test_a_route_that_cannot_be_right_is_refused_at_start(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream()
    run.create("shop", ITEM, KEYLESS)
    run.apply()
    wrong = [
        (TableRoute("shop", "item", "", "log"), r"shop\.item and shop\.log would both be shop\.log.*Give each table a name of its own"),
        (TableRoute("shop", "item", columns=("v",)), r"spark\.route: the route of shop\.item lacks the columns id of the primary key"),
        *((TableRoute("shop", "item", where=where), rf"spark\.route: where of shop\.item.*{words}") for where, words in WRONG_WHERE),
    ]
    for route, words in wrong:
        run.restart(settings(mariadb, routes=(route,)))
        with pytest.raises(ConfigError, match=words):
            run.apply()


@pytest.mark.parametrize(("where", "words"), [("v > rand()", AGAIN), ("w > 1", "is not valid for the table at schema version.*w")])
def test_a_condition_of_a_table_that_comes_later_is_checked_before_its_rows(where: str, words: str, stream: Make, query: Query) -> None:
    run = stream(routes=(TableRoute("shop", "item", where=where),))
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: txn.insert("shop.item", {"id": 1, "v": 1}))
    with pytest.raises(ConfigError, match=f"where of shop\\.item.*{words}"):
        run.apply()
    assert query("SELECT * FROM shop.item") == []


def test_rows_without_a_column_that_a_condition_needs_are_not_judged(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream(routes=(TableRoute("shop", "wide", where="v > 1"),))
    run.create("shop", Table("wide", (Column("id", "bigint"), Column("v", "int"), Column("w", "int")), ("id",)))
    run.change(lambda txn: [txn.insert("shop.wide", {"id": n, "v": n, "w": 0}) for n in (1, 2, 3)])
    run.apply()
    dropping = run.upstream.ddl.start("shop.wide", online.drop_column("v"))
    for state in range(1, 9):
        dropping.advance()
        if dropping.done:
            break
        run.change(lambda txn, n=state: txn.update("shop.wide", 2, {"w": n}))  # without v from some state on
    with pytest.raises(
        ApplyError,
        match=r"where of shop\.wide, 'v > 1', names column v, which a running DROP COLUMN takes away.*Write the condition without",
    ):
        run.apply()
    assert query("SELECT id FROM shop.wide ORDER BY id") == [(2,), (3,)]
    run.restart(settings(mariadb, routes=(TableRoute("shop", "wide", where="id > 1"),)))
    run.apply()
    ((last,),) = query("SELECT w FROM shop.wide WHERE id = 2")
    assert last > 1 and query("SELECT id FROM shop.wide ORDER BY id") == [(2,), (3,)]


@pytest.mark.parametrize("mode", ["driver", "parts"])
def test_a_frozen_table_keeps_the_condition_of_its_name(mode: str, stream: Make, query: Query) -> None:
    run = stream(mode, routes=(TableRoute("shop", "item", "", "dear", where="v > 1"),), ddl_policy="skip", on_finding="record")
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n}) for n in (1, 2, 3)])
    run.upstream.ddl.rename("shop.item", "shop.free")  # refused: shop.free has no condition
    run.change(lambda txn: (txn.insert("shop.free", {"id": 4, "v": 0}), txn.insert("shop.free", {"id": 5, "v": 5})))
    run.change(lambda txn: txn.update("shop.free", 2, {"v": 0}))
    run.apply()
    assert query("SELECT * FROM shop.dear ORDER BY id") == [(3, 3), (5, 5)]


def test_a_listed_column_can_be_renamed(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream(routes=(TableRoute("shop", "item", columns=("id", "v")),))
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: txn.insert("shop.item", {"id": 1, "v": 1}))
    run.upstream.ddl.alter("shop.item", online.rename_column("v", "w"))
    run.change(lambda txn: txn.insert("shop.item", {"id": 2, "w": 2}))
    with pytest.raises(
        DdlRefused, match="v of shop.item becomes w, but its list of columns has only one of the two names; name both there"
    ):
        run.apply()
    run.restart(settings(mariadb, routes=(TableRoute("shop", "item", columns=("id", "v", "w")),)))
    run.apply()
    run.restart()
    run.upstream.ddl.truncate("shop.item")
    run.change(lambda txn: txn.insert("shop.item", {"id": 3, "w": 3}))
    run.apply()
    assert query("SELECT id, w FROM shop.item") == [(3, 3)]


def test_a_condition_follows_a_renamed_column(stream: Make, query: Query, mariadb: PrivateMariaDB) -> None:
    run = stream(routes=(TableRoute("shop", "item", where="v > 1"),))
    run.create("shop", ITEM, KEYLESS)
    run.change(lambda txn: [txn.insert("shop.item", {"id": n, "v": n}) for n in (1, 2)])
    run.upstream.ddl.alter("shop.item", online.rename_column("v", "w"))
    run.change(lambda txn: (txn.insert("shop.item", {"id": 3, "w": 3}), txn.update("shop.item", 2, {"w": 0})))
    with pytest.raises(DdlRefused, match=r"the condition 'v > 1' of shop\.item names v, which the table does not have after"):
        run.apply()
    assert query("SELECT * FROM shop.item") == [(2, 2)]
    run.restart(settings(mariadb, routes=(TableRoute("shop", "item", where="w > 1"),)))
    run.apply()
    assert query("SELECT id, w FROM shop.item") == [(3, 3)]
