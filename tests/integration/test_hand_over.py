"""A target that a real Drainer left: after a clean stop, and after a crash in the middle of rows and DDLs. Real SQL on a real MariaDB, and Spark.

The other Drainer is played by statements: those that it had executed before it crashed, in its order.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import DdlRefused
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.ddl_target import dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.real_safe_mode import PlainTable, RowChange, replay
from tests.support.target_rows import Query, asking

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "handed_marks"
KEYED = Table("k", (Column("id", "bigint"), Column("v", "int")), ("id",))
UNIQUE = Table("u", (Column("id", "bigint"), Column("a", "int")), ("id",), unique=(("a",),))
LOG = Table("l", (Column("a", "int"), Column("b", "int")))
MADE = Table("m", (Column("id", "bigint"),), ("id",))
Make = Callable[..., "Handed"]


@pytest.fixture
def query(mariadb: PrivateMariaDB) -> Iterator[Query]:
    with asking(mariadb, "d", MARKS) as query:
        yield query


@dataclass
class Handed:
    """An upstream, and a target that another Drainer wrote to."""

    stream: EmulatedStream
    query: Query
    handles: dict[str, Any]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """What the target must hold."""
        upstream = self.stream.upstream
        return {n: sorted((tuple(r.values()) for r in upstream.rows(n).values()), key=repr) for n in upstream.tables()}

    def found(self) -> dict[str, list[tuple[Any, ...]]]:
        """What it holds."""
        names = [
            n for (n,) in self.query("SELECT CONCAT('d.', table_name) FROM information_schema.tables WHERE table_schema = 'd' ORDER BY 1")
        ]
        return {name: sorted(self.query(f"SELECT * FROM {name}"), key=repr) for name in names}

    def checkpoint(self) -> dict[str, Any]:
        """The target's row."""
        ((value,),) = self.query(f"SELECT checkPoint FROM {MARKS}.checkpoint")
        return dict(json.loads(value))

    def left_at(self, commit_ts: int, schema_version: int, *, consistent: bool) -> None:
        """The other Drainer's row; nothing of ours."""
        self.query(f"CREATE DATABASE IF NOT EXISTS {MARKS}")
        self.query(f"CREATE TABLE IF NOT EXISTS {MARKS}.checkpoint (clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")
        value = {"consistent": consistent, "commitTS": commit_ts, "ts-map": {}, "schema-version": schema_version}
        self.query(f"REPLACE INTO {MARKS}.checkpoint VALUES (7, '{json.dumps(value, separators=(',', ':'))}')")


@pytest.fixture
def handed(spark: SparkSession, mariadb: PrivateMariaDB, query: Query) -> Iterator[Make]:
    with ExitStack() as lives:

        def make(**more: Any) -> Handed:
            apply = ApplyConfig(**{"checkpoint_schema": MARKS, "on_finding": "stop"} | more)
            return Handed(lives.enter_context(EmulatedStream(spark, DrainerConfig(target=mariadb.target(), apply=apply))), query, {})

        yield make


def begun(handed: Handed) -> int:
    """Tables with rows, upstream and in the target; the commit_ts up to which both are the same."""
    query = handed.query
    handed.stream.create("d", KEYED, UNIQUE, LOG)
    query("CREATE DATABASE d")
    query("CREATE TABLE d.k (id bigint PRIMARY KEY, v int)")
    query("CREATE TABLE d.u (id bigint PRIMARY KEY, a int, UNIQUE KEY u1 (a))")
    query("CREATE TABLE d.l (a int, b int)")

    def work(txn: Any) -> None:
        for number in (1, 2, 3):
            handed.handles[f"k{number}"] = txn.insert("d.k", {"id": number, "v": 0})
            handed.handles[f"u{number}"] = txn.insert("d.u", {"id": number, "a": number})
        handed.handles["l1"] = txn.insert("d.l", {"a": 1, "b": 1})

    handed.stream.change(work)
    query("INSERT INTO d.k VALUES (1, 0), (2, 0), (3, 0)")
    query("INSERT INTO d.u VALUES (1, 1), (2, 2), (3, 3)")
    query("INSERT INTO d.l VALUES (1, 1)")
    return handed.stream.upstream.oracle.next()


