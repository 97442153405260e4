"""The notebook runs cell by cell, as Databricks and Jupyter run it, with nothing set: each shows what its text says, and what the small cluster
that it starts has written is in the target afterwards.
"""

import os
import re
from itertools import pairwise

import pytest
from pyspark.sql import DataFrame

from benchmarks.notebook_form import SOURCE, cells_of
from pyspark_tidb_binlog.jobs.demo import catch_up
from pyspark_tidb_binlog.jobs.lab.compare import compare
from pyspark_tidb_binlog.sinks.mysql.session import connect

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]
OTHERS = ("information_schema", "performance_schema", "mysql", "sys", "tidb_binlog")
MARKS = ["_change_type", "_commit_timestamp", "_commit_version", "_change_seq"]


def python_cells():
    return [cell.text for cell in cells_of(SOURCE.read_text()) if not (cell.is_markdown or cell.is_command)]


def run(text, names):
    exec(compile(text, f"the cell {text.splitlines()[0]!r}", "exec"), names)


@pytest.fixture
def nothing_set(monkeypatch):
    for name in os.environ:
        if name.startswith(("TIDB_BINLOG__", "BINLOG_SERVER_", "TIDB_BINLOG_CONFIG", "TIDB_BINLOG_NOTEBOOK")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return monkeypatch


def test_settings_name_another_cluster(nothing_set, tmp_path):
    (tmp_path / "drainer.toml").write_text('pd-urls = "http://pd:2379"\n')
    nothing_set.setenv("TIDB_BINLOG_CONFIG", str(tmp_path / "drainer.toml"))
    nothing_set.setenv("TIDB_BINLOG__SYNCER__TO__HOST", "db1")
    names = {}
    run(next(cell for cell in python_cells() if "load_drainer" in cell), names)
    assert "workload" not in names
    assert (names["config"].source.pumps, names["config"].target.host) == ("pd://pd:2379", "db1")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_cell_runs_and_the_target_is_an_exact_copy(spark, nothing_set, capsys):
    nothing_set.setenv("TIDB_BINLOG_NOTEBOOK_SECONDS", "1")
    shown = []
    names = {"__name__": "notebook", "display": shown.append}
    spark.conf.set("spark.sql.repl.eagerEval.enabled", "false")
    try:
        for cell in python_cells():
            if "replication.close()" in cell:
                catch_up(names["replication"], names["workload"].end().upto_ts)
            if "own.close()" in cell:
                with connect(names["config"].target, names["config"].apply) as session:
                    outcomes = compare(names["workload"], session, OTHERS)
                looks_at(shown, names, capsys.readouterr().out)
            run(cell, names)
            if "replication.close()" in cell:
                del names["replication"]
        # In Jupyter the first cell makes the session: here it takes the one that is there.
        assert names["spark"].conf.get("spark.sql.repl.eagerEval.enabled") == "true"
    finally:
        for name, end in (("replication", "close"), ("own", "close"), ("changes", "unpersist"), ("rows", "unpersist")):
            if name in names:
                getattr(names[name], end)()
        for name in ("enabled", "truncate"):
            spark.conf.unset(f"spark.sql.repl.eagerEval.{name}")
    assert [(outcome.name, outcome.difference) for outcome in outcomes if outcome.difference] == []
    assert sum(outcome.rows for outcome in outcomes) > 20


def looks_at(shown, names, printed):
    counts, rows, bars, ddls, timeline, life, checkpoints, lag = shown
    shows_changes(counts, rows, bars, names["table"])
    shows_ddls(ddls, timeline)
    shows_a_life(life, rows, names["key"])
    shows_lag(checkpoints, lag, printed)
    assert f"changes of {names['table']}:" in printed and f"the row {names['key']} of {names['table']}:" in printed


def shows_changes(counts, rows, bars, table):
    numbers = {(row["table"], row["op"]): row["count"] for row in counts.collect()}
    assert {op for _, op in numbers} == {"insert", "update", "delete", "ddl"}
    assert {"demo.account", "demo.word", "demo.event"} <= {name for name, _ in numbers}
    assert isinstance(rows, DataFrame) and set(MARKS) < set(rows.columns)
    found = dict(rows.groupBy("_change_type").count().collect())
    # The table was read after the counts, while the workload went on.
    assert all(
        found[kind] >= numbers[table, op] for kind, op in (("insert", "insert"), ("delete", "delete"), ("update_preimage", "update"))
    )
    assert found["update_preimage"] == found["update_postimage"]
    (axes,) = bars.axes
    assert sum(bar.get_height() for bar in axes.patches) == rows.count() - found["update_preimage"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["insert", "update", "delete"]


def shows_ddls(ddls, timeline):
    statements = [row.ddl for row in ddls.collect()]
    assert sum("create table" in statement.lower() for statement in statements) >= 7 and len(statements) >= 9
    (axes,) = timeline.axes
    (points,) = axes.collections
    drawn = [label.get_text() for label in axes.get_yticklabels()]
    # The last ones: how many there are depends on how long the cells before took.
    assert drawn == [" ".join(statement.split())[:60] for statement in statements[-25:]] and len(points.get_offsets()) == len(drawn)


def shows_a_life(life, rows, key):
    """It begins with an insert, and each version begins as the one before it ended."""
    versions = life.collect()
    assert life.columns[:2] == MARKS[:2] and set(life.columns) == set(rows.columns)
    # A column that a DDL adds in between (``DdlMix`` calls it c1, c2, …) is null before and has its default afterwards.
    own = [name for name in life.columns if name not in MARKS and not re.fullmatch(r"c\d+", name)]
    images = [tuple(version[name] for name in own) for version in versions]
    kinds = [version["_change_type"] for version in versions]
    assert kinds[0] == "insert" and len(versions) >= 3
    for (before, image), (after, following) in pairwise(zip(kinds, images, strict=True)):
        leaves = before in ("insert", "update_postimage")
        assert after in (("update_preimage", "delete") if leaves else ("update_postimage", "insert"))
        assert image == following or not leaves
    times = [version["_commit_timestamp"] for version in versions]
    assert times == sorted(times) and key.startswith("{")


def shows_lag(checkpoints, lag, printed):
    assert isinstance(checkpoints, DataFrame) and checkpoints.count() >= 1
    (line,) = lag.axes[0].lines
    assert len(line.get_xdata()) == checkpoints.count() and min(line.get_ydata()) > 0
    assert re.search(r"lag [\d.]+ ", printed)
