"""Tables that a refused DDL has frozen: the stream goes on, with the rows in the columns of their ids. A real server refuses."""

import copy
import dataclasses
import json
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.apply import BatchApplier
from pyspark_tidb_binlog.sinks.engine.batch import Controls, merge, summarise
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTable, FrozenTables, UnwritableTable, fitted
from pyspark_tidb_binlog.sinks.engine.keyed import with_keys
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, RowsStep
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import DdlOutcome, ensure_ddl_table, load_frozen
from pyspark_tidb_binlog.sinks.mysql.ddl.executor import apply_ddl
from pyspark_tidb_binlog.sinks.mysql.ddl.foreseen import WaitingDdls, foreseen
from pyspark_tidb_binlog.sinks.mysql.ddl.target_here import column_names
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.parallel import LEFT, PartTarget, apply_part
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.plan import PlanLimits
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target_fit import as_found
from tests.support.attempts import run_checked
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, steps_of, table, told
from tests.support.ddl_target import committed, losses
from tests.support.killed_fork import in_a_life_that_is_killed
from tests.support.leases import held
from tests.support.plan_samples import plan_rows, row_event
from tests.support.recorded import begun

pytestmark = pytest.mark.mysql

CONFIG = ApplyConfig(drainer="frozen", checkpoint_schema="frozen_marks", ddl_policy="quarantine")
NOT_NULL = {**INT, "Flag": 1}
ID = column(1, "id", {**INT, "Flag": 4099})
CREATE = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT);"
ENUM = {**VARCHAR, "Tp": 247}
ROWS_ONLY = {"user": "rows_only", "password": "x"}


class Stream:
    """A Drainer without Spark: DDLs and rows of one history, in the order that the test says."""

    def __init__(self, session: Session, poor: Session, h: SchemaHistory) -> None:
        self.session, self.poor, self.history = session, poor, h
        self.steps = {s.job.id: s for s in steps_of(h)}
        self.frozen: FrozenTables = NONE_FROZEN
        self.version = 0
        self.findings: list[Finding] = []
        """What the target did that no binlog foretells."""

    def ddl(self, job_id: int, session: Session | None = None) -> DdlOutcome:
        lease = held(self.session, schema=CONFIG.checkpoint_schema)
        self.session.commit()
        outcome = apply_ddl(session or self.session, self.steps[job_id], self.history, CONFIG, lease, lambda _: None, self.frozen)
        self.frozen = {**self.frozen, **outcome.frozen}
        assert self.frozen == load_frozen(self.session, CONFIG, 1)
        self.session.commit()
        self.version = job_id
        return outcome

    def refuse(self, job_id: int) -> DdlOutcome:
        """The DDL, over a connection that may not ALTER or CREATE."""
        outcome = self.ddl(job_id, self.poor)
        assert (outcome.state, outcome.how) == ("quarantined", "policy")
        return outcome

    def rows(self, *changes: tuple[Any, Any], table_id: int = 10) -> tuple[UnwritableTable, ...]:
        """(old, new) rows by column id, as this version of the upstream writes them."""
        found = self.history.table_at(table_id, self.version)
        assert found is not None
        events = self.events(*changes, table_id=table_id)
        step, unwritable = fitted(RowsStep(0, 1, len(changes), {table_id: found}), self.frozen)
        if table_id not in step.gone:
            plan = plan_rows(events, {table_id: self.as_there(step.tables[table_id])}, PlanLimits())
            self.session.begin()
            found_wrong = run_checked(self.session, CONFIG, (*plan.deletes, *plan.writes))
            self.session.commit()
            self.findings += found_wrong
        return unwritable

    def as_there(self, table: TableAt) -> TableAt:
        """The table as its rows are written to the target's."""
        ((_, there),) = read_tables(self.session, [(table.schema, table.name)]).items()
        found = as_found(table, there, partial=False)
        assert isinstance(found, TableAt)
        return found

    def events(self, *changes: tuple[Any, Any], table_id: int = 10) -> pa.Table:
        """``ROW_EVENT`` rows of (old, new) by column id; a row without a clustered key has its ``id`` as handle."""
        at = self.history.table_at(table_id, self.version)
        events = [row_event(at, n + 1, 0, old, new, (old or new)[1], self.version) for n, (old, new) in enumerate(changes)]
        return pa.Table.from_pylist(events, schema=ROW_EVENT)

    def parts(self, to: PartTarget, *changes: tuple[Any, Any]) -> int:
        """The same on executors: planned and written in parts, each in a transaction of its own. How many parts had rows."""
        found = self.history.table_at(10, self.version)
        assert found is not None
        step, unwritable = fitted(RowsStep(to.after_ts, to.upto_ts, -1, {10: found}), self.frozen)
        there = {10: self.as_there(step.tables[10])}
        how = PartPlan((to.after_ts, to.upto_ts), there, self.session.flavour, PlanLimits(), frozenset(), step.gone)
        sent: PartPlan = pickle.loads(pickle.dumps(how))
        rows = sent.chosen(with_keys(self.events(*changes), self.history, to.parts))
        numbers = rows.column("part").to_pylist()
        # One after the other: only the last one finds that all deletes are done, so the others come again.
        for _ in range(2):
            for part in range(to.parts):
                mine = rows.filter(pa.array([n == part for n in numbers], pa.bool_()))
                done = [row for batch in apply_part(part, mine, sent, to, 0.0) for row in batch.to_pylist()]
                self.findings += [found for row in done for found in pickle.loads(row["detail"])]
        assert all(row["phase"] != LEFT for row in done)
        return len(set(numbers))

    def all(self, name: str = "t") -> list[tuple[Any, ...]]:
        found = self.session.query(f"SELECT * FROM d.{name} ORDER BY 1")
        self.session.commit()
        return found