Step = tuple[Callable[[Handed], object], tuple[str, ...]]


def rows(table: str, *changes: tuple[str, str, dict[str, Any]]) -> Callable[[Handed], object]:
    """One transaction: (insert | update | delete, the row's name, values)."""

    def run(handed: Handed) -> object:
        def work(txn: Any) -> None:
            for verb, name, values in changes:
                if verb == "insert":
                    handed.handles[name] = txn.insert(table, values)
                elif verb == "update":
                    handed.handles[name] = txn.update(table, handed.handles[name], values)
                else:
                    txn.delete(table, handed.handles[name])

        return handed.stream.change(work)

    return run


def ddl(name: str, *arguments: Any) -> Callable[[Handed], object]:
    return lambda handed: getattr(handed.stream.upstream.ddl, name)(*arguments)


STEPS: list[Step] = [
    (rows("d.k", ("update", "k1", {"id": 11})), ("DELETE FROM d.k WHERE id = 1", "REPLACE INTO d.k VALUES (11, 0)")),
    (rows("d.u", ("delete", "u1", {}), ("update", "u2", {"a": 1})), ("DELETE FROM d.u WHERE id = 1", "UPDATE d.u SET a = 1 WHERE id = 2")),
    (rows("d.l", ("insert", "l2", {"a": 2, "b": 2})), ("INSERT INTO d.l VALUES (2, 2)",)),
    (ddl("add_column", "d.k", Column("c", "int")), ("ALTER TABLE d.k ADD COLUMN c int",)),
    (rows("d.k", ("update", "k1", {"id": 12, "c": 5})), ("DELETE FROM d.k WHERE id = 11", "REPLACE INTO d.k VALUES (12, 0, 5)")),
    (ddl("create_table", "d", MADE), ("CREATE TABLE d.m (id bigint PRIMARY KEY)",)),
    (rows("d.m", ("insert", "m1", {"id": 1})), ("INSERT INTO d.m VALUES (1)",)),
    (ddl("drop_column", "d.k", "v"), ("ALTER TABLE d.k DROP COLUMN v",)),
    (rows("d.k", ("insert", "k5", {"id": 5, "c": 5})), ("INSERT INTO d.k VALUES (5, 5)",)),
    (ddl("rename", "d.m", "d.n"), ("RENAME TABLE d.m TO d.n",)),
    (rows("d.n", ("insert", "n2", {"id": 2}), ("delete", "m1", {})), ("INSERT INTO d.n VALUES (2)", "DELETE FROM d.n WHERE id = 1")),
    (ddl("truncate", "d.l"), ("TRUNCATE TABLE d.l",)),
    (rows("d.l", ("insert", "l3", {"a": 3, "b": 3})), ("INSERT INTO d.l VALUES (3, 3)",)),
    (ddl("drop_table", "d.u"), ("DROP TABLE d.u",)),
]
STATEMENTS = [sql for _, many in STEPS for sql in many]
RENAMED = STATEMENTS.index("RENAME TABLE d.m TO d.n")


def crashed(handed: Handed, executed: int = 3, steps: list[Step] = STEPS) -> int:
    """Another Drainer crashed after so many statements of ``steps``; where its checkpoint is."""
    at = begun(handed)
    version = handed.stream.upstream.schema_version
    for change, _ in steps:
        change(handed)
    for sql in [sql for _, many in steps for sql in many][:executed]:
        handed.query(sql)
    handed.left_at(at, version, consistent=False)
    return at


def stopped(handed: Handed) -> Handed:
    """Another Drainer stopped cleanly where the target is as upstream."""
    handed.left_at(begun(handed), handed.stream.upstream.schema_version, consistent=True)
    return handed


