"""A process that applies a random history row by row, to be killed: ``run(Task(...), {DIE: "point:1"})``.

Promises: the process shares nothing with the test; it is forked from a server without threads that has imported what it needs, so that tens of
them cost less than one start of Python.
"""

import multiprocessing
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from tests.support.row_worlds import RowHistory, RowWorld, clustered, half_keyed, keyless, two_keys
from tests.support.target_rows import run_sql

SCHEMA = "row_marks"
BEGIN = 1000


def worlds() -> tuple[RowWorld, ...]:
    """The tables of every history here."""
    return clustered("c1", 101), clustered("c2", 102, 40), two_keys("k", 103), keyless("x", 104), half_keyed("h", 105)


def made(seed: str, batches: list[int]) -> tuple[RowHistory, pa.Table, list[int]]:
    """A history, all its events, and the last commit_ts of each batch."""
    history = RowHistory(worlds(), random.Random(seed))
    found, ends = [], []
    for transactions in batches:
        found.append(history.batch(transactions))
        ends.append(history.ts)
    return history, pa.concat_tables(found), ends


class RowPlace:
    """The database ``d`` of one test, with tables of ``worlds``."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self.server = server

    def query(self, sql: str) -> list[Any]:
        return run_sql(self.server, sql)

    def create(self, *worlds: RowWorld) -> None:
        for world in worlds:
            self.query(world.create.replace("CREATE TABLE ", "CREATE TABLE d.", 1))

    def rows(self, *worlds: RowWorld) -> dict[str, list[str]]:
        return {w.at.name: sorted(repr(tuple(r)) for r in self.query(f"SELECT * FROM d.{w.at.name}")) for w in worlds}

    def checkpoint(self) -> str:
        ((value,),) = self.query(f"SELECT checkPoint FROM {SCHEMA}.checkpoint")
        return str(value)


@contextmanager
def empty_place(server: PrivateMariaDB) -> Iterator[PrivateMariaDB]:
    """With an empty database ``d``, which is gone afterwards."""
    run_sql(server, "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    yield server
    run_sql(server, "DROP DATABASE IF EXISTS d", f"DROP DATABASE IF EXISTS {SCHEMA}")


def settings_of(given: Mapping[str, Any]) -> ApplyConfig:
    fixed: dict[str, Any] = {
        "checkpoint_schema": SCHEMA,
        "lease_timeout": 5.0,
        "on_finding": "stop",
        "log_row_data": True,
        "net_change": False,
    }
    return ApplyConfig(**(fixed | dict(given)))


@dataclass(frozen=True)
class Task:
    """What such a process does."""

    target: TargetConfig
    seed: str
    """Of the history."""
    batches: list[int]
    """What the history is made of: transactions each."""
    cuts: list[int] | None
    """By which commit_ts it is applied; None = as it was made."""
    settings: dict[str, Any]
    """Of the sink: fields of ``ApplyConfig``."""

    def live(self) -> None:
        history, events, ends = made(self.seed, self.batches)
        sink = MySQLSink(DrainerConfig(target=self.target, apply=settings_of(self.settings)), 1)
        sink.open(lambda target, commit_ts: BEGIN if commit_ts is None else commit_ts, SchemaHistory)
        for upto_ts in self.cuts or ends:
            if upto_ts > sink.commit_ts:
                rows = rows_between(events, sink.commit_ts, upto_ts)
                sink.apply(rows, history.step(sink.commit_ts, rows, upto_ts), StageClock())
        sink.close()


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    returncode: int
    """Negative for a signal."""
    stderr: str


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


class Lives(Protocol):
    """What a process is forked for; it is sent there."""

    def live(self) -> None: ...


def run(task: Lives, env: Mapping[str, str]) -> Ended:
    """Run one to its end; ``env``: in addition to the environment."""
    with tempfile.NamedTemporaryFile() as said:
        process = _FORKS.Process(target=_main, args=(task, dict(env), said.name))
        process.start()
        process.join()
        assert process.exitcode is not None
        return Ended(process.exitcode, Path(said.name).read_text())


def _main(task: Lives, env: dict[str, str], said: str) -> None:
    os.environ.update(env)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
    task.live()
