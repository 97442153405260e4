"""DDL jobs as JSON: every recorded job, and each field, is read back as it was."""

import dataclasses
import json

import pytest

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, Location
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.job_json import job_json
from pyspark_tidb_binlog.schemas.tableinfo import ViewInfo
from tests.support.golden_case import load_case


@pytest.mark.parametrize("name", ["bank", "bench", "beyond_mysql", "ddl", "keys", "online", "reports", "txn", "types"])
def test_a_recorded_job_is_read_back_as_it_was(name: str) -> None:
    jobs = load_case(name).history.jobs
    assert jobs and all(Job.from_json(json.loads(json.dumps(job_json(job)))) == job for job in jobs.values())


def test_every_field_is_read_back() -> None:
    (job,) = (job for job in load_case("types").history.ordered[-1:])
    table = next(j.table_info for j in load_case("types").history.ordered if j.table_info is not None and j.table_info.columns)
    column = dataclasses.replace(table.columns[0], origin_default_bit=b"\x01\xff", default_bit=b"", origin_default=1.5, version=1)
    table = dataclasses.replace(table, columns=(column, *table.columns[1:]), is_view=True, is_sequence=True, temp_table_type=1)
    view = ViewInfo("SELECT 1 AS `a`", 2, True, "app", "%")
    table = dataclasses.replace(table, view=view)
    more = {"table_info": table, "multiple_table_infos": (table, table), "location": Location("", -3600), "start_ts": 7}
    whole = dataclasses.replace(job, **more, sub_jobs=(5, 6), sub_versions=(8, 0), version=SchemaVersion(9))
    assert Job.from_json(json.loads(json.dumps(job_json(whole)))) == whole
