"""One suite over every target: what ``sinks.sink`` promises, on a real MariaDB, also row by row, in files, in a topic and in a lake."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.codec.datum import as_integer, take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseHeld, ReplicationError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.proto import secondary_binlog_pb2 as slave
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.file.file_sink import FileTarget, file_sink
from pyspark_tidb_binlog.sinks.kafka.kafka_sink import kafka_sink
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.mysql import lease_guard
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink, RelaySettings
from pyspark_tidb_binlog.sinks.sink import Sink
from pyspark_tidb_binlog.sinks.translate.message_sink import MessageSettings
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from tests.support.ddl_jobs import INT, column, database, history, job, table
from tests.support.fakes.memory_topic import MemoryTopic
from tests.support.lake_rows import ledger_of, net_rows
from tests.support.plan_samples import in_spark, row_event
from tests.support.target_rows import run_sql

Row = tuple[int, ...]


def rows_of_pb(payloads: Iterable[bytes]) -> list[Row]:
    """Of tables with integer columns only. Fails where an event does not fit the rows, as it would the second time."""
    rows: list[Row] = []
    for payload in payloads:
        for event in pb.Binlog.FromString(payload).dml_data.events:
            columns = [pb.column.FromString(c) for c in event.row]
            old, new = (tuple(_integer(getattr(c, f)) for c in columns if getattr(c, f)) for f in ("value", "changed_value"))
            _apply(rows, event.tp, new if event.tp == pb.Update else old, old)
    return sorted(rows)


def rows_of_secondary(payloads: Iterable[bytes]) -> list[Row]:
    """Of tables with integer columns only; as ``rows_of_pb``."""
    rows: list[Row] = []
    for payload in payloads:
        for changed in slave.Binlog.FromString(payload).dml_data.tables:
            for mutation in changed.mutations:
                new, old = (tuple(c.int64_value for c in row.columns) for row in (mutation.row, mutation.change_row))
                _apply(rows, mutation.type, new, old if mutation.type == slave.Update else new)
    return sorted(rows)


def _apply(rows: list[Row], kind: Any, new: Row, old: Row) -> None:
    """``kind``: both formats number their kinds of changes alike."""
    if kind != pb.Insert:
        rows.remove(old)
    if kind != pb.Delete:
        assert new not in rows
        rows.append(new)


def _integer(raw: bytes) -> int:
    return as_integer(take_datum(Cursor(raw)))


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.mysql

SCHEMA = "sink_marks"
COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "v", INT)]
HISTORY: SchemaHistory = history(
    database(1, "sunk"),
    job(2, 3, table(10, "t", COLUMNS), query="CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT)", schema_name="sunk"),
)
T = HISTORY.table_at(10, 2)
BEGIN = 5
FIRST_ROWS = 25
"""Just behind the last DDL, whose commit_ts is 20."""

Change = tuple[dict[int, Any] | None, dict[int, Any] | None]
"""A row before and after, by column id."""


class World(Protocol):
    """A target that outlives its sinks."""

    def sink(self, drainer: str = "drainer") -> Sink: ...

    def rows(self) -> list[tuple[int, ...]]: ...


class InMariaDB:
    def __init__(self, server: PrivateMariaDB) -> None:
        self.server = server

    def sink(self, drainer: str = "drainer") -> Sink:
        apply = ApplyConfig(drainer=drainer, checkpoint_schema=SCHEMA, lease_timeout=1.0)
        return MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)

    def rows(self) -> list[tuple[int, ...]]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, v FROM sunk.t ORDER BY id")
            return list(cursor.fetchall())  # type: ignore[arg-type]


class InRows(InMariaDB):
    """Row by row, in lanes."""

    def sink(self, drainer: str = "drainer") -> Sink:
        by_row: dict[str, Any] = {"net_change": False, "worker_count": 4, "txn_batch": 2}
        apply = ApplyConfig(drainer=drainer, checkpoint_schema=SCHEMA, lease_timeout=1.0, **by_row)
        return MySQLSink(DrainerConfig(target=self.server.target(), apply=apply), 1)


class Relayed(InRows):
    """Row by row, behind a relay log of which every step begins a file."""

    def __init__(self, server: PrivateMariaDB, directory: Path) -> None:
        super().__init__(server)
        self.directory = directory

    def sink(self, drainer: str = "drainer") -> Sink:
        log = RelayLog(self.directory / drainer, 100, RelayStream(1, ""))
        return RelayedSink(super().sink(drainer), log, SecondaryBinlogs(), RelaySettings(every_step=True))


class InFiles:
    """Files so small that every step begins one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def sink(self, drainer: str = "drainer") -> Sink:
        target = FileTarget(self.directory / "binlogs", max_file_bytes=100)
        return file_sink(target, MessageSettings(self.directory, 1))

    def rows(self) -> list[tuple[int, ...]]:
        return rows_of_pb(r.payload for r in walk(self.directory / "binlogs"))


