"""What a lake knows of its past, in Python and on the command line: lives of rows, transactions, history, differences, and the undo that is printed."""

import datetime
import re
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs import lake as command
from pyspark_tidb_binlog.jobs.lab.mariadb import ACCOUNT
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time, tso
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger
from tests.support.bank_states import TOTAL
from tests.support.ddl_jobs import INT, VARCHAR, column, database, index, job, table
from tests.support.eventually import eventually
from tests.support.golden_messages import replicate, spans_of
from tests.support.lake_scene import KEY, LakeScene
from tests.support.past_scene import lake_of, names, quoted
from tests.support.private_mysql import RealMariaDB
from tests.support.taken_scene import taken_rows
from tests.support.target_rows import rows_of, run_sql

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ID, NAME, PRICE = column(1, "id", KEY), column(2, "name", VARCHAR), column(3, "price")
UNIQUE = {"index_info": [index(1, "u", ("name", 1), unique=True)]}
ITEM = table(10, "item", [ID, NAME, PRICE], **UNIQUE)
GOODS = table(10, "goods", [ID, {**NAME, "name": {"O": "title"}}, PRICE], **UNIQUE)


def item(key: int, name: str, price: int, column: str = "name") -> dict[str, Any]:
    return {"id": key, column: name.encode(), "price": price}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose rows change their keys, which gets another name, as a column of it does, and a table that is emptied."""
    lake = tmp_path_factory.mktemp("past") / "shop"
    log = table(11, "log", [ID])
    scene = LakeScene.of(ITEM, log)
    for key in (1, 2, 3):
        scene.row(30, 10, 2, None, item(key, f"n{key}", 10 * key))
    scene.row(31, 10, 2, item(2, "n2", 20), item(2, "n2", 25))
    scene.row(31, 11, 3, None, {"id": 7})
    scene.row(40, 10, 2, item(2, "n2", 25), None)
    scene.row(40, 10, 2, None, item(42, "n2", 25))
    scene.ddl(50, job(4, 5, {**ITEM, "cols": GOODS["cols"]}, query="alter table item rename column name to title"))
    scene.ddl(51, job(5, 14, GOODS, query="rename table item to goods"))
    scene.row(60, 10, 5, item(42, "n2", 25, "title"), item(42, "n2", 26, "title"))
    # Two rows exchange their unique names.
    scene.row(61, 10, 5, item(1, "n1", 10, "title"), item(1, "n3", 10, "title"))
    scene.row(61, 10, 5, item(3, "n3", 30, "title"), item(3, "n1", 30, "title"))
    scene.row(70, 10, 5, item(42, "n2", 26, "title"), None)
    scene.ddl(80, job(6, 11, table(12, "log", [ID]), table_id=11, query="truncate table log"))
    scene.row(90, 12, 6, None, {"id": 8})
    scene.run(lake, 35, 55, 75, 95)
    return lake


def images(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(r["commit_ts"], r["op"], *(r[side].toPython() if r[side] is not None else None for side in ("before", "after"))) for r in rows]


def test_a_life_goes_through_keys_and_names(shop: Path, spark: SparkSession) -> None:
    lake = Lake(spark, shop)
    rows = lake.life("d.goods", id=42).collect()
    assert [(r["commit_ts"], r["op"], r["table"]) for r in rows] == [
        (30, "insert", "item"),
        (31, "update", "item"),
        (40, "delete", "item"),
        (40, "insert", "item"),
        (50, "ddl", "item"),
        (51, "ddl", "goods"),
        (60, "update", "goods"),
        (70, "delete", "goods"),
    ]
    assert rows[1]["others"] == {"d.log": 1} and rows[0]["others"] == {"d.item": 2}
    assert images(lake.life("d.goods", title="n2").collect()) == images(rows)
    assert [r["commit_ts"] for r in lake.life("d.log", id=8).collect()] == [90]
    assert lake.life("d.goods", id=99).count() == 0
    assert [(r["op"], r["seq"]) for r in lake.transaction(40).collect()] == [("delete", 0), ("insert", 1)]
    with pytest.raises(ConfigError, match="the table has no column name; its columns are id, title, price"):
        lake.life("d.goods", name="n2")


def test_history_has_each_state_and_its_last_ones_are_the_table(shop: Path, spark: SparkSession) -> None:
    lake = Lake(spark, shop)
    rows = lake.history("d.goods").orderBy("id", "price", "title").collect()
    assert [(r["id"], r["title"], r["price"], r["current"]) for r in rows] == [
        (1, "n1", 10, False),
        (1, "n3", 10, True),
        (2, "n2", 20, False),
        (2, "n2", 25, False),
        (3, "n1", 30, True),
        (3, "n3", 30, False),
        (42, "n2", 25, False),
        (42, "n2", 26, False),
    ]
    assert lake.rebuilt_differs("d.goods") == (2, 0, 0)
    assert [(r["id"], r["current"]) for r in lake.history("d.log").orderBy("id").collect()] == [(7, False), (8, True)]


def test_differences_are_counted_and_shown(shop: Path, spark: SparkSession) -> None:
    lake = Lake(spark, shop)
    assert [tuple(r) for r in lake.diff(35, 75).collect()] == [("d", "goods", 0, 1, 2)]
    rows = lake.diff("d.goods", 35, 75).collect()
    assert {(r["op"], tuple(r["columns"])) for r in rows} == {("update", ("title",)), ("delete", ())}
    assert lake.diff("d.goods", 31, 40).count() == 2
    with pytest.raises(ConfigError, match="truncate table log at .*give a span on one side of it, or other tables"):
        lake.diff("d.log", 35, 95)
    assert [tuple(r) for r in lake.diff(35, 95).collect()] == [("d", "goods", 0, 1, 2), ("d", "log", None, None, None)]


def test_an_undo_is_printed_and_names_what_it_cannot_take_back(shop: Path, spark: SparkSession) -> None:
    lake = Lake(spark, shop)
    undo = lake.undo((55, 75), tables=["d.goods"])
    assert repr(undo).splitlines()[1:] == ["`d`.`goods`: 0 deletes, 2 updates, 1 inserts"]
    assert [(r["op"], r["expected"] is not None, r["restored"] is not None) for r in undo.rows().collect()] == [
        ("delete", True, False),
        ("delete", True, False),
        ("insert", False, True),
        ("insert", False, True),
        ("insert", False, True),
    ]
    sql = undo.sql()
    assert any(
        line.startswith(
            "DELETE FROM `d`.`goods` WHERE `id`=1 AND CAST(CONVERT(`title` USING utf8mb4) AS BINARY) <=> 'n3' AND `price` <=> 10"
        )
        for line in sql
    )
    assert "INSERT INTO `d`.`goods` (`id`,`title`,`price`) VALUES (42,'n2',25);" in sql
    assert (sql[-1], len(lake.undo(70, where="price > 100").sql())) == ("COMMIT;", 2)
    with pytest.raises(ConfigError, match="where = 'prize > 100' does not fit d.goods"):
        lake.undo(70, where="prize > 100")
    with pytest.raises(ConfigError, match="truncate table log at .*--with-anchors"):
        lake.undo((35, 95))
    emptied = lake.undo((35, 95), tables=["d.log"], with_anchors=True)
    assert [line for line in emptied.sql() if "log" in line and not line.startswith("--")] == [
        "DELETE FROM `d`.`log` WHERE `id`=8 LIMIT 1;",
        "INSERT INTO `d`.`log` (`id`) VALUES (7);",
    ]
    with pytest.raises(ConfigError, match="was read up to"):
        lake.undo((35, 1 << 60))
    with pytest.raises(ConfigError, match=r"begins at .* \(9\), so changes since .* \(8\) are not known"):
        lake.undo((8, 75))


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table is copied, and the copy takes its name, as tools that change tables online do it; another one is dropped and brought back."""
    lake = tmp_path_factory.mktemp("past") / "exchanged"
    log, copy, former = table(11, "log", [ID]), table(12, "_item_gho", [ID, NAME, PRICE]), table(10, "_item_del", [ID, NAME, PRICE])
    scene = LakeScene.of(ITEM, log)
    scene.row(30, 10, 3, None, item(1, "n1", 10))
    scene.row(30, 11, 3, None, {"id": 7})
    scene.ddl(32, job(4, 4, None, table_id=11, query="drop table log"))
    scene.ddl(36, job(5, 3, copy))
    scene.row(37, 12, 5, None, item(1, "n1", 10))
    scene.row(38, 10, 5, item(1, "n1", 10), item(1, "n1", 11))
    scene.row(38, 12, 5, item(1, "n1", 10), item(1, "n1", 11))
    scene.ddl(40, job(6, 14, former, query="rename table item to _item_del"))
    scene.ddl(41, job(7, 14, table(12, "item", [ID, NAME, PRICE]), query="rename table _item_gho to item"))
    scene.ddl(50, job(8, 25, log, query="recover table log"))
    scene.row(51, 11, 8, None, {"id": 8})
    scene.run(lake, 31, 35, 45, 55)
    return lake


