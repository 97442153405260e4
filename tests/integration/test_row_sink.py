"""Row operations on a real MariaDB: random histories against the upstream's rows, crashes at every point, findings, transactions."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, FindingError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock, Written
from pyspark_tidb_binlog.sinks.engine.causality import Conflict
from pyspark_tidb_binlog.sinks.mysql.rows.row_sink import RowSettings, RowSink
from tests.support.plan_samples import TABLE_ID, Events
from tests.support.row_worlds import RowHistory, RowWorld, clustered, half_keyed, keyless, two_keys

pytestmark = pytest.mark.mysql

SCHEMA = "row_marks"
BEGIN = 1000


class Place:
    """A database of one test, and the sinks that write to it."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self.server = server
        self._sinks: list[RowSink] = []

    def sink(self, on_finding: str = "stop", **settings: Any) -> RowSink:
        """Opens a sink; the one before it is closed."""
        self.close()
        apply = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=5.0, retries=3, on_finding=on_finding, log_row_data=True)
        made = RowSink(DrainerConfig(target=self.server.target(), apply=apply), 1, RowSettings(**settings))
        self._sinks.append(made)
        made.open(lambda target, commit_ts: BEGIN if commit_ts is None else commit_ts, SchemaHistory)
        return made

    def close(self) -> None:
        while self._sinks:
            self._sinks.pop().close()

    def query(self, sql: str) -> list[Any]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def create(self, *worlds: RowWorld) -> None:
        for world in worlds:
            self.query(world.create.replace("CREATE TABLE ", "CREATE TABLE d.", 1))

    def rows(self, *worlds: RowWorld) -> dict[str, list[str]]:
        return {w.at.name: sorted(repr(tuple(r)) for r in self.query(f"SELECT * FROM d.{w.at.name}")) for w in worlds}

    def checkpoint(self) -> str:
        ((value,),) = self.query(f"SELECT checkPoint FROM {SCHEMA}.checkpoint")
        return str(value)


@pytest.fixture
def place(mariadb: PrivateMariaDB) -> Iterator[Place]:
    made = Place(mariadb)
    made.query("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    yield made
    made.close()
    made.query("DROP DATABASE IF EXISTS d")
    made.query(f"DROP DATABASE IF EXISTS {SCHEMA}")


def worlds() -> tuple[RowWorld, ...]:
    return clustered("c1", 101), clustered("c2", 102, 40), two_keys("k", 103), keyless("x", 104), half_keyed("h", 105)


def write(sink: RowSink, history: RowHistory, rows: pa.Table, upto_ts: int | None = None) -> Written:
    return sink.apply(rows, history.step(sink.commit_ts, rows, upto_ts), StageClock())


MODES: list[dict[str, Any]] = [
    {"worker_count": 4, "txn_batch": 3},
    {"worker_count": 4, "txn_batch": 3, "conflict": Conflict.STRICT},
    {"worker_count": 16, "txn_batch": 20},
    {"worker_count": 1, "txn_batch": 7},
    {"dispatch": False, "txn_batch": 1},
    {"worker_count": 3, "txn_batch": 3, "safe_mode": True},
]


@pytest.mark.parametrize("mode", MODES, ids=[" ".join(f"{k}={v}" for k, v in m.items()) for m in MODES])
@pytest.mark.parametrize("seed", [1, 2])
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
    assert place.query(f"SELECT COUNT(*) FROM {SCHEMA}.spark_rows") == [(0,)]
