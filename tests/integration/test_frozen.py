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
from pyspark_tidb_binlog.schemas.codec.rowwriter import encode_delete, encode_insert, encode_update
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.apply import BatchApplier
from pyspark_tidb_binlog.sinks.engine.batch import Controls
from pyspark_tidb_binlog.sinks.engine.frozen import NONE_FROZEN, FrozenTable, FrozenTables, UnwritableTable, fitted
from pyspark_tidb_binlog.sinks.engine.keyed import with_keys
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, plan_steps
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
from tests.support.ddl_jobs import INT, VARCHAR, column, database, history, index, job, table
from tests.support.ddl_target import losses
from tests.support.killed_fork import in_a_life_that_is_killed
from tests.support.leases import held
from tests.support.plan_samples import plan_rows
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

    def __init__(self, session: Session, poor: Session, texts: dict[int, str], *jobs: dict[str, Any]) -> None:
        self.session, self.poor = session, poor
        self.history: SchemaHistory = history(database(1), *jobs)
        events = [DdlEvent(j.id * 10, j.id, texts.get(j.id, j.query), 5) for j in self.history.ordered]
        steps = plan_steps((0, 1_000_000), events, (), self.history, AppliedJobs(0))
        self.steps = {s.job.id: s for s in steps if isinstance(s, DdlStep)}
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
        found = self.history.table_at(table_id, self.version)
        assert found is not None
        events = []
        for number, (old, new) in enumerate(changes):
            if old is None:
                op, row = Op.INSERT, encode_insert(found.info, new, new[1])
            elif new is None:
                op, row = Op.DELETE, encode_delete(found.info, old, old[1])
            else:
                op, row = Op.UPDATE, encode_update(found.info, old, new, old[1])
            events.append(
                {"commit_ts": number + 1, "seq": 0, "op": int(op), "table_id": table_id, "schema_version": self.version, "row": row}
            )
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


def stream_of(sessions: tuple[Session, Session], texts: dict[int, str], *jobs: dict[str, Any]) -> Stream:
    stream = Stream(*sessions, {2: CREATE, **texts}, *jobs)
    stream.ddl(1)
    return stream


def t(columns: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return table(10, "t", [ID, *columns], **more)


V = column(2, "v")


def test_an_added_column_stays_away_and_later_ones_too_until_a_person_has_made_both(sessions: tuple[Session, Session]) -> None:
    a, b, c = column(3, "a"), column(4, "b"), column(5, "c")
    texts = {n: f"ALTER TABLE `t` ADD COLUMN `{name}` INT;" for n, name in ((3, "a"), (4, "b"), (5, "c"))}
    stream = stream_of(sessions, texts, job(2, 3, t([V])), job(3, 5, t([V, a])), job(4, 5, t([V, a, b])), job(5, 5, t([V, a, b, c])))
    stream.ddl(2)
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
    stream.session.execute("ALTER TABLE d.t ADD COLUMN a INT, ADD COLUMN b INT")
    stream.session.execute("UPDATE d.t SET a = 7, b = 5")
    stream.session.execute("UPDATE frozen_marks.spark_ddl SET state = 'done' WHERE job_id = 3")
    stream.session.commit()
    stream.frozen = load_frozen(stream.session, CONFIG, 1)
    assert stream.ddl(5).how == "changes"
    stream.rows(({1: 2, 2: 21, 3: 7, 4: 5, 5: None}, {1: 2, 2: 21, 3: 8, 4: 6, 5: 9}))
    assert stream.all() == [(2, 21, 8, 6, 9)]


def test_a_dropped_column_that_stays_gets_its_default_or_zero_in_new_rows(sessions: tuple[Session, Session]) -> None:
    more = [column(3, "n", NOT_NULL), column(4, "x", {**VARCHAR, "Flag": 1}), column(5, "f", NOT_NULL, default="7")]
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT, `n` INT NOT NULL, `x` VARCHAR(20) NOT NULL, `f` INT NOT NULL DEFAULT 7);"
    drop = "ALTER TABLE `t` DROP COLUMN `n`, DROP COLUMN `x`, DROP COLUMN `f`;"
    stream = stream_of(sessions, {2: create, 3: drop}, job(2, 3, t([V, *more])), job(3, 61, t([V])))
    stream.ddl(2)
    stream.rows((None, {1: 1, 2: 10, 3: 3, 4: "x", 5: 5}))
    stream.refuse(3)
    stream.rows((None, {1: 2, 2: 20}), ({1: 1, 2: 10}, {1: 1, 2: 11}))
    assert stream.all() == [(1, 11, 3, "x", 5), (2, 20, 0, "", 7)]
    stream.rows(({1: 1, 2: 11}, None))
    assert [r[0] for r in stream.all()] == [2]


