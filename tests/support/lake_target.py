"""The lake as the target of the real stream: settings, and what its ledger must hold after a case. Imports pyspark."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import DrainerConfig, FileConfig
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.column_lineage import lineage
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN, load_case
from tests.support.lake_rows import ledger_of, place
from tests.support.recorded_tables import comparable, recorded_rows

DRIVER = Cut(step_bytes=500, max_bytes=3000)
PARTS = Cut(step_bytes=500, max_bytes=3000, atomic_rows=1, parts=3)
LARGE = Cut(step_bytes=8_000, max_bytes=60_000, atomic_rows=300)
"""Some of its batches in parts, some not."""
WIDE = Cut(step_bytes=25_000, max_bytes=200_000, atomic_rows=2030)
"""The same in a fifth of the batches."""
WITHOUT_IMAGES = frozenset(
    {JobType.DROP_PARTITION, JobType.TRUNCATE_PARTITION, JobType.EXCHANGE_PARTITION, JobType.REORGANIZE_PARTITION, JobType.MODIFY_COLUMN}
)
"""Jobs that change rows of their table without a row change: the ledger's images alone are not the table."""


def to_lake(arena: Arena) -> DrainerConfig:
    """The arena's settings, with a lake as the target."""
    settings = arena.settings()
    apply = dataclasses.replace(settings.apply, db_type="lake", lake_interval=0.0)
    return dataclasses.replace(settings, apply=apply, files=FileConfig(dir=str(arena.work_dir / "lake")))


def last_images(spark: SparkSession, lake: Path) -> list[Any]:
    """The newest image of each row that is there, as Spark reads it."""
    changes = spark.read.format("delta").load(str(lake / "changes")).where("op <> 'ddl'")
    newest = F.expr("max_by(struct(op, schema_version, after), struct(commit_ts, seq)) AS last")
    return changes.groupBy("table_id", "row_key").agg(newest).where("last.op <> 'delete'").select("table_id", "last.*").collect()


def assert_recorded(spark: SparkSession, name: str, lake: Path) -> set[str]:
    """The tables of a case are the recorded ones; returns which were compared."""
    history, images, done = load_case(name).history, last_images(spark, lake), set()
    newest = int(history.newest_version)
    for database, of in load(GOLDEN / name).tables:
        table = history.find(database, of, newest)
        assert table is not None
        if any(job.type in WITHOUT_IMAGES for job in history.jobs_of_table(table.table_id, 0, newest)):
            continue
        columns = table.info.target_columns()
        rows = []
        for row in images:
            if row["table_id"] != table.table_id:
                continue
            was = history.table_at(table.table_id, row["schema_version"])
            ids = {c.name: c.id for c in (was or table).info.columns}
            later = lineage(history, table.table_id, row["schema_version"], newest).ids
            found = {later.get(ids[n], ids[n]) if n in ids else n: v for n, v in row["after"].toPython().items()}
            rows.append(tuple(comparable(c, as_text(c, cell_of(c, found))) for c in columns))
        assert sorted(rows, key=repr) == recorded_rows(GOLDEN / name, f"{database}.{of}", table.info), of
        done.add(of)
    return done


def cell_of(column: ColumnInfo, image: dict[Any, Any]) -> Any:
    """A column of an image, by its id; by its name where the image was written by a later definition than its version says."""
    for known in (column.id, column.name):
        if known in image:
            return JSON_NULL if image[known] is None and kind_of(column) is CellKind.JSON else image[known]
    return column.origin_default


JSON_NULL = object()


def as_text(column: ColumnInfo, value: Any) -> Any:
    if value is JSON_NULL:
        return "null"
    return json.dumps(value, default=int) if kind_of(column) is CellKind.JSON and value is not None else value


def assert_ledger(spark: SparkSession, name: str, lake: Path) -> None:
    """The ledger of a case leaves the recorded tables, has each change once, and each DDL whole."""
    assert assert_recorded(spark, name, lake)
    rows, history = ledger_of(lake), load_case(name).history
    places = [place(row) for row in rows if row["op"] != "ddl"]
    assert len(set(places)) == len(places)
    for row in rows:
        if row["op"] == "ddl":
            assert Job.from_json(json.loads(row["job"])) == history.job(row["job_id"])