class InTopic:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.topic = MemoryTopic()

    def sink(self, drainer: str = "drainer") -> Sink:
        return kafka_sink(self.topic, MessageSettings(self.directory, 1))

    def rows(self) -> list[tuple[int, ...]]:
        return rows_of_secondary(self.topic.messages)


class InLake:
    def __init__(self, directory: Path) -> None:
        self.directory = directory / "lake"

    def sink(self, drainer: str = "drainer") -> Sink:
        return LakeSink(LakeSettings(str(self.directory), 1, drainer, 1.0))

    def rows(self) -> list[tuple[int, ...]]:
        return sorted((row["id"], row["v"]) for row in net_rows(ledger_of(self.directory)).get("sunk.t", []))


@pytest.fixture(params=["mariadb", "rows", "relayed", "file", "kafka", "lake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    worlds: dict[str, Callable[[], World]] = {
        "file": lambda: InFiles(tmp_path),
        "kafka": lambda: InTopic(tmp_path),
        "lake": lambda: InLake(tmp_path),
    }
    if request.param in worlds:
        yield worlds[request.param]()
        return
    server: PrivateMariaDB = request.getfixturevalue("mariadb")
    yield Relayed(server, tmp_path) if request.param == "relayed" else InMariaDB(server) if request.param == "mariadb" else InRows(server)
    run_sql(server, f"DROP DATABASE IF EXISTS {SCHEMA}", "DROP DATABASE IF EXISTS sunk")


@pytest.fixture
def opened(world: World) -> Iterator[Callable[..., Sink]]:
    """Opens sinks one after the other, and closes the last."""
    made: list[Sink] = []

    def make(drainer: str = "drainer", begin: int = BEGIN) -> Sink:
        if made:
            made[-1].close()
        made.append(world.sink(drainer))
        made[-1].open(lambda target, commit_ts: begin if commit_ts is None else commit_ts, lambda: HISTORY)
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def ddls() -> list[DdlStep]:
    events = [DdlEvent(j.id * 10, j.id, f"{j.query};", 5) for j in HISTORY.ordered]
    return [s for s in plan_steps((BEGIN, FIRST_ROWS), events, (), HISTORY, AppliedJobs(0)) if isinstance(s, DdlStep)]


def rows_of(commit_ts: int, *changes: Change) -> pa.Table:
    events = [row_event(T, commit_ts, seq, old, new) for seq, (old, new) in enumerate(changes)]
    return pa.Table.from_pylist(events, schema=ROW_EVENT)


def step_of(after_ts: int, upto_ts: int, rows: pa.Table) -> RowsStep:
    touches: Sequence[TableActivity] = [TableActivity(10, 2, upto_ts, rows.num_rows, upto_ts)] if rows.num_rows else []
    (step,) = plan_steps((after_ts, upto_ts), (), touches, HISTORY, AppliedJobs(2))
    assert isinstance(step, RowsStep)
    return step


def write(sink: Sink, after_ts: int, upto_ts: int, *changes: Change) -> int:
    rows = rows_of(upto_ts, *changes)
    return sink.apply(rows, step_of(after_ts, upto_ts, rows), StageClock()).rows


def made(sink: Sink) -> int:
    """The table is made; where the sink stands then."""
    for step in ddls():
        sink.apply_ddl(step, HISTORY, {})
    write(sink, sink.commit_ts, FIRST_ROWS)
    return sink.commit_ts


def test_a_new_target_begins_where_it_is_told_and_another_life_where_it_was(world: World, opened: Callable[..., Sink]) -> None:
    asked: list[tuple[str, int | None]] = []

    def begin(target: str, commit_ts: int | None) -> int:
        asked.append((target, commit_ts))
        return BEGIN if commit_ts is None else commit_ts

    for known in (False, True):
        sink = world.sink()
        found = sink.open(begin, lambda: HISTORY)
        assert (found.progress.commit_ts, found.progress.known, found.progress.unfinished) == (BEGIN, known, None)
        assert sink.commit_ts == BEGIN
        sink.close()
        sink.close()
    (target, nothing), (same, there) = asked
    assert target and target == same and (nothing, there) == (None, BEGIN)


def test_a_ddl_whose_binlog_is_lost_is_executed_once_behind_a_later_version(world: World, opened: Callable[..., Sink]) -> None:
    first, second = HISTORY.jobs[1], replace(HISTORY.jobs[2], start_ts=15, finished_ts=40)
    text = "CREATE TABLE `u` (`id` INT PRIMARY KEY, `v` INT)"
    (other,) = JobReader().read([job(3, 3, table(11, "u", COLUMNS), query=text, schema_name="sunk", real_start_ts=25)])
    known = SchemaHistory.of([first, second, other])
    events = [DdlEvent(10, 1, f"{first.query};", 5), DdlEvent(30, 3, f"{text};", 5)]
    rows = rows_of(50, (None, {1: 1, 2: 10}))
    steps = plan_steps((BEGIN, 60), events, [TableActivity(10, 2, 50, 1, 50)], known, AppliedJobs(0, since=BEGIN))
    assert [s.job.id if isinstance(s, DdlStep) else s.upto_ts for s in steps] == [1, 3, 2, 60]
    for step in steps:
        for _ in range(2):
            sink = opened()
            if isinstance(step, DdlStep):
                sink.apply_ddl(step, known, {})
            else:
                sink.apply(rows, step, StageClock())
    assert world.rows() == [(1, 10)] and opened().commit_ts == 60


@pytest.mark.shows("drainer gotcha 6")
def test_rows_and_their_commit_ts_are_there_together(world: World, opened: Callable[..., Sink]) -> None:
    sink = opened()
    at = made(sink)
    assert write(sink, at, 30, (None, {1: 1, 2: 10}), (None, {1: 2, 2: 20})) == 2
    assert world.rows() == [(1, 10), (2, 20)] and sink.commit_ts == 30
    write(sink, 30, 40, ({1: 1, 2: 10}, {1: 1, 2: 11}), ({1: 2, 2: 20}, None), (None, {1: 3, 2: 30}))
    assert world.rows() == [(1, 11), (3, 30)] and sink.commit_ts == 40
    assert opened().commit_ts == 40


def test_a_step_whose_answer_was_lost_changes_nothing_again(world: World, opened: Callable[..., Sink]) -> None:
    at = made(opened())
    for _ in range(2):
        sink = opened()
        rows = rows_of(30, (None, {1: 1, 2: 10}))
        sink.apply(rows, step_of(at, 30, rows), StageClock())
        assert world.rows() == [(1, 10)] and sink.commit_ts == 30


def test_a_step_of_elsewhere_is_refused_and_changes_nothing(world: World, opened: Callable[..., Sink]) -> None:
    sink = opened()
    at = made(sink)
    with pytest.raises(ApplyError):
        write(sink, at + 1, 40, (None, {1: 1, 2: 10}))
    assert world.rows() == [] and sink.commit_ts == at
    assert opened().commit_ts == at


def test_ddls_are_recorded_and_known_to_the_next_life(world: World, opened: Callable[..., Sink]) -> None:
    sink = opened()
    for step in ddls():
        result = sink.apply_ddl(step, HISTORY, {})
        assert (result.losses, result.frozen) == ((), {})
        assert sink.commit_ts == step.commit_ts
    sink.close()
    again = world.sink()
    found = again.open(lambda _, commit_ts: commit_ts or BEGIN, lambda: HISTORY)
    again.close()
    assert found.progress.commit_ts == 20
    assert all(step.job in found.applied for step in ddls())
    assert found.frozen == {}


def test_a_second_drainer_is_refused_while_the_first_lives_and_a_closed_one_writes_nothing(
    world: World, opened: Callable[..., Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_guard, "_SLICE", 1)
    first = opened()
    at = made(first)
    second = world.sink("another")
    with pytest.raises(LeaseHeld):
        second.open(lambda _, commit_ts: commit_ts or BEGIN, lambda: HISTORY)
    second.close()
    assert first.lost is None
    write(first, at, 30, (None, {1: 1, 2: 10}))
    opened("another")
    with pytest.raises(ReplicationError):
        write(first, 30, 40, (None, {1: 2, 2: 20}))
    assert world.rows() == [(1, 10)]


@pytest.mark.shows("drainer gotcha 6")
def test_an_empty_step_moves_the_record(world: World, opened: Callable[..., Sink]) -> None:
    sink = opened()
    at = made(sink)
    assert write(sink, at, 50) == 0
    assert sink.commit_ts == opened().commit_ts == 50


@pytest.mark.spark
def test_parts_are_one_step_too_however_often(world: World, opened: Callable[..., Sink], spark: "SparkSession") -> None:
    at = made(opened())
    rows = rows_of(30, *((None, {1: n, 2: n}) for n in range(1, 50)))
    events = in_spark(spark, rows, HISTORY, 3)
    skipped = rows_of(28, (None, {1: 99, 2: 99}))
    for _ in range(2):
        sink = opened()
        sink.apply_parts(events, step_of(at, 30, pa.concat_tables([rows, skipped])), frozenset({28}), StageClock())
        assert world.rows() == [(n, n) for n in range(1, 50)] and sink.commit_ts == 30
    assert opened().commit_ts == 30
