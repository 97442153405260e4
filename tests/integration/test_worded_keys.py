"""Deletes by keys with an ENUM or a SET among their columns: many rows in one statement, in each way of applying."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep, TableActivity, plan_steps
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from tests.support.ddl_jobs import INT, column, database, history, index, job, table
from tests.support.plan_samples import row_event
from tests.support.target_rows import run_sql

pytestmark = pytest.mark.mysql

DATABASE = "worded"


def worded(kind: int, words: Sequence[str]) -> dict[str, Any]:
    return {"Tp": kind, "Flag": 4099, "Flen": 1, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin", "Elems": list(words)}


def history_of(enum: Sequence[str], members: Sequence[str]) -> SchemaHistory:
    columns = [column(1, "id", {**INT, "Flag": 4099}), column(2, "e", worded(247, enum)), column(3, "s", worded(248, members))]
    key = index(1, "PRIMARY", ("id", 0), ("e", 1), ("s", 2), unique=True, primary=True)
    return history(
        database(1, DATABASE),
        job(
            2, 3, table(10, "t", columns, pk_is_handle=False, is_common_handle=True, index_info=[key]), query="CREATE", schema_name=DATABASE
        ),
    )


@pytest.fixture
def server(mariadb: PrivateMariaDB) -> Iterator[PrivateMariaDB]:
    yield mariadb
    run_sql(mariadb, f"DROP DATABASE IF EXISTS {DATABASE}", "DROP DATABASE IF EXISTS worded_marks")


@pytest.mark.parametrize("enum", [("x", "it's"), ("x", "")], ids=["words", "an empty one"])
@pytest.mark.parametrize("safe_mode", [False, True])
@pytest.mark.parametrize("net_change", [True, False])
def test_all_rows_of_a_statement_are_found(server: PrivateMariaDB, enum: tuple[str, str], safe_mode: bool, net_change: bool) -> None:
    known = history_of(enum, ("a", "b", "c"))
    run_sql(server, f"CREATE DATABASE {DATABASE}")
    words = ", ".join("'" + word.replace("'", "''") + "'" for word in enum)
    key = f"id INT, e ENUM({words}) NOT NULL, s SET('a', 'b', 'c') NOT NULL, PRIMARY KEY (id, e, s)"
    run_sql(server, f"CREATE TABLE {DATABASE}.t ({key}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    how: dict[str, Any] = {"net_change": net_change, "worker_count": 2, "txn_batch": 50, "safe_mode": safe_mode}
    settings = ApplyConfig(checkpoint_schema="worded_marks", on_finding="record", sql_mode="", **how)
    sink = MySQLSink(DrainerConfig(target=server.target(), apply=settings), 1)
    sink.open(lambda target, commit_ts: 20 if commit_ts is None else commit_ts, lambda: known)
    images = [{1: number, 2: enum_value, 3: number % 8} for number in range(8) for enum_value in (0, 1, 2)]

    def apply(*changes: tuple[dict[int, int] | None, dict[int, int] | None]) -> None:
        begin = sink.commit_ts
        batch = [row_event(known.table_at(10, 2), begin + 1, seq, old, new) for seq, (old, new) in enumerate(changes)]
        (step,) = plan_steps((begin, begin + 1), (), [TableActivity(10, 2, begin + 1, len(batch), begin + 1)], known, AppliedJobs(2))
        assert isinstance(step, RowsStep)
        assert sink.apply(pa.Table.from_pylist(batch, schema=ROW_EVENT), step, StageClock()).findings == ()

    apply(*((None, image) for image in images))
    apply(*((image, None) for image in images[:-1]))
    assert run_sql(server, f"SELECT id, e + 0, s + 0 FROM {DATABASE}.t") == [tuple(map(float, images[-1].values()))]
    sink.close()
