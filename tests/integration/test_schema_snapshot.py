"""A stream that begins where the DDL history does not reach (``load-schema-snapshot``): the embedded upstream, over real Pumps, has lost the jobs
that made its tables; the target was filled from a snapshot at the ts. Afterwards tables are changed in every way that hides what they were.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.schemas.errors import ConfigError, HistoryUnavailable, SchemaMismatch
from tests.support.pump_writes import CLUSTER, fake, send
from tests.support.spark_queries import replicated

pytestmark = [
    pytest.mark.usefixtures("no_history_lag"),
    pytest.mark.spark,
    pytest.mark.grpc,
    pytest.mark.mysql,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
COLUMNS = (Column("id", "bigint"), Column("name", "varchar(20)"), Column("n", "int"))
DATABASES = ("snap_a", "snap_b", "snap_gone")
OLD = ("snap_a.kept", "snap_a.altered", "snap_a.dropped", "snap_a.moved", "snap_a.emptied", "snap_b.column_gone", "snap_gone.t")


class World:
    """The upstream and its status port."""

    def __init__(self, pumps: list[PumpServer]) -> None:
        self._pumps = pumps
        self.pumps = ",".join(pump.address for pump in pumps)
        self.upstream = Upstream(PumpClient.fixed([pump.address for pump in pumps], CLUSTER))
        self.service: ClusterService = self.upstream.serve()
        self.key = 0

    def put(self, *tables: str, **more: Any) -> int:
        """A row into each, in one transaction; its commit_ts."""
        self.key += 1
        txn = self.upstream.begin()
        for table in tables:
            txn.insert(table, {"id": self.key, "name": f"row {self.key}", **more})
        return txn.commit()

    def before(self) -> int:
        """Everything that the lost jobs made; the ts of the target's snapshot."""
        ddl = self.upstream.ddl
        for name in DATABASES:
            ddl.create_database(name)
        for qualified in OLD:
            db, _, name = qualified.partition(".")
            ddl.create_table(db, Table(name, COLUMNS, ("id",)))
        ddl.add_column("snap_a.kept", Column("late", "int", default=7))
        self.put(*OLD)
        self.settle()
        return self.upstream.oracle.next()

    def after(self) -> int:
        """Everything that hides what was; the jobs before are lost. The last commit_ts."""
        ddl = self.upstream.ddl
        self.put(*OLD, n=1)
        first = ddl.add_column("snap_a.altered", Column("extra", "int", default=3))
        ddl.drop_table("snap_a.dropped")
        ddl.rename("snap_a.moved", "snap_b.here")
        ddl.truncate("snap_a.emptied")
        ddl.drop_column("snap_b.column_gone", "n")
        ddl.drop_database("snap_gone")
        ddl.create_table("snap_b", Table("fresh", COLUMNS, ("id",)))
        self.upstream.history.cut(first.job["id"])
        self.put("snap_a.kept", "snap_a.altered", "snap_b.here", "snap_a.emptied", "snap_b.column_gone", "snap_b.fresh")
        txn = self.upstream.begin()
        txn.update("snap_a.altered", 1, {"extra": 9})
        txn.delete("snap_b.here", 2)
        last = txn.commit()
        self.settle()
        return last

    def settle(self) -> None:
        """Every Pump has everything, and promises so."""
        self.upstream.flush()
        ts = self.upstream.oracle.next()
        for pump in self._pumps:
            send(pump, fake(ts))

    def fill(self, target: PrivateMariaDB) -> None:
        """What a dump at this moment makes."""
        with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
            for name in DATABASES:
                cursor.execute(f"CREATE DATABASE {name}")
            for table in self.upstream.tables():
                extra = ", late INT DEFAULT 7" if table == "snap_a.kept" else ""
                cursor.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR(20), n INT{extra})")
                for row in self.upstream.rows(table).values():
                    cursor.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))
            connection.commit()

    def assert_equal(self, target: PrivateMariaDB) -> None:
        """The target has the upstream's tables and rows, and no others."""
        with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables WHERE table_schema LIKE 'snap%'")
            assert sorted(name for (name,) in cursor.fetchall()) == sorted(self.upstream.tables())
            for table in self.upstream.tables():
                wanted = sorted(self.upstream.rows(table).values(), key=lambda row: int(row["id"]))
                cursor.execute(f"SELECT {', '.join(wanted[0])} FROM {table} ORDER BY id")
                assert [tuple(row.values()) for row in wanted] == list(cursor.fetchall()), table


