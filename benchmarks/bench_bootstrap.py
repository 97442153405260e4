"""Tables copied by a bootstrap, compared to the target's own rate for the same rows.

    python -m benchmarks.bench_bootstrap [--rows 1000000] [--tables 2] [--connections 2]

The upstream is a MariaDB without writers, in the place of a snapshot. For the target's own rate, processes that do nothing else send the same multi-row
INSERTs, prepared in memory, over the same number of connections and in transactions of the same size. The ratio is the time of the copy divided by the
time of the target alone: 1.0 is the limit.
"""

import argparse
import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import Bootstrap
from pyspark_tidb_binlog.sinks.bootstrap.copy_record import CopyHead, CopyKind
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import ensure_ddl_table
from pyspark_tidb_binlog.sinks.mysql.lease import LeaseHolder
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeaseGuard
from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import FEW
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

CLUSTER_ID, TS, DATABASE, TWIN = 11, 1, "b_boot", "b_boot_twin"
CHUNK, STATEMENT = 20_000, 1_000
KINDS = ("bigint", "varchar(40)", "int", "decimal(12,2)", "datetime", "varbinary(16)")
RANGES = 16


class StillServer(SnapshotSource):
    """A server that nobody writes to."""

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        ((lowest, highest),) = session.query(f"SELECT MIN(c0), MAX(c0) FROM {table.schema}.{table.name}")
        return [(str(lowest + (highest - lowest) * i // RANGES).encode(),) for i in range(1, RANGES)]


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--tables", type=int, default=2)
    options.add_argument("--connections", type=int, default=2)
    given = options.parse_args()
    each = given.rows // given.tables
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(PrivateMariaDB()).target()
        target = stack.enter_context(PrivateMariaDB()).target()
        tables = [table(f"t{number}") for number in range(given.tables)]
        fill(source, tables, each)
        own = own_seconds(target, source, tables, given.connections)
        spark = build_session("bench bootstrap", master=f"local[{given.connections}]")
        stack.callback(spark.stop)
        config = DrainerConfig(source=SourceConfig(cluster_id=CLUSTER_ID), target=target)
        apply = config.apply
        guard = LeaseGuard(
            lambda: connect(target, apply), CLUSTER_ID, apply.checkpoint_schema, LeaseHolder("bench"), apply.lease_timeout, FEW
        )
        held = guard.take()
        with connect(target, apply) as session:
            ensure_ddl_table(session, apply)
        stack.callback(guard.close)
        reader = StillServer(ShippedTarget.of(source, spark.sparkContext.broadcast))
        copy = Bootstrap(spark, config, held, reader, SchemaHistory(), 1, threading.Event())
        done = copy.run(CopyHead(CopyKind.TABLES, TS), tables)
        assert done.rows == each * given.tables, done
        print(f"copied {done.rows:,} rows of {given.tables} tables in {done.seconds:.1f} s: {done.rows / done.seconds:,.0f} rows a second")
        print(f"the target alone: {own:.1f} s, {done.rows / own:,.0f} rows a second; ratio {done.seconds / own:.2f}")


def table(name: str) -> TableAt:
    """A table as the history describes it."""
    described = Table(name, tuple(Column(f"c{i}", kind) for i, kind in enumerate(KINDS)), ("c0",))
    number = int(name[1:]) + 100
    return TableAt(number, DATABASE, name, TableInfo.from_json(table_json(described, number)), SchemaVersion(1), (), False)


def created(name: str) -> str:
    """What makes a table."""
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(KINDS))
    return f"CREATE TABLE {name} ({columns}, PRIMARY KEY (c0))"


def fill(source: TargetConfig, tables: Sequence[TableAt], rows: int) -> None:
    """The upstream's rows."""
    with connect(source, ApplyConfig()) as session:
        session.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        for one in tables:
            session.execute(created(f"{DATABASE}.{one.name}"))
            values = "seq * 3, CONCAT('it''s row ', seq), seq % 1000, seq / 7, '2024-05-06 07:08:09', UNHEX(MD5(seq))"
            session.execute(f"INSERT INTO {DATABASE}.{one.name} SELECT {values} FROM {DATABASE}.seq_1_to_{rows}")
            session.commit()


def own_seconds(target: TargetConfig, source: TargetConfig, tables: Sequence[TableAt], connections: int) -> float:
    """How long the target takes for the same rows, sent by processes that do nothing else."""
    with connect(target, ApplyConfig()) as session:
        for database in (DATABASE, TWIN):
            session.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        for one in tables:
            session.execute(created(f"{TWIN}.{one.name}"))
            session.execute(created(f"{DATABASE}.{one.name}"))
    context = multiprocessing.get_context("spawn")
    ready, go = context.Barrier(connections + 1), context.Barrier(connections + 1)
    senders = [
        context.Process(target=send, args=(target, source, number, connections, len(tables), ready, go)) for number in range(connections)
    ]
    for sender in senders:
        sender.start()
    ready.wait()
    go.wait()
    begun = time.monotonic()
    for sender in senders:
        sender.join()
        assert sender.exitcode == 0
    return time.monotonic() - begun


def send(target: TargetConfig, source: TargetConfig, number: int, count: int, tables: int, ready: object, go: object) -> None:
    """One connection: every statement of its share of rows is made before the first is sent."""
    transactions = list(_statements(source, number, count, tables))
    with connect(target, ApplyConfig()) as session:
        ready.wait()  # type: ignore[attr-defined]
        go.wait()  # type: ignore[attr-defined]
        for statements in transactions:
            session.begin()
            for statement in statements:
                session.execute(statement)
            session.commit()


def _statements(source: TargetConfig, number: int, count: int, tables: int) -> Iterator[list[bytes]]:
    with connect(source, ApplyConfig()) as session:
        for name in (f"t{i}" for i in range(tables)):
            ((most,),) = session.query(f"SELECT MAX(c0) FROM {DATABASE}.{name}")
            begin, end = most * number // count, most * (number + 1) // count
            quoted = "CONCAT_WS(',', c0, QUOTE(c1), c2, c3, QUOTE(c4), CONCAT('0x', HEX(c5)))"
            sql = f"SELECT {quoted} FROM {DATABASE}.{name} WHERE c0 > {begin} AND c0 <= {end} ORDER BY c0"
            head = f"INSERT INTO {TWIN}.{name} VALUES ".encode()
            with session.stream(sql) as blocks:
                rows = [b"(" + row + b")" for block in blocks for row in block[0].to_pylist()]
                for first in range(0, len(rows), CHUNK):
                    texts = rows[first : first + CHUNK]
                    yield [head + b",".join(texts[i : i + STATEMENT]) for i in range(0, len(texts), STATEMENT)]


if __name__ == "__main__":
    main()
