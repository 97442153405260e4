"""Tables of a real TiDB copied at one snapshot, by every kind of handle, and joined by the stream: ``TIDB_SQL=user:password@host:4000 make interop``.

A database ``tidb_binlog_bootstrap`` is made upstream and dropped again.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.drainer_process import Drainer, command_of, environ_of
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

DATABASE = "tidb_binlog_bootstrap"
TABLES = {
    "integers": "id BIGINT UNSIGNED PRIMARY KEY, f FLOAT, e ENUM('a','it''s'), s SET('x','y','z'), b BIT(12), t TIMESTAMP(3) NULL, j JSON, "
    "g INT AS (CAST(f AS SIGNED)) VIRTUAL",
    "named": "k VARCHAR(20), n INT, v VARBINARY(20), PRIMARY KEY (k, n) /*T![clustered_index] CLUSTERED */",
    "loose": "id BIGINT, v INT, PRIMARY KEY (id) /*T![clustered_index] NONCLUSTERED */",
    "keyless": "a INT, b VARCHAR(10)",
    "parted": "id BIGINT PRIMARY KEY, v INT",
}
VALUES = {
    "integers": "({0} * 36028797018963968, {0} / 7, 1 + {0} % 2, {0} % 8, {0} % 4096, FROM_UNIXTIME(1600000000 + {0} / 8), JSON_ARRAY({0}, 'ß'))",
    "named": "(CONCAT('it''s ', {0} % 3), {0}, UNHEX(MD5({0})))",
    "loose": "({0}, -{0})",
    "keyless": "({0} % 5, 'x')",
    "parted": "({0}, {0})",
}
ROWS = 1000


def account() -> TargetConfig:
    user, _, rest = os.environ["TIDB_SQL"].partition(":")
    password, _, server = rest.rpartition("@")
    host, _, port = server.rpartition(":")
    return TargetConfig(host=host, port=int(port), user=user, password=password)


def rows(server: TargetConfig, table: str) -> Counter[tuple[bytes | None, ...]]:
    """As text, FLOAT and what is numbered as numbers."""
    columns = "id, f * 1e0, e + 0, s + 0, b + 0, t, g" if table == "integers" else "*"
    with connect(server, ApplyConfig()) as session, session.stream(f"SELECT {columns} FROM {DATABASE}.{table}") as blocks:
        found: Counter[tuple[bytes | None, ...]] = Counter()
        for block in blocks:
            found.update(zip(*(column.to_pylist() for column in block), strict=True))
        return found


def upstream_sql(*statements: str) -> None:
    with connect(account(), ApplyConfig()) as session:
        for statement in statements:
            session.execute(statement)
        session.commit()


def test_a_first_load_and_a_table_again(pd: PdRegistry, tidb_status: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    if not os.environ.get("TIDB_SQL"):
        pytest.skip("TIDB_SQL names no account")
    upstream, to = account(), fresh_mariadb.target()
    upstream_sql(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    for table, columns in TABLES.items():
        parted = " PARTITION BY HASH (id) PARTITIONS 3" if table == "parted" else ""
        upstream_sql(f"CREATE TABLE {DATABASE}.{table} ({columns}){parted}")
        names = f" ({', '.join('id f e s b t j'.split())})" if table == "integers" else ""
        values = ", ".join(VALUES[table].format(number) for number in range(1, ROWS + 1))
        upstream_sql(f"INSERT INTO {DATABASE}.{table}{names} VALUES {values}")
    flags: dict[str, Any] = {
        "addr": "127.0.0.1:0",
        "node-id": "interop",
        "data-dir": tmp_path / "data",
        "pd-urls": os.environ["PD_URLS"],
        "spark.tidb-status": tidb_status,
        "syncer.replicate-do-db": DATABASE,
        "syncer.to.host": "127.0.0.1",
        "syncer.to.port": to.port,
        "syncer.to.user": to.user,
        "spark.upstream.host": upstream.host,
        "spark.upstream.port": upstream.port,
        "spark.upstream.user": upstream.user,
        "spark.upstream.password": upstream.password,
        "syncer.load-schema-snapshot": "true",
    }

    def streamed(*more: str) -> None:
        flags["spark.ending-commit-ts"] = pd.tso()
        command = [*command_of(flags), *more]
        with Drainer(command, environ_of(fresh_mariadb, tmp_path / "job.log"), tmp_path / "out.txt") as drainer:
            assert drainer.wait() == 0, drainer.output()

    try:
        streamed("--bootstrap-all")
        upstream_sql(f"UPDATE {DATABASE}.parted SET v = v + 1 WHERE id < 50", f"INSERT INTO {DATABASE}.keyless VALUES (77, NULL)")
        upstream_sql(f"DELETE FROM {DATABASE}.named WHERE n < 10")
        streamed()
        for table in TABLES:
            assert rows(to, table) == rows(upstream, table), table
        run_sql(fresh_mariadb, f"UPDATE {DATABASE}.keyless SET b = 'wrong'")
        run_sql(fresh_mariadb, f"DROP TABLE {DATABASE}.parted")
        streamed(f"--bootstrap={DATABASE}.keyless,{DATABASE}.parted")
        for table in TABLES:
            assert rows(to, table) == rows(upstream, table), table
    finally:
        upstream_sql(f"DROP DATABASE IF EXISTS {DATABASE}")
        assert ctl.main(["update-drainer", "-pd-urls", os.environ["PD_URLS"], "-node-id", "interop", "-state", "offline"]) == 0
