"""Changes of tables whose key has a generated column, which no row image contains."""

import copy
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import VariantVal

from pyspark_tidb_binlog.binlog_source.changes.change_decoder import ChangeDecoder, DecodedAs
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import RAW
from tests.support.fakes.written import Written


class Known:
    """The history, which has everything."""

    def __init__(self, history: SchemaHistory) -> None:
        self._history = history

    def job(self, job_id: int, timeout: float) -> Any:
        return self._history.jobs[job_id]

    def covering(self, *asked: object) -> SchemaHistory:
        return self._history


def keys_of(table: Table, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The keys of these new rows, if the column ``g`` is generated."""
    written = Written()
    upstream = Upstream(written)
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", table)
    start_ts = upstream.oracle.next()
    txn = upstream.begin()
    for row in rows:
        txn.insert(f"d.{table.name}", row)
    txn.commit()
    jobs = copy.deepcopy(upstream.jobs())
    for column in next(job["binlog"]["TableInfo"]["cols"] for job in jobs if (job.get("binlog") or {}).get("TableInfo")):
        if column["name"]["O"] == "g":
            column |= {"generated_expr_string": "`a`", "generated_stored": True}
    history = SchemaHistory.of(JobReader().read(jobs))
    commits = [
        {"pump": "p", "start_ts": b.start_ts, "commit_ts": b.commit_ts, "bucket": 0, "payload": b.SerializeToString()}
        for b in written.commits()
        if b.commit_ts > start_ts
    ]
    (found,) = ChangeDecoder(DecodedAs(), Known(history), int(history.newest_version)).changes_of(
        pa.RecordBatch.from_pylist(commits, schema=RAW)
    )
    keys = [VariantVal(row["key"]["value"], row["key"]["metadata"]).toPython() for row in found.to_pylist()]
    return [dict(key) for key in keys]


@pytest.mark.parametrize("primary_key", [("g",), ("a", "g")])
def test_a_key_with_a_generated_column_is_its_handle(primary_key: tuple[str, ...]) -> None:
    table = Table("t", (Column("a", "int", not_null=True), Column("g", "varchar(20)", not_null=True)), primary_key)
    keys = keys_of(table, [{"a": 1, "g": "x"}, {"a": 2, "g": "yyyyyyyyyyy"}])
    assert [list(key) for key in keys] == [["_tidb_handle"]] * 2 and keys[0] != keys[1]


def test_a_row_without_columns_is_a_change() -> None:
    assert keys_of(Table("t", (Column("g", "int", not_null=True),)), [{"g": 1}]) == [{"_tidb_rowid": 1}]
