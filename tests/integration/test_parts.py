"""A span in parts over a real Spark: no part writes before the last delete of all, in one Spark job or, where parts have to queue, in two."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.keyed import with_keys
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.mysql import parallel
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from tests.support.ddl_jobs import INT, column, database, history, index, job, table
from tests.support.emulated_stream import EmulatedStream
from tests.support.eventually import eventually
from tests.support.plan_samples import in_spark, row_event
from tests.support.target_rows import refusing, run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.mysql, pytest.mark.spark]

SCHEMA, DATABASE = "parts_marks", "in_parts"
UNIQUE = [index(1, "u", ("u", 1), unique=True)]
HISTORY = history(
    database(1, DATABASE),
    job(
        2,
        3,
        table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "u", INT)], index_info=UNIQUE),
        query="CREATE TABLE `t` (`id` INT PRIMARY KEY, `u` INT UNIQUE)",
        schema_name=DATABASE,
    ),
)
AT = 20
IDS = [block * 1024 + 1 for block in range(12)]
"""Each in a block of its own, so that they are spread over the parts."""


@pytest.fixture
def server(mariadb: PrivateMariaDB) -> Iterator[PrivateMariaDB]:
    drop(mariadb)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, u INT UNIQUE)")
        cursor.executemany(f"INSERT INTO {DATABASE}.t VALUES (%s, %s)", [(i, i) for i in IDS])
        # So many that the server does not lock all rows to find a few.
        cursor.executemany(f"INSERT INTO {DATABASE}.t VALUES (%s, %s)", [(-i, -i) for i in range(1, 3000)])
        cursor.execute(f"ANALYZE TABLE {DATABASE}.t")
        connection.commit()
    yield mariadb
    drop(mariadb)


def drop(server: PrivateMariaDB) -> None:
    run_sql(server, *(f"DROP DATABASE IF EXISTS {name}" for name in (SCHEMA, DATABASE)))


@pytest.fixture
def sink(server: PrivateMariaDB) -> Iterator[MySQLSink]:
    with life(server) as sink:
        yield sink


@contextmanager
def life(server: PrivateMariaDB) -> Iterator[MySQLSink]:
    """The sink of one life of the Drainer."""
    apply = ApplyConfig(checkpoint_schema=SCHEMA, on_finding="stop")
    sink = MySQLSink(DrainerConfig(target=server.target(), apply=apply), 1)
    sink.open(lambda target, commit_ts: AT if commit_ts is None else commit_ts, lambda: HISTORY)
    try:
        yield sink
    finally:
        sink.close()


def event(seq: int, old: dict[int, Any] | None, new: dict[int, Any] | None) -> dict[str, Any]:
    return row_event(HISTORY.table_at(10, 2), 30, seq, old, new)


ROTATED = [event(n, {1: i, 2: i}, {1: i, 2: IDS[(n + 1) % len(IDS)]}) for n, i in enumerate(IDS)]
"""Each row takes the unique value of the next: none can be written before the deletes of all parts."""


def apply(
    spark: "SparkSession",
    sink: MySQLSink,
    rows: list[dict[str, Any]],
    parts: int,
    clock: StageClock | None = None,
    skipped: frozenset[int] = frozenset(),
) -> Written:
    events = pa.Table.from_pylist(rows, schema=ROW_EVENT)
    (step,) = plan_steps((AT, 30), (), [TableActivity(10, 2, 30, len(rows), 30)], HISTORY, AppliedJobs(2))
    assert isinstance(step, RowsStep)
    return sink.apply_parts(in_spark(spark, events, HISTORY, parts), step, skipped, clock or StageClock())


def found(server: PrivateMariaDB) -> list[tuple[int, int]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, u FROM {DATABASE}.t WHERE id > 0 ORDER BY id")
        return list(cursor.fetchall())  # type: ignore[arg-type]


@pytest.mark.shows("spark.atomic-rows", "spark.parts")
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_unique_values_move_between_parts(server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession", parts: int) -> None:
    clock = StageClock()
    done = apply(spark, sink, ROTATED, parts, clock)
    assert found(server) == [(i, IDS[(n + 1) % len(IDS)]) for n, i in enumerate(IDS)]
    assert (done.rows, done.findings, sink.commit_ts) == (2 * len(IDS), (), 30)
    assert set(clock.seconds) == {"plan+delete", "write"} and min(clock.seconds.values()) > 0


def test_a_part_that_is_late_with_its_deletes_is_waited_for(
    server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_OTHERS_SECONDS", 0.2)
    calls: list[bool] = []
    plain = parallel.apply_phases

    def counted(*args: Any, together: bool) -> parallel.PartsDone:
        calls.append(together)
        return plain(*args, together=together)

    monkeypatch.setattr(parallel, "apply_phases", counted)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {DATABASE}.t WHERE id = {IDS[0]} FOR UPDATE")

        def let_go() -> None:
            time.sleep(2)
            connection.rollback()

        other = threading.Thread(target=let_go)
        other.start()
        apply(spark, sink, ROTATED, 2)
        other.join()
    assert found(server) == [(i, IDS[(n + 1) % len(IDS)]) for n, i in enumerate(IDS)]
    # The one part gave up waiting, the other one found all deletes done; and from then on there are two jobs.
    assert calls == [True, False]
    assert not sink._parts._together


def test_markers_that_are_not_as_they_were_written_are_an_error(
    server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_OTHERS_SECONDS", 0.2)
    run_sql(
        server,
        f"CREATE TRIGGER {SCHEMA}.other BEFORE INSERT ON {SCHEMA}.spark_state FOR EACH ROW "
        "SET NEW.name = REPLACE(NEW.name, '/2 delete', '/7 delete')",
    )
    with pytest.raises(ApplyError, match=r"2 of 2 parts of \(20, 30\] are not written.*parts_marks.spark_state"):
        apply(spark, sink, ROTATED, 2)
    assert found(server) == [] and sink.commit_ts == AT


@pytest.mark.parametrize("together", [True, False])
def test_most_parts_have_no_rows(server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession", together: bool) -> None:
    """Each leaves its marker all the same."""
    sink._parts._together = together
    parts = 2 if together else 7
    assert apply(spark, sink, [event(0, {1: IDS[0], 2: IDS[0]}, {1: IDS[0], 2: IDS[0] + 1})], parts).rows == 2
    assert found(server)[0] == (IDS[0], IDS[0] + 1)


@pytest.mark.parametrize("parts", [2, 7])
def test_adaptive_execution_leaves_each_part_in_the_partition_of_its_number(
    server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession", parts: int
) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        apply(spark, sink, ROTATED, parts)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert found(server) == [(i, IDS[(n + 1) % len(IDS)]) for n, i in enumerate(IDS)]


def test_a_part_that_fails_fails_the_span_and_the_next_try_finishes_it(
    server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession"
) -> None:
    """The other part waits for its deletes meanwhile, and does not write."""
    rows = [*ROTATED, event(99, {1: 999_999, 2: 999_999}, None)]
    with pytest.raises(Exception, match="1 of the rows that the binlogs delete were not in the target"):
        apply(spark, sink, rows, 2)
    assert sink.commit_ts == AT and all(i == u for i, u in found(server))
    run_sql(server, f"INSERT INTO {DATABASE}.t VALUES (999999, 999999)")
    apply(spark, sink, rows, 2)
    assert found(server) == [(i, IDS[(n + 1) % len(IDS)]) for n, i in enumerate(IDS)]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_refused_transaction_is_skipped_as_its_message_says(server: PrivateMariaDB, spark: "SparkSession", parts: int) -> None:
    """All deletes are committed then, those of the refused transaction too. Its rows are in one part: another one might be finished."""
    bad, *good = IDS
    gone = next(i for i in range(bad + 1, IDS[1]) if part_of(i, parts) == part_of(bad, parts))
    run_sql(server, *refusing(f"{DATABASE}.t", "NEW.u = 777"), f"INSERT INTO {DATABASE}.t VALUES ({gone}, {gone})")
    rows = [event(n, {1: i, 2: i}, {1: i, 2: i + 1}) for n, i in enumerate(good)]
    rows += [event(0, {1: bad, 2: bad}, {1: bad, 2: 777}) | {"commit_ts": 25}, event(1, {1: gone, 2: gone}, None) | {"commit_ts": 25}]
    with life(server) as sink:
        with pytest.raises(Exception, match=r"skip the transaction with syncer.ignore-txn-commit-ts = \[25\]"):
            apply(spark, sink, rows, parts)
        assert sink.commit_ts == AT and {bad, gone} & {i for i, _ in found(server)} == set()
    # A setting changes with the life only. The tasks of the failed job that Spark has not ended yet have lost their lease then.
    with life(server) as sink:
        # A number of a transaction of another span means nothing here.
        assert apply(spark, sink, rows, parts, skipped=frozenset([25, 4711])).findings == ()
        assert found(server)[:2] == [(bad, bad), (gone, gone)] and sink.commit_ts == 30
    assert {i for i, u in found(server) if u == i + 1} == set(good)


def part_of(handle: int, parts: int) -> int:
    """The part that the row with this handle is in."""
    row = pa.Table.from_pylist([event(0, None, {1: handle, 2: handle})], schema=ROW_EVENT)
    return int(with_keys(row, HISTORY, parts).column("part")[0].as_py())


def test_a_part_that_waits_while_the_lease_is_taken_writes_nothing(server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession") -> None:
    failures: list[str] = []

    def work() -> None:
        try:
            apply(spark, sink, ROTATED, 2)
        except Exception as error:
            failures.append(str(error))

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT * FROM {DATABASE}.t WHERE id = {IDS[0]} FOR UPDATE")
        applying = threading.Thread(target=work)
        applying.start()
        eventually(lambda: _marked(server), what="one part waits")
        # Waits until the transaction of the part that is held up here has ended.
        taking = threading.Thread(target=_take_the_lease, args=[server])
        taking.start()
        time.sleep(0.5)
        connection.rollback()
        taking.join()
        applying.join()
    assert "LeaseLost" in failures[0]
    # On a busy machine the lease is gone before the part begins that waits here: then its rows are as they were.
    assert [row for row in found(server) if row[0] != row[1]] == [], "a row was written"


def _marked(server: PrivateMariaDB) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        return cursor.execute(f"SELECT 1 FROM {SCHEMA}.spark_state WHERE name LIKE '% delete'") > 0


def _take_the_lease(server: PrivateMariaDB) -> None:
    run_sql(server, f"UPDATE {SCHEMA}.spark_lease SET epoch = epoch + 1, life = 'another'")


def test_a_task_with_rows_of_another_part_writes_nothing(server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession") -> None:
    numbered = with_keys(pa.Table.from_pylist(ROTATED, schema=ROW_EVENT), HISTORY, 2)
    with pytest.raises(ApplyError, match="rows of other parts"):
        parallel._part_of(numbered)


def test_what_cannot_be_decoded_is_not_half_sent(server: PrivateMariaDB, sink: MySQLSink, spark: "SparkSession") -> None:
    whole = event(0, None, {1: 5, 2: 5})
    broken = whole | {"row": whole["row"][:-1]}
    with pytest.raises(Exception, match="commit_ts 30|damaged|Corruption"):
        apply(spark, sink, [broken], 2)
    assert found(server) == [(i, i) for i in IDS] and sink.commit_ts == AT


def test_few_rows_that_are_big_are_applied_in_parts_too(
    spark: "SparkSession", mariadb: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.apply.ATOMIC_BYTES", 10_000)
    doc = Table("doc", (Column("id", "bigint"), Column("text", "longtext")), ("id",))
    apply = ApplyConfig(checkpoint_schema=SCHEMA, parts=2)
    drop(mariadb)
    with EmulatedStream(spark, DrainerConfig(target=mariadb.target(), apply=apply)) as stream:
        stream.create(DATABASE, doc)
        stream.apply()
        in_parts = {}
        for size in (4, 4000):
            stream.change(lambda txn, size=size: [txn.insert(f"{DATABASE}.doc", {"id": size + n, "text": "x" * size}) for n in range(4)])
            in_parts[size] = any(stage.startswith("plan+") for stage in stream.apply().seconds)
        assert in_parts == {4: False, 4000: True}
    assert run_sql(mariadb, f"SELECT LENGTH(text), COUNT(*) FROM {DATABASE}.doc GROUP BY 1 ORDER BY 1") == [(4, 4), (4000, 4)]
    drop(mariadb)
