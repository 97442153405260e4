"""Row operations on a real MariaDB: random histories against the upstream's rows, crashes at every point, findings, transactions."""

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, FindingError, LeaseLost, RetryableApplyError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.sink import Opened
from tests.support.plan_samples import INT_PK, TABLE_ID, Events, column, in_spark, table
from tests.support.row_sink_process import BEGIN, SCHEMA, Ended, RowPlace, Task, empty_place, made, run, settings_of, worlds
from tests.support.row_worlds import RowHistory, clustered, keyless, two_keys
from tests.support.target_rows import refusing, run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.mysql


class Place(RowPlace):
    """A database of one test, and the sinks that write to it."""

    def __init__(self, server: PrivateMariaDB) -> None:
        super().__init__(server)
        self._sinks: list[MySQLSink] = []

    def sink(self, on_finding: str = "stop", atomic_rows: int = 50_000, **settings: Any) -> MySQLSink:
        """Opens a sink; the one before it is closed."""
        return self.opened(on_finding, atomic_rows, **settings)[0]

    def opened(self, on_finding: str = "stop", atomic_rows: int = 50_000, **settings: Any) -> tuple[MySQLSink, Opened]:
        """The same, and what it found."""
        self.close()
        apply = settings_of({"on_finding": on_finding, "atomic_rows": atomic_rows, **settings})
        made = MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)
        self._sinks.append(made)
        return made, made.open(lambda target, commit_ts: BEGIN if commit_ts is None else commit_ts, SchemaHistory)

    def close(self) -> None:
        while self._sinks:
            self._sinks.pop().close()


@pytest.fixture
def place(mariadb: PrivateMariaDB) -> Iterator[Place]:
    with empty_place(mariadb) as server:
        made = Place(server)
        yield made
        made.close()


def write(sink: MySQLSink, history: RowHistory, rows: pa.Table, upto_ts: int | None = None) -> Written:
    return sink.apply(rows, history.step(sink.commit_ts, rows, upto_ts), StageClock())


SLOW = pytest.mark.slow
MODES: list[dict[str, Any]] = [
    {"worker_count": 4, "txn_batch": 3},
    {"worker_count": 16, "txn_batch": 20},
    {"worker_count": 1, "txn_batch": 7},
    {"enable_dispatch": False, "txn_batch": 1},
    {"worker_count": 3, "txn_batch": 3, "safe_mode": True},
]


@pytest.mark.parametrize("mode", MODES, ids=[" ".join(f"{k}={v}" for k, v in m.items()) for m in MODES])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=SLOW)])
def test_random_histories_end_as_upstream(place: Place, mode: dict[str, Any], seed: int) -> None:
    tables = worlds()
    place.create(*tables)
    history = RowHistory(tables, random.Random(f"{seed}"))
    sink = place.sink(**mode)
    for transactions in (1, 3, 60, 10, 80):
        rows = history.batch(transactions)
        written = write(sink, history, rows)
        assert (written.rows, written.findings) == (rows.num_rows, ())
        assert place.rows(*tables) == history.expected()
        assert place.checkpoint() == f'{{"consistent":true,"commitTS":{history.ts},"ts-map":{{}},"schema-version":40}}'
    assert place.query(f"SELECT COUNT(*) FROM {SCHEMA}.spark_state WHERE name LIKE 'lane%'") == [(0,)]


# Crashes.

SETTINGS: dict[str, Any] = {"worker_count": 4, "txn_batch": 3}
BATCHES = [2, 50, 30]


def killed(place: Place, seed: str, point: str, **settings: Any) -> Ended:
    """A process of the history ``seed`` that dies at a point."""
    ended = run(Task(place.server.target(), seed, BATCHES, None, settings), {failpoints.DIE: point})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return ended