def test_a_renamed_column_is_written_under_its_former_name(sessions: tuple[Session, Session]) -> None:
    texts = {3: "ALTER TABLE `t` RENAME COLUMN `v` TO `w`;", 4: "ALTER TABLE `t` DROP COLUMN `w`;"}
    stream = stream_of(sessions, texts, job(2, 3, t([V])), job(3, 12, t([column(2, "w")])), job(4, 6, t([])))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: 10}))
    assert stream.all() == [(1, 10)]
    assert stream.refuse(4).frozen == {}
    assert column_names(stream.session, "d", "t") == ("id", "v")


def test_a_converted_column_has_a_new_id_and_is_not_written(sessions: tuple[Session, Session]) -> None:
    wide = column(7, "v", {**VARCHAR, "Flen": 30})
    stream = stream_of(sessions, {3: "ALTER TABLE `t` MODIFY COLUMN `v` VARCHAR(30);"}, job(2, 3, t([V])), job(3, 12, t([wide])))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 7: "12"}))
    assert stream.all() == [(1, None)]


def test_words_of_an_enum_that_moved_are_not_mixed_up(sessions: tuple[Session, Session]) -> None:
    before, after = column(2, "v", {**ENUM, "Elems": ["a", "b"]}), column(7, "v", {**ENUM, "Elems": ["b", "a"]})
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` ENUM('a','b'));"
    texts = {2: create, 3: "ALTER TABLE `t` MODIFY COLUMN `v` ENUM('b','a');"}
    stream = stream_of(sessions, texts, job(2, 3, t([before])), job(3, 12, t([after])))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 7: 1}))
    assert stream.all() == [(1, None)]


def test_a_null_where_the_target_takes_none(sessions: tuple[Session, Session]) -> None:
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT NOT NULL);"
    texts = {2: create, 3: "ALTER TABLE `t` MODIFY COLUMN `v` INT NULL;"}
    stream = stream_of(sessions, texts, job(2, 3, t([column(2, "v", NOT_NULL)])), job(3, 12, t([V])))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: None}))
    assert stream.all() == [(1, 0)]
    stream.rows(({1: 1, 2: None}, None))
    assert stream.all() == []


U = index(1, "u", ("v", 1), unique=True)


def test_a_key_that_only_the_upstream_has_finds_no_row(sessions: tuple[Session, Session]) -> None:
    keyless = {"pk_is_handle": False}
    columns = [column(1, "id"), V]
    before, after = table(10, "t", columns, **keyless), table(10, "t", columns, index_info=[U], **keyless)
    texts = {2: "CREATE TABLE `t` (`id` INT, `v` INT);", 3: "ALTER TABLE `t` ADD UNIQUE `u`(`v`);"}
    stream = stream_of(sessions, texts, job(2, 3, before), job(3, 7, after))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: 5}), (None, {1: 2, 2: 6}))
    stream.rows(({1: 1, 2: 5}, {1: 1, 2: 7}))
    assert stream.all() == [(1, 7), (2, 6)]
    assert stream.findings == []


def test_a_key_that_only_the_target_has_ends_no_stream(sessions: tuple[Session, Session]) -> None:
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT, UNIQUE `u`(`v`));"
    texts = {2: create, 3: "ALTER TABLE `t` DROP INDEX `u`;"}
    stream = stream_of(sessions, texts, job(2, 3, t([V], index_info=[U])), job(3, 8, t([V])))
    stream.ddl(2)
    stream.refuse(3)
    stream.rows((None, {1: 1, 2: 5}), (None, {1: 2, 2: 5}))
    assert stream.all() == [(2, 5)]
    assert [f.kind for f in stream.findings] == [FindingKind.ROWS]


def test_rows_that_push_each_other_out_are_findings(sessions: tuple[Session, Session]) -> None:
    """The target's key is over a column that the upstream has no more."""
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT NOT NULL, UNIQUE `u`(`v`));"
    texts = {2: create, 3: "ALTER TABLE `t` DROP COLUMN `v`;"}
    stream = stream_of(sessions, texts, job(2, 3, t([column(2, "v", NOT_NULL)], index_info=[U])), job(3, 6, t([])))
    stream.ddl(2)
    stream.rows((None, {1: 1, 2: 5}))
    stream.refuse(3)
    stream.rows((None, {1: 2}), (None, {1: 3}))
    assert stream.all() == [(1, 5), (3, 0)]
    assert "another row of the target was removed" in stream.findings[0].words


def test_a_renamed_table_goes_on_under_its_former_name(sessions: tuple[Session, Session]) -> None:
    columns = [ID, V]
    jobs = (
        job(2, 3, table(10, "t", columns)),
        job(3, 14, table(10, "s", columns), table_name="t"),
        job(4, 5, table(10, "s", [*columns, column(3, "a")])),
        job(5, 11, table(11, "s", [*columns, column(3, "a")]), table_id=10),
        job(6, 4, table_id=11, table_name="s"),
    )
    texts = {
        3: "RENAME TABLE `t` TO `s`;",
        4: "ALTER TABLE `s` ADD COLUMN `a` INT;",
        5: "TRUNCATE TABLE `s`;",
        6: "DROP TABLE `s`;",
    }
    stream = stream_of(sessions, texts, *jobs)
    stream.ddl(2)
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
    texts = {3: "ALTER TABLE `t` ADD COLUMN `a` INT;", 4: "DROP TABLE `t`;", 5: CREATE}
    jobs = (
        job(2, 3, t([V])),
        job(3, 5, t([V, column(3, "a")])),
        job(4, 4, table_id=10, table_name="t"),
        job(5, 3, table(12, "t", [ID, V])),
    )
    stream = stream_of(sessions, texts, *jobs)
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
    wide = {**INT, "Tp": 8, "Flen": 20}
    modify = "ALTER TABLE `t` MODIFY COLUMN `v` BIGINT;"
    jobs = (job(2, 3, t([V])), job(3, 12, t([column(3, "v", wide)])), job(4, 12, t([column(4, "v", wide)])))
    stream = stream_of(sessions, {3: modify, 4: modify}, *jobs)
    stream.ddl(2)
    stream.ddl(3)
    outcome = stream.ddl(4, stream.poor)
    assert (outcome.state, outcome.how, outcome.losses, stream.frozen) == ("done", "nothing", (), {})
    stream.rows((None, {1: 1, 4: 1 << 40}))
    assert stream.all() == [(1, 1 << 40)]


def test_a_name_that_means_another_column_on_the_target(sessions: tuple[Session, Session]) -> None:
    """The upstream's ``v`` is not the target's, which holds what is ``w`` upstream."""
    w, v = column(2, "w"), column(3, "v")
    texts = {
        3: "ALTER TABLE `t` RENAME COLUMN `v` TO `w`;",
        4: "ALTER TABLE `t` ADD COLUMN `v` INT;",
        5: "ALTER TABLE `t` DROP COLUMN `v`;",
    }
    stream = stream_of(sessions, texts, job(2, 3, t([V])), job(3, 12, t([w])), job(4, 5, t([w, v])), job(5, 6, t([w])))
    stream.ddl(2)
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
    columns = [ID, V]
    last = {
        4: job(5, 4, table_id=12, table_name="t"),
        11: job(5, 11, table(13, "t", columns), table_id=12),
        5: job(5, 5, table(12, "t", [*columns, column(3, "a")])),
        14: job(5, 14, table(12, "x", columns), table_name="t"),
    }
    jobs = (job(2, 3, t([V])), job(3, 14, table(10, "s", columns), table_name="t"), job(4, 3, table(12, "t", columns)), last[kind])
    stream = stream_of(sessions, {3: "RENAME TABLE `t` TO `s`;", 4: CREATE, 5: text}, *jobs)
    stream.ddl(2)
    stream.refuse(3)
    outcome = stream.ddl(4)
    assert outcome.state == "quarantined"
    assert len(stream.rows((None, {1: 5, 2: 50}), table_id=12)) == 1
    stream.rows((None, {1: 1, 2: 10}))
    assert (stream.ddl(5).state, stream.all()) == ("quarantined" if kind == 11 else "done", [(1, 10)])
    stream.rows(({1: 1, 2: 10}, {1: 1, 2: 11}))
    assert stream.all() == [(1, 11)]


def test_a_database_is_not_dropped_with_a_table_that_has_left_it(sessions: tuple[Session, Session]) -> None:
    columns = [ID, V]
    jobs = (
        database(2, "e", 2000),
        job(3, 3, t([V])),
        job(4, 14, t([V]), schema_id=2000, schema_name="e", table_name="t"),
        job(5, 2, None, table_id=0),
        job(6, 5, table(10, "t", [*columns, column(3, "a")]), schema_id=2000, schema_name="e"),
    )
    texts = {3: CREATE, 4: "RENAME TABLE `d`.`t` TO `e`.`t`;", 5: "DROP DATABASE `d`;", 6: "ALTER TABLE `e`.`t` ADD COLUMN `a` INT;"}
    stream = Stream(*sessions, texts, *jobs)
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
    jobs = (job(2, 3, t([V])), job(3, 14, table(10, "s", [ID, V]), table_name="t"), job(4, 11, table(11, "s", [ID, V]), table_id=10))
    stream = stream_of(sessions, {3: "RENAME TABLE `t` TO `s`;", 4: "TRUNCATE TABLE `s`;"}, *jobs)
    stream.ddl(2)
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
    columns = [ID, V, column(3, "a")]
    texts = {3: "ALTER TABLE `t` ADD COLUMN `a` INT;", 4: "CREATE TABLE `n` LIKE `t`;"}
    stream = stream_of(sessions, texts, job(2, 3, t([V])), job(3, 5, table(10, "t", columns)), job(4, 3, table(12, "n", columns)))
    stream.ddl(2)
    stream.refuse(3)
    assert stream.ddl(4).how == "text"
    stream.rows((None, {1: 1, 2: 10, 3: 5}), table_id=12)
    assert stream.all("n") == [(1, 10, 5)]


@pytest.mark.parametrize("clustered", [True, False])
def test_executors_write_a_frozen_table_in_parts(sessions: tuple[Session, Session], mariadb: PrivateMariaDB, clustered: bool) -> None:
    """Column ``n`` is gone upstream and NOT NULL on the target, ``a`` never came, ``v`` has another name; equal rows stay as many as they are."""
    n, a, w = column(3, "n", NOT_NULL), column(4, "a"), column(2, "w")
    key = "PRIMARY KEY" if clustered else ""
    how = {"pk_is_handle": clustered}
    texts = {2: f"CREATE TABLE `t` (`id` INT {key}, `v` INT, `n` INT NOT NULL);"}
    texts |= {
        3: "ALTER TABLE `t` DROP COLUMN `n`;",
        4: "ALTER TABLE `t` ADD COLUMN `a` INT;",
        5: "ALTER TABLE `t` RENAME COLUMN `v` TO `w`;",
    }
    jobs = (job(2, 3, t([V, n], **how)), job(3, 6, t([V], **how)), job(4, 5, t([V, a], **how)), job(5, 12, t([w, a], **how)))
    stream = stream_of(sessions, texts, *jobs)
    stream.ddl(2)
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
    texts = {3: "ALTER TABLE `t` ADD COLUMN `a` INT;", 4: "ALTER TABLE `t` ADD COLUMN `b` INT;"}
    a, b = column(3, "a"), column(4, "b")
    stream = stream_of(sessions, texts, job(2, 3, t([V])), job(3, 5, t([V, a])), job(4, 5, t([V, a, b])))
    stream.ddl(2)
    monkeypatch.setattr("tests.integration.test_frozen.CONFIG", dataclasses.replace(CONFIG, ignore_txn_commit_ts=(30, 40)))
    stream.session.execute("ALTER TABLE d.t ADD COLUMN a BIGINT")
    assert (stream.ddl(3).state, stream.ddl(4).state) == ("done", "skipped")
    stream.rows((None, {1: 1, 2: 2, 3: 3, 4: 4}))
    assert stream.all() == [(1, 2, 3)]


def batch(
    applier: BatchApplier, span: tuple[int, int], ddls: Sequence[tuple[int, str]], rows: Sequence[tuple[int, int, TableInfo, Any]]
) -> list[Finding]:
    """One micro-batch of DDLs (job id, text; at ten times the id) and inserted rows (commit_ts, version, info, values), without Spark around it."""
    events = [
        {
            "commit_ts": ts,
            "seq": 0,
            "op": int(Op.INSERT),
            "table_id": 10,
            "schema_version": version,
            "row": encode_insert(info, row, row[1]),
        }
        for ts, version, info, row in rows
    ]
    applier.clock.restart()
    controls = Controls(*span, tuple(DdlEvent(number * 10, number, text, 5) for number, text in ddls))
    applier._apply_steps(*applier._cut(pa.Table.from_pylist(events, schema=ROW_EVENT), controls))
    return applier.clock.counts.findings


def test_a_batch_goes_on_behind_a_refused_ddl_and_so_does_the_next_life(
    sessions: tuple[Session, Session], mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    a, b = column(3, "a"), column(4, "b")
    jobs = [database(1), job(2, 3, t([V])), job(3, 5, t([V, a])), job(4, 5, t([V, a, b]))]
    (tmp_path / "history.json").write_text(json.dumps(jobs))
    sessions[0].execute("CREATE DATABASE d")
    sessions[0].execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    target = dataclasses.replace(mariadb.target(), **ROWS_ONLY)
    config = DrainerConfig(target=target, apply=CONFIG)
    infos = [j.table_info for j in history(*jobs).ordered]
    texts = {3: "ALTER TABLE `t` ADD COLUMN `a` INT;", 4: "ALTER TABLE `t` ADD COLUMN `b` INT;"}
    found: list[Finding] = []
    for number, ids in ((3, {1: 1, 2: 10, 3: 5}), (4, {1: 2, 2: 20, 3: 6, 4: 7})):
        # Nothing of the batches below runs on Spark.
        sink = MySQLSink(config, 1)
        applier = BatchApplier(cast(SparkSession, None), config, sink, HistoryFeed(str(tmp_path / "history.json")), lambda _: None)
        info = infos[number - 1]
        assert info is not None
        try:
            applier.open(lambda _, commit_ts: 25 if commit_ts is None else commit_ts)
            found += batch(applier, (sink.commit_ts, number * 10 + 8), [(number, texts[number])], [(number * 10 + 5, number, info, ids)])
        finally:
            sink.close()
    assert Stream(*sessions, {}, *jobs[1:]).all() == [(1, 10), (2, 20)]
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
    jobs, texts, writes = [job(2, 3, t([V]))], {}, {2: upstream.write()}
    first = upstream.rng.randrange(3, 9)
    for number in range(3, 16):
        kind, text = upstream.change()
        jobs.append(job(number, kind, t(list(upstream.columns))))
        texts[number] = f"ALTER TABLE `t` {text};"
        writes[number] = upstream.write()
    stream = stream_of(sessions, texts, *jobs)
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