@pytest.mark.shows("hand-over")
@pytest.mark.parametrize(
    ("mode", "executed"),
    [
        *((mode, n) for mode in ("driver",) for n in (3, 8, 14, len(STATEMENTS))),
        *((mode, n) for mode in ("parts", "rows") for n in (7,)),
        *(pytest.param(mode, n, marks=pytest.mark.slow) for mode in MODES for n in range(len(STATEMENTS) + 1)),
    ],
)
def test_wherever_the_other_one_crashed_the_target_becomes_as_upstream(
    mode: str, executed: int, handed: Make, caplog: pytest.LogCaptureFixture
) -> None:
    here = handed(**MODES[mode])
    at = crashed(here, executed)
    with caplog.at_level(logging.INFO):
        _ = here.stream.sink
        if executed > RENAMED:
            # The CREATE TABLE before the RENAME was made again: a person is asked, and drops the table that should not be there.
            with pytest.raises(DdlRefused, match="the names on the target do not show it"):
                here.stream.apply()
            here.query("DROP TABLE d.m")
        report = here.stream.apply()
    assert here.found() == here.tables()
    assert not [f for f in report.findings if f.kind != "ddl"]
    assert f"safe mode from {at} until" in caplog.text and "safe mode ends at" in caplog.text
    assert "safe mode: d.l has no unique key without NULL" in caplog.text
    assert here.checkpoint()["consistent"] is True
    caplog.clear()
    here.stream.restart()
    here.stream.change(lambda txn: txn.insert("d.k", {"id": 99, "c": 1}))
    here.stream.apply()
    assert here.found() == here.tables() and "safe mode" not in caplog.text


@pytest.mark.shows("hand-over")
def test_a_life_that_is_killed_in_safe_mode_is_followed_by_one_in_safe_mode_up_to_the_same_bound(
    handed: Make, caplog: pytest.LogCaptureFixture
) -> None:
    here = handed()
    crashed(here)
    for point in ("before-downstream-commit", "after-downstream-commit", "after-ddl", "between-phases", "before-ddl-done"):
        with dying(point):
            here.stream.apply()
        here.stream.restart()
        assert here.checkpoint()["consistent"] is False
        if point == "before-downstream-commit":
            caplog.clear()  # nothing is committed yet, so the next life takes a bound of its own
    with caplog.at_level(logging.INFO):
        _ = here.stream.sink
        here.stream.apply()
    untils = {line.split(" until ")[1].split(" ")[0] for line in caplog.messages if line.startswith("safe mode from")}
    assert len(untils) == 1 and "an earlier life of this Drainer began it" in caplog.text
    assert here.found() == here.tables() and here.checkpoint()["consistent"] is True


def test_a_cleanly_stopped_one_is_followed_exactly_and_without_safe_mode(handed: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Equal rows without a key: a transaction applied twice, or not at all, would show."""
    here = stopped(handed())
    here.stream.change(lambda txn: [txn.insert("d.l", {"a": 1, "b": 1}) for _ in range(2)])
    with caplog.at_level(logging.INFO):
        here.stream.apply()
    assert here.found() == here.tables() and "safe mode" not in caplog.text


def test_the_history_at_commit_ts_counts_where_its_schema_version_is_ahead(handed: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A real one counts the version that rows were written under; the DDL of that version comes after its commitTS."""
    here = handed()
    at = begun(here)
    here.stream.upstream.ddl.add_column("d.k", Column("c", "int"))
    here.left_at(at, here.stream.upstream.schema_version, consistent=True)
    here.stream.change(lambda txn: txn.update("d.k", here.handles["k1"], {"c": 7}))
    with caplog.at_level(logging.INFO):
        here.stream.apply()
    assert here.found() == here.tables()
    assert "The version of the history counts" in caplog.text


def test_one_that_took_over_from_ours_and_failed_before_it_came_further(handed: Make) -> None:
    """It says on exit that the target is not consistent at our own commitTS, behind which its connections have applied a part."""
    here = stopped(handed())
    here.stream.change(lambda txn: txn.insert("d.k", {"id": 4, "v": 4}))
    here.stream.apply()
    here.stream.restart()
    here.stream.change(lambda txn: [txn.insert("d.k", {"id": 5, "v": 5}), txn.insert("d.k", {"id": 6, "v": 6})])
    here.query("INSERT INTO d.k VALUES (6, 6)")
    left = here.checkpoint()
    here.left_at(left["commitTS"], left["schema-version"], consistent=False)
    here.stream.apply()
    assert here.found() == here.tables()


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        pytest.param(
            "the names on the target do not show it",
            [
                (ddl("rename", "d.k", "d.old"), ("RENAME TABLE d.k TO d.old",)),
                (ddl("create_table", "d", KEYED), ("CREATE TABLE d.k (id bigint PRIMARY KEY, v int)",)),
            ],
            id="both names are there",
        ),
        pytest.param(
            "rows of d.k after .* would go to another table",
            [
                (rows("d.k", ("update", "k1", {"v": 100})), ("UPDATE d.k SET v = 100 WHERE id = 1",)),
                (ddl("rename", "d.k", "d.old"), ("RENAME TABLE d.k TO d.old",)),
                (ddl("rename", "d.u", "d.k"), ("RENAME TABLE d.u TO d.k",)),
            ],
            id="rows of the table that had the name",
        ),
        pytest.param(
            "executed again it would take those rows",
            [(ddl("drop_table", "d.u"), ("DROP TABLE d.u",)), (ddl("rename", "d.k", "d.u"), ("RENAME TABLE d.k TO d.u",))],
            id="a drop of it",
        ),
    ],
)
def test_what_would_meet_another_table_of_the_name_is_left_to_a_person(words: str, steps: list[Step], handed: Make) -> None:
    """The other one has executed all of it, which nobody can tell."""
    here = handed()
    crashed(here, len(steps), steps)
    with pytest.raises(DdlRefused, match=words):
        here.stream.apply()
    assert here.found() == here.tables()


