"""The undo of a lake's changes at a real server: what was there before is there again, and what was changed since stays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows, net_rows
from pyspark_tidb_binlog.sinks.past.past_changes import PastChanges
from pyspark_tidb_binlog.sinks.past.undo_apply import ALTERED, BEFORE, CHANGED, TAKEN, undone
from pyspark_tidb_binlog.sinks.past.undo_plan import UndoPlan
from tests.support.ddl_jobs import INT, VARCHAR, column, index, table
from tests.support.lake_scene import KEY, LakeScene
from tests.support.past_scene import lake_of, past_of, quoted, states
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import rows_of, run_sql

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as made:
        yield made


def plan_of(past: PastChanges, begin: int, end: int, ids: Any = None) -> UndoPlan:
    return UndoPlan(begin, end, list(net_rows(past.changes(begin, end, ids), past.schema, past.version, chained=True)))


KEYLESS_JSON = frozenset({"g_types.gen", "g_types.jsons"})
"""Refused at a MariaDB, which compares JSON as text."""


@pytest.mark.parametrize(
    ("case", "steps", "equal_rows"),
    [
        pytest.param("bank", 4, frozenset(), id="bank"),
        pytest.param("keys", 10, {"g_keys.no_pk"}, id="keys", marks=pytest.mark.slow),
        pytest.param("types", 10, KEYLESS_JSON, id="types", marks=pytest.mark.slow),
        *(
            pytest.param(case, n, set(), id=case, marks=pytest.mark.slow)
            for case, n in (("txn", 8), ("ddl", 12), ("online", 6), ("beyond_mysql", 6))
        ),
    ],
)
def test_the_undo_of_each_span_brings_back_what_was_before(
    case: str, steps: int, equal_rows: frozenset[str], server: PrivateMariaDB, tmp_path: Path
) -> None:
    """From the last span to the first, of all tables that no later DDL changes. ``equal_rows``: tables of which equal rows stay out."""
    past = lake_of(case, tmp_path / "lake", steps)
    known = states(case, server, steps, past)
    ends, rows = sorted(known), 0
    for begin, end in reversed(list(zip(ends, ends[1:], strict=False))):
        if not known[begin]:
            break
        ids = past.ids_of(*(quoted(name) for name in known[begin] if name not in KEYLESS_JSON))
        plan = plan_of(past, begin, end, ids)
        done = undone(plan, server.target())
        now = {name: rows_of(server, quoted(name)) for name in known[begin]}
        assert {name for name in now if now[name] != known[begin][name]} <= equal_rows, (begin, end)
        assert {row.table.replace("`", "") for row in done.left} <= equal_rows
        assert not undone(plan, server.target()).rows, "again changes nothing"
        assert {name: rows_of(server, quoted(name)) for name in known[begin]} == now
        rows += done.rows
    assert rows > 0


ITEM = table(
    10, "item", [column(1, "id", KEY), column(2, "name", VARCHAR), column(3, "price")], index_info=[index(1, "u", ("name", 1), unique=True)]
)


def item(key: int, name: str, price: int) -> dict[str, Any]:
    return {"id": key, "name": name.encode(), "price": price}


@pytest.fixture
def shop(server: PrivateMariaDB, tmp_path: Path) -> UndoPlan:
    """Rows that exchange their unique names, get other keys, come, go and are changed; the server has them as they are after it."""
    scene = LakeScene.of(ITEM)
    for key in range(1, 8):
        scene.row(30, 10, 2, None, item(key, f"n{key}", 10))
    scene.row(41, 10, 2, item(1, "n1", 10), item(1, "n2", 10))
    scene.row(41, 10, 2, item(2, "n2", 10), item(2, "n1", 10))
    scene.row(42, 10, 2, item(3, "n3", 10), None)
    scene.row(43, 10, 2, item(4, "n4", 10), item(4, "n4", 11))
    scene.row(44, 10, 2, item(4, "n4", 11), item(4, "n4", 12))
    scene.row(45, 10, 2, item(5, "n5", 10), None)
    scene.row(45, 10, 2, None, item(55, "n5", 10))
    scene.row(46, 10, 2, None, item(8, "n8", 10))
    scene.run(tmp_path / "lake", 35, 50)
    run_sql(server, "CREATE OR REPLACE DATABASE d")
    run_sql(
        server,
        "CREATE TABLE d.item (id INT PRIMARY KEY, name VARCHAR(20) COLLATE utf8mb4_bin UNIQUE, price INT, double_price INT AS (price * 2))",
    )
    run_sql(
        server,
        "INSERT INTO d.item (id, name, price) VALUES (1,'n2',10),(2,'n1',10),(4,'n4',12),(55,'n5',10),(6,'n6',10),(7,'n7',10),(8,'n8',10)",
    )
    return plan_of(past_of(tmp_path / "lake"), 35, 50)


def left_of(plan: UndoPlan, server: PrivateMariaDB) -> dict[str, str]:
    return {row.row: row.why for row in undone(plan, server.target()).left}


def prices(server: PrivateMariaDB) -> list[tuple[Any, ...]]:
    return run_sql(server, "SELECT id, name, price FROM d.item ORDER BY id")


def test_rows_that_were_changed_since_stay(shop: UndoPlan, server: PrivateMariaDB) -> None:
    """Also where another row has taken a key that is to come back, so that the server refuses it."""
    run_sql(server, "UPDATE d.item SET price = 99 WHERE id = 4", "DELETE FROM d.item WHERE id = 8")
    run_sql(server, "INSERT INTO d.item (id, name, price) VALUES (9, 'n3', 1), (5, 'other', 1)")
    assert left_of(shop, server) == {"`id`=4": CHANGED, "`id`=8": BEFORE, "`id`=3": TAKEN, "`id`=55": TAKEN}
    changed = [(4, "n4", 99), (5, "other", 1), (9, "n3", 1), (55, "n5", 10)]
    assert prices(server) == sorted([*changed, *((n, f"n{n}", 10) for n in (1, 2, 6, 7))])
    assert set(left_of(shop, server).values()) == {CHANGED, TAKEN, BEFORE}


def test_a_row_that_was_changed_under_its_new_key_stays_there(shop: UndoPlan, server: PrivateMariaDB) -> None:
    run_sql(server, "UPDATE d.item SET price = 77, name = 'later' WHERE id = 55")
    assert left_of(shop, server) == {"`id`=55": CHANGED}
    assert prices(server)[-1] == (55, "later", 77) and (5, "n5", 10) not in prices(server)


def test_a_row_that_went_under_its_new_key_is_not_called_as_before(shop: UndoPlan, server: PrivateMariaDB) -> None:
    run_sql(server, "DELETE FROM d.item WHERE id = 55")
    assert left_of(shop, server) == {"`id`=55": CHANGED}


@pytest.mark.parametrize(
    ("trigger", "left"),
    [("INSERT ON d.item FOR EACH ROW SET NEW.price = 0", {1, 2, 3, 55}), ("UPDATE ON d.item FOR EACH ROW SET NEW.price = 5", {4})],
)
def test_a_row_that_the_server_would_alter_stays_as_it_is(trigger: str, left: set[int], shop: UndoPlan, server: PrivateMariaDB) -> None:
    """A trigger does, and a column that does not hold the value: nobody would be told, for the sessions are not strict."""
    before = dict((row[0], row) for row in prices(server))
    run_sql(server, f"CREATE TRIGGER d.late BEFORE {trigger}")
    assert left_of(shop, server) == {f"`id`={key}": ALTERED for key in left}
    now = dict((row[0], row) for row in prices(server))
    assert {key: now.get(key) for key in left} == {key: before.get(key) for key in left}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE d.item ADD note TEXT", "has a column note at the server"),
        ("ALTER TABLE d.item ENGINE = MyISAM", "no transactions"),
        ("DROP TABLE d.item", "has no table `d`.`item`"),
    ],
)
def test_a_table_in_which_changes_would_not_be_seen_is_refused(change: str, words: str, shop: UndoPlan, server: PrivateMariaDB) -> None:
    run_sql(server, change)
    with pytest.raises(ApplyError, match=words):
        undone(shop, server.target())


def test_rows_that_only_the_text_of_a_document_tells_apart_are_refused(server: PrivateMariaDB) -> None:
    """{"a":1} and {"a": 1} are one document, and two texts."""
    scene = LakeScene.of(table(10, "docs", [column(1, "n"), column(2, "j", {**INT, "Tp": 245})], pk_is_handle=False))
    docs = scene.history.find("d", "docs", 2)
    assert docs is not None
    images = pa.table({"n": [1], "j": ['{"a": 1}']}).cast(image_schema(docs.info.target_columns())).to_batches()[0]
    plan = UndoPlan(35, 50, [NetRows(docs, images, images, np.array([True]), np.array([False]))])
    run_sql(server, "CREATE OR REPLACE DATABASE d", "CREATE TABLE d.docs (n INT, j JSON)", """INSERT INTO d.docs VALUES (1, '{"a":1}')""")
    with pytest.raises(ApplyError, match="MariaDB compares its JSON column j as text"):
        undone(plan, server.target())
    assert run_sql(server, "SELECT count(*) FROM d.docs") == [(1,)]


def test_of_two_rows_of_one_key_none_is_touched(shop: UndoPlan, server: PrivateMariaDB) -> None:
    run_sql(server, "ALTER TABLE d.item DROP PRIMARY KEY, DROP KEY name", "DELETE FROM d.item WHERE id = 4")
    run_sql(server, "INSERT INTO d.item (id, name, price) VALUES (4, 'mine', 99), (4, 'n4', 12)")
    assert left_of(shop, server) == {"`id`=4": CHANGED}
    assert [row for row in prices(server) if row[0] == 4] == [(4, "mine", 99), (4, "n4", 12)]


def test_a_refused_undo_changes_nothing(shop: UndoPlan, server: PrivateMariaDB) -> None:
    before = prices(server)
    run_sql(server, "CREATE TRIGGER d.late BEFORE INSERT ON d.item FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
    with pytest.raises(ApplyError, match="refused"):
        undone(shop, server.target())
    assert prices(server) == before
    run_sql(server, "DROP TRIGGER d.late")
    assert left_of(shop, server) == {} and prices(server) == [(n, f"n{n}", 10) for n in range(1, 8)]
    assert set(left_of(shop, server).values()) == {BEFORE}


def test_the_printed_sql_does_the_same(shop: UndoPlan, server: PrivateMariaDB) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for line in shop.sql(Flavour.MARIADB):
            if not line.startswith("--"):
                cursor.execute(line)
    assert prices(server) == [(n, f"n{n}", 10) for n in range(1, 8)]


def test_a_row_under_a_key_that_is_equal_but_not_the_same_is_not_called_as_before(server: PrivateMariaDB, tmp_path: Path) -> None:
    key = {**VARCHAR, "Flag": 4099, "Collate": "utf8mb4_general_ci"}
    words = table(
        10,
        "word",
        [column(1, "k", key)],
        pk_is_handle=False,
        is_common_handle=True,
        index_info=[index(1, "PRIMARY", ("k", 0), primary=True)],
    )
    scene = LakeScene.of(words)
    scene.row(40, 10, 2, None, {"k": b"a"})
    scene.run(tmp_path / "lake", 35, 50)
    run_sql(server, "CREATE OR REPLACE DATABASE d", "CREATE TABLE d.word (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY)")
    run_sql(server, "INSERT INTO d.word VALUES ('A')")
    assert left_of(plan_of(past_of(tmp_path / "lake"), 35, 50), server) == {"`k`='a'": CHANGED}


BYTES = {**VARCHAR, "Flag": 128, "Charset": "binary", "Collate": "binary"}
NOW = {"Tp": 12, "Flag": 8320, "Flen": 19, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
DAY = {"Tp": 10, "Flag": 128, "Flen": 10, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
KIND = {**VARCHAR, "Tp": 247, "Flag": 0, "Elems": ["2", "1", "o'k"]}
FLAGS = {**KIND, "Tp": 248}
_COLUMNS = {
    "id": KEY,
    "raw": BYTES,
    "words": VARCHAR,
    "day": DAY,
    "at": NOW,
    "kind": KIND,
    "flags": FLAGS,
    "odd": {**FLAGS, "Elems": ["", "x"]},
}
NOTE = table(10, "note", [column(place, *named) for place, named in enumerate(_COLUMNS.items(), 1)])


@pytest.mark.parametrize("printed", [False, True])
def test_values_come_back_as_they_were(printed: bool, server: PrivateMariaDB, tmp_path: Path) -> None:
    """Bytes that are no text, from a client in latin1; a day that no calendar has; names that are numbers; and the server sets no time of its own."""

    def note(key: int, words: str, kind: int = 2, flags: int = 6) -> dict[str, Any]:
        known = {"raw": b"\xff\x00\\'\xc3", "day": "2024-02-31", "at": "2026-01-01 00:00:00", "odd": 2}
        return {"id": key, "words": words.encode(), "kind": kind, "flags": flags, **known}

    scene = LakeScene.of(NOTE)
    scene.row(40, 10, 2, note(1, "ä€\r\n'\\"), None)
    scene.row(41, 10, 2, note(2, "ö"), note(2, "later", 3, 0))
    scene.run(tmp_path / "lake", 35, 50)
    plan = plan_of(past_of(tmp_path / "lake"), 35, 50)
    run_sql(server, "CREATE OR REPLACE DATABASE d")
    words = "kind ENUM('2','1','o''k'), flags SET('2','1','o''k'), odd SET('','x')"
    run_sql(
        server,
        f"CREATE TABLE d.note (id INT PRIMARY KEY, raw VARBINARY(20), words VARCHAR(20), day DATE, at DATETIME ON UPDATE NOW(), {words})",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("INSERT INTO d.note VALUES (2, X'FF005C27C3', 'later', '2024-02-31', '2026-01-01', 3, 0, 2)")
        if printed:
            cursor.execute("SET NAMES latin1")
            for line in plan.sql(Flavour.MARIADB):
                assert "\r" not in line
                if not line.startswith("--"):
                    cursor.execute(line.encode())
        (update,) = (line for line in plan.sql() if line.startswith("UPDATE"))
        assert "`kind`='1',`flags`='1,o''k' WHERE " in update and "`kind` <=> 'o''k' AND `flags` <=> '' AND `odd` <=> 2" in update
    if not printed:
        assert undone(plan, server.target()).rows == 2
    assert run_sql(
        server, "SELECT id, HEX(raw), HEX(words), CAST(day AS CHAR), CAST(at AS CHAR), kind, flags, odd + 0 FROM d.note ORDER BY id"
    ) == [
        (key, "FF005C27C3", words.encode().hex().upper(), "2024-02-31", "2026-01-01 00:00:00", "1", "1,o'k", 2)
        for key, words in [(1, "ä€\r\n'\\"), (2, "ö")]
    ]
