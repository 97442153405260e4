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
from tests.support.workload_copy import compared

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]
OPS = ["insert", "update", "delete"]
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
                outcomes = compared(names["workload"], names["config"].target)
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
    hot, bars, ddls, rates, rows, life, checkpoints, lag, now, changes, growth, invariant = shown
    shows_hot_tables(hot, bars, names["table"])
    shows_rates(ddls, rates, names["changes"])
    shows_one_table(rows, names["rows"], names["hot"].where(f"table = '{names['table']}'").first())
    shows_a_life(life, names["life"].collect(), names["rows"], names["key"])
    shows_lag(checkpoints, names["checkpoints"].orderBy("batch_id").collect(), lag, printed)
    shows_a_lake(now, changes, growth, names)
    holds_after_every_commit(invariant, names)
    says_what_it_leaves_out(printed, names)


def says_what_it_leaves_out(printed, names):
    """No table is cut off without a word."""
    n, all_ddls = names["rows"].count(), names["ddls"].count()
    assert f"changes of {names['table']}: the first 20 of {n} rows" in printed
    assert re.search(rf"^DDLs: {f'the first 20 of {all_ddls}' if all_ddls > 20 else all_ddls} rows$", printed, re.M)
    assert f"the row {names['key']} of {names['table']}: " in printed


def shows_hot_tables(hot, bars, table):
    found = hot.collect()
    assert {"demo.account", "demo.word", "demo.event"} <= {row.table for row in found} and found[0].table == table
    assert all(row.changes == row["insert"] + row["update"] + row["delete"] for row in found)
    assert [row.changes for row in found] == sorted((row.changes for row in found), reverse=True)
    (axes,) = bars.axes
    assert sum(bar.get_width() for bar in axes.patches) == sum(row.changes for row in found[:12])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == OPS


def shows_rates(ddls, rates, changes):
    statements = [row.ddl for row in ddls.collect()]
    assert sum("create table" in statement.lower() for statement in statements) >= 7 and len(statements) >= 9
    (axes,) = rates.axes
    assert sum(bar.get_height() for bar in axes.patches) == changes.where("op <> 'ddl'").count()
    seconds = {row.commit_time.replace(microsecond=0) for row in changes.where("op = 'ddl'").collect()}
    assert len(axes.lines) == len(seconds)
    (above,) = axes.child_axes
    assert len(above.get_xticklabels()) == len(seconds) and "DDLs" in above.get_xticklabels()[0].get_text()


def shows_one_table(shown, rows, counted):
    assert set(MARKS) < set(shown.columns) and shown.count() == 20 and isinstance(shown, DataFrame)
    found = dict(rows.groupBy("_change_type").count().collect())
    # The table was read after the counts, while the workload went on.
    assert all(found[kind] >= counted[op] for kind, op in zip(("insert", "update_preimage", "delete"), OPS, strict=True))
    assert found["update_preimage"] == found["update_postimage"]


def shows_a_life(shown, versions, rows, key):
    """It begins with an insert, each version begins as the one before it ended, and what differs is shown."""
    # A column that a DDL adds in between (``DdlMix`` calls it c1, c2, …) is null before and has its default afterwards.
    own = [name for name in rows.columns if name not in MARKS and not re.fullmatch(r"c\d+", name)]
    images = [tuple(version[name] for name in own) for version in versions]
    kinds = [version["_change_type"] for version in versions]
    assert kinds[0] == "insert" and len(versions) >= 3
    for (before, image), (after, following) in pairwise(zip(kinds, images, strict=True)):
        leaves = before in ("insert", "update_postimage")
        assert after in (("update_preimage", "delete") if leaves else ("update_postimage", "insert"))
        assert image == following or not leaves
    times = [version["_commit_timestamp"] for version in versions]
    assert times == sorted(times) and key.startswith("{")
    told = shown.collect()
    assert [row.op for row in told] == [kind.removesuffix("_postimage") for kind in kinds if kind != "update_preimage"][:20]
    assert all(" → " in row.changed for row in told if row.op == "update")


def shows_lag(shown, batches, lag, printed):
    """Its bars are whole: the stages of a batch add up to its lag."""
    assert isinstance(shown, DataFrame) and [row.batch_id for row in shown.collect()] == [batch.batch_id for batch in batches[:20]]
    (axes,) = lag.axes
    heights = {}
    for bar in axes.patches:
        at = round(bar.get_x() + bar.get_width() / 2)
        heights[at] = heights.get(at, 0.0) + bar.get_height()
    lags = {batch.batch_id: (batch.recorded_at - batch.resolved_at).total_seconds() for batch in batches}
    assert heights and heights == pytest.approx({at: lags[at] for at in heights})
    assert list(heights) == list(lags)[-len(heights) :]
    assert re.search(r"lag [\d.]+ ", printed)


def holds_after_every_commit(shown, names):
    """No table had fewer rows than none, and the sums are the tables."""
    rows = {row.table: row for row in shown.collect()}
    assert len(rows) >= 8 and min(row.fewest for row in rows.values()) >= 0 and max(row.commits for row in rows.values()) > 1
    name = names["table"].rpartition(".")[2]
    assert rows[name].now == len(names["workload"].rows(names["table"]))


def shows_a_lake(now, changes, growth, names):
    """The table is the upstream's, and what it was at each moment is what the ledger's changes up to there leave."""
    upstream, table = names["workload"], names["table"]
    assert now.columns == [column.name for column in upstream.tables()[table].public_columns()]
    assert names["lake"].table(table).count() == len(upstream.rows(table))
    (newest, *_), columns = changes.collect(), changes.columns
    assert columns == ["commit_time", "op", "before", "after"]
    assert (newest.before is None, newest.after is None) == (newest.op == "insert", newest.op == "delete")
    (axes,) = growth.axes
    line, dots = axes.lines
    assert len(dots.get_xdata()) == 6 and dots.get_ydata()[-1] == len(upstream.rows(table)) == line.get_ydata()[-1]
    ledger = list(zip((step.commit_ts for step in names["steps"]), line.get_ydata(), strict=True))
    for moment, found in zip(names["moments"], dots.get_ydata(), strict=True):
        assert found == [count for ts, count in ledger if ts <= moment][-1]