@pytest.fixture
def sessions(mariadb: PrivateMariaDB) -> Iterator[tuple[Session, Session]]:
    """A session that may do all, and one that may only write rows."""
    with connect(mariadb.target(), CONFIG) as session:
        for host in ("'%'", "localhost"):
            session.execute(f"DROP USER IF EXISTS rows_only@{host}")
            session.execute(f"CREATE USER rows_only@{host} IDENTIFIED BY 'x'")
            session.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON d.* TO rows_only@{host}")
            session.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON e.* TO rows_only@{host}")
            session.execute(f"GRANT ALL ON frozen_marks.* TO rows_only@{host}")
        ensure_ddl_table(session, CONFIG)
        with connect(dataclasses.replace(mariadb.target(), **ROWS_ONLY), CONFIG) as poor:
            yield session, poor
        session.rollback()
        for name in ("d", "e", "frozen_marks"):
            session.execute(f"DROP DATABASE IF EXISTS {name}")


def stream_of(sessions: tuple[Session, Session], *ddls: tuple[Any, ...], made: int = 2) -> Stream:
    """``ddls``: as of ``told``; all up to the job ``made`` are done."""
    stream = Stream(*sessions, told(*ddls))
    for number in range(1, made + 1):
        stream.ddl(number)
    return stream


def t(*columns: dict[str, Any], name: str = "t", table_id: int = 10, **more: Any) -> dict[str, Any]:
    return table(table_id, name, [ID, *columns], **more)


def changed(kind: int, what: str, *columns: dict[str, Any], **more: Any) -> tuple[Any, ...]:
    return kind, t(*columns, **more), f"ALTER TABLE `t` {what};"


V, A, B, C = column(2, "v"), column(3, "a"), column(4, "b"), column(5, "c")
MADE = (3, t(V), CREATE)
RENAMED = (14, t(V, name="s"), "RENAME TABLE `t` TO `s`;", {"table_name": "t"})


