"""Which jobs of a real history lie before a ts, by the binlogs in the Pumps, where FinishedTS does not tell; no Spark."""

import dataclasses
import logging
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.source import mid_history
from pyspark_tidb_binlog.binlog_source.source.mid_history import committed_before, jobs_in_doubt
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed, schedule
from pyspark_tidb_binlog.jobs.rehearse import staged
from pyspark_tidb_binlog.schemas.ddl_jobs import DELETE_ONLY
from pyspark_tidb_binlog.schemas.errors import BinlogPurged
from tests.support.golden_case import GOLDEN, load_case

pytestmark = pytest.mark.grpc
CASE = load_case("ddl")
DDLS = [d for d in CASE.ddls if d.schema_state != DELETE_ONLY and (job := CASE.history.job(d.job_id)) is not None and job.effective]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceConfig]:
    """The case in Pumps."""
    case = load(GOLDEN / "ddl")
    with staged(case, tmp_path_factory.mktemp("case")) as stage:
        for _ in feed(case, stage.addresses, 0, logs=schedule(case)):
            pass
        yield SourceConfig(pumps=",".join(stage.addresses), cluster_id=case.cluster_id)


@pytest.mark.parametrize("ddl", DDLS[::7], ids=lambda ddl: ddl.job_id)
def test_a_job_is_there_from_its_binlogs_commit_ts_on(source: SourceConfig, ddl: object) -> None:
    found = next(d for d in DDLS if d is ddl)
    job = CASE.history.jobs[found.job_id]
    assert job in jobs_in_doubt(CASE.history, found.commit_ts), "FinishedTS is later"
    assert CASE.history.version_at(found.commit_ts) < job.version, "and by it the job would be missed"
    assert committed_before(source, CASE.history, found.commit_ts)[job.id] == found.commit_ts
    assert job.id not in committed_before(source, CASE.history, found.commit_ts - 1)


def test_nothing_is_read_where_nothing_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = SourceConfig(pumps="127.0.0.1:1", cluster_id=1)
    last = max(job.finished_ts for job in CASE.history.ordered)
    assert committed_before(nobody, CASE.history, last) == committed_before(nobody, CASE.history, 1) == {}


def test_pumps_that_have_collected_it_are_a_warning(
    source: SourceConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def purged(*arguments: object) -> None:
        raise BinlogPurged("collected")

    monkeypatch.setattr(mid_history, "_ddls_between", purged)
    with caplog.at_level(logging.WARNING):
        assert committed_before(dataclasses.replace(source), CASE.history, DDLS[0].commit_ts) == {}
    assert f"[{DDLS[0].job_id}" in caplog.text and "are executed as if they came after" in caplog.text
