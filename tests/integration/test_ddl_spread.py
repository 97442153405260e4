"""Partitions that hold other rows on the target than upstream: nothing is done to one of them."""

import dataclasses
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import DdlStep
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, job, partitioned, steps_of, table
from tests.support.ddl_target import CONFIG, apply, apply_all, committed, prepared

pytestmark = pytest.mark.mysql

ID = column(1, "id", {**INT, "Flag": 4099})
HASH, KEY = 2, 4


def parts(kind: int, *ids: int) -> dict[str, Any]:
    definitions = [{"id": i, "name": {"O": f"p{n}"}} for n, i in enumerate(ids)]
    over = {"expr": "`id`"} if kind == HASH else {"columns": [{"O": "id"}]}
    return table(10, "t", [ID], partition={"definitions": definitions, "type": kind, **over, "enable": True, "num": len(ids)})


def made(session: Session, kind: int, how: str, last: dict[str, Any], *by_hand: str) -> tuple[SchemaHistory, DdlStep]:
    """A table of three partitions with the rows 1 to 12, and the step of the ``last`` job."""
    h = history(database(1), job(2, 3, parts(kind, 101, 102, 103)), job(3, 3, table(20, "plain", [ID])), last)
    texts = {2: f"CREATE TABLE `t` (`id` INT PRIMARY KEY) PARTITION BY {how} (`id`) PARTITIONS 3;"}
    rows = "INSERT INTO d.t VALUES " + ", ".join(f"({i})" for i in range(1, 13))
    return h, prepared(session, h, texts, rows, *by_hand)


def truncated(kind: int, *ids: int) -> dict[str, Any]:
    return job(
        4, 23, parts(kind, *ids), query="ALTER TABLE `t` TRUNCATE PARTITION " + ",".join(f"p{n}" for n, i in enumerate(ids) if i > 110)
    )


def exchanged(kind: int) -> dict[str, Any]:
    return job(4, 42, parts(kind, 20, 102, 103), table_id=20, query="ALTER TABLE `t` EXCHANGE PARTITION p0 WITH TABLE `plain`")


def rows(session: Session) -> list[int]:
    found = sorted(int(i) for (i,) in session.query("SELECT id FROM d.t"))
    session.rollback()
    return found


def test_linear_is_plain_as_in_tidb(session: Session) -> None:
    h, step = made(session, HASH, "LINEAR HASH", truncated(HASH, 111, 102, 103))
    assert session.query(
        "SELECT DISTINCT partition_method FROM information_schema.partitions WHERE table_schema = 'd' AND table_name = 't'"
    ) == [("HASH",)]
    assert apply(session, step, h).how == "text"
    assert rows(session) == [1, 2, 4, 5, 7, 8, 10, 11]


@pytest.mark.shows("ddl truncate partition")
@pytest.mark.parametrize("how", ["KEY", "LINEAR KEY"])
@pytest.mark.parametrize("last", [truncated(KEY, 111, 102, 103), exchanged(KEY)], ids=["truncate", "exchange"])
def test_a_partition_by_key_is_left_alone(session: Session, how: str, last: dict[str, Any]) -> None:
    h, step = made(session, KEY, how, last)
    for _ in range(2):
        with pytest.raises(DdlRefused, match=r"partitioned BY KEY.*other rows than the upstream's"):
            apply(session, step, h)
    session.execute("ALTER TABLE d.t ADD COLUMN note INT")
    with pytest.raises(DdlRefused, match="BY KEY"):
        apply(session, step, h)
    assert rows(session) == list(range(1, 13))
    tries = session.query("SELECT tries FROM ddl_marks.spark_ddl WHERE job_id = 4")[0][0]
    assert "BY KEY" in tries
    session.execute("ALTER TABLE d.t DROP COLUMN note")
    outcome = apply(session, step, h, dataclasses.replace(CONFIG, ddl_policy="skip"))
    assert (outcome.state, outcome.how) == ("skipped", "policy")
    assert rows(session) == list(range(1, 13))


def test_a_person_brings_the_rows_and_skips_it(session: Session) -> None:
    h, step = made(session, KEY, "KEY", truncated(KEY, 111, 102, 103))
    with pytest.raises(DdlRefused):
        apply(session, step, h)
    committed(session, "DELETE FROM d.t WHERE id < 4")
    outcome = apply(session, step, h, dataclasses.replace(CONFIG, ignore_txn_commit_ts=(step.commit_ts,)))
    assert (outcome.state, outcome.how) == ("done", "ignored")


@pytest.mark.parametrize(("kind", "how", "own"), [(HASH, "HASH", "LINEAR HASH"), (KEY, "KEY", "HASH")])
def test_a_table_that_a_person_has_partitioned_otherwise_is_left_alone_too(session: Session, kind: int, how: str, own: str) -> None:
    h, step = made(session, kind, how, truncated(kind, 111, 102, 103), f"ALTER TABLE d.t PARTITION BY {own} (id) PARTITIONS 3")
    with pytest.raises(DdlRefused, match=f"BY {own} at the target"):
        apply(session, step, h)
    assert rows(session) == list(range(1, 13))


@pytest.mark.shows("ddl truncate partition", "ddl reorganize partition")
@pytest.mark.parametrize(
    ("last", "left"),
    [
        (truncated(KEY, 111, 112, 113), 0),
        (job(4, 64, parts(KEY, 111, 112), query="ALTER TABLE `t` COALESCE PARTITION 1"), 12),
    ],
    ids=["all partitions", "moves rows and loses none"],
)
def test_what_takes_the_same_rows_everywhere_is_sent(session: Session, last: dict[str, Any], left: int) -> None:
    h, step = made(session, KEY, "KEY", last)
    assert apply(session, step, h).how == "text" and len(rows(session)) == left


P0, P2, P3 = (104, "p0", "200"), (103, "p2", "300"), (107, "p3", "400")


@pytest.mark.parametrize(
    ("kind", "without_p2", "without_p0"),
    [(20, (P0, P3), (P3,)), (23, (P0, (105, "p2", "300"), P3), ((106, "p0", "200"), (105, "p2", "300"), P3))],
    ids=["drop", "truncate"],
)
def test_a_partition_with_other_bounds_is_left_alone(session: Session, kind: int, without_p2: Any, without_p0: Any) -> None:
    """A REORGANIZE was skipped, so the target's p0 lacks rows of the upstream's; p2 has the same ones."""
    found = ((101, "p0", "100"), (102, "p1", "200"), P2, P3), (P0, P2, P3), without_p2, without_p0
    infos = [table(10, "t", [ID], partition=partitioned(1, *parts, expr="`id`")) for parts in found]
    jobs = (job(number, tp, info) for number, tp, info in zip((2, 3, 4, 5), (3, 64, kind, kind), infos, strict=True))
    h = history(database(1), *jobs)
    base, create, skipped, same, other = steps_of(h)
    apply_all(session, (base, create), h)
    committed(session, "INSERT INTO d.t VALUES (50), (150), (250), (350)")
    apply(session, skipped, h, dataclasses.replace(CONFIG, ignore_txn_commit_ts=(skipped.commit_ts,)))
    assert apply(session, same, h).how == "text" and rows(session) == [50, 150, 350]
    for _ in range(2):
        with pytest.raises(DdlRefused, match=r"other bounds at the target \(p0\)"):
            apply(session, other, h)
    assert rows(session) == [50, 150, 350]
