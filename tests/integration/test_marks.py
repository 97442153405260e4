"""Every transaction at the target is marked, over whole lives: read from the row binlog of a real MariaDB, so whatever sent it."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import walk
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect
from tests.support.attempts import run_transaction
from tests.support.ddl_target import committed, dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.eventually import eventually
from tests.support.row_binlog import ROW_BINLOG, RowBinlog
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

CHANNEL = 5
MARKS = "ring_marks"
MARK_TABLE = "retl._drainer_repl_mark"
ITEM = Table("item", (Column("id", "bigint"), Column("v", "int")), ("id",))


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with PrivateMariaDB(options=ROW_BINLOG) as made:
        yield made


@pytest.fixture
def query(server: PrivateMariaDB) -> Callable[[str], list[tuple[Any, ...]]]:
    run_sql(server, *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "retl", MARKS)))
    return partial(run_sql, server)


def settings(server: PrivateMariaDB, **more: Any) -> DrainerConfig:
    apply = {"checkpoint_schema": MARKS, "lease_timeout": 1.0, "loopback_control": True, "channel_id": CHANNEL}
    return DrainerConfig(target=server.target(), apply=ApplyConfig(**apply | more))  # type: ignore[arg-type]


def a_life(stream: EmulatedStream, query: Callable[[str], Any], number: int) -> None:
    """Rows few and many, DDLs with rows of their own, findings, and nothing."""
    begin = number * 1000
    stream.change(lambda txn: [txn.insert("shop.item", {"id": begin + i, "v": i}) for i in range(2)])
    stream.apply()
    stream.change(lambda txn: [txn.insert("shop.item", {"id": begin + i, "v": i}) for i in range(2, 60)])
    stream.apply()
    stream.apply()
    query(f"DELETE FROM shop.item WHERE id = {begin + 1}")
    query(f"UPDATE shop.item SET v = NULL WHERE id = {begin + 5}")
    stream.change(lambda txn: [txn.delete("shop.item", begin + i) for i in range(2)])
    assert stream.apply().findings


MARK = Table("_Drainer_Repl_Mark", (Column("id", "bigint"), Column("channel_id", "bigint"), Column("val", "bigint")), ("id", "channel_id"))


def marked(channel: int, *ids: int) -> Callable[[Any], object]:
    """A transaction with the mark of ``channel``, and these rows."""

    def change(txn: Any) -> None:
        txn.insert("Retl._Drainer_Repl_Mark", {"id": ids[0], "channel_id": channel, "val": 1})
        for n in ids:
            txn.insert("shop.item", {"id": n, "v": n})

    return change


@pytest.mark.parametrize("mode", MODES)
def test_a_life_that_finishes_anothers_span_leaves_the_same_out(
    mode: str, spark: SparkSession, server: PrivateMariaDB, query: Callable[[str], Any]
) -> None:
    config = settings(server, **MODES[mode])
    with EmulatedStream(spark, config) as stream:
        for name, table in (("shop", ITEM), ("Retl", MARK)):
            stream.create(name, table)
        stream.apply()
        for number in range(4):
            stream.change(marked(CHANNEL, *range(100 * number, 100 * number + 5)))
            stream.change(marked(CHANNEL + 1, *range(100 * number + 50, 100 * number + 55)))
        with dying("after-rows-commit" if mode == "rows" else "before-deletes"):
            stream.apply()
        if mode == "parts":
            stream.restart(settings(server, **MODES[mode], channel_id=CHANNEL + 1))
            with pytest.raises(ApplyError, match="was begun with other filters"):
                stream.apply()
        stream.restart(config)
        stream.apply()
    left = [100 * number + n for number in range(4) for n in range(50, 55)]
    assert [n for (n,) in query("SELECT id FROM shop.item ORDER BY id")] == left


def test_files_have_nothing_that_came_back_and_nothing_of_a_drainer(spark: SparkSession, tmp_path: Path) -> None:
    apply = ApplyConfig(db_type="file", loopback_control=True, channel_id=CHANNEL)
    config = DrainerConfig(apply=apply, files=FileConfig(dir=str(tmp_path / "binlogs")), data_dir=str(tmp_path / "data"))
    with EmulatedStream(spark, config) as stream:
        for name, table in (("shop", ITEM), ("Retl", MARK)):
            stream.create(name, table)
        stream.change(marked(CHANNEL, 1))
        stream.change(marked(CHANNEL + 1, 2))
        stream.apply()
    found = [pb.Binlog.FromString(record.payload) for record in walk(tmp_path / "binlogs")]
    assert [[(e.schema_name, e.table_name) for e in f.dml_data.events] for f in found if f.tp == pb.DML] == [[("shop", "item")]]
    assert not any(b"etl" in f.ddl_query for f in found)


@pytest.mark.shows("syncer.loopback-control", "mark table")
@pytest.mark.parametrize("mode", MODES)
def test_every_transaction_of_a_life_is_marked(mode: str, spark: SparkSession, server: PrivateMariaDB, query: Callable[[str], Any]) -> None:
    binlog, by_hand = RowBinlog(server), 0
    with EmulatedStream(spark, settings(server, **MODES[mode])) as stream:
        stream.create("shop", ITEM)
        for number in range(2):
            a_life(stream, query, number)
            by_hand += 2
            stream.upstream.ddl.modify_column("shop.item", Column("v", "int", not_null=number == 1))
            stream.apply()
            stream.restart()
    transactions = binlog.read()
    tables = {change.table for t in transactions for change in t.changes}
    wanted = {"spark_lease", "spark_ddl", "checkpoint", "spark_state"}
    assert {"shop.item", MARK_TABLE, *(f"{MARKS}.{name}" for name in wanted)} <= tables
    unmarked = [
        t for t in transactions if not (t.changes[0].table == MARK_TABLE and CHANNEL == (t.changes[0].new or t.changes[0].old or ())[1])
    ]
    assert [t.statements for t in unmarked if t.statements and "WHERE id =" not in t.statements[0]] == []
    assert len(unmarked) == by_hand
    assert query(f"SELECT * FROM {MARK_TABLE}") == [], "a Drainer that is stopped leaves none"


def test_the_lease_is_marked_when_its_connection_was_lost(spark: SparkSession, server: PrivateMariaDB, query: Callable[[str], Any]) -> None:
    with EmulatedStream(spark, settings(server)) as stream:
        assert stream.sink.commit_ts
        binlog = RowBinlog(server)
        taken = query(f"SELECT renewed_at FROM {MARKS}.spark_lease")
        ((holder,),) = query(
            f"SELECT id FROM information_schema.processlist WHERE id = IS_USED_LOCK((SELECT CONCAT('tidb_binlog.lease.7.', LPAD(LOWER(HEX(CRC32('{MARKS}'))), 8, '0'))))"
        )
        query(f"KILL {holder}")
        eventually(lambda: query(f"SELECT renewed_at FROM {MARKS}.spark_lease") != taken, seconds=20, what="the guard is back")
        tables = [[change.table for change in t.changes] for t in binlog.read()]
        assert [MARK_TABLE, f"{MARKS}.spark_lease"] in tables
        assert all(first == MARK_TABLE for first, *_ in tables)


def config(channel: int = CHANNEL) -> ApplyConfig:
    return ApplyConfig(loopback_control=True, channel_id=channel)


def marks(query: Callable[[str], Any]) -> list[tuple[int, int]]:
    return [(int(channel), int(val)) for channel, val in query(f"SELECT channel_id, val FROM {MARK_TABLE} ORDER BY id")]


def test_a_mark_that_somebody_deleted_is_put_back_in_the_same_transaction(server: PrivateMariaDB, query: Callable[[str], Any]) -> None:
    with connect(server.target(), config()) as session:
        for _ in range(2):
            session.begin()
            session.commit()
        query(f"DELETE FROM {MARK_TABLE}")
        query("CREATE DATABASE shop")
        query("CREATE TABLE shop.item (id INT PRIMARY KEY)")
        binlog = RowBinlog(server)
        session.begin()
        committed(session, "INSERT INTO shop.item VALUES (1)")
    assert [[change.table for change in t.changes] for t in binlog.read()] == [[MARK_TABLE, "shop.item"]]


@pytest.mark.shows("known wrong: mark id")
def test_two_drainers_never_wait_for_each_others_marks(server: PrivateMariaDB, query: Callable[[str], Any]) -> None:
    """One holds its mark in an open transaction while others of both channels begin, start and stop."""
    with contextlib.ExitStack() as stack:
        busy, same, other = (stack.enter_context(connect(server.target(), config(channel))) for channel in (CHANNEL, CHANNEL, CHANNEL + 1))
        other.execute("SET SESSION innodb_lock_wait_timeout = 1")
        same.execute("SET SESSION innodb_lock_wait_timeout = 1")
        busy.begin()
        for session in (same, other):
            session.begin()
            session.commit()
        other.begin()
        assert other.mark is not None
        other.mark.remove_all(other)
        other.commit()
        busy.commit()
    assert [channel for channel, _ in marks(query)] == [CHANNEL, CHANNEL]


def test_what_a_killed_drainer_left_is_removed_by_the_next(
    spark: SparkSession, server: PrivateMariaDB, query: Callable[[str], Any]
) -> None:
    with connect(server.target(), config()) as session:
        session.begin()
        session.commit()
    query(f"INSERT INTO {MARK_TABLE} VALUES ({1 << 40}, {CHANNEL}, 3, ''), ({1 << 40}, {CHANNEL + 1}, 3, ''), (15, {CHANNEL}, 9, '')")
    with EmulatedStream(spark, settings(server)) as stream:
        assert stream.sink.commit_ts
        left = query(f"SELECT id, channel_id, val FROM {MARK_TABLE} WHERE id <= {1 << 40} AND val > 1 ORDER BY channel_id, id")
        assert left == [(15, CHANNEL, 9), (1 << 40, CHANNEL + 1, 3)]


@pytest.mark.shows("syncer.loopback-control")
def test_without_loopback_control_there_is_no_mark(server: PrivateMariaDB, query: Callable[[str], Any]) -> None:
    with connect(server.target(), ApplyConfig()) as session:
        run_transaction(lambda: contextlib.nullcontext(session), Session.commit)
    assert query("SHOW DATABASES LIKE 'retl'") == []
