"""A DDL that the target refuses: what is kept of it, and what a person does by hand before the next start, in every order."""

import contextlib
import dataclasses
import itertools
import json
import re

import pytest

from pyspark_tidb_binlog.schemas.errors import ApplyError, DdlRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlRecord, load_applied
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.support.ddl_jobs import INT, column, database, history, index, job, steps_of, table, told
from tests.support.ddl_target import CONFIG, Died, apply, apply_all, committed, deadly, die, prepared
from tests.support.leases import held

pytestmark = pytest.mark.mysql

COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "v")]
UNIQUE = index(1, "u", ("v", 1), unique=True)
CREATE, MEND = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);", "UPDATE d.t SET v = 8 WHERE id = 2"


def refused_unique(session: Session) -> tuple[SchemaHistory, DdlStep]:
    """A table with two equal values, and the step that wants them to differ, refused once."""
    made = (3, table(10, "t", COLUMNS), CREATE)
    h = told(made, (7, table(10, "t", COLUMNS, index_info=[UNIQUE]), "ALTER TABLE `t` ADD UNIQUE `u`(`v`);"))
    step = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, 7), (2, 7)")
    with pytest.raises(DdlRefused, match="Duplicate entry"):
        apply(session, step, h)
    return h, step


def keys(session: Session) -> list[tuple[str, int]]:
    rows = session.query(
        "SELECT DISTINCT index_name, non_unique FROM information_schema.statistics WHERE table_schema = 'd' AND index_name <> 'PRIMARY'"
    )
    return [(str(name), int(non_unique)) for name, non_unique in rows]


def row(session: Session) -> tuple[str, list[dict[str, str]]]:
    state, tries = session.query("SELECT state, tries FROM ddl_marks.spark_ddl WHERE job_id = 3")[0]
    return state, json.loads(tries or "[]")


@pytest.mark.shows("drainer gotcha 9")
@pytest.mark.parametrize(
    ("by_hand", "again"),
    [
        (("ALTER TABLE d.t ADD COLUMN note VARCHAR(20)",), "Duplicate entry"),
        (("ALTER TABLE d.t ADD KEY u (v)",), "Duplicate key name"),
        (("DROP TABLE d.t",), "doesn't exist"),
        ((MEND, "ALTER TABLE d.t ADD UNIQUE u (v)"), ""),
    ],
    ids=["another column", "another key of that name", "no table any more", "the key"],
)
def test_only_what_it_does_is_taken_for_the_refused_one(session: Session, by_hand: tuple[str, ...], again: str) -> None:
    h, step = refused_unique(session)
    committed(session, *by_hand)
    if again:
        with pytest.raises(DdlRefused, match=again):
            apply(session, step, h)
        assert row(session)[0] == "refused"
    else:
        assert apply(session, step, h).how == "found" and keys(session) == [("u", 0)]


def test_every_refusal_is_kept(session: Session) -> None:
    h, step = refused_unique(session)
    state, tries = row(session)
    assert state == "refused" and [t["step"] for t in tries] == ["changes"]
    assert all("Duplicate entry" in t["words"] and "UNIQUE" in t["sql"] and t["at"] for t in tries)
    assert load_applied(session, CONFIG, 1, 0) == AppliedJobs(0, frozenset({1, 2})), "those that are recorded as done, not the refused one"
    with pytest.raises(DdlRefused):
        apply(session, step, h)
    assert len(row(session)[1]) == 2
    committed(session, MEND)
    assert apply(session, step, h).how == "changes"
    state, tries = row(session)
    assert (state, len(tries)) == ("done", 2)


HANDS = (MEND, "ALTER TABLE d.t ADD COLUMN note INT", "ALTER TABLE d.t COMMENT = 'waiting for a key'")


@pytest.mark.parametrize("order", list(itertools.permutations(HANDS)), ids=str)
@pytest.mark.parametrize("point", ["after-ddl-intent", "after-ddl", "before-ddl-done"])
def test_hands_and_crashes_in_every_order(session: Session, order: tuple[str, ...], point: str) -> None:
    h, step = refused_unique(session)
    for hand in order:
        committed(session, hand)
        with deadly(point), contextlib.suppress(Died, DdlRefused):
            apply(session, step, h)
        session.rollback()
    assert apply(session, step, h).state == "done"
    assert keys(session) == [("u", 0)]


SWAP = "RENAME TABLE d.a TO d.x, d.b TO d.a, d.x TO d.b"


def swapped(session: Session, *by_hand: str) -> tuple[SchemaHistory, DdlStep]:
    """Two tables of one shape that change their names."""
    many = [table(10, "x"), table(11, "a"), table(10, "b")]
    swap = job(4, 47, table(10, "b"), many=many, query="RENAME TABLE `a` TO `x`, `b` TO `a`, `x` TO `b`")
    h = history(database(1), job(2, 3, table(10, "a")), job(3, 3, table(11, "b")), swap)
    return h, prepared(session, h, {}, "INSERT INTO d.a VALUES (1)", *by_hand)


@pytest.mark.parametrize(
    ("by_hand", "how"), [((SWAP,), "found"), ((), "text"), (("ALTER TABLE d.a ADD COLUMN note INT, ALGORITHM=COPY",), "")]
)
def test_a_refused_swap_that_a_person_made_or_made_possible(session: Session, by_hand: tuple[str, ...], how: str) -> None:
    """One that cannot be told is left to a person."""
    h, swap = swapped(session, "CREATE TABLE d.x (id INT)")
    with pytest.raises(DdlRefused, match="already exists"):
        apply(session, swap, h)
    committed(session, "DROP TABLE d.x", *by_hand)
    if how:
        assert apply(session, swap, h).how == how and session.query("SELECT id FROM d.b") == [(1,)]
    else:
        with pytest.raises(ApplyError, match="not as this DDL changes it"):
            apply(session, swap, h)


def test_a_truncation_is_not_found_in_an_alter(session: Session) -> None:
    h = told((3, table(10, "t", COLUMNS), CREATE), (11, table(11, "t", COLUMNS), "TRUNCATE t"), table_id=10)
    child = "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES t (id))"
    truncate = prepared(session, h, {}, "INSERT INTO d.t VALUES (1, 7)", child)
    session.execute("SET SESSION foreign_key_checks = 1")
    with pytest.raises(DdlRefused, match="foreign key"):
        apply(session, truncate, h)
    committed(session, "DROP TABLE d.child", "ALTER TABLE d.t ADD COLUMN note INT, ALGORITHM=COPY")
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
    apply_all(session, steps_of(h, {2: CREATE})[:2], h)
    committed(session, "INSERT INTO d.t VALUES (1, 7), (2, 7)")
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
    assert column_names(session, "d", "t") == ("id", "v", "w")


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
    h, swap = swapped(session, SWAP)
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