@pytest.fixture
def world(pumps: list[PumpServer]) -> Iterator[World]:
    made = World(pumps)
    yield made
    made.service.stop()
    made.upstream.close()


def settings(world: World, target: PrivateMariaDB, directory: Path, ts: int, **apply: Any) -> DrainerConfig:
    return DrainerConfig(
        source=SourceConfig(world.pumps, CLUSTER, starting_commit_ts=ts, tidb_status=world.service.url),
        target=target.target(),
        apply=ApplyConfig(on_finding="stop", **apply),
        checkpoint_dir=str(directory / "spark"),
        delta_dir=str(directory / "delta"),
    )


@pytest.mark.shows("syncer.load-schema-snapshot")
def test_a_history_that_was_cut_before_the_ts(world: World, spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """Without the setting the error names it; with it everything arrives; where GC or the history is beyond the ts, an error says so."""
    ts = world.before()
    whole = settings(world, mariadb, tmp_path / "whole", ts, load_schema_snapshot=True)
    prepare_target(mariadb.target(), whole, DATABASES, drop=True)
    world.fill(mariadb)
    last = world.after()
    without = settings(world, mariadb, tmp_path / "without", ts)
    with pytest.raises(SchemaMismatch, match="set syncer.load-schema-snapshot = true"), Replication(spark, without) as replication:
        replicated(replication, last)
    prepare_target(mariadb.target(), whole, (), drop=True)
    source = dataclasses.replace(whole.source, tidb_status=str(tmp_path / "history.json"))
    recorded = dataclasses.replace(whole, source=source, checkpoint_dir=str(tmp_path / "other"))
    (tmp_path / "history.json").write_text(json.dumps(world.upstream.jobs()))
    with pytest.raises(ConfigError, match=r"spark\.tidb-status must not name a file"):
        Replication(spark, recorded).start()
    prepare_target(mariadb.target(), whole, (), drop=True)
    with Replication(spark, whole) as replication:
        assert replicated(replication, last)
    world.assert_equal(mariadb)
    shutil.rmtree(tmp_path / "whole" / "spark.snapshot")
    world.upstream.ddl.truncate("snap_b.here")
    last = world.put("snap_b.here", "snap_a.kept")
    world.settle()
    with Replication(spark, whole) as replication:
        assert replicated(replication, last)
    world.assert_equal(mariadb)
    assert (tmp_path / "whole" / "spark.snapshot" / "history.cache").exists(), "another one, of the checkpoint's ts, is kept now"
    prepare_target(mariadb.target(), whole, (), drop=True)
    for change, words in (
        (lambda: world.upstream.mvcc.collect(ts + 1), "TiKV's GC has passed it"),
        (lambda: cut(world), "was cut after it"),
    ):
        change()
        later = dataclasses.replace(whole, checkpoint_dir=str(tmp_path / words / "spark"))
        with pytest.raises(HistoryUnavailable, match=words):
            Replication(spark, later).start()
        prepare_target(mariadb.target(), whole, (), drop=True)
    prepare_target(mariadb.target(), whole, DATABASES, drop=True)


def cut(world: World) -> None:
    """Lose half of the jobs that are left."""
    jobs = sorted(job["id"] for job in world.upstream.jobs())
    world.upstream.history.cut(jobs[len(jobs) // 2])


def test_lives_after_a_death(
    world: World, spark: SparkSession, fresh_mariadb: PrivateMariaDB, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next life begins with the snapshot that was kept while the one before ran, whatever GC has collected."""
    ts = world.before()
    world.fill(fresh_mariadb)
    first = world.put(*OLD)
    world.settle()
    kept, killed = tmp_path / "spark.snapshot", tmp_path / "as-a-kill-leaves-it"
    config = settings(world, fresh_mariadb, tmp_path, ts, load_schema_snapshot=True)
    with Replication(spark, config) as replication:
        assert replicated(replication, first)
        shutil.copytree(kept, killed)
    shutil.rmtree(kept)
    killed.rename(kept)
    last = world.after()
    world.upstream.mvcc.collect(world.upstream.oracle.next())
    caplog.set_level("INFO")
    with Replication(spark, config) as replication:
        assert replicated(replication, last)
    assert "begins with the kept snapshot" in caplog.text
    world.assert_equal(fresh_mariadb)