def test_an_added_column_stays_away_and_later_ones_too_until_a_person_has_made_both(sessions: tuple[Session, Session]) -> None:
    adds = [changed(5, f"ADD COLUMN `{columns[-1]['name']['O']}` INT", *columns) for columns in ((V, A), (V, A, B), (V, A, B, C))]
    stream = stream_of(sessions, MADE, *adds)
    stream.rows((None, {1: 1, 2: 10}))
    words = "d.t: DDL quarantined at commit_ts 30, so the table is frozen on the target: ALTER TABLE `t` ADD COLUMN `a` INT"
    left = "d.t: columns not written from here on: a"
    assert stream.refuse(3).losses == (words, left)
    assert losses(stream.session, CONFIG) == [words, left]
    assert stream.rows((None, {1: 2, 2: 20, 3: 7}), ({1: 1, 2: 10, 3: None}, {1: 1, 2: 11, 3: 8})) == ()
    assert stream.all() == [(1, 11), (2, 20)]
    waiting = WaitingDdls(35, stream.history, AppliedJobs(3), stream.frozen)
    foretold = [remark.what for remark in foreseen(stream.session, waiting, CONFIG, [("d", "t")], ["d"])]
    assert [what.startswith("will be refused: d.t is frozen since the DDL of job 3") for what in foretold] == [True, True]
    stream.session.rollback()
    later = stream.refuse(4)
    assert "d.t is frozen since the DDL of job 3" in later.losses[0] and later.losses[1] == f"{left}, b"
    stream.rows(({1: 2, 2: 20, 3: 7, 4: None}, {1: 2, 2: 21, 3: 7, 4: 5}), ({1: 1, 2: 11, 3: 8, 4: None}, None))
    assert stream.all() == [(2, 21)]
    by_hand = "ALTER TABLE d.t ADD COLUMN a INT, ADD COLUMN b INT", "UPDATE d.t SET a = 7, b = 5"
    committed(stream.session, *by_hand, "UPDATE frozen_marks.spark_ddl SET state = 'done' WHERE job_id = 3")
    stream.frozen = load_frozen(stream.session, CONFIG, 1)
    assert stream.ddl(5).how == "changes"
    stream.rows(({1: 2, 2: 21, 3: 7, 4: 5, 5: None}, {1: 2, 2: 21, 3: 8, 4: 6, 5: 9}))
    assert stream.all() == [(2, 21, 8, 6, 9)]


STRICT_V, KEYLESS, U = column(2, "v", NOT_NULL), {"pk_is_handle": False}, [index(1, "u", ("v", 1), unique=True)]
STAYING = [column(3, "n", NOT_NULL), column(4, "x", {**VARCHAR, "Flag": 1}), column(5, "f", NOT_NULL, default="7")]
WORDS = [column(number, "v", {**ENUM, "Elems": list(elems)}) for number, elems in ((2, "ab"), (7, "ba"))]
ONE_REFUSED: dict[str, tuple[Any, ...]] = {
    "a dropped column that stays gets its default or zero in new rows": (
        (3, t(V, *STAYING), CREATE),
        [(None, {1: 1, 2: 10, 3: 3, 4: "x", 5: 5})],
        changed(61, "DROP COLUMN `n`, DROP COLUMN `x`, DROP COLUMN `f`", V),
        [
            ([(None, {1: 2, 2: 20}), ({1: 1, 2: 10}, {1: 1, 2: 11})], [(1, 11, 3, "x", 5), (2, 20, 0, "", 7)]),
            ([({1: 1, 2: 11}, None)], [(2, 20, 0, "", 7)]),
        ],
    ),
    "a converted column has a new id and is not written": (
        MADE,
        [],
        changed(12, "MODIFY COLUMN `v` VARCHAR(30)", column(7, "v", {**VARCHAR, "Flen": 30})),
        [([(None, {1: 1, 7: "12"})], [(1, None)])],
    ),
    "words of an enum that moved are not mixed up": (
        (3, t(WORDS[0]), CREATE),
        [],
        changed(12, "MODIFY COLUMN `v` ENUM('b','a')", WORDS[1]),
        [([(None, {1: 1, 7: 1})], [(1, None)])],
    ),
    "a NULL where the target takes none": (
        (3, t(STRICT_V), CREATE),
        [],
        changed(12, "MODIFY COLUMN `v` INT NULL", V),
        [([(None, {1: 1, 2: None})], [(1, 0)]), ([({1: 1, 2: None}, None)], [])],
    ),
    "a key that only the upstream has finds no row": (
        (3, table(10, "t", [column(1, "id"), V], **KEYLESS), CREATE),
        [],
        (7, table(10, "t", [column(1, "id"), V], index_info=U, **KEYLESS), "ALTER TABLE `t` ADD UNIQUE `u`(`v`);"),
        [
            ([(None, {1: 1, 2: 5}), (None, {1: 2, 2: 6})], [(1, 5), (2, 6)]),
            ([({1: 1, 2: 5}, {1: 1, 2: 7})], [(1, 7), (2, 6)]),
        ],
        [],
    ),
    "a key that only the target has ends no stream": (
        (3, t(V, index_info=U), CREATE),
        [],
        changed(8, "DROP INDEX `u`", V),
        [([(None, {1: 1, 2: 5}), (None, {1: 2, 2: 5})], [(2, 5)])],
        [""],
    ),
    "rows that push each other out by a column that the upstream has no more": (
        (3, t(STRICT_V, index_info=U), CREATE),
        [(None, {1: 1, 2: 5})],
        changed(6, "DROP COLUMN `v`"),
        [([(None, {1: 2}), (None, {1: 3})], [(1, 5), (3, 0)])],
        ["another row of the target was removed"],
    ),
}


