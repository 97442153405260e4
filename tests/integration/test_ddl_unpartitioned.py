"""DDLs on partitions that the target's table does not have: rows go where the upstream's go, or it is said that they do not."""

from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.ddl import partitions
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import subject_of
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from tests.support.ddl_jobs import INT, column, database, history, job, partitioned, steps_of, table, told
from tests.support.ddl_target import apply, apply_all, committed, die, prepared, shown

pytestmark = pytest.mark.mysql

PLAIN = [column(1, "id", {**INT, "Flag": 4099}), column(2, "n")]
CREATE = "CREATE TABLE `t` (`id` INT NOT NULL PRIMARY KEY,`n` INT);"
REFUSED = "crc32(`id`)"
"""A function that TiDB may add, and no server takes in PARTITION BY."""
OTHERWISE = "PARTITION BY RANGE (id) (PARTITION q VALUES LESS THAN MAXVALUE)"
DROP = "ALTER TABLE `t` DROP PARTITION `p0`;"


def parted(*parts: tuple[int, str, str], table_id: int = 11, expr: str = "") -> dict[str, Any]:
    return table(table_id, "t", PLAIN, partition=partitioned(1, *parts, expr=expr, columns=() if expr else ("id",)))


P0, P1, P2, NEW_P0 = (101, "p0", "100"), (102, "p1", "200"), (103, "p2", "300"), (104, "p0", "100")


def begun(
    session: Session, before: dict[str, Any], after: dict[str, Any], kind: int, text: str, *by_hand: str, **more: Any
) -> tuple[SchemaHistory, DdlStep]:
    """The history and the last step, with a table without partitions at the target, three rows in it, and what a person executes."""
    h = history(database(1), job(3, 3, before, query=CREATE), job(4, kind, after, query=text, **more))
    made, made_table, last = steps_of(h)
    apply_all(session, (made, made_table), h)
    if "PARTITION BY" in shown(session):
        session.execute("ALTER TABLE d.t REMOVE PARTITIONING")
    committed(session, "INSERT INTO d.t VALUES (1, 1), (50, 2), (150, 3)", *by_hand)
    return h, last


def rows(session: Session) -> list[tuple[Any, ...]]:
    found = sorted(session.query("SELECT * FROM d.t"))
    session.rollback()
    return found


@pytest.mark.parametrize(
    ("kind", "after", "text"),
    [(20, parted(P1), DROP), (23, parted(NEW_P0, P1), "ALTER TABLE `t` TRUNCATE PARTITION `p0`;")],
    ids=["drop", "truncate"],
)
def test_its_rows_go_over_deaths(session: Session, monkeypatch: pytest.MonkeyPatch, kind: int, after: dict[str, Any], text: str) -> None:
    monkeypatch.setattr(partitions, "_CHUNK", 1)
    h, last = begun(session, parted(P0, P1), after, kind, text)
    for point in ("after-ddl-intent", "after-ddl"):
        die(session, last, h, point)
        session.execute("ALTER TABLE d.t COMMENT = %s", [point])  # a person changes it meanwhile
    outcome = apply(session, last, h)
    assert outcome.state == "done" and rows(session) == [(150, 3)]


def test_a_table_whose_partitions_the_target_refuses_is_made_without_them(session: Session) -> None:
    h = told((3, parted(P0, P1, expr=REFUSED), CREATE))
    outcome = apply(session, prepared(session, h), h)
    (loss,) = outcome.losses
    assert outcome.how == "derived" and loss.startswith("d.t: left out: ALTER TABLE `d`.`t` PARTITION BY")
    assert "PARTITION" not in shown(session)


def test_so_they_do_of_a_table_that_is_partitioned_otherwise(session: Session) -> None:
    h, last = begun(session, parted(P0, P1), parted(P1), 20, DROP, f"ALTER TABLE d.t {OTHERWISE}")
    outcome = apply(session, last, h)
    assert outcome.how == "derived" and outcome.sql.startswith("DELETE FROM `d`.`t` WHERE (`id` < 100 OR `id` IS NULL)")
    assert rows(session) == [(150, 3)]


def test_a_drop_that_was_executed_before_a_crash_is_found(session: Session) -> None:
    """Also where nobody could tell the rows by the bounds."""
    before, after = parted(P0, P1, expr="to_days(`id`)"), parted(P1, expr="to_days(`id`)")
    bounds = "(PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))"
    h, last = begun(session, before, after, 20, DROP, f"ALTER TABLE d.t PARTITION BY RANGE (id) {bounds}")
    die(session, last, h, "after-ddl")
    assert apply(session, last, h).how == "found" and rows(session) == [(150, 3)]


def test_rows_that_cannot_be_told_are_refused_aloud(session: Session) -> None:
    h, last = begun(session, parted(P0, P1, expr="to_days(`id`)"), parted(P1, expr="to_days(`id`)"), 20, DROP)
    for _ in range(2):
        with pytest.raises(DdlRefused, match=r"their bounds do not say exactly which rows are in them.* --bootstrap d\.t"):
            apply(session, last, h)
        session.execute("ALTER TABLE d.t COMMENT = 'changed'")  # not the refused DDL
    assert len(rows(session)) == 3


