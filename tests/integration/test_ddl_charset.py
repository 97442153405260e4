"""Keys of a table made without any charset clause compare as TiDB's do, whatever the target's defaults are; and gbk, of which servers lack characters."""

from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, partitioned, steps_of, table, told
from tests.support.ddl_target import apply, apply_all, committed, ddl_session, die, losses
from tests.support.private_mysql import NO_PAD_BIN

pytestmark = pytest.mark.mysql


@pytest.mark.shows("ddl create schema")
@pytest.mark.parametrize("server", [("latin1", "latin1_swedish_ci"), ("utf8mb4", "utf8mb4_general_ci")], ids=["latin1", "general_ci"])
def test_keys_compare_as_upstream(server: tuple[str, str]) -> None:
    k, m = column(1, "k", {**VARCHAR, "Flag": 1}), column(2, "m", VARCHAR)
    keys = [index(number, name, (name, number - 1), unique=True) for number, name in ((1, "k"), (2, "m"))]

    def info(*columns: dict[str, Any], keyed: int = 1) -> dict[str, Any]:
        return table(5, "t", columns, index_info=keys[:keyed], pk_is_handle=False)

    h = told(
        (3, info(k), "CREATE TABLE `t` (`k` VARCHAR(20) BINARY NOT NULL,UNIQUE `k`(`k`));"),
        (5, info(k, m), "ALTER TABLE `t` ADD COLUMN `m` VARCHAR(20) BINARY;"),
        (7, info(k, m, keyed=2), "ALTER TABLE `t` ADD UNIQUE(`m`);"),
        (12, info(k, {**m, "type": {**VARCHAR, "Flen": 30}}, keyed=2), "ALTER TABLE `t` MODIFY COLUMN `m` VARCHAR(30);"),
    )
    charset, collation = server
    with (
        PrivateMariaDB(options={"character-set-server": charset, "collation-server": collation}) as own,
        ddl_session(own.target()) as session,
    ):
        assert session.query("SELECT @@character_set_server") == [(charset,)]
        session.execute("CREATE DATABASE other")
        assert {outcome.state for outcome in apply_all(session, steps_of(h), h)} == {"done"}
        for word in ("a", "A", "a ", "日本", "é", "É"):
            session.execute("INSERT INTO d.t VALUES (%s, %s)", [word, word])
        session.commit()
        assert len(session.query("SELECT k FROM d.t")) == 6
        assert session.query("SELECT k FROM d.t WHERE k = 'a '") == [("a ",)]
        assert session.query("SELECT DISTINCT collation_name FROM information_schema.columns WHERE table_schema = 'd'") == [(NO_PAD_BIN,)]
        assert session.query("SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = 'd'") == [(NO_PAD_BIN,)]


GBK = {**VARCHAR, "Charset": "gbk", "Collate": "gbk_chinese_ci"}
ID = column(1, "id", {**INT, "Flag": 4099})
BY_CASE = "is utf8mb4, because the server's gbk lacks characters: it compares by case"
STAYS = "stays gbk, because a key or a partition needs that: the server's gbk has a question mark for €, ǹ, 〾, ⿰ to ⿻ and 66 characters from ⺁ to 䶮"
LONG = {**GBK, "Flen": 1000}


def gbk_table(kind: dict[str, Any] = GBK, table_id: int = 10, name: str = "t", **more: Any) -> dict[str, Any]:
    keys = {"index_info": [index(1, "u", ("k", 1), unique=True)]} if more.pop("keyed", False) else {}
    first = ID if more.get("pk_is_handle", True) else column(1, "id", {**INT, "Flag": 1})
    return table(table_id, name, [first, column(2, "k", kind)], **keys, **more)


def charsets(session: Session) -> list[str]:
    found = session.query(
        "SELECT character_set_name, collation_name FROM information_schema.columns WHERE table_schema = 'd' AND character_set_name IS NOT NULL "
        "ORDER BY ordinal_position"
    )
    return ["wide" if one == ("utf8mb4", NO_PAD_BIN) else str(one[0]) for one in found]


