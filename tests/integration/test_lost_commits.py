"""A server that lacks its last transactions although it had answered them: a replica that was behind takes its place amid a step.

The same happens to a server that crashes with ``innodb_flush_log_at_trx_commit`` other than 1.
"""

import datetime
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.codec.datum import encode_int
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, with_keys
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.mysql import parallel
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.mysql.part_plans import PartPlan
from pyspark_tidb_binlog.sinks.mysql.rows import row_lanes
from pyspark_tidb_binlog.sinks.replay import file_replay
from pyspark_tidb_binlog.sinks.replay.file_replay import FileReplay
from pyspark_tidb_binlog.sinks.replay.mysql_replay import MySQLReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from tests.support.crashed_site import CrashedSite, ddl_record, inserted, records
from tests.support.ddl_jobs import INT, column, database, history, index, job, table
from tests.support.plan_samples import in_spark, row_event
from tests.support.target_rows import run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.mysql, pytest.mark.spark]

AT, UPTO = 20, 30
ID, U = column(1, "id", {**INT, "Flag": 4099}), column(2, "u", INT)
HISTORY = history(
    database(1),
    job(
        2,
        3,
        table(10, "t", [ID, U], index_info=[index(1, "u", ("u", 1), unique=True)]),
        query="CREATE TABLE `t` (`id` INT PRIMARY KEY, `u` INT UNIQUE)",
    ),
    job(5, 6, table(10, "t", [ID]), query="ALTER TABLE `t` DROP COLUMN `u`"),
)
INFO = HISTORY.table_at(10, 2).info  # type: ignore[union-attr]
IDS = [block * 1024 + 1 for block in range(9)]
"""Each in a block of its own, so that they are spread over the parts."""
BEFORE = [(i, i) for i in IDS]
ROTATED = [(i, IDS[(n + 1) % len(IDS)]) for n, i in enumerate(IDS)]
"""Each row takes the unique value of the next: none can be written before the deletes of all parts."""
PARTS = 3


