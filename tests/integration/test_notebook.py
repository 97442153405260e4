"""The notebook runs cell by cell, as Databricks would run it, and what the workload wrote is in the target afterwards."""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from pyspark_tidb_binlog.binlog_source.emulator.workload import WorkloadConfig
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.demo import PUMPS, catch_up, settings_for, upstream
from pyspark_tidb_binlog.jobs.lab.compare import compare
from pyspark_tidb_binlog.sinks.mysql.session import connect

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "replicate.py"
OTHERS = ("information_schema", "performance_schema", "mysql", "sys", "tidb_binlog")


def cells() -> list[str]:
    """The code of each cell; markdown is for people."""
    text = NOTEBOOK.read_text()
    assert text.startswith("# Databricks notebook source\n")
    found = [cell.strip() for cell in text.split("# COMMAND ----------")]
    return [cell for cell in found if any(line and not line.startswith("#") for line in cell.splitlines())]


def test_markdown_and_code_do_not_share_a_cell():
    for cell in cells():
        assert "# MAGIC" not in cell


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_cell_runs_and_the_target_is_an_exact_copy(spark, fresh_mariadb, tmp_path, monkeypatch, capsys):
    shown: list[object] = []
    names = {"__name__": "notebook", "spark": spark, "display": shown.append}
    with upstream(tmp_path, WorkloadConfig(rate=40, sessions=2, ddl_every=40)) as workload:
        settings = settings_for(workload, DrainerConfig(), fresh_mariadb.target(), tmp_path)
        environment = {
            "ADDR": settings.addr,
            "NODE_ID": settings.apply.drainer,
            "SPARK__PUMPS": settings.source.pumps,
            "SPARK__CLUSTER_ID": settings.source.cluster_id,
            "INITIAL_COMMIT_TS": settings.source.starting_commit_ts,
            "SPARK__ORPHAN_RESOLVER": settings.pair.resolver,
            "SPARK__SOCKET": settings.target.socket,
            "SYNCER__TO__USER": settings.target.user,
            "SYNCER__TO__PASSWORD": settings.target.password,
            "SPARK__DDL_HISTORY": settings.ddl_history,
            "SPARK__CHECKPOINT_DIR": settings.checkpoint_dir,
            "SPARK__DELTA_DIR": settings.delta_dir,
        }
        for name, value in environment.items():
            monkeypatch.setenv(f"TIDB_BINLOG__{name}", str(value))
        monkeypatch.setenv("TIDB_BINLOG_NOTEBOOK_SECONDS", "3")
        workload.open(PUMPS)
        workload.begin()
        for number, cell in enumerate(cells()):
            if "replication.close()" in cell:
                catch_up(names["replication"], workload.end().upto_ts)
            exec(compile(cell, f"cell {number}", "exec"), names)
        with connect(fresh_mariadb.target(), settings.apply) as session:
            outcomes = compare(workload, session, OTHERS)
    assert [(outcome.name, outcome.difference) for outcome in outcomes if outcome.difference] == []
    assert sum(outcome.rows for outcome in outcomes) > 20
    checkpoints, figure, transactions = shown
    assert isinstance(checkpoints, DataFrame) and checkpoints.count() >= 1
    (line,) = figure.axes[0].lines
    assert len(line.get_xdata()) == checkpoints.count() and min(line.get_ydata()) > 0
    assert isinstance(transactions, DataFrame) and transactions.columns == ["start_ts", "commit_ts", "bytes"]
    assert re.search(r"lag [\d.]+ ", capsys.readouterr().out)
