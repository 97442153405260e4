"""``db-type = tidb``: the target's own timestamp in the checkpoint. A MariaDB with a binary log answers as TiDB does, with another number."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql import target_record
from pyspark_tidb_binlog.sinks.sink import Sink
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql

SCHEMA = "sync_marks"


@pytest.fixture(scope="module")
def logged() -> Iterator[PrivateMariaDB]:
    """A server with a binary log."""
    with RealMariaDB(options={"log-bin": "binlog"}) as server:
        yield server


def opened(server: PrivateMariaDB, **settings: Any) -> Sink:
    apply = ApplyConfig(checkpoint_schema=SCHEMA, lease_timeout=5.0, **settings)
    sink = sink_of(DrainerConfig(target=server.target(), apply=apply), 1, lambda seconds: None)
    sink.open(lambda target, commit_ts: commit_ts or 5, SchemaHistory)
    return sink


def move(sink: Sink, upto_ts: int) -> None:
    """An empty step."""
    sink.apply(ROW_EVENT.empty_table(), RowsStep(sink.commit_ts, upto_ts, 0, {}, applied=AppliedJobs(3)), StageClock())


def checkpoint(server: PrivateMariaDB) -> dict[str, Any]:
    return dict(json.loads(run_sql(server, f"SELECT checkPoint FROM {SCHEMA}.checkpoint")[0][0]))


@pytest.mark.shows("syncer.db-type", "ts-map")
@pytest.mark.parametrize("net_change", [True, False], ids=["net changes", "row by row"])
def test_the_targets_timestamp_is_in_the_checkpoint(net_change: bool, logged: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(logged, db_type="tidb", net_change=net_change)
    begin = sink.commit_ts
    move(sink, begin + 10)
    first = checkpoint(logged)
    assert (first["commitTS"], first["consistent"], first["ts-map"]["primary-ts"]) == (begin + 10, True, begin + 10)
    with logged.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        assert 0 < first["ts-map"]["secondary-ts"] < int(cursor.fetchall()[0][1])  # type: ignore[index]
    move(sink, begin + 20)
    assert checkpoint(logged) == first | {"commitTS": begin + 20}, "asked once a minute"
    monkeypatch.setattr(target_record, "_SYNC_SECONDS", 0.0)
    sink.close()
    sink = opened(logged, net_change=net_change)
    move(sink, begin + 30)
    assert checkpoint(logged) == first | {"commitTS": begin + 30}, "kept by a Drainer that does not ask"
    sink.close()
    sink = opened(logged, db_type="tidb", net_change=net_change)
    for ts in (begin + 40, begin + 50):
        move(sink, ts)
        found = checkpoint(logged)
        assert found["commitTS"] == found["ts-map"]["primary-ts"] == ts
        assert found["ts-map"]["secondary-ts"] > first["ts-map"]["secondary-ts"]
    sink.close()


def test_a_step_that_was_put_off_is_marked_as_ours_when_the_timestamp_is_saved(
    logged: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_record, "_SYNC_SECONDS", 0.0)
    sink = opened(logged, db_type="tidb")
    begin = sink.commit_ts
    move(sink, begin + 10)
    sink.defer(lambda recorded, upto: None)
    move(sink, begin + 20)
    assert checkpoint(logged)["commitTS"] == begin + 20
    assert run_sql(logged, f"SELECT to_ts FROM {SCHEMA}.spark_state WHERE name = 'ours'") == [(begin + 20,)]
    sink.close()


def test_a_target_without_timestamps_is_said_once(
    mariadb: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(target_record, "_SYNC_SECONDS", 0.0)
    caplog.set_level(logging.WARNING)
    try:
        for ask in ("SHOW MASTER STATUS", "SHOW NO SUCH STATUS"):
            monkeypatch.setattr(target_record, "_ASK", ask)
            caplog.clear()
            sink = opened(mariadb, db_type="tidb")
            begin = sink.commit_ts
            for ts in (begin + 10, begin + 20):
                move(sink, ts)
                assert checkpoint(mariadb)["ts-map"] == {} and checkpoint(mariadb)["commitTS"] == ts
            sink.close()
            assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
                "the target gives no timestamp to record, so the checkpoint's ts-map does not change"
            ]
    finally:
        run_sql(mariadb, f"DROP DATABASE IF EXISTS {SCHEMA}")
