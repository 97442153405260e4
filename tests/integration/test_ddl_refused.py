"""A DDL that the target refuses: what is kept of it, and what a person does by hand before the next start, in every order."""

import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable

import pytest

from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlRecord, load_applied
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, index, job, steps_of, table
from tests.support.ddl_target import CONFIG, Died, apply, apply_all, deadly, die, prepared
from tests.support.leases import held

pytestmark = pytest.mark.mysql

COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "v")]
UNIQUE = index(1, "u", ("v", 1), unique=True)


def refused_unique(session: Session) -> tuple[SchemaHistory, DdlStep]:
    """A table with two equal values, and the step that wants them to differ, refused once."""
    h = history(
        database(1),
        job(2, 3, table(10, "t", COLUMNS)),
        job(3, 7, table(10, "t", COLUMNS, index_info=[UNIQUE])),
    )
    steps = steps_of(h, {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);"})
    apply_all(session, steps[:2], h)
    session.execute("INSERT INTO d.t VALUES (1, 7), (2, 7)")
    session.commit()
    with pytest.raises(DdlRefused, match="Duplicate entry"):
        apply(session, steps[2], h)
    return h, steps[2]


def keys(session: Session) -> list[tuple[str, int]]:
    rows = session.query(
        "SELECT DISTINCT index_name, non_unique FROM information_schema.statistics WHERE table_schema = 'd' AND index_name <> 'PRIMARY'"
    )
    return [(str(name), int(non_unique)) for name, non_unique in rows]


def row(session: Session) -> tuple[str, list[dict[str, str]]]:
    state, tries = session.query("SELECT state, tries FROM ddl_marks.spark_ddl WHERE job_id = 3")[0]
    return state, json.loads(tries or "[]")


@pytest.mark.shows("drainer gotcha 9")
def test_an_alter_by_hand_is_not_taken_for_the_refused_one(session: Session) -> None:
    h, step = refused_unique(session)
    session.execute("ALTER TABLE d.t ADD COLUMN note VARCHAR(20)")
    with pytest.raises(DdlRefused, match="Duplicate entry"):
        apply(session, step, h)
    session.execute("UPDATE d.t SET v = 8 WHERE id = 2")
    session.commit()
    assert apply(session, step, h).how == "changes"
    assert keys(session) == [("u", 0)]


def test_every_refusal_is_kept(session: Session) -> None:
    h, step = refused_unique(session)
    state, tries = row(session)
    assert state == "refused"
    assert [t["step"] for t in tries] == ["changes"]
    assert all("Duplicate entry" in t["words"] and "UNIQUE" in t["sql"] and t["at"] for t in tries)
    assert load_applied(session, CONFIG, 1, 0) == AppliedJobs(0, frozenset({1, 2})), "those that are recorded as done, not the refused one"
    with pytest.raises(DdlRefused):
        apply(session, step, h)
    assert len(row(session)[1]) == 2
    session.execute("UPDATE d.t SET v = 8 WHERE id = 2")
    session.commit()
    apply(session, step, h)
    state, tries = row(session)
    assert (state, len(tries)) == ("done", 2)


def test_what_a_person_has_done_is_not_done_again(session: Session) -> None:
    h, step = refused_unique(session)
    session.execute("UPDATE d.t SET v = 8 WHERE id = 2")
    session.execute("ALTER TABLE d.t ADD UNIQUE u (v)")
    assert apply(session, step, h).how == "found"
    assert keys(session) == [("u", 0)]


def test_another_key_of_that_name_is_not_it(session: Session) -> None:
    h, step = refused_unique(session)
    session.execute("ALTER TABLE d.t ADD KEY u (v)")
    with pytest.raises(DdlRefused, match="Duplicate key name"):
        apply(session, step, h)
    assert row(session)[0] == "refused"


def test_a_dropped_table_is_not_a_key(session: Session) -> None:
    h, step = refused_unique(session)
    session.execute("DROP TABLE d.t")
    with pytest.raises(DdlRefused, match="doesn't exist"):
        apply(session, step, h)


def _mend(session: Session) -> None:
    session.execute("UPDATE d.t SET v = 8 WHERE id = 2")
    session.commit()


def _alter(session: Session) -> None:
    session.execute("ALTER TABLE d.t ADD COLUMN note INT")


def _comment(session: Session) -> None:
    session.execute("ALTER TABLE d.t COMMENT = 'waiting for a key'")


HANDS: tuple[Callable[[Session], None], ...] = (_mend, _alter, _comment)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_hands_and_crashes_in_every_order(session: Session, order: tuple[int, ...], point: str) -> None:
    h, step = refused_unique(session)

    for hand in order:
        HANDS[hand](session)
        with deadly(point), contextlib.suppress(Died, DdlRefused):
            apply(session, step, h)
        session.rollback()
    assert apply(session, step, h).state == "done"
    assert keys(session) == [("u", 0)]


def swapped() -> tuple[SchemaHistory, DdlStep, list[DdlStep]]:
    """Two tables of one shape that change their names; the target refuses, for a while, because ``x`` is there."""
    a, b = table(10, "a"), table(11, "b")
    many = [table(10, "x"), table(11, "a"), table(10, "b")]
    query = "RENAME TABLE `a` TO `x`, `b` TO `a`, `x` TO `b`"
    h = history(database(1), job(2, 3, a), job(3, 3, b), job(4, 47, table(10, "b"), many=many, query=query))
    steps = steps_of(h, {2: "CREATE TABLE `a` (`id` INT PRIMARY KEY);", 3: "CREATE TABLE `b` (`id` INT PRIMARY KEY);"})
    return h, steps[3], steps[:3]


def refused_swap(session: Session) -> tuple[SchemaHistory, DdlStep]:
    h, swap, before = swapped()
    apply_all(session, before, h)
    session.execute("INSERT INTO d.a VALUES (1)")
    session.execute("CREATE TABLE d.x (id INT)")
    session.commit()
    with pytest.raises(DdlRefused, match="already exists"):
        apply(session, swap, h)
    return h, swap


def test_a_swap_that_a_person_made_is_not_made_back(session: Session) -> None:
    h, swap = refused_swap(session)
    session.execute("DROP TABLE d.x")
    session.execute("RENAME TABLE d.a TO d.x, d.b TO d.a, d.x TO d.b")
    assert apply(session, swap, h).how == "found"
    assert session.query("SELECT id FROM d.b") == [(1,)]


def test_a_swap_that_was_only_made_possible_is_made(session: Session) -> None:
    h, swap = refused_swap(session)
    session.execute("DROP TABLE d.x")
    assert apply(session, swap, h).how == "text"
    assert session.query("SELECT id FROM d.b") == [(1,)]


def test_a_swap_that_cannot_be_told_is_left_to_a_person(session: Session) -> None:
    h, swap = refused_swap(session)
    session.execute("DROP TABLE d.x")
    session.execute("ALTER TABLE d.a ADD COLUMN note INT, ALGORITHM=COPY")
    with pytest.raises(ApplyError, match="not as this DDL changes it"):
        apply(session, swap, h)


def test_a_truncation_is_not_found_in_an_alter(session: Session) -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "t", COLUMNS)),
        job(3, 11, table(11, "t", COLUMNS), table_id=10),
    )
    create, truncate = steps_of(h, {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);"})[1:]
    apply(session, steps_of(h, {})[0], h)
    apply(session, create, h)
    session.execute("INSERT INTO d.t VALUES (1, 7)")
    session.execute("CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES t (id))")
    session.execute("SET SESSION foreign_key_checks = 1")
    with pytest.raises(DdlRefused, match="foreign key"):
        apply(session, truncate, h)
    session.execute("DROP TABLE d.child")
    session.execute("ALTER TABLE d.t ADD COLUMN note INT, ALGORITHM=COPY")
    assert apply(session, truncate, h).how == "text"
    assert session.query("SELECT COUNT(*) FROM d.t") == [(0,)]


def test_the_advice_names_one_early_job_alone(session: Session) -> None:
    """Two jobs that a row needs before their binlogs are read have one commit_ts, which may be a transaction's too."""
    h = history(
        database(1),
        job(2, 3, table(10, "t", COLUMNS)),
        job(5, 7, table(10, "t", COLUMNS, index_info=[UNIQUE]), query="alter table t add unique u (v)"),
        job(6, 5, table(10, "t", [*COLUMNS, column(3, "w")], index_info=[UNIQUE]), query="alter table t add column w int"),
    )
    for step in steps_of(h, {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);"})[:2]:
        apply(session, step, h)
    session.execute("INSERT INTO d.t VALUES (1, 7), (2, 7)")
    session.commit()
    steps = plan_steps((25, 100), (), (TableActivity(10, 6, 40, 10, 45, 0),), h, AppliedJobs(2))
    unique, added = [s for s in steps if isinstance(s, DdlStep)]
    assert unique.early and added.early and unique.commit_ts == added.commit_ts
    with pytest.raises(DdlRefused) as caught:
        apply(session, unique, h)
    advice = re.search(r"ignore-txn-commit-ts = \[(\d+)\]", str(caught.value))
    assert advice
    config = dataclasses.replace(CONFIG, ignore_txn_commit_ts=(int(advice[1]),))
    passed = apply(session, unique, h, config)
    assert (passed.state, passed.how) == ("done", "ignored")
    assert apply(session, added, h, config).how == "changes"
    assert [name for (name,) in session.query("SELECT column_name FROM information_schema.columns WHERE table_schema = 'd'")] == [
        "id",
        "v",
        "w",
    ]


def test_an_existing_table_without_transactions_is_another_one(session: Session) -> None:
    h = history(database(1), job(2, 3, table(10, "t", COLUMNS)))
    first, create = steps_of(h, {2: "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);"})
    apply(session, first, h)
    session.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT) ENGINE = MyISAM")
    with pytest.raises(DdlRefused, match="engine MyISAM has no transactions"):
        apply(session, create, h)
    session.execute("ALTER TABLE d.t ENGINE = InnoDB")
    assert apply(session, create, h).state == "done"


@pytest.mark.parametrize("point", ["", "after-ddl-intent"])
def test_a_table_of_the_new_name_is_not_the_renamed_one_that_is_missing(session: Session, point: str) -> None:
    """Not at the next start either, nor where the process died before the statement."""
    h = history(database(1), job(2, 3, table(10, "a", COLUMNS)), job(3, 14, table(10, "b", COLUMNS)))
    rename = prepared(session, h, {2: "CREATE TABLE `a` (`id` INT PRIMARY KEY, `v` INT);"}, "RENAME TABLE d.a TO d.b")
    die(session, rename, h, point)
    for _ in range(2):
        with pytest.raises(DdlRefused, match="doesn't exist"):
            apply(session, rename, h)
    session.execute("RENAME TABLE d.b TO d.a")
    assert apply(session, rename, h).how == "text"


@pytest.mark.parametrize("dies", [False, True])
def test_what_another_drainer_may_have_executed_is_refused_at_every_start(
    session: Session, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap that was made is not made back by the next start."""
    h, swap, before = swapped()
    apply_all(session, before, h)
    session.execute("INSERT INTO d.a VALUES (1)")
    session.commit()
    session.execute("RENAME TABLE d.a TO d.x, d.b TO d.a, d.x TO d.b")
    lease = held(session, schema=CONFIG.checkpoint_schema)
    if dies:

        def died(record: DdlRecord) -> None:
            raise Died

        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(DdlRecord, "write_refused", died)
            apply_ddl(session, swap, h, CONFIG, lease, lambda _: None, in_doubt=True)
        session.rollback()
    for _ in range(2):
        with pytest.raises(DdlRefused, match="another Drainer may have executed it"):
            apply_ddl(session, swap, h, CONFIG, lease, lambda _: None, in_doubt=True)
    assert session.query("SELECT id FROM d.b") == [(1,)]