def test_a_table_that_has_taken_anothers_name_is_not_emptied(exchanged: Path, spark: SparkSession) -> None:
    """Nor are rows overlooked that a DDL has brought back."""
    lake = Lake(spark, exchanged)
    for ask in (lambda: lake.undo((35, 45), ["d.item"]), lambda: lake.undo((35, 45)), lambda: lake.diff("d.item", 35, 45)):
        with pytest.raises(ConfigError, match=r"d.item was another table at .* \(35\): since rename table item to _item_del"):
            ask()
    assert lake.undo((35, 45), ["d._item_del"]).plan.nets[0].counts == (0, 0, 1)
    assert lake.diff("d.item", 41, 45).count() == 0
    for ask in (lambda: lake.undo((45, 55)), lambda: lake.diff("d.log", 45, 55)):
        with pytest.raises(ConfigError, match="without row changes, .*recover table log"):
            ask()
    assert [tuple(r) for r in lake.diff(45, 55).collect()] == [("d", "log", None, None, None)]


def test_a_ledger_that_keeps_some_days_says_where_it_begins(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = tso(86_400_000)
    times = [1000 * day - days * day for days in (40, 35, 9, 1)]
    scene = LakeScene(times[0] - 10)
    scene.ddl(times[0] - 2, database(1))
    scene.ddl(times[0] - 1, job(2, 3, ITEM))
    for key in (1, 2, 3):
        scene.row(times[0], 10, 2, None, item(key, f"n{key}", 10))
    scene.row(times[1], 10, 2, item(1, "n1", 10), item(1, "n1", 11))
    scene.row(times[2], 10, 2, item(1, "n1", 11), item(1, "n1", 12))
    scene.row(times[3], 10, 2, item(2, "n2", 10), None)
    sink = scene.sink(tmp_path, days=30)
    scene.follow(sink, *times)

    def shortened() -> bool:
        sink._upkeep._wake.set()
        return (Ledger(str(tmp_path)).load() or LakeState("", 1)).begin_ts == times[3] - 30 * day

    eventually(shortened)
    sink.close()
    lake = Lake(spark, tmp_path)
    assert [r["commit_ts"] for r in lake.life("d.item", id=1).collect()] == [times[2]]
    rows = lake.history("d.item").orderBy("id", "price").collect()
    assert [(r["id"], r["price"], r["valid_from"] is None, r["current"]) for r in rows] == [
        (1, 11, True, False),
        (1, 12, False, True),
        (2, 10, True, False),
        (3, 10, True, True),
    ]
    assert lake.rebuilt_differs("d.item") == (2, 0, 0)
    assert lake.at(times[3] - 1).table("d.item").count() == 3
    assert lake.changes().where("op <> 'ddl'").count() == 2 < lake.changes().count()
    for ask in (
        lambda: lake.undo((times[0], times[3])),
        lambda: lake.diff("d.item", times[0], times[3]),
        lambda: lake.diff(times[0], times[3]),
        lambda: lake.transaction(times[1]),
    ):
        with pytest.raises(ConfigError, match=rf"begins at .* \({lake.begin_ts}\), so changes since .* are not known"):
            ask()
    assert lake.undo((times[2], times[3])).plan.nets[0].counts[1] == 1
    for argv in (["life", "d.item", "id=1"], ["history", "d.item"]):
        assert command.main([*argv, "--dir", str(tmp_path)]) == 0
        assert f"; row changes are kept since {as_time(lake.begin_ts)} UTC ({lake.begin_ts})" in capsys.readouterr().out
    assert command.main(["verify", "--dir", str(tmp_path)]) == 0
    words = f"d.item: not compared: rows that have not changed since {as_time(lake.begin_ts)} ({lake.begin_ts}), "
    assert words in (said := capsys.readouterr().out) and "d.item: 2 rows at " in said


@pytest.mark.parametrize("price", ["1.5", "1.50", 1.5, Decimal("1.500")])
def test_numbers_of_a_life_are_compared_as_numbers(price: Any, spark: SparkSession, paid: Path) -> None:
    lake = Lake(spark, paid)
    for name in ("exact", "near"):
        assert [r["commit_ts"] for r in lake.life("d.paid", **{name: price}).collect()] == [30, 31], name
    assert lake.life("d.paid", exact="1,5").count() == 0


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("past") / "paid"
    exact, near = {**INT, "Tp": 246, "Flen": 10, "Decimal": 2}, {**INT, "Tp": 5, "Flen": 22, "Decimal": -1}
    scene = LakeScene.of(table(10, "paid", [ID, column(2, "exact", exact), column(3, "near", near)]))
    first, then = ({"id": 1, "exact": text, "near": float(text)} for text in ("1.50", "2.50"))
    scene.row(30, 10, 2, None, first)
    scene.row(30, 10, 2, None, {**then, "id": 2})
    scene.row(31, 10, 2, first, then)
    scene.run(lake, 35)
    return lake


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("past") / "taken"
    taken_rows(lake)
    return lake


def undone_at(lake: Lake, undo: Any, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table, which must be the expected ones, after an undo."""
    rows = {tuple(row) for row in lake.table(name).collect()}
    for row in undo.rows().where(f"concat(database, '.', `table`) = '{name}'").orderBy("place").collect():
        expected, restored = (tuple(v.toPython().values()) if v is not None else None for v in (row["expected"], row["restored"]))
        if expected is not None:
            rows.remove(expected)
        if restored is not None:
            assert restored[0] not in {one[0] for one in rows}
            rows.add(restored)
    return sorted(rows)


def test_rows_that_a_ddl_took_come_back_from_the_tables_before_it(taken: Path, spark: SparkSession) -> None:
    lake, names = Lake(spark, taken), ("d.parent", "d.plain", "d.log")
    assert [sorted(map(tuple, lake.table(name).collect())) for name in names] == [
        [(150, 11), (151, 13)],
        [(2, 10), (3, 10), (5, 13)],
        [(8,)],
    ]
    undo = lake.undo((35, 95), with_anchors=True)
    for name in names:
        assert undone_at(lake, undo, name) == sorted(map(tuple, lake.at(35).table(name).collect())), name
    begun = lake.undo((25, 95), with_anchors=True)
    assert [undone_at(lake, begun, name) for name in names] == [[], [], []]
    one = lake.undo((55, 75), ["d.parent"], with_anchors=True)
    assert undone_at(lake, one, "d.parent") == [(5, 11), (6, 10), (150, 11), (151, 13)]
    for after_ts, words in ((35, "exchange partition p0"), (65, "drop partition p0")):
        with pytest.raises(ConfigError, match=f"{words} .*--with-anchors"):
            lake.undo((after_ts, 71), ["d.parent"])
    # Of tables that were made in the span, an exchange has rows that the ledger has under another table.
    with pytest.raises(ConfigError, match="exchange partition p0"):
        lake.undo((15, 61))
    made = lake.undo((15, 95), with_anchors=True)
    assert [undone_at(lake, made, name) for name in names] == [[], [], []]


def test_documents_that_a_ddl_took_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """NULL, a text, and a document that the span has changed."""
    columns = [ID, column(2, "doc", {**INT, "Tp": 245})]
    docs: list[Any] = [{"b": [1, None], "a": 2}, None, "null"]
    scene = LakeScene.of(table(10, "docs", columns))
    for key, doc in enumerate(docs):
        scene.row(30, 10, 2, None, {"id": key, "doc": doc})
    scene.row(40, 10, 2, {"id": 0, "doc": docs[0]}, {"id": 0, "doc": {"b": 3}})
    scene.ddl(50, job(3, 11, table(11, "docs", columns), table_id=10, query="truncate table docs"))
    scene.run(tmp_path, 35, 60)
    rows = Lake(spark, tmp_path).undo((35, 60), ["d.docs"], with_anchors=True).rows().collect()
    assert sorted((row["op"], row["restored"].toPython()["id"], row["restored"].toPython().get("doc")) for row in rows) == [
        ("insert", key, doc) for key, doc in enumerate(docs)
    ]


ORDERS = table(20, "orders", [ID, column(2, "customer", VARCHAR), column(3, "status", VARCHAR)])


def order(key: int, customer: str, status: str) -> dict[str, Any]:
    return {"id": key, "customer": customer.encode(), "status": status.encode()}


def test_the_tutorials_lines_find_a_wrong_delete_and_take_it_back(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/undo.md as it stands there; ``test_playground.py`` pastes it beside a playground."""
    scene = LakeScene()
    scene.ddl(10, database(1, "demo"))
    scene.ddl(20, job(2, 3, ORDERS, schema_name="demo", query="create table orders"))
    for key in range(1, 7):
        scene.row(30, 20, 2, None, order(key, "Ada" if key % 2 else "Bo", "new"))
    scene.row(40, 20, 2, order(1, "Ada", "new"), order(1, "Ada", "paid"))
    scene.row(45, 20, 2, order(2, "Bo", "new"), None)
    for key in (1, 3, 5):
        scene.row(50, 20, 2, order(key, "Ada", "paid" if key == 1 else "new"), None)
    scene.run(tmp_path / "lake", 35, 60)
    page = (Path(__file__).parents[2] / "docs" / "undo.md").read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n)+", page, re.M)]
    pasted: dict[str, Any] = {"lake": Lake(spark, tmp_path / "lake"), "spark": spark}
    for block in blocks[1:-1]:
        exec(compile(block, "what is pasted", "exec"), pasted)
    shown = capsys.readouterr().out
    assert "3 orders of Ada" in shown and re.search(r"\| +demo\|orders\| +0\| +3\| +0\|", shown)
    assert "`demo`.`orders`: 0 deletes, 0 updates, 3 inserts" in shown
    argv = blocks[-1].replace("COMMIT_TS", "50").replace("/tmp/lake", str(tmp_path / "lake")).split()
    assert command.main(argv[2:]) == 0
    assert capsys.readouterr().out.count("INSERT INTO `demo`.`orders`") == 3


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("past") / "bank"
    lake_of("bank", lake, 4, 0.0)
    return lake


INVARIANT = """
    SELECT commit_ts, sum(sum(coalesce(after:balance::bigint, 0) - coalesce(before:balance::bigint, 0))) OVER (ORDER BY commit_ts) AS total
    FROM changes WHERE op <> 'ddl' GROUP BY commit_ts
"""


def test_debits_are_credits_after_every_commit(bank: Path, spark: SparkSession) -> None:
    """One SQL over the ledger: the total is the same from the commit on that has filled both tables."""
    lake = Lake(spark, bank)
    lake.changes().createOrReplaceTempView("changes")
    totals = [row["total"] for row in spark.sql(INVARIANT).orderBy("commit_ts").collect()]
    filled = totals.index(TOTAL)
    assert set(totals[filled:]) == {TOTAL} and len(totals) - filled > 1000


def test_a_time_in_the_newest_moments_millisecond_is_that_moment(bank: Path, spark: SparkSession) -> None:
    lake, begin = Lake(spark, bank), spans_of("bank", 4)[-1][0]
    assert [lake.at(time).commit_ts for time in (lake.time, str(lake.time))] == [lake.commit_ts] * 2
    assert lake.diff(begin, lake.time).collect() == lake.diff(begin, lake.commit_ts).collect()
    assert lake.undo((begin, lake.time)).plan.upto_ts == lake.commit_ts
    for later in (lake.time + datetime.timedelta(milliseconds=1), lake.commit_ts + 1):
        with pytest.raises(ConfigError, match=r"was read up to .* is not known; lake.refresh\(\) reads on"):
            lake.at(later)


@pytest.mark.mysql
@pytest.mark.mariadb
@pytest.mark.shows("lake of the past")
def test_the_commands_print_the_past_and_undo_it_at_a_server(bank: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*argv: str, code: int = 0) -> str:
        assert command.main([*argv, "--dir", str(bank)]) == code
        return capsys.readouterr().out

    begin, end = spans_of("bank", 4)[-1]
    assert re.search(r"\|update\|", said("life", "g_bank.checking", "id=1", "--limit", "5"))
    assert said("history", "g_bank.savings", "--limit", "3").count("|true") <= 3
    assert "g_bank" in said("diff", "--from", str(begin), "--to", str(end))
    assert "|update|[balance]|" in said("diff", "g_bank.checking", "--from", str(begin), "--to", str(end))
    assert said("transaction", str(end)).count("update") >= 1
    script = said("undo", "--from", str(begin), "--to", str(end), "--tables", "g_bank.checking")
    assert script.splitlines()[-1] == "COMMIT;" and "UPDATE `g_bank`.`checking` SET `balance`=" in script
    with RealMariaDB() as server:
        target = sink_of(DrainerConfig(target=server.target()), 1, lambda seconds: None)
        replicate(target, "bank", spans_of("bank", 4))
        target.close()
        before = rows_of(server, "g_bank.checking")
        run_sql(server, "UPDATE g_bank.checking SET balance = balance + 1 WHERE id = 1")
        at = server.target()
        url = f"mysql://{ACCOUNT}:{at.password}@127.0.0.1:{at.port}"
        told = said("undo", "--from", str(begin), "--to", str(end), "--apply", url, code=1)
        assert re.search(
            r"^\d+ rows are as they were before, 1 were left as they are\n  `g_bank`.`checking` `id`=1: is not what", told, re.M
        )
        assert rows_of(server, "g_bank.checking") != before


def test_a_transaction_is_named_by_its_number(bank: Path, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="'soon' is no commit_ts"):
        command.main(["transaction", "soon", "--dir", str(bank)])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["keys", "types", "txn", "online", "beyond_mysql", "ddl"])
def test_each_table_is_rebuilt_from_the_ledger_alone(case: str, spark: SparkSession, tmp_path: Path) -> None:
    """Its history, and so the life of each of its rows, ends with the mirror's rows."""
    lake_of(case, tmp_path, 8, 0.0)
    lake, done = Lake(spark, tmp_path), 0
    for name in names(case):
        try:
            made, missing, more = lake.rebuilt_differs(quoted(name))
        except ConfigError as error:
            assert case == "ddl" and "without row changes" in str(error), (name, error)
            continue
        assert (missing, more) == (0, 0), name
        assert made == lake.table(quoted(name)).count()
        done += 1
    assert done


@pytest.fixture(autouse=True)
def as_quiet(spark: SparkSession) -> Iterator[None]:
    """Spark's shuffles of few rows need few partitions."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)
