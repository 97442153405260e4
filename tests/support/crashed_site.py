"""A target, a checkpoint and a relay log as a Drainer that was killed leaves them, built by hand; and the lives that come after it."""

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig, DrainerConfig, RelayConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.relay.relay_log import RelayLog, RelayStream
from pyspark_tidb_binlog.sinks.relay.relayed_sink import RelayedSink, RelaySettings
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.relay_replay import RelayReplay
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Translation
from tests.support.plan_samples import VERSION, named, row_event
from tests.support.row_worlds import Row, clustered, keyless

CLUSTER = 1
FORM = SecondaryBinlogs(datetime.UTC)
WORLDS = {w.at.name: w for w in (clustered("c1", 101), clustered("gone", 102), clustered("y", 105), keyless("x", 104))}
"""``gone`` is not at the target."""
Event = dict[str, Any]


def inserted(commit_ts: int, table: str, row: Row, seq: int = 0) -> Event:
    """A row event; the row's first value is its row id."""
    at = WORLDS[table].at
    return row_event(at, commit_ts, seq, None, named(at, row), int(row[0]), int(VERSION))


def table_of(events: Sequence[Event]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=ROW_EVENT)


def step_of(after_ts: int, upto_ts: int, count: int) -> RowsStep:
    return RowsStep(after_ts, upto_ts, count, {w.at.table_id: w.at for w in WORLDS.values()}, applied=AppliedJobs(int(VERSION)))


def records(events: Sequence[Event]) -> list[bytes]:
    """What a real Drainer, and ours, writes of them into a relay log: a record for each transaction."""
    return [m.payload for m in Translation.of(step_of(0, 1 << 62, len(events)), FORM).messages(table_of(events))]


def ddl_record(commit_ts: int, table: str, query: str) -> bytes:
    return FORM.ddl(commit_ts, QualifiedName("d", table), query)


class CrashedSite:
    """The tables of ``WORLDS`` but ``gone`` in the database d."""

    def __init__(self, server: PrivateMariaDB, directory: Path) -> None:
        self.server = server
        self.log_dir = directory / "relay"
        self.drop()
        self.query("CREATE DATABASE d; CREATE DATABASE tidb_binlog")
        for name in WORLDS.keys() - {"gone"}:
            self.query(WORLDS[name].create.replace("CREATE TABLE ", "CREATE TABLE d.", 1))
        self.query("CREATE TABLE tidb_binlog.checkpoint(clusterID bigint unsigned primary key, checkPoint MEDIUMTEXT)")

    def query(self, text: str) -> list[Any]:
        """Statements, one after the other; the rows of the last one."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in text.split(";"):
                if statement.strip():
                    cursor.execute(statement)
            connection.commit()
            return list(cursor.fetchall())

    def drop(self) -> None:
        self.query("DROP DATABASE IF EXISTS d; DROP DATABASE IF EXISTS tidb_binlog")

    def checkpoint(self, commit_ts: int, *, consistent: bool = False) -> None:
        """As a real Drainer leaves it: not consistent, if it was killed."""
        value = f'{{"consistent":{str(consistent).lower()},"commitTS":{commit_ts},"ts-map":{{}},"schema-version":1}}'
        self.query(f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, '{value}')")

    def recorded(self) -> str:
        ((value,),) = self.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
        return str(value)

    def log(self, payloads: Iterable[bytes]) -> None:
        """Append to the relay log, without a word of ours beside it."""
        writer = BinlogWriter(self.log_dir)
        writer.append(payloads)
        writer.sync()
        writer.close()

    def config(self, checkpoint: CheckpointConfig | None = None, data_dir: str = "", ignored: Sequence[int] = ()) -> DrainerConfig:
        apply = ApplyConfig(lease_timeout=5.0, on_finding="record", ignore_txn_commit_ts=tuple(ignored))
        relay = RelayConfig(str(self.log_dir))
        return DrainerConfig(
            target=self.server.target(), apply=apply, relay=relay, checkpoint=checkpoint or CheckpointConfig(), data_dir=data_dir
        )

    def stream(
        self, events: Sequence[Event], span: tuple[int, int], checkpoint: CheckpointConfig | None = None, data_dir: str = ""
    ) -> tuple[Finding, ...]:
        """A life with the upstream, without a relay log, that applies one step; the upstream's time is 500."""
        sink = MySQLSink(self.config(checkpoint, data_dir), CLUSTER, now=lambda: 500)
        try:
            opened = sink.open(lambda _, found: span[0] if found is None else found, SchemaHistory)
            assert opened.progress.commit_ts == span[0]
            rows = rows_between(table_of(events), *span)
            return sink.apply(rows, step_of(*span, rows.num_rows), StageClock()).findings if rows.num_rows else ()
        finally:
            sink.close()

    def relayed(self) -> tuple[RelayedSink, MySQLSink]:
        """A life with the upstream and the relay log; the upstream's time is 500."""
        behind = MySQLSink(self.config(), CLUSTER, now=lambda: 500)
        log = RelayLog(self.log_dir, 10 << 20, RelayStream(CLUSTER, ""))
        return RelayedSink(behind, log, FORM, RelaySettings(every_step=False)), behind

    def recover(self, ignored: Sequence[int] = ()) -> Replayed:
        """A life without the upstream."""
        config, stream = self.config(ignored=ignored), RelayStream(CLUSTER, "", frozenset(ignored))
        sink = RelayReplay(config, 0, stream, ReadBack(datetime.UTC), lambda seconds: None)
        try:
            return sink.replay(sink.start())
        finally:
            sink.close()