@pytest.mark.parametrize("case", ONE_REFUSED)
def test_rows_of_a_table_with_one_refused_ddl(sessions: tuple[Session, Session], case: str) -> None:
    made, before, refused, writes, *findings = ONE_REFUSED[case]
    stream = stream_of(sessions, made, refused)
    stream.rows(*before)
    stream.refuse(3)
    for changes, wanted in writes:
        stream.rows(*changes)
        assert stream.all() == wanted
    for words in findings:
        assert [(f.kind, word in f.words) for f, word in zip(stream.findings, words, strict=True)] == [(FindingKind.ROWS, True)] * len(
            words
        )


def test_a_renamed_column_is_written_under_its_former_name(sessions: tuple[Session, Session]) -> None:
    stream = stream_of(sessions, MADE, changed(12, "RENAME COLUMN `v` TO `w`", column(2, "w")), changed(6, "DROP COLUMN `w`"))
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: 10}))
    assert stream.all() == [(1, 10)]
    assert stream.refuse(4).frozen == {}
    assert column_names(stream.session, "d", "t") == ("id", "v")


def test_a_renamed_table_goes_on_under_its_former_name(sessions: tuple[Session, Session]) -> None:
    stream = stream_of(
        sessions,
        MADE,
        RENAMED,
        (5, t(V, A, name="s"), "ALTER TABLE `s` ADD COLUMN `a` INT;"),
        (11, t(V, A, name="s", table_id=11), "TRUNCATE TABLE `s`;", {"table_id": 10}),
        (4, None, "DROP TABLE `s`;", {"table_id": 11, "table_name": "s"}),
    )
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: 10}))
    stream.refuse(4)
    stream.rows((None, {1: 2, 2: 20, 3: 3}))
    assert stream.refuse(5).frozen == {11: FrozenTable(3, "d", "t", {1: "id", 2: "v"})}
    stream.rows((None, {1: 3, 2: 30, 3: 3}), table_id=11)
    assert stream.refuse(6).frozen == {}
    assert stream.all() == [(1, 10), (2, 20), (3, 30)]
    stream.session.execute("UPDATE frozen_marks.spark_ddl SET state = 'done' WHERE job_id = 3")
    assert load_frozen(stream.session, CONFIG, 1) == {}, "under its new id, too"