def finished(place: Place, seed: str, cuts: list[int] | None = None, **settings: Any) -> str:
    """One that ends well; what it said."""
    ended = run(Task(place.server.target(), seed, BATCHES, cuts, settings), {})
    assert ended.returncode == 0, ended.stderr
    assert '"consistent":true' in place.checkpoint()
    return ended.stderr


POINTS = [
    *(("before-rows-commit", n) for n in (1, 4, 17)),
    *(("after-rows-commit", n) for n in (2, 9, 23)),
    ("before-downstream-commit", 2),
]
QUICK = {("before-rows-commit:4", "same"), ("after-rows-commit:9", "other settings"), ("before-downstream-commit:2", "other settings")}
"""In ``make test`` each point once, and each restart."""
RESTARTED: dict[str, dict[str, Any]] = {"same": SETTINGS, "other settings": {"worker_count": 7, "txn_batch": 5}}


@pytest.mark.parametrize(
    ("point", "before", "restarted"),
    [
        *(
            pytest.param(place, SETTINGS, settings, id=f"{place}-{name}", marks=() if (place, name) in QUICK else SLOW)
            for place in (f"{point}:{number}" for point, number in POINTS)
            for name, settings in RESTARTED.items()
        ),
        *(
            pytest.param(f"{point}:2", {"net_change": True}, {"net_change": True}, id=f"{point}-net changes")
            for point in ("before-deletes", "between-phases", "before-downstream-commit", "after-downstream-commit")
        ),
    ],
)
def test_a_killed_process_leaves_each_operation_applied_once(
    place: Place, point: str, before: dict[str, Any], restarted: dict[str, Any]
) -> None:
    """Rows without a key included: nothing would repair them if one was applied twice or not at all."""
    history, _, _ = made(point, BATCHES)
    place.create(*worlds())
    killed(place, point, point, **before)
    assert "safe mode" not in finished(place, point, **restarted)
    assert place.rows(*worlds()) == history.expected()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=SLOW if seed != 1 else ()) for seed in range(6)])
def test_other_spans_are_mended_in_safe_mode(place: Place, seed: int) -> None:
    """After the crash the same binlogs come in other batches: rows with a key are exact, and the tables of others are named."""
    history, events, ends = made(str(seed), BATCHES)
    place.create(*worlds())
    killed(place, str(seed), f"after-rows-commit:{5 + 3 * seed}", **SETTINGS)
    assert '"consistent":false' in place.checkpoint()
    stamps = sorted(set(events.column("commit_ts").to_pylist()))
    cuts = sorted({*random.Random(seed).sample(stamps, 4), ends[-1]})
    said = finished(place, str(seed), cuts, **SETTINGS)
    found, wanted = place.rows(*worlds()), history.expected()
    assert {name: found[name] for name in ("c1", "c2", "k")} == {name: wanted[name] for name in ("c1", "c2", "k")}
    if "safe mode" in said:
        assert "Compare the table with the upstream afterwards" in said
    else:
        assert found == wanted


def test_a_kill_in_safe_mode_stays_in_safe_mode(place: Place) -> None:
    """The second life has other operations than the first (as with another filter), the third the same as the second."""
    history, _, _ = made("twice", BATCHES)
    place.create(*worlds())
    killed(place, "twice", "after-rows-commit:40", **SETTINGS)
    place.query(f"UPDATE {SCHEMA}.spark_state SET value = REPLACE(value, 'groups-', 'groups-3-of other operations-')")
    assert "safe mode" in killed(place, "twice", "after-rows-commit:3", **SETTINGS).stderr
    assert place.query(f"SELECT MIN(value LIKE '%:0}}') FROM {SCHEMA}.spark_state WHERE name LIKE 'lane%'") == [(0,)]
    finished(place, "twice", **SETTINGS)
    found, wanted = place.rows(*worlds()), history.expected()
    assert {name: found[name] for name in ("c1", "c2", "k")} == {name: wanted[name] for name in ("c1", "c2", "k")}