def run_all(session: Session, *jobs: dict[str, Any]) -> None:
    """The first one makes the database."""
    h = history(database(1), *jobs)
    assert {outcome.state for outcome in apply_all(session, steps_of(h), h)} == {"done"}


@pytest.mark.parametrize(
    ("info", "charset", "loss"),
    [
        (gbk_table(keyed=True), "wide", BY_CASE),
        (gbk_table(charset="gbk", collate="gbk_chinese_ci"), "wide", BY_CASE),
        (gbk_table({**GBK, "Charset": "", "Collate": "gbk_chinese_ci"}, keyed=True), "wide", BY_CASE),
        (gbk_table({**GBK, "Tp": 247, "Elems": ["⺁", "€"]}), "wide", BY_CASE),
        (gbk_table({**GBK, "Collate": "gbk_bin"}, keyed=True), "wide", ""),
        (gbk_table(LONG), "wide", BY_CASE),
        (gbk_table(LONG, keyed=True), "gbk", STAYS),
        (gbk_table({**GBK, "Flen": 768}, keyed=True), "wide", BY_CASE),
        (gbk_table(pk_is_handle=False, partition=partitioned(1, (31, "p0", "'中'"), columns=("k",))), "gbk", STAYS),
    ],
)
def test_gbk_becomes_utf8mb4_where_it_can(session: Session, info: dict[str, Any], charset: str, loss: str) -> None:
    run_all(session, job(2, 3, info, query="create table t"))
    assert charsets(session) == [charset]
    assert losses(session) == ([f"d.t: column k {loss}"] if loss else [])


def test_columns_of_gbk_come_later(session: Session) -> None:
    """A default that the server's gbk lacks; a key for which the column is too wide, which leaves it as it is."""
    made = gbk_table(LONG)
    z = column(3, "z", {**GBK, "Tp": 254, "Flag": 1, "Flen": 3}, default="⺁", origin_default="⺁")
    added = {**made, "cols": [*made["cols"], {**z, "offset": 2}]}
    keyed = {**added, "index_info": [index(1, "i", ("k", 1))]}
    said = {**keyed, "cols": [keyed["cols"][0], {**keyed["cols"][1], "comment": "said"}, keyed["cols"][2]]}
    back = {**said, "cols": [*said["cols"][:2], {**said["cols"][2], "type": {**z["type"], "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}}]}
    run_all(session, job(2, 3, made), job(3, 5, added))
    assert charsets(session) == ["wide", "wide"]
    committed(session, "INSERT INTO d.t (id, k) VALUES (1, '⺁€〾')")
    every = told(*((kind, info, "x") for kind, info in ((3, made), (5, added), (7, keyed), (12, said), (12, back))))
    for step in steps_of(every)[3:]:
        die(session, step, every, "after-ddl")
        assert apply(session, step, every).state == "done"
    assert charsets(session) == ["wide", "wide"]
    assert session.query("SELECT k, z FROM d.t") == [("⺁€〾", "⺁")]
    assert losses(session) == [f"d.t: column {name} {BY_CASE}" for name in ("k", "z")]


def test_a_column_that_is_gbk_at_the_target_stays_so(session: Session) -> None:
    """Made by hand, or by a release before."""
    session.execute("CREATE DATABASE d")
    session.execute("CREATE TABLE d.t (id INT PRIMARY KEY, k VARCHAR(20) CHARACTER SET gbk COLLATE gbk_chinese_ci, UNIQUE u (k))")
    made = gbk_table(keyed=True)
    said = {**made, "cols": [made["cols"][0], {**made["cols"][1], "comment": "said"}]}
    run_all(session, job(2, 3, made), job(3, 12, said))
    assert charsets(session) == ["gbk"]
    assert losses(session) == [f"d.t: column k {BY_CASE}"]