@pytest.mark.parametrize(
    ("kind", "before", "after", "text"),
    [
        (19, parted(P0, P1), parted(P0, P1, P2), "ALTER TABLE `t` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (300));"),
        (64, parted(P0, P1), parted((105, "p0", "200")), "ALTER TABLE `t` REORGANIZE PARTITION `p0`,`p1` INTO (PARTITION `p0` VALUES LESS THAN (200));"),
        (72, parted(P0, P1), table(12, "t", PLAIN), "ALTER TABLE `t` REMOVE PARTITIONING;"),
    ],
    ids=["add", "reorganize", "remove"],
)  # fmt: skip
def test_what_changes_no_row_needs_nothing(session: Session, kind: int, before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    h, last = begun(session, before, after, kind, text, table_id=11)
    outcome = apply(session, last, h)
    assert (outcome.state, outcome.how) == ("done", "nothing") and len(rows(session)) == 3
    assert outcome.losses == (
        () if kind == 72 else (f"d.t: {h.ordered[-1].type_name} left out, because the target's table has no partitions",)
    )


def test_a_refused_partition_by_is_a_loss_and_its_partitions_are_dropped_by_their_rows(session: Session) -> None:
    bounds = "(PARTITION `p0` VALUES LESS THAN (100),PARTITION `p1` VALUES LESS THAN (200))"
    by = f"ALTER TABLE `t` PARTITION BY RANGE (`id`) {bounds} UPDATE INDEXES (`PRIMARY` GLOBAL);"
    h = history(
        database(1),
        job(3, 3, table(11, "t", PLAIN), query=CREATE),
        job(4, JobType.ALTER_PARTITIONING, parted(P0, P1, table_id=12, expr="`id`"), table_id=11, query=by),
        job(5, 20, parted(P1, table_id=12, expr="`id`"), query=DROP),
    )
    *made, anew, dropped = steps_of(h)
    apply_all(session, made, h)
    # of somebody's own: partitions cannot keep it
    committed(session, "ALTER TABLE d.t ADD UNIQUE (n)", "INSERT INTO d.t VALUES (1, 1), (150, 3)")
    assert apply(session, anew, h).losses == ("d.t: alter partitioning left out, because the target's table has no partitions",)
    assert apply(session, dropped, h).how == "derived" and rows(session) == [(150, 3)]


def test_a_refused_partition_by_of_a_partitioned_table_is_no_loss_but_refused(session: Session) -> None:
    """Its partitions of the same names would hold other rows than the upstream's."""
    anew, own = (
        parted((111, "p0", "100"), (112, "p1", "200"), table_id=12, expr=REFUSED),
        "ALTER TABLE d.t PARTITION BY HASH (id) PARTITIONS 2",
    )
    h, last = begun(session, parted(P0, P1), anew, 71, "ALTER TABLE `t` PARTITION BY NONSENSE;", own, table_id=11)
    with pytest.raises(DdlRefused, match="1564"):
        apply(session, last, h)


def test_a_partition_by_that_fails_for_want_of_a_right_is_no_loss(session: Session) -> None:
    """It would succeed once the server is repaired."""
    h, last = begun(session, parted(P0, P1), parted(P0, P1, table_id=12), 71, "ALTER TABLE `t` PARTITION BY HASH (`no`);", table_id=11)
    error = ApplyError("ALTER command denied", 1142)
    subject, table = subject_of(last, h), read_whole(session, "d", "t")
    assert partitions.instead_of(subject, table, error) is None
    assert partitions.instead_of(subject, table, ApplyError("syntax", 1064)) is not None


@pytest.mark.parametrize("end", ["250", "300", "MAXVALUE"])
@pytest.mark.parametrize("point", ["", "after-ddl-intent"])
def test_somebodys_own_partition_is_that_of_the_job_only_if_it_ends_there(session: Session, end: str, point: str) -> None:
    """A later DROP PARTITION would remove other rows than upstream."""
    bounds = "(PARTITION `p0` VALUES LESS THAN (100),PARTITION `p1` VALUES LESS THAN (200))"
    create = f"CREATE TABLE `t` (`id` INT PRIMARY KEY,`n` INT) PARTITION BY RANGE COLUMNS (`id`) {bounds};"
    add = "ALTER TABLE `t` ADD PARTITION (PARTITION `p2` VALUES LESS THAN (300));"
    h = told((3, parted(P0, P1), create), (19, parted(P0, P1, P2), add))
    added = prepared(session, h)
    die(session, added, h, point)
    session.execute(f"ALTER TABLE d.t ADD PARTITION (PARTITION p2 VALUES LESS THAN ({end}))")
    if end == "300":
        assert apply(session, added, h).state == "done"
    else:
        with pytest.raises(DdlRefused, match=r"Duplicate partition name p2.* Repair the target"):
            apply(session, added, h)