def test_our_own_crash_needs_no_safe_mode(handed: Make, caplog: pytest.LogCaptureFixture) -> None:
    here = stopped(handed(**MODES["parts"]))
    here.stream.change(lambda txn: [txn.insert("d.l", {"a": 1, "b": 1}) for _ in range(20)])
    with dying("before-downstream-commit"):
        here.stream.apply()
    here.stream.restart()
    assert here.checkpoint()["consistent"] is False
    with caplog.at_level(logging.INFO):
        here.stream.apply()
    assert here.found() == here.tables() and "safe mode" not in caplog.text


@pytest.mark.parametrize("mode", ["driver", "parts", "rows"])
def test_the_setting_is_safe_mode_for_ever(mode: str, handed: Make) -> None:
    """Rows that are there, and rows that are not, are no findings."""
    here = stopped(handed(safe_mode=True, **MODES[mode]))
    here.stream.change(lambda txn: txn.delete("d.k", here.handles["k1"]))
    here.stream.change(lambda txn: txn.insert("d.k", {"id": 7, "v": 7}))
    here.query("DELETE FROM d.k WHERE id = 1")
    here.query("INSERT INTO d.k VALUES (7, 1)")
    report = here.stream.apply()
    assert here.found() == here.tables() and not report.findings
    here.stream.restart()
    here.stream.change(lambda txn: txn.insert("d.k", {"id": 8, "v": 8}))
    here.query("INSERT INTO d.k VALUES (8, 1)")
    assert not here.stream.apply().findings and here.found() == here.tables()


def test_a_span_begun_in_safe_mode_is_finished_in_it(handed: Make, mariadb: PrivateMariaDB) -> None:
    """Its deletes remove rows that only safe mode writes again."""
    here = stopped(handed(safe_mode=True, **MODES["parts"]))
    here.stream.change(lambda txn: [txn.update("d.k", here.handles[f"k{n}"], {"v": n}) for n in (1, 2, 3)])
    here.query("DELETE FROM d.k WHERE id = 1")
    with dying("before-deletes"):
        here.stream.apply()
    apply = ApplyConfig(**{"checkpoint_schema": MARKS, "on_finding": "stop"} | MODES["parts"])
    here.stream.restart(DrainerConfig(target=mariadb.target(), apply=apply))
    assert not here.stream.apply().findings
    assert here.found() == here.tables()