@pytest.mark.parametrize("only_keyless", [False, True])
def test_a_commit_whose_answer_is_lost_is_not_repeated(place: Place, monkeypatch: pytest.MonkeyPatch, only_keyless: bool) -> None:
    tables = (keyless("x", 104), keyless("y", 105)) if only_keyless else worlds()
    place.create(*tables)
    history = RowHistory(tables, random.Random("lost"))
    sink = place.sink(**SETTINGS)
    commit, rng, lost = Session.commit, random.Random(1), []

    def commits(session: Session) -> None:
        commit(session)
        if rng.random() < 0.3:
            lost.append(1)
            raise RetryableApplyError("the answer was lost", 2013, where="test")

    monkeypatch.setattr(Session, "commit", commits)
    for transactions in (1, 40, 3):
        write(sink, history, history.batch(transactions))
        assert place.rows(*tables) == history.expected()
    assert lost


def test_the_server_is_killed_in_the_middle(fresh_mariadb: PrivateMariaDB) -> None:
    place = Place(fresh_mariadb)
    place.query("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    tables = worlds()
    place.create(*tables)
    history = RowHistory(tables, random.Random("server"))
    sink = place.sink(worker_count=8, txn_batch=2)
    done, kills = threading.Event(), []

    def kill() -> None:
        while not done.wait(0.5):
            fresh_mariadb.kill()
            fresh_mariadb.restart()
            kills.append(1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while len(kills) < 2:
            write(sink, history, history.batch(150))
    finally:
        done.set()
        killer.join()
    assert place.rows(*tables) == history.expected()
    place.close()


# What it says and keeps.


def events_of(at: TableAt, events: Events) -> tuple[pa.Table, RowsStep]:
    rows = events.table()
    upto_ts = max(rows.column("commit_ts").to_pylist())
    return rows, RowsStep(BEGIN, upto_ts, rows.num_rows, {TABLE_ID: at}, applied=AppliedJobs(40))


@pytest.mark.shows("syncer.worker-count")
def test_every_operation_reaches_the_target(place: Place) -> None:
    """Triggers count them: nothing is folded, and an update is an update."""
    world = clustered("c1", 101, 30)
    place.create(world)
    place.query("CREATE TABLE d.seen (op varchar(9), id bigint, n bigint)")
    for op, row in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")):
        place.query(f"CREATE TRIGGER d.{op}s AFTER {op} ON d.c1 FOR EACH ROW INSERT INTO d.seen VALUES ('{op}', {row}.id, {row}.n)")
    history = RowHistory((world,), random.Random("audit"))
    rows = history.batch(60)
    write(place.sink(worker_count=4, txn_batch=5), history, rows)
    assert place.query("SELECT op, COUNT(*) FROM d.seen GROUP BY op ORDER BY op") == [
        (op.name.lower(), rows.column("op").to_pylist().count(int(op))) for op in (Op.DELETE, Op.INSERT, Op.UPDATE)
    ]
    assert place.rows(world) == history.expected()


WRONG: dict[str, tuple[Callable[[Events], Events], str, list[Any]]] = {
    "an update": (lambda e: e.update((1, None, 1), (1, None, 2)), "were not in the target and were inserted", [(1, None, 2)]),
    "a delete": (lambda e: e.delete(1, None, 1), "1 of the rows that the binlogs delete were not in the target", []),
    "an insert": (lambda e: e.insert(9, None, 2), "a row that the binlogs insert already existed", [(9, None, 2)]),
    "a changed key": (
        lambda e: e.update((9, None, 1), (8, "x", 2)),
        "another row has the key of a row that the binlogs change",
        [(8, "x", 2)],
    ),
    "an enum": (lambda e: e.insert(1, "longer than ten", 2), "warning 1265", [(1, "longer tha", 2)]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_finding_is_recorded_and_the_row_written(place: Place, kind: str) -> None:
    change, words, wanted = WRONG[kind]
    world = clustered("c1", TABLE_ID)
    place.create(world)
    if kind in ("an insert", "a changed key"):
        place.query("INSERT INTO d.c1 VALUES (9, NULL, 1)")
    if kind == "a changed key":
        place.query("INSERT INTO d.c1 VALUES (7, 'x', 1)")
    events = change(Events(world.at))
    found = place.sink("record", txn_batch=5).apply(*events_of(world.at, events), StageClock()).findings
    assert [words in f.words for f in found] == [True], found
    assert place.query("SELECT * FROM d.c1") == wanted


def test_a_value_that_does_not_fit_is_found_where_the_row_must_be_mended(place: Place) -> None:
    world = clustered("c1", TABLE_ID)
    place.create(world)
    place.query("INSERT INTO d.c1 VALUES (1, 'old', 1)")
    events = Events(world.at).insert(1, "longer than ten", 1).update((5, "x", 1), (5, "also too long", 2))
    found = place.sink("record", txn_batch=5).apply(*events_of(world.at, events), StageClock()).findings
    assert sorted((f.kind, f.key) for f in found if "warning 1265" in f.words) == [
        (FindingKind.VALUE, "`id`=5"),
        (FindingKind.VALUE, "id=1"),
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lane_that_fails_leaves_the_step_open(place: Place, restarted: bool) -> None:
    world = clustered("c1", TABLE_ID, 100)
    place.create(world)
    events = Events(world.at)
    for i in range(20):
        events.insert(i, None, i)
    events.delete(50, None, 1)
    rows, step = events_of(world.at, events)
    sink = place.sink("stop", worker_count=3, txn_batch=2)
    with pytest.raises(FindingError):
        sink.apply(rows, step, StageClock())
    assert f'"consistent":false,"commitTS":{BEGIN}' in place.checkpoint()
    place.query("INSERT INTO d.c1 VALUES (50, NULL, 1)")
    sink = place.sink("stop", worker_count=3, txn_batch=2) if restarted else sink
    assert sink.apply(rows, step, StageClock()).findings == ()
    assert place.query("SELECT id FROM d.c1 ORDER BY id") == [(i,) for i in range(20)]
    assert '"consistent":true' in place.checkpoint()


def test_other_operations_at_a_table_without_the_key_are_refused_and_written_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A row is refused, and its transaction skipped: what the lanes have done cannot be told apart from the rest without the upstream's key."""
    world = clustered("c1", TABLE_ID, 100)
    place.query("CREATE TABLE d.c1 (id bigint, u varchar(10), n bigint, only_here int DEFAULT 7)")
    run_sql(place.server, *refusing("d.c1", "NEW.id = 19"))
    events = Events(world.at)
    for i in range(20):
        events.insert(i, None, i)
    rows, step = events_of(world.at, events)
    sink = place.sink("record", worker_count=3, txn_batch=2)
    with pytest.raises(ApplyError, match="this row is refused"):
        sink.apply(rows, step, StageClock())
    there = place.query("SELECT COUNT(*) FROM d.c1")
    assert there != [(0,)]
    kept = rows.slice(0, 19)
    for restarted in (False, True):
        sink = place.sink("record", worker_count=3, txn_batch=2) if restarted else sink
        with pytest.raises(ApplyError, match="lacks the unique key"):
            sink.apply(kept, step, StageClock())
        assert place.query("SELECT COUNT(*) FROM d.c1") == there
        assert f'"consistent":false,"commitTS":{BEGIN}' in place.checkpoint()
    place.query("ALTER TABLE d.c1 ADD PRIMARY KEY (id), ADD UNIQUE (u)")
    sink, opened = place.opened("record", worker_count=3, txn_batch=2, net_change=True)
    assert opened.progress.unfinished is None
    assert sink.apply(kept, step, StageClock()).findings == ()
    assert place.query("SELECT id, n FROM d.c1 ORDER BY id") == [(i, i) for i in range(19)]
    assert '"consistent":true' in place.checkpoint()
    assert "its columns only_here, which only the target has, get their defaults" in caplog.text


def test_a_table_without_a_key_is_a_finding_where_other_operations_come(place: Place) -> None:
    world = keyless("x", TABLE_ID)
    place.create(world)
    run_sql(place.server, *refusing("d.x", "NEW.n = 19"))
    events = Events(world.at)
    for i in range(20):
        events.insert(None, None, i, rowid=i)
    rows, step = events_of(world.at, events)
    with pytest.raises(ApplyError, match="this row is refused"):
        place.sink("stop", worker_count=3, txn_batch=2).apply(rows, step, StageClock())
    (found,) = place.sink("stop", worker_count=3, txn_batch=2).apply(rows.slice(0, 19), step, StageClock()).findings
    assert found.table == "`d`.`x`" and "rows may be there twice" in found.words


@pytest.mark.parametrize("way", [{"enable_dispatch": False}, {"worker_count": 2, "txn_batch": 2}], ids=["transactions", "lanes"])
def test_findings_of_what_is_committed_outlive_a_change_of_the_table(
    place: Place, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    world = clustered("c1", TABLE_ID)
    place.create(world)
    events = Events(world.at).delete(50, None, 1)
    for i in range(8):
        events.insert(i, None, i)

    def changes(name: str) -> None:
        if name == "after-rows-commit" and not changed:
            changed.append(name)
            place.query("ALTER TABLE d.c1 DROP COLUMN n")

    changed: list[str] = []
    monkeypatch.setattr(failpoints, "point", changes)
    found = place.sink("record", sync_ddl=False, **way).apply(*events_of(world.at, events), StageClock()).findings
    assert changed and ["1 of the rows that the binlogs delete were not in the target" in f.words for f in found] == [True]
    assert place.query("SELECT id FROM d.c1 ORDER BY id") == [(i,) for i in range(8)]


@pytest.mark.mariadb
@pytest.mark.parametrize("how", [{"net_change": True}, {"net_change": True, "safe_mode": True}, *MODES], ids=str)
def test_a_document_that_is_nested_deeply_is_written_and_named(place: Place, how: dict[str, Any]) -> None:
    """MariaDB's CHECK of a JSON column refuses it (4025): the row is as upstream, and no application can change it after a fail-over."""
    at = table([column("id", flag=INT_PK), column("j", ColumnType.JSON), column("n", ColumnType.INT)], handle="int")
    place.query("CREATE TABLE d.t (id BIGINT PRIMARY KEY, j JSON, n INT)")
    deep = [json.loads("[" * depth + "]" * depth) for depth in (31, 32, 60)]
    flat = ["[" * 40, *([{"a": '"}', "b": "]"}] * 40)]
    events = Events(at).insert(1, deep[0], 1).insert(2, deep[1], 1).insert(3, flat, 1).insert(4, None, 1)
    events.update((1, deep[0], 1), (1, deep[2], 1)).insert(5, deep[2], 1).delete(5, deep[2], 1)
    found = place.sink("stop", **how).apply(*events_of(at, events), StageClock()).findings
    named = {("1", 1005), ("2", 1002)} if how.get("net_change") else {("1", 1005), ("2", 1002), ("5", 1006)}
    assert {(f.key.rpartition("=")[2], f.commit_ts) for f in found} == named and len(found) == len(named)
    assert {(f.kind, "nested deeper than 31" in f.words) for f in found} == {(FindingKind.FAILOVER, True)}
    rows = place.query("SELECT id, j FROM d.t ORDER BY id")
    assert [(i, j and json.loads(j)) for i, j in rows] == [(1, deep[2]), (2, deep[1]), (3, flat), (4, None)]


def test_a_row_that_the_target_refuses_is_named(place: Place) -> None:
    world = clustered("c1", TABLE_ID)
    place.create(world)
    run_sql(place.server, *refusing("d.c1", "NEW.n >= 5"))
    events = Events(world.at).insert(1, None, 1).insert(2, None, 9)
    with pytest.raises(ApplyError, match="`d`.`c1`, key id=2, commit_ts 1002 .*ignore-txn-commit-ts = .1002."):
        place.sink("record", txn_batch=5).apply(*events_of(world.at, events), StageClock())
    assert place.query("SELECT * FROM d.c1") == []


def test_another_life_takes_the_lease_from_the_lanes(place: Place) -> None:
    tables = worlds()
    place.create(*tables)
    history = RowHistory(tables, random.Random("lease"))
    sink = place.sink(**SETTINGS)
    write(sink, history, history.batch(2))
    place.query(f"UPDATE {SCHEMA}.spark_lease SET life = 'another', epoch = epoch + 1")
    before = place.rows(*tables)
    with pytest.raises(LeaseLost):
        write(sink, history, history.batch(40))
    assert place.rows(*tables) == before


@pytest.mark.shows("syncer.safe-mode")
@pytest.mark.parametrize("seed", range(4))
def test_safe_mode_mends_what_another_drainer_left_half_done(place: Place, seed: int) -> None:
    """Any prefix of each row's operations may be there, and the checkpoint is before all of them."""
    tables = (clustered("c1", 101), clustered("c2", 102, 40), two_keys("k", 103))
    place.create(*tables)
    history = RowHistory(tables, random.Random(f"half {seed}"))
    first = place.sink(**SETTINGS)
    write(first, history, history.batch(30))
    before = history.ts
    rows = history.batch(40)
    ended = rows.column("commit_ts").to_pylist()[rows.num_rows // 4 * (seed % 4)]
    write(first, history, rows_between(rows, before, ended), ended)
    place.query(
        f"""UPDATE {SCHEMA}.checkpoint SET checkPoint = '{{"consistent":false,"commitTS":{before},"ts-map":{{}},"schema-version":40}}'"""
    )
    place.query(f"DELETE FROM {SCHEMA}.spark_state")
    second = place.sink(**SETTINGS)
    assert write(second, history, rows).findings == ()
    assert place.rows(*tables) == history.expected()


@pytest.mark.shows("spark.net-change")
def test_net_changes_come_after_an_open_span(place: Place) -> None:
    """Who switches to net changes after a crash gets the open span finished as it was begun."""
    history, events, ends = made("net", BATCHES)
    place.create(*worlds())
    killed(place, "net", "after-rows-commit:9", **SETTINGS)
    finished(place, "net", net_change=True, **SETTINGS)
    assert place.rows(*worlds()) == history.expected()


def test_a_record_from_before_the_checkpoint_was_moved_is_forgotten(place: Place) -> None:
    history, _, _ = made("moved", BATCHES)
    place.create(*worlds())
    killed(place, "moved", "after-rows-commit:9", **SETTINGS)
    for world in worlds():
        place.query(f"DELETE FROM d.{world.at.name}")
    place.query(
        f"""UPDATE {SCHEMA}.checkpoint SET checkPoint = '{{"consistent":true,"commitTS":{BEGIN},"ts-map":{{}},"schema-version":40}}'"""
    )
    assert place.opened(**SETTINGS)[1].progress.unfinished is None
    assert place.query(f"SELECT COUNT(*) FROM {SCHEMA}.spark_state WHERE name LIKE 'lane%'") == [(0,)]
    place.close()
    assert "safe mode" not in finished(place, "moved", **SETTINGS)
    assert place.rows(*worlds()) == history.expected()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of operations of each transaction."""
    found: list[int] = []
    statements = OpPlan.statements

    def spied(self: OpPlan, places: Any) -> Any:
        found.append(len(places))
        return statements(self, places)

    monkeypatch.setattr(OpPlan, "statements", spied)
    return found


@pytest.mark.shows("spark.txn-batch-time")
def test_a_slow_transaction_makes_the_next_one_smaller(place: Place, sizes: list[int]) -> None:
    world = clustered("c1", TABLE_ID, 1000)
    place.create(world)
    events = Events(world.at)
    for i in range(200):
        events.insert(i, None, i)
    place.sink(worker_count=1, txn_batch=50, txn_batch_time=1e-6).apply(*events_of(world.at, events), StageClock())
    assert sizes[0] == 50 and set(sizes[1:]) == {1}
    assert place.query("SELECT COUNT(*) FROM d.c1") == [(200,)]


@pytest.mark.shows("syncer.txn-batch")
def test_transactions_have_at_most_so_many_operations(place: Place, sizes: list[int]) -> None:
    history = RowHistory(worlds(), random.Random("sizes"))
    place.create(*history.worlds)
    write(place.sink(worker_count=3, txn_batch=4), history, history.batch(40))
    assert max(sizes) == 4 and len(sizes) > 10


@pytest.mark.shows("syncer.enable-dispatch", "drainer gotcha 4")
def test_without_dispatch_the_upstream_transactions_are_kept(place: Place, sizes: list[int]) -> None:
    history = RowHistory(worlds(), random.Random("kept"))
    place.create(*history.worlds)
    rows = history.batch(20)
    write(place.sink(enable_dispatch=False), history, rows)
    stamps = rows.column("commit_ts").to_pylist()
    assert sizes == [stamps.count(ts) for ts in sorted(set(stamps))]
    write(place.sink(enable_dispatch=False), history, history.batch(0), history.ts + 1)
    assert f'"commitTS":{history.ts + 1}' in place.checkpoint()


# From Spark.


@pytest.mark.parametrize("most", [50, 100_000])
def test_a_big_step_is_fetched_in_pieces(place: Place, spark: "SparkSession", most: int) -> None:
    tables = worlds()
    place.create(*tables)
    history = RowHistory(tables, random.Random("spark"))
    rows = history.batch(120)
    sink = place.sink(atomic_rows=most, worker_count=4, txn_batch=5)
    sink.apply_parts(in_spark(spark, rows, SchemaHistory(), 2), history.step(sink.commit_ts, rows), frozenset(), StageClock())
    assert sink.commit_ts == history.ts
    assert place.rows(*tables) == history.expected()


def test_transactions_to_skip_are_left_out_of_a_big_step(place: Place, spark: "SparkSession") -> None:
    world = clustered("c1", TABLE_ID)
    place.create(world)
    rows, step = events_of(world.at, Events(world.at).insert(1, None, 1).insert(2, None, 1).insert(3, None, 1))
    place.sink().apply_parts(in_spark(spark, rows, SchemaHistory(), 2), step, frozenset({1002}), StageClock())
    assert place.query("SELECT id FROM d.c1 ORDER BY id") == [(1,), (3,)]


@pytest.mark.parametrize("net_change", [False, True])
def test_an_open_span_is_unfinished_and_read_again_as_it_was(place: Place, spark: "SparkSession", net_change: bool) -> None:
    """As ``BatchApplier.replay`` does it; the limit of what the driver fetches at a time does not cut it."""
    history, events, ends = made("unfinished", BATCHES)
    place.create(*worlds())
    killed(place, "unfinished", "after-rows-commit:12", **SETTINGS)
    sink, opened = place.opened(atomic_rows=10, net_change=net_change, **SETTINGS)
    span = opened.progress.unfinished
    assert span is not None and (span.after_ts, span.upto_ts) == (ends[0], ends[1])
    rows = rows_between(events, *ends[:2])
    sink.apply_parts(in_spark(spark, rows, SchemaHistory(), 2), history.step(span.after_ts, rows, span.upto_ts), frozenset(), StageClock())
    rest = rows_between(events, *ends[1:])
    sink.apply(rest, history.step(ends[1], rest), StageClock())
    assert place.rows(*worlds()) == history.expected()
    assert place.opened(**SETTINGS)[1].progress.unfinished is None
