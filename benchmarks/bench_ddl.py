"""A backlog of 300 ADD COLUMNs over 10 tables, one row written after each, compared to the target's own rate for the same statements.

    python -m benchmarks.bench_ddl [--delivery sorted|raw] [--ddls 300] [--tables 10]

Measured from ``query.start()`` to the commit of the checkpoint at the last DDL. The target's own rate is that of the statements as the
stream executed them (``tidb_binlog.spark_ddl.executed``), in their order, on one connection into another database.
"""

import argparse
import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.mysql.session import connect

CLUSTER_ID = 11
DATABASE, TWIN = "b_ddl", "b_ddl_twin"


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--delivery", choices=("sorted", "raw"), default="sorted")
    options.add_argument("--ddls", type=int, default=300)
    options.add_argument("--tables", type=int, default=10)
    arguments = options.parse_args()
    config = DrainerConfig(source=SourceConfig(delivery=arguments.delivery))
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ddl-")))
        target = stack.enter_context(PrivateMariaDB()).target()
        spark = build_session("bench ddl", master="local[2]")
        service = ClusterService(Oracle(), CLUSTER_ID).start()
        stack.callback(service.stop)
        addresses = [stack.enter_context(_pump(service.url, scratch, number)).address for number in (1, 2)]
        begin = service.oracle.next()
        upstream = stack.enter_context(Upstream(PumpClient.fixed(addresses, CLUSTER_ID), oracle=service.oracle))
        service.history, service.mvcc = upstream.jobs, upstream.mvcc.look_up
        write_backlog(upstream, arguments.tables, arguments.ddls)
        end = service.oracle.next()
        source = dataclasses.replace(
            config.source, pumps=service.url, cluster_id=CLUSTER_ID, starting_commit_ts=begin, tidb_status=service.url
        )
        settings = dataclasses.replace(
            config,
            source=source,
            target=target,
            checkpoint_dir=str(scratch / "spark"),
            delta_dir=str(scratch / "delta"),
        )
        replication = Replication(spark, settings)
        with replication:
            while not replication.reached(end):
                time.sleep(0.01)
            seconds = time.monotonic() - replication.started_at
        batches = len(replication.reports)
        own = own_seconds(target, config, arguments.ddls)
        rate = arguments.ddls / seconds
        print(f"{arguments.delivery}: {arguments.ddls} ADD COLUMNs in {seconds:.1f} s and {batches} batches: {rate:.1f} a second")
        print(f"the target alone: {own:.1f} s, {arguments.ddls / own:.1f} a second; ratio {seconds / own:.2f}")


def _pump(registry: str, scratch: Path, number: int) -> PumpProcess:
    return PumpProcess(
        PumpConfig(
            node_id=f"pump-{number}",
            addr="127.0.0.1:0",
            data_dir=str(scratch / f"pump-{number}"),
            registry=registry,
            cluster_id=CLUSTER_ID,
            fake_binlog_interval=0.2,
            stop_write_at_available_space="",
        )
    )


def write_backlog(upstream: Upstream, tables: int, ddls: int) -> None:
    """Create the tables, then write an ADD COLUMN and a row alternately."""
    upstream.ddl.create_database(DATABASE)
    for number in range(tables):
        upstream.ddl.create_table(DATABASE, Table(f"t{number}", (Column("id", "bigint"), Column("v", "varchar(20)")), ("id",)))
    for number in range(ddls):
        name = f"{DATABASE}.t{number % tables}"
        upstream.ddl.add_column(name, Column(f"c{number}", "int"))
        txn = upstream.begin()
        txn.insert(name, {"id": number, "v": f"row {number}"})
        txn.commit()
    upstream.flush()


def own_seconds(target: TargetConfig, config: DrainerConfig, ddls: int) -> float:
    """Seconds the target takes for the stream's own ALTER statements, on twins of the tables with their rows."""
    with connect(target, config.apply) as session:
        executed = [
            str(row[0]).replace(f"`{DATABASE}`", f"`{TWIN}`")
            for row in session.query("SELECT executed FROM tidb_binlog.spark_ddl ORDER BY version")
        ]
        session.execute("SET SESSION autocommit = 1")
        session.execute(f"CREATE DATABASE {TWIN}")
        session.execute(f"USE {TWIN}")
        creates = [sql for sql in executed if sql.startswith("CREATE TABLE")]
        alters = [sql for sql in executed if sql.startswith("ALTER TABLE")]
        if len(alters) != ddls:
            raise SystemExit(f"the stream executed {len(alters)} ALTERs, not {ddls}")
        for sql in creates:
            session.execute(sql)
        begun = time.monotonic()
        for sql in alters:
            session.execute(sql)
        return time.monotonic() - begun


if __name__ == "__main__":
    main()