class Pair:
    """A server, and a replica that may take its place."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self.server = server
        self._replica = server.data_dir.parent / f"{server.data_dir.name}-replica"

    def replicate(self) -> None:
        """From here on the replica is behind."""
        self.server.kill()
        subprocess.run(["cp", "-a", str(self.server.data_dir), str(self._replica)], check=True)
        self.server.restart()

    def fail_over(self) -> None:
        """The server dies, and the replica has its address."""
        self.server.kill()
        subprocess.run(["rm", "-r", str(self.server.data_dir)], check=True)
        subprocess.run(["mv", str(self._replica), str(self.server.data_dir)], check=True)
        self.server.restart()

    def query(self, sql: str) -> list[Any]:
        return run_sql(self.server, sql)

    def sink(self, **settings: Any) -> MySQLSink:
        apply = ApplyConfig(lease_timeout=5.0, on_finding="stop", log_row_data=True, **settings)
        made = MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)
        made.open(lambda target, commit_ts: AT if commit_ts is None else commit_ts, lambda: HISTORY)
        return made


@pytest.fixture
def pair() -> Iterator[Pair]:
    with PrivateMariaDB() as server:
        made = Pair(server)
        made.query("CREATE DATABASE d")
        made.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
        made.query(f"INSERT INTO d.t VALUES {', '.join(map(str, BEFORE))}")
        yield made


def changes(pairs: list[tuple[tuple[int, int] | None, tuple[int, int]]], commit_ts: int = UPTO) -> pa.Table:
    images = [(old and dict(zip((1, 2), old, strict=True)), dict(zip((1, 2), new, strict=True))) for old, new in pairs]
    rows = [row_event(HISTORY.table_at(10, 2), commit_ts, seq, old, new) for seq, (old, new) in enumerate(images)]
    return pa.Table.from_pylist(rows, schema=ROW_EVENT)


def step_of(rows: pa.Table, after_ts: int, upto_ts: int) -> RowsStep:
    (step,) = plan_steps((after_ts, upto_ts), (), [TableActivity(10, 2, upto_ts, rows.num_rows, upto_ts)], HISTORY, AppliedJobs(2))
    assert isinstance(step, RowsStep)
    return step


Phases = dict[int, Iterator[pa.RecordBatch]]
"""Of each part what is still to be done: its deletes, then its writes."""


@pytest.mark.parametrize("lost", ["writes", "deletes"])
def test_parts_that_the_target_has_lost_are_applied_again(
    pair: Pair, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    sink = pair.sink()
    rows = changes(list(zip(BEFORE, ROTATED, strict=True)))
    numbered = with_keys(rows, HISTORY, PARTS)
    passes: list[str] = []
    waiting = parallel._others_deleted

    def deletes_lost(parts: Phases) -> Iterator[pa.RecordBatch]:
        pair.replicate()
        yield from map(next, parts.values())
        pair.fail_over()
        # What each of them had found when the server died.
        monkeypatch.setattr(parallel, "_others_deleted", lambda *args: True)
        for part in parts.values():
            yield from part
        monkeypatch.setattr(parallel, "_others_deleted", waiting)

    def writes_lost(parts: Phases) -> Iterator[pa.RecordBatch]:
        yield from map(next, parts.values())
        pair.replicate()
        yield from parts[0]
        pair.fail_over()
        for part in parts.values():
            yield from part

    def undisturbed(parts: Phases) -> Iterator[pa.RecordBatch]:
        yield from map(next, parts.values())
        for part in parts.values():
            yield from part

    def phases(events: KeyedEvents, how: PartPlan, to: parallel.PartTarget, *, together: bool) -> parallel.PartsDone:
        run = undisturbed if passes else deletes_lost if lost == "deletes" else writes_lost
        passes.append(run.__name__)
        of = {part: how.chosen(numbered.filter(pc.equal(numbered.column("part"), part))) for part in range(PARTS)}
        done = pa.Table.from_batches(list(run({part: parallel.apply_part(part, of[part], how, to, 5.0) for part in of})))
        return parallel.PartsDone.of(done)

    monkeypatch.setattr(parallel, "apply_phases", phases)
    written = sink.apply_parts(in_spark(spark, rows, HISTORY, PARTS), step_of(rows, AT, UPTO), frozenset(), StageClock())
    assert sorted(pair.query("SELECT id, u FROM d.t")) == ROTATED
    assert written.findings == ()
    assert len(passes) > 1, "the loss was seen"
    assert pair.query("SELECT name FROM tidb_binlog.spark_state") == [("ours",)]
    sink.close()


BY_ROW: dict[str, Any] = {"net_change": False, "worker_count": 2}


def test_lanes_that_the_target_has_lost_are_seen_before_the_checkpoint_moves(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = changes([(None, (i, i)) for i in range(2, 42)])
    sink = pair.sink(**BY_ROW, txn_batch=3)
    one_by_one(pair, monkeypatch, lost={0})
    with pytest.raises(
        ApplyError, match=r"the target has lost transactions that it had committed: its lanes up to 30 had done .* Start the Drainer"
    ):
        sink.apply(rows, step_of(rows, AT, UPTO), StageClock())
    sink.close()
    monkeypatch.undo()
    again = pair.sink(**BY_ROW, txn_batch=3)
    assert again.commit_ts == AT
    assert again.apply(rows, step_of(rows, AT, UPTO), StageClock()).findings == ()
    assert sorted(pair.query("SELECT id FROM d.t WHERE id < 42")) == [(i,) for i in range(1, 42)]
    assert pair.query("SELECT COUNT(*) FROM tidb_binlog.spark_state WHERE name LIKE 'lane%'") == [(0,)]
    again.close()


def test_a_round_does_not_begin_without_the_earlier_ones(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows, each in a lane of its own, then the value of the one goes over to the other: a round of its own."""
    first, second = IDS[:2]
    rows = changes([((first, first), (first, -1)), ((second, second), (second, -2)), ((second, -2), (second, first))])
    sink = pair.sink(**BY_ROW, txn_batch=1)
    runs = one_by_one(pair, monkeypatch, lost={0, 1})
    with pytest.raises(ApplyError, match="the target has lost transactions"):
        sink.apply(rows, step_of(rows, AT, UPTO), StageClock())
    assert len(runs) == 3, "the last lane began, and did nothing"
    assert pair.query(f"SELECT u FROM d.t WHERE id = {second}") == [(second,)]
    sink.close()
    monkeypatch.undo()
    again = pair.sink(**BY_ROW, txn_batch=1)
    assert again.apply(rows, step_of(rows, AT, UPTO), StageClock()).findings == ()
    assert pair.query(f"SELECT id, u FROM d.t WHERE id IN ({first}, {second}) ORDER BY id") == [(first, -1), (second, first)]
    again.close()