@pytest.mark.parametrize("deleted", [1, 2])
def test_what_ours_leaves_half_applied_is_mended_by_a_real_ones_safe_mode(
    deleted: int, handed: Make, query: Query, mariadb: PrivateMariaDB
) -> None:
    """Ours deletes all old rows of a span, then writes the new ones, part by part; the row says where the span begins, not consistent.

    The real one begins there: every row operation by itself, DELETE by the old key, REPLACE (``tests.support.real_safe_mode``).
    """
    here = stopped(handed(**MODES["parts"]))
    at = here.checkpoint()["commitTS"]
    for change, _ in (STEPS[0], STEPS[1]):
        change(here)
    here.stream.change(lambda txn: [txn.update("d.k", here.handles["k2"], {"v": 5}), txn.insert("d.k", {"id": 6, "v": 6})])
    with dying("before-deletes"):
        here.stream.apply()
    here.stream.restart()
    row = here.checkpoint()
    assert (row["commitTS"], row["consistent"]) == (at, False), "where a real one begins again"
    # the deletes of one part, then of both, and the writes of one
    query("DELETE FROM d.k WHERE id = 1")
    query("DELETE FROM d.u WHERE id IN (1, 2)")
    if deleted == 2:
        query("INSERT INTO d.k VALUES (11, 0), (6, 6)")
    changes = {
        "d.k": [RowChange((1, 0), None), RowChange(None, (11, 0)), RowChange((2, 0), (2, 5)), RowChange(None, (6, 6))],
        "d.u": [RowChange((1, 1), None), RowChange((2, 2), (2, 1))],
    }
    plain = {"d.k": PlainTable("d.k", ("id", "v"), (("id",),)), "d.u": PlainTable("d.u", ("id", "a"), (("id",), ("a",)))}
    with connect(mariadb.target(), ApplyConfig()) as session:
        for name, of_table in changes.items():
            replay(session, plain[name], of_table)
    assert here.found() == here.tables()


@pytest.mark.parametrize("mode", MODES)
def test_the_setting_alone_loses_no_equal_row(mode: str, spark: SparkSession, mariadb: PrivateMariaDB, query: Query) -> None:
    """Where the record is exact, rows that nothing tells apart are inserted and deleted one by one, also after a crash amid a span."""
    apply = ApplyConfig(checkpoint_schema=MARKS, safe_mode=True, **MODES[mode])
    config = DrainerConfig(target=mariadb.target(), apply=apply)
    with EmulatedStream(spark, config) as stream:
        stream.create("d", LOG)
        handles: list[Any] = []
        for round_ in range(3):
            stream.change(lambda txn: handles.extend([txn.insert("d.l", {"a": 1, "b": 2}) for _ in range(3)]))
            if round_:
                stream.change(lambda txn: txn.delete("d.l", handles.pop(0)))
                stream.change(lambda txn: txn.update("d.l", handles[0], {"b": 2}))
            if round_ == 2 and mode == "parts":
                with dying("before-downstream-commit"):
                    stream.apply()
                stream.restart()
            stream.apply()
            assert query("SELECT a, b, COUNT(*) FROM d.l GROUP BY 1, 2") == [(1, 2, len(handles))]


@pytest.mark.parametrize("mode", MODES)
def test_columns_that_are_reset_are_named(
    mode: str, spark: SparkSession, mariadb: PrivateMariaDB, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    apply = ApplyConfig(checkpoint_schema=MARKS, safe_mode=True, **MODES[mode])
    with EmulatedStream(spark, DrainerConfig(target=mariadb.target(), apply=apply)) as stream:
        stream.create("d", KEYED)
        stream.change(lambda txn: [txn.insert("d.k", {"id": n, "v": n}) for n in range(4)])
        stream.apply()
        assert "only the target has" not in caplog.text
        query("ALTER TABLE d.k ADD COLUMN own INT DEFAULT 7")
        query("UPDATE d.k SET own = 8")
        stream.restart()
        for value in (10, 11):
            stream.change(lambda txn, value=value: txn.update("d.k", 1, {"v": value}))
            stream.apply()
    assert caplog.text.count("rows of d.k are replaced, so its columns own, which only the target has, get their defaults") == 1
    assert query("SELECT id, v, own FROM d.k ORDER BY id") == [(0, 0, 8), (1, 11, 7), (2, 2, 8), (3, 3, 8)]
