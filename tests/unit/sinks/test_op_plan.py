"""The SQL of single row operations, and which of them become one statement."""

import dataclasses
from collections.abc import Callable

import pytest

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.engine.causality import keys_of
from pyspark_tidb_binlog.sinks.engine.row_ops import operations_of
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.statements import Effect
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, index, table, text

KEYED = table([column("id", flag=INT_PK), text("u"), column("n")], [index("u", ("u", -1))], handle="int")
NULLABLE = table([column("u"), text("w")], [index("u", ("u", -1))])
PAIR = table([column("a", flag=INT_PK), column("b", flag=INT_PK)], [index("PRIMARY", ("a", -1), ("b", -1), primary=True)], handle="common")


def sql(at: TableAt, events: Events, *, safe: bool = False, limits: PlanLimits | None = None) -> list[str]:
    """The statements of all operations in one transaction."""
    batch = operations_of(events.table(), {TABLE_ID: at})
    made = OpPlan(batch, keys_of(batch), limits or PlanLimits(), Flavour.MARIADB, safe=safe)
    return [one.sql.decode() for one in made.statements(range(len(batch)))]


EXACT = "`u` <=> NULL AND CAST(CONVERT(`w` USING utf8mb4) AS BINARY) <=> "
STATEMENTS: dict[str, tuple[TableAt, Callable[[Events], Events], list[str]]] = {
    "one by one": (
        KEYED,
        lambda e: e.insert(1, "it's", 2).update((1, "it's", 2), (1, None, 3)).delete(1, None, 3),
        ["INSERT INTO `d`.`t` (`id`,`u`,`n`) VALUES (1,'it''s',2)", "UPDATE `d`.`t` SET `id`=1,`u`=NULL,`n`=3 WHERE `id`=1", "DELETE FROM `d`.`t` WHERE `id` IN (1)"],
    ),
    "safe mode": (
        KEYED,
        lambda e: e.insert(1, "a", 2).update((1, "a", 2), (1, "b", 3)).delete(1, "b", 3),
        [f"REPLACE INTO `d`.`t` (`id`,`u`,`n`) VALUES {row}" for row in ("(1,'a',2)", "(1,'b',3)")] + ["DELETE FROM `d`.`t` WHERE `id` IN (1)"],
    ),
    "safe mode: a key that moves is deleted first": (
        NULLABLE,
        lambda e: e.update((1, "a"), (2, "a"), rowid=9).update((3, "a"), (3, "b"), rowid=8).update((4, "a"), (None, "a"), rowid=7),
        ["DELETE FROM `d`.`t` WHERE `u` IN (1,4)", "REPLACE INTO `d`.`t` (`u`,`w`) VALUES (2,'a'),(3,'b'),(NULL,'a')"],
    ),
    "a row without a key is found by its columns": (
        NULLABLE,
        lambda e: e.delete(None, "a", rowid=1).update((None, "b"), (5, "b"), rowid=2),
        [f"DELETE FROM `d`.`t` WHERE {EXACT}'a' LIMIT 1", f"UPDATE `d`.`t` SET `u`=5,`w`='b' WHERE {EXACT}'b' LIMIT 1"],
    ),
    "a composite key": (
        PAIR,
        lambda e: e.delete(1, 2).delete(3, 4).update((5, 6), (5, 7)),
        ["DELETE FROM `d`.`t` WHERE (`a`,`b`) IN ((1,2),(3,4),(NULL,NULL))", "UPDATE `d`.`t` SET `a`=5,`b`=7 WHERE `a`=5 AND `b`=6"],
    ),
    "joined past others without a shared key; the last one needs the value of a row that is deleted before it": (
        KEYED,
        lambda e: e.insert(1, "a", 0).delete(9, "z", 0).insert(2, "b", 0).delete(8, "b2", 0).delete(7, "c", 0).insert(3, "c", 0),
        ["INSERT INTO `d`.`t` (`id`,`u`,`n`) VALUES (1,'a',0),(2,'b',0)", "DELETE FROM `d`.`t` WHERE `id` IN (9,8,7)", "INSERT INTO `d`.`t` (`id`,`u`,`n`) VALUES (3,'c',0)"],
    ),
}  # fmt: skip


@pytest.mark.shows("syncer.safe-mode")
@pytest.mark.parametrize("case", STATEMENTS)
def test_statements(case: str) -> None:
    at, events, wanted = STATEMENTS[case]
    assert sql(at, events(Events(at)), safe=case.startswith("safe mode")) == wanted


OWN = dataclasses.replace(KEYED, own_keys=("n",))


@pytest.mark.parametrize(
    ("at", "events", "verbs"),
    [
        (KEYED, lambda e: e.insert(1, "a", 0).delete(1, "a", 0).insert(1, "a", 1).delete(1, "a", 1), "INSERT DELETE INSERT DELETE"),
        (KEYED, lambda e: e.update((1, "a", 0), (1, "a", 1)).update((2, "b", 0), (2, "b", 1)), "UPDATE UPDATE"),
        (OWN, lambda e: e.insert(1, "a", 1).delete(2, "b", 2).insert(3, "c", 2), "INSERT DELETE INSERT"),
    ],
    ids=["of one row", "updates", "a key of the target's own may conflict"],
)
def test_what_is_never_joined(at: TableAt, events: Callable[[Events], Events], verbs: str) -> None:
    assert " ".join(s.split()[0] for s in sql(at, events(Events(at)))) == verbs


def test_a_statement_has_its_limits() -> None:
    events = Events(KEYED)
    for i in range(5):
        events.insert(i, None, 0)
    assert [s.count("(") - 1 for s in sql(KEYED, events, limits=PlanLimits(max_rows=2))] == [2, 2, 1]
    assert len(sql(KEYED, events, limits=PlanLimits(max_bytes=10))) == 5


def test_a_row_of_an_update_is_known_by_its_condition_and_can_be_written_whatever_is_there() -> None:
    events = Events(KEYED).update((1, "a", 0), (1, "b", 1))
    batch = operations_of(events.table(), {TABLE_ID: KEYED})
    (one,) = OpPlan(batch, keys_of(batch), PlanLimits(), Flavour.MARIADB, safe=False).statements([0])
    assert one.row_text() == b"`id`=1"
    assert (one.newest_ts, one.effect) == (1001, Effect.UPDATES)
    assert one.as_delete() == b"DELETE FROM `d`.`t` WHERE `id`=1"
    assert one.as_replace() == b"REPLACE INTO `d`.`t` SET `id`=1,`u`='b',`n`=1"


def test_joined_rows_can_be_cut_again() -> None:
    events = Events(KEYED).insert(1, "it's", 2).delete(9, "z", 0).insert(3, None, 4).delete(8, "y", 0)
    batch = operations_of(events.table(), {TABLE_ID: KEYED})
    inserted, deleted = OpPlan(batch, keys_of(batch), PlanLimits(), Flavour.MARIADB, safe=False).statements(range(4))
    assert [row.row_text() for row in inserted.cut()] == [b"(1,'it''s',2)", b"(3,NULL,4)"]
    assert [(row.sql, row.newest_ts) for row in deleted.cut()] == [
        (b"DELETE FROM `d`.`t` WHERE `id` IN (9)", 1002),
        (b"DELETE FROM `d`.`t` WHERE `id` IN (8)", 1004),
    ]