def one_by_one(pair: Pair, monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> list[int]:
    """Lanes run one after the other; the target loses what those ``lost`` (by the order of their turns) have done."""
    plain, turns = row_lanes.Lanes._lane, list[int]()

    def lane(self: row_lanes.Lanes, number: int, *args: Any) -> None:
        turn = len(turns)
        turns.append(number)
        if turn == min(lost):
            pair.replicate()
        plain(self, number, *args)
        if turn == max(lost):
            pair.fail_over()

    def together(self: row_lanes.Lanes, jobs: Any) -> None:
        for run in jobs.values():
            run()

    monkeypatch.setattr(row_lanes.Lanes, "_lane", lane)
    monkeypatch.setattr(row_lanes.Lanes, "_together", together)
    return turns


def test_a_ddl_is_not_executed_before_rows_that_the_target_has_lost(pair: Pair) -> None:
    sink = pair.sink()
    rows = changes(list(zip(BEFORE, ROTATED, strict=True)))
    pair.replicate()
    sink.apply(rows, step_of(rows, AT, UPTO), StageClock())
    pair.fail_over()
    steps = plan_steps((UPTO, 60), [DdlEvent(50, 5, "ALTER TABLE `t` DROP COLUMN `u`;", 5)], (), HISTORY, AppliedJobs(2))
    drop = next(step for step in steps if isinstance(step, DdlStep))
    with pytest.raises(ApplyError, match="was moved to 20"):
        sink.apply_ddl(drop, HISTORY, {})
    sink.close()
    again = pair.sink()
    assert again.commit_ts == AT
    again.apply(rows, step_of(rows, AT, UPTO), StageClock())
    assert sorted(pair.query("SELECT id, u FROM d.t")) == ROTATED, "the column is there still"
    again.apply_ddl(drop, HISTORY, {})
    assert sorted(pair.query("SELECT * FROM d.t")) == [(i,) for i in IDS]
    again.close()


def inserts_into(table: str, commit_ts: int, *numbers: int) -> pb.Binlog:
    """A file sink's transaction with a row (n, n) for each number."""

    def columns(number: int) -> list[bytes]:
        values = {"id": number, "u": number}
        return [pb.column(name=n, tp=bytes((3,)), mysql_type="int", value=encode_int(v)).SerializeToString() for n, v in values.items()]

    events = [pb.Event(schema_name="d", table_name=table, tp=pb.Insert, row=columns(number)) for number in numbers]
    return pb.Binlog(tp=pb.DML, commit_ts=commit_ts, dml_data=pb.DMLData(events=events))


@pytest.mark.parametrize("last", ["rows", "ddl"])
def test_a_replay_that_lost_its_only_rows_says_so(pair: Pair, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """With the record of their beginning they are gone; the replay ends, or executes a DDL, behind them."""
    binlogs = [inserts_into("t", 20, 2, 3)]
    if last == "ddl":
        binlogs.append(pb.Binlog(tp=pb.DDL, commit_ts=25, ddl_query=b"use `d`; ALTER TABLE `t` DROP COLUMN `u`;;"))
    executed, begun = file_replay.execute_text, MySQLReplay._save

    def behind_the_begin_of_the_ddl(*arguments: Any, **named: Any) -> Any:
        pair.fail_over()
        return executed(*arguments, **named)

    def behind_its_end(replay: MySQLReplay) -> None:
        pair.fail_over()
        finished(replay)

    def once_behind(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(MySQLReplay, "_save", begun)
        pair.replicate()
        return begun(*arguments, **named)

    finished = MySQLReplay._finish
    monkeypatch.setattr(MySQLReplay, "_save", once_behind)
    if last == "ddl":
        monkeypatch.setattr(file_replay, "execute_text", behind_the_begin_of_the_ddl)
    else:
        monkeypatch.setattr(MySQLReplay, "_finish", behind_its_end)
    replay = MySQLReplay(pair.server.target(), ApplyConfig(lease_timeout=5.0), 0, ReadBack(datetime.UTC))
    try:
        with pytest.raises(ApplyError, match="the target has lost transactions that it had committed"):
            replay.take_all(binlogs)
    finally:
        replay.close()
    assert [name for name, *_ in pair.query("SHOW COLUMNS FROM d.t")] == ["id", "u"]


def lost_between(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica is behind from before the first DDL of a replay, and takes the server's place when it is executed and not yet recorded."""
    execute, fails = file_replay.execute_text, iter([pair.fail_over])

    def behind(*arguments: Any) -> Any:
        monkeypatch.setattr(file_replay, "execute_text", execute)
        pair.replicate()
        return execute(*arguments)

    def at(name: str) -> None:
        if name == "after-ddl":
            next(fails, lambda: None)()

    monkeypatch.setattr(file_replay, "execute_text", behind)
    monkeypatch.setattr(failpoints, "point", at)


def test_a_ddl_of_the_relay_log_that_the_target_has_lost_is_executed_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = CrashedSite(pair.server, tmp_path)
    site.query("INSERT INTO d.y VALUES (1, 'old', 1)")
    site.checkpoint(5)
    site.log([ddl_record(20, "y", "TRUNCATE TABLE y"), *records([inserted(30, "y", (9, "new", 9))])])
    lost_between(pair, monkeypatch)
    assert site.recover().commit_ts == 30
    assert site.query("SELECT * FROM d.y") == [(9, "new", 9)]


def test_a_ddl_of_the_relay_log_is_not_executed_before_rows_that_the_target_has_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would take their column away, or its name, and the next recovery, which writes them again, would leave it out."""
    site = CrashedSite(pair.server, tmp_path)
    site.checkpoint(5)
    renamed = "ALTER TABLE c1 CHANGE n m BIGINT"
    first, second, third = records([inserted(10, "y", (1, "a", 1)), inserted(30, "c1", (7, "val", 77)), inserted(50, "y", (9, "new", 9))])
    site.log([first, ddl_record(20, "x", "ALTER TABLE x ADD INDEX i (b)"), second, ddl_record(40, "c1", renamed), third])
    rows, execute = FileReplay._write, file_replay.execute_text
    before: dict[Any, Callable[[], None]] = {"rows 2": pair.replicate, "ddl 2": pair.fail_over}
    seen: list[str] = []

    def counted(kind: str, work: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            seen.append(kind)
            before.get(f"{kind} {seen.count(kind)}", lambda: None)()
            return work(*arguments)

        return counting

    monkeypatch.setattr(FileReplay, "_write", counted("rows", rows))
    monkeypatch.setattr(file_replay, "execute_text", counted("ddl", execute))
    with pytest.raises(ApplyError, match="the target has lost transactions that it had committed"):
        site.recover()
    assert [name for name, *_ in site.query("SHOW COLUMNS FROM d.c1")] == ["id", "u", "n"]
    monkeypatch.undo()
    assert site.recover().commit_ts == 50
    assert site.query("SELECT * FROM d.c1") == [(7, "val", 77)]