def test_rows_of_a_table_that_was_not_made_have_nowhere_to_go(sessions: tuple[Session, Session]) -> None:
    drop = (4, None, "DROP TABLE `t`;", {"table_id": 10, "table_name": "t"})
    stream = stream_of(sessions, MADE, changed(5, "ADD COLUMN `a` INT", V, A), drop, (3, t(V, table_id=12), CREATE), made=1)
    stream.refuse(2)
    (unwritable,) = stream.rows((None, {1: 1, 2: 10}))
    assert unwritable.why.startswith("rows of d.t are not written: the target has no table d.t since the DDL of job 2 was not executed")
    assert stream.ddl(3).how == "nothing"
    assert len(stream.rows((None, {1: 1, 2: 10, 3: 1}))) == 1
    assert stream.ddl(4).state == "done"
    stream.ddl(5)
    assert stream.rows((None, {1: 1, 2: 10}), table_id=12) == ()
    assert stream.all() == [(1, 10)]


def test_a_ddl_whose_effect_is_there_freezes_nothing(sessions: tuple[Session, Session]) -> None:
    """The server's refusal alone does not: nothing of the DDL is missing."""
    modifies = (changed(12, "MODIFY COLUMN `v` BIGINT", column(number, "v", {**INT, "Tp": 8, "Flen": 20})) for number in (3, 4))
    stream = stream_of(sessions, MADE, *modifies, made=3)
    outcome = stream.ddl(4, stream.poor)
    assert (outcome.state, outcome.how, outcome.losses, stream.frozen) == ("done", "nothing", (), {})
    stream.rows((None, {1: 1, 4: 1 << 40}))
    assert stream.all() == [(1, 1 << 40)]


def test_a_name_that_means_another_column_on_the_target(sessions: tuple[Session, Session]) -> None:
    """The upstream's ``v`` is not the target's, which holds what is ``w`` upstream."""
    w, v = column(2, "w"), column(3, "v")
    ddls = (12, "RENAME COLUMN `v` TO `w`", w), (5, "ADD COLUMN `v` INT", w, v), (6, "DROP COLUMN `v`", w)
    stream = stream_of(sessions, MADE, *(changed(*ddl) for ddl in ddls))
    stream.rows((None, {1: 1, 2: 10}))
    stream.refuse(3)
    assert stream.ddl(4).state == "quarantined"
    stream.rows((None, {1: 2, 2: 20, 3: 3}))
    assert stream.ddl(5).state == "quarantined"
    stream.rows(({1: 2, 2: 20}, {1: 2, 2: 21}))
    assert stream.all() == [(1, 10), (2, 21)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(4, "DROP TABLE `t`"), (11, "TRUNCATE TABLE `t`"), (5, "ALTER TABLE `t` ADD COLUMN `a` INT"), (14, "RENAME TABLE `t` TO `x`")],
)
def test_a_name_that_means_another_table_on_the_target(sessions: tuple[Session, Session], kind: int, text: str) -> None:
    """The target's ``t`` is the upstream's ``s``: no DDL of the upstream's new ``t`` may reach it, not even one that makes it."""
    last = {
        4: (None, {"table_id": 12, "table_name": "t"}),
        11: (t(V, table_id=13), {"table_id": 12}),
        5: (t(V, A, table_id=12), {}),
        14: (t(V, name="x", table_id=12), {"table_name": "t"}),
    }
    info, more = last[kind]
    stream = stream_of(sessions, MADE, RENAMED, (3, t(V, table_id=12), CREATE), (kind, info, text, more))
    stream.refuse(3)
    outcome = stream.ddl(4)
    assert outcome.state == "quarantined"
    assert len(stream.rows((None, {1: 5, 2: 50}), table_id=12)) == 1
    stream.rows((None, {1: 1, 2: 10}))
    assert (stream.ddl(5).state, stream.all()) == ("quarantined" if kind == 11 else "done", [(1, 10)])
    stream.rows(({1: 1, 2: 10}, {1: 1, 2: 11}))
    assert stream.all() == [(1, 11)]


