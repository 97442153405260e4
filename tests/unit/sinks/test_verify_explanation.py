"""What is known of a table that differs: its own DDLs and findings, and no other table's."""

from typing import Any

import pytest

from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl
from pyspark_tidb_binlog.sinks.verify.explanation import explanations, may_concern, reason

UP, DOWN = ("shop", "Orders"), ("copy", "orders")


def ddl(state: str = "done", query: str = "", *losses: str, job_id: int = 7, how: str = "") -> RecordedDdl:
    return RecordedDdl(1, job_id, 90, state, how, query, "", losses, ())


def finding(table: str, kind: str = "rows") -> dict[str, Any]:
    return {"table": table, "kind": kind}


def test_what_is_known_of_a_table() -> None:
    ddls = [
        ddl("refused", "ALTER TABLE `orders` ADD KEY k (v)"),
        ddl("done", "ALTER TABLE orders ADD KEY k (v)", "copy.orders: key k left out", "copy.orders2: key k left out"),
        ddl("skipped", "ALTER TABLE orders2 ADD COLUMN w INT"),
        ddl("done", "ALTER TABLE orders COMMENT 'orders'", how="text"),
        ddl("done", "", "copy.orders: partitions left out", job_id=-5),
    ]
    findings = [
        *[finding("`copy`.`orders`")] * 2,
        finding("`copy`.`orders`", "value"),
        finding("`shop`.`orders`"),
        finding("", "lost"),
        finding("", "rows"),
    ]
    assert list(explanations(UP, DOWN, findings, ddls, [80, 70])) == [
        "DDL of job 7 at commit_ts 90, refused: ALTER TABLE `orders` ADD KEY k (v)",
        "key k left out (DDL of job 7 at commit_ts 90)",
        "partitions left out (first copy at commit_ts 90)",
        "ignore-txn-commit-ts skips the transactions at 70, 80",
        "findings of this table: 2 rows, 1 value",
        "findings of no single table: 1 lost",
    ]
    assert list(explanations(UP, DOWN, [], [], [])) == []


def test_a_reason_names_the_column_or_key() -> None:
    losses = "copy.orders: column v is left out: a server cannot compute it", "copy.orders: key by_v left out"
    assert (
        reason([ddl("done", "", *losses)], UP, DOWN, "V")
        == "column v is left out: a server cannot compute it (DDL of job 7 at commit_ts 90)"
    )
    assert reason([ddl("done", "", *losses)], UP, DOWN, "by_v").startswith("key by_v left out")
    for name in ("a", "server", "by", "left", "v_"):
        assert reason([ddl("done", "", *losses)], UP, DOWN, name) == ""
    passed = ddl("done", "ALTER TABLE orders ADD COLUMN w INT", how="ignored")
    assert reason([passed], UP, DOWN, "w").endswith("90, ignored: ALTER TABLE orders ADD COLUMN w INT")
    assert reason([passed], UP, DOWN, "x") == "" and reason([passed], ("shop", "other"), DOWN, "w") == ""


OF_IT = (
    "ALTER TABLE Orders ADD COLUMN a INT",
    "/* x */ alter table `shop`.`ORDERS` add key (v)",
    'ALTER TABLE shop."orders" DROP COLUMN a',
    "RENAME TABLE a TO b, orders TO c",
    "RENAME TABLE a TO `orders`",
    "DROP TABLE a, shop.orders, b",
    "TRUNCATE orders",
    "TRUNCATE TABLE orders",
    "CREATE UNIQUE INDEX k ON orders (v)",
    "CREATE TABLE a LIKE orders",
    "ALTER TABLE a EXCHANGE PARTITION p0 WITH TABLE orders WITHOUT VALIDATION",
    "ALTER TABLE a /*T![x] , RENAME TO orders */",
    "ALTER TABLE upstream_shard ADD COLUMN a INT",
    "DROP DATABASE other",
    "ALTER DATABASE CHARACTER SET utf8mb4",
    "RECOVER TABLE BY JOB 5",
    "FLASHBACK CLUSTER TO TIMESTAMP '2024-01-01'",
    "ALTER",
    "",
)
NOT_OF_IT = (
    "ALTER TABLE shop.orders2 ADD COLUMN a INT",
    "ALTER TABLE a DROP COLUMN my_orders",
    "CREATE TABLE a (`orders$` INT)",
    "TRUNCATE TABLE a",
    "DROP VIEW IF EXISTS a",
)


@pytest.mark.parametrize("query", [*OF_IT, *NOT_OF_IT])
def test_a_ddl_that_may_change_a_table_concerns_it(query: str) -> None:
    executed = "ALTER TABLE `copy`.`all_orders` ADD COLUMN a INT" if "shard" in query else query
    assert may_concern(query, executed, {"orders", "all_orders"}) == (query in OF_IT)


def test_quoted_names_of_all_kinds_are_seen() -> None:
    for name, query in (
        ("a`b", "DROP TABLE `a``b`"),
        ('a"b', 'DROP TABLE "a""b"'),
        ("-x", "DROP TABLE `-x`"),
        ("größe", "DROP TABLE Größe"),
    ):
        assert may_concern(query, "", {name}) and not may_concern(query, "", {"c"})