def test_a_database_is_not_dropped_with_a_table_that_has_left_it(sessions: tuple[Session, Session]) -> None:
    in_e = {"schema_id": 2000, "schema_name": "e"}
    jobs = (
        database(2, "e", 2000),
        job(3, 3, t(V), query=CREATE),
        job(4, 14, t(V), **in_e, table_name="t", query="RENAME TABLE `d`.`t` TO `e`.`t`;"),
        job(5, 2, None, table_id=0, query="DROP DATABASE `d`;"),
        job(6, 5, t(V, A), **in_e, query="ALTER TABLE `e`.`t` ADD COLUMN `a` INT;"),
    )
    stream = Stream(*sessions, history(database(1), *jobs))
    for number in (1, 2, 3):
        stream.ddl(number)
    stream.refuse(4)
    stream.rows((None, {1: 1, 2: 10}))
    assert stream.ddl(5).state == "quarantined"
    stream.rows((None, {1: 2, 2: 20}))
    assert stream.ddl(6).state == "quarantined"
    stream.rows((None, {1: 3, 2: 30, 3: 3}))
    assert stream.all() == [(1, 10), (2, 20), (3, 30)]


def test_a_life_that_is_killed_before_its_checkpoint_has_frozen_nothing(sessions: tuple[Session, Session], mariadb: PrivateMariaDB) -> None:
    """The record and the checkpoint are one transaction; a lost answer to its commit is the same as the answer."""
    stream = stream_of(sessions, MADE, RENAMED, (11, t(V, name="s", table_id=11), "TRUNCATE TABLE `s`;", {"table_id": 10}))
    stream.rows((None, {1: 1, 2: 10}))
    for number in (3, 4):
        before = stream.frozen

        def killed(number: int = number) -> None:
            one = copy.copy(stream)
            one.session, one.poor = (connect(dataclasses.replace(mariadb.target(), **who), CONFIG) for who in ({}, ROWS_ONLY))
            one.refuse(number)

        in_a_life_that_is_killed(killed, "before-ddl-done:1")
        assert load_frozen(stream.session, CONFIG, 1) == before
        outcome = stream.refuse(number)
        again = stream.ddl(number, stream.poor)
        assert (again.how, again.frozen, again.losses) == ("found", outcome.frozen, outcome.losses) and outcome.frozen
    stream.rows((None, {1: 2, 2: 20}), table_id=11)
    assert stream.all() == [(1, 10), (2, 20)]


def test_a_table_made_like_a_frozen_one_is_as_upstream(sessions: tuple[Session, Session]) -> None:
    like = (3, t(V, A, name="n", table_id=12), "CREATE TABLE `n` LIKE `t`;")
    stream = stream_of(sessions, MADE, changed(5, "ADD COLUMN `a` INT", V, A), like)
    stream.refuse(3)
    assert stream.ddl(4).how == "text"
    stream.rows((None, {1: 1, 2: 10, 3: 5}), table_id=12)
    assert stream.all("n") == [(1, 10, 5)]


@pytest.mark.parametrize("clustered", [True, False])
def test_executors_write_a_frozen_table_in_parts(sessions: tuple[Session, Session], mariadb: PrivateMariaDB, clustered: bool) -> None:
    """Column ``n`` is gone upstream and NOT NULL on the target, ``a`` never came, ``v`` has another name; equal rows stay as many as they are."""
    n, a, w = column(3, "n", NOT_NULL), column(4, "a"), column(2, "w")
    ddls = (6, "DROP COLUMN `n`", V), (5, "ADD COLUMN `a` INT", V, a), (12, "RENAME COLUMN `v` TO `w`", w, a)
    made = (3, t(V, n, pk_is_handle=clustered), CREATE)
    stream = stream_of(sessions, made, *(changed(*ddl, pk_is_handle=clustered) for ddl in ddls))
    stream.rows((None, {1: 1, 2: 10, 3: 7}), (None, {1: 2, 2: 20, 3: 7}))
    for number in (3, 4, 5):
        stream.refuse(number)
    lease = held(stream.session, schema=CONFIG.checkpoint_schema)
    to = PartTarget(ShippedTarget.of(mariadb.target(), Here), CONFIG, lease, 0, 99, 3)
    begun(stream.session, (to.after_ts, to.upto_ts), to.parts, CONFIG.checkpoint_schema, lease.cluster_id)
    stream.session.commit()
    # Each in a block of its own, so that they are spread over the parts.
    ids = [block * 1024 for block in range(3, 9)]
    added = [(None, {1: i, 2: i, 4: i}) for i in ids]
    used = stream.parts(to, ({1: 1, 2: 10, 4: None}, {1: 1, 2: 11, 4: 5}), ({1: 2, 2: 20, 4: None}, None), *added)
    assert used > 1 if clustered else used == 1
    # Upstream has no ``n`` any more: a row that keeps its key keeps it, and any other one gets the zero of the target.
    first = [(1, 11, 7 if clustered else 0)]
    assert stream.all() == first + [(i, i, 0) for i in ids]
    assert len(stream.findings) == (0 if clustered else 1)
    # The answer was lost and the parts run again: they are done.
    stream.parts(to, *added)
    assert len(stream.all()) == 7


def test_an_ignored_ddl_freezes_only_what_nobody_did_by_hand(sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of(sessions, MADE, changed(5, "ADD COLUMN `a` INT", V, A), changed(5, "ADD COLUMN `b` INT", V, A, B))
    monkeypatch.setattr("tests.integration.test_frozen.CONFIG", dataclasses.replace(CONFIG, ignore_txn_commit_ts=(30, 40)))
    stream.session.execute("ALTER TABLE d.t ADD COLUMN a BIGINT")
    assert (stream.ddl(3).state, stream.ddl(4).state) == ("done", "skipped")
    stream.rows((None, {1: 1, 2: 2, 3: 3, 4: 4}))
    assert stream.all() == [(1, 2, 3)]


def batch(
    applier: BatchApplier, span: tuple[int, int], ddls: Sequence[tuple[int, str]], inserts: Sequence[tuple[int, TableAt | None, Any]]
) -> list[Finding]:
    """One micro-batch of DDLs (job id, text; at ten times the id) and inserted rows (commit_ts, table, values), without Spark around it."""
    events = [row_event(at, ts, 0, None, row, row[1]) for ts, at, row in inserts]
    applier.clock.restart()
    controls = Controls(*span, tuple(DdlEvent(number * 10, number, text, 5) for number, text in ddls))
    rows = pa.Table.from_pylist(events, schema=ROW_EVENT)
    applier._apply_steps(applier._steps(controls, merge(summarise(rows, controls.barriers))), rows)
    return applier.clock.counts.findings


def test_a_batch_goes_on_behind_a_refused_ddl_and_so_does_the_next_life(
    sessions: tuple[Session, Session], mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    jobs = [database(1), job(2, 3, t(V)), job(3, 5, t(V, A)), job(4, 5, t(V, A, B))]
    (tmp_path / "history.json").write_text(json.dumps(jobs))
    committed(sessions[0], "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    target = dataclasses.replace(mariadb.target(), **ROWS_ONLY)
    config = DrainerConfig(target=target, apply=CONFIG)
    h = history(*jobs)

    texts = {3: "ALTER TABLE `t` ADD COLUMN `a` INT;", 4: "ALTER TABLE `t` ADD COLUMN `b` INT;"}
    found: list[Finding] = []
    for number, ids in ((3, {1: 1, 2: 10, 3: 5}), (4, {1: 2, 2: 20, 3: 6, 4: 7})):
        # Nothing of the batches below runs on Spark.
        sink = MySQLSink(config, 1)
        applier = BatchApplier(
            cast(SparkSession, None), config, sink, HistoryFeed(str(tmp_path / "history.json"), None, None), lambda _: None
        )
        at = h.table_at(10, number)
        try:
            applier.open(lambda _, commit_ts: 25 if commit_ts is None else commit_ts)
            found += batch(applier, (sink.commit_ts, number * 10 + 8), [(number, texts[number])], [(number * 10 + 5, at, ids)])
        finally:
            sink.close()
    assert Stream(*sessions, h).all() == [(1, 10), (2, 20)]
    assert [f.kind for f in found] == [FindingKind.DDL] * 4
    assert "ADD COLUMN `a`" in found[0].words and "ADD COLUMN `b`" in found[2].words


class Upstream:
    """Random DDLs on one table, and what its rows hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.columns: list[dict[str, Any]] = [V]
        self.rows: dict[int, dict[int, Any]] = {}
        self.next_id = 3

    def change(self) -> tuple[int, str]:
        """(job type, text) of one random DDL."""
        kind = self.rng.choice(["add", "add", "drop", "rename", "modify"])
        at = self.rng.randrange(len(self.columns)) if self.columns else 0
        self.next_id += 1
        if kind == "add" or not self.columns:
            kind_of = self.rng.choice([INT, NOT_NULL])
            origin = "0" if kind_of is NOT_NULL else None
            self.columns.insert(at, column(self.next_id, f"c{self.next_id}", kind_of, origin_default=origin))
            for row in self.rows.values():
                row[self.next_id] = 0 if origin else None
            after = f"AFTER `{self.columns[at - 1]['name']['O']}`" if at else "AFTER `id`"
            return 5, f"ADD COLUMN `c{self.next_id}` INT {'NOT NULL' if origin else ''} {after}"
        chosen = self.columns[at]
        name = chosen["name"]["O"]
        if kind == "drop":
            self.columns.pop(at)
            for row in self.rows.values():
                row.pop(chosen["id"])
            return 6, f"DROP COLUMN `{name}`"
        if kind == "rename":
            self.columns[at] = {**chosen, "name": {"O": f"r{self.next_id}"}}
            return 12, f"RENAME COLUMN `{name}` TO `r{self.next_id}`"
        self.columns[at] = {**chosen, "id": self.next_id, "type": {**chosen["type"], "Tp": 8, "Flen": 20}}
        for row in self.rows.values():
            row[self.next_id] = row.pop(chosen["id"])
        return 12, f"MODIFY COLUMN `{name}` BIGINT {'NOT NULL' if chosen['type']['Flag'] & 1 else 'NULL'}"

    def write(self) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        for _ in range(self.rng.randrange(4)):
            key = self.rng.randrange(1, 9)
            new = {1: key} | {c["id"]: self.rng.randrange(9) for c in self.columns}
            old = self.rows.pop(key, None)
            if old is not None and self.rng.random() < 0.4:
                found.append((dict(old), None))
                continue
            self.rows[key] = new
            found.append((dict(old) if old else None, dict(new)))
        return found


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_random_ddls_one_of_them_refused(sessions: tuple[Session, Session], seed: int) -> None:
    """The stream lives, every key is there, and every column of the target holds what the column of its id holds upstream."""
    upstream = Upstream(seed)
    ddls, writes = [MADE], {2: upstream.write()}
    first = upstream.rng.randrange(3, 9)
    for number in range(3, 16):
        kind, text = upstream.change()
        ddls.append(changed(kind, text, *upstream.columns))
        writes[number] = upstream.write()
    stream = stream_of(sessions, *ddls, made=1)
    for number in range(2, 16):
        outcome = stream.ddl(number, sessions[1] if number == first else None)
        # What the first makes may be there already, as of a MODIFY COLUMN to the type that the column has.
        assert outcome.freezes == bool(stream.frozen)
        assert stream.rows(*writes[number]) == ()
    # Every row is written once more, as it is.
    stream.rows(*((dict(row), dict(row)) for row in upstream.rows.values()))
    names = column_names(stream.session, "d", "t")
    found = {row[0]: dict(zip(names, row, strict=True)) for row in stream.all()}
    assert found.keys() == upstream.rows.keys()
    there = stream.frozen[10].columns if stream.frozen else {c["id"]: c["name"]["O"] for c in upstream.columns}
    assert there is not None
    for key, row in upstream.rows.items():
        assert {name: found[key][name] for i, name in there.items() if i in row} == {name: row[i] for i, name in there.items() if i in row}
