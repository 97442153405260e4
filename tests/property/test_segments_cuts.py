"""Rows and DDL binlogs out of step, over every cut into batches: each job once, and never a row before a job it includes."""

import itertools

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from tests.support.ddl_jobs import VARCHAR, column, database, history, job, table

ID, A, NEW_A = column(1, "id"), column(2, "a"), column(3, "a", VARCHAR)
CHANGES = {
    "add": ([ID], job(8, 5, table(10, "t", [ID, A])), ()),
    "drop": ([ID, A], job(8, 6, table(10, "t", [ID])), ((35, 1),)),
    "modify": ([ID, A], job(8, 12, table(10, "t", [ID, NEW_A])), ()),
}
OTHER = job(9, 5, table(20, "u", [ID, A]))
ROWS = [(10, 10, 7), (20, 10, 8), (30, 20, 8), (40, 10, 7), (50, 10, 8), (60, 10, 7), (70, 10, 8), (80, 20, 9), (90, 10, 9)]
"""(commit_ts, table, schema_version): version 8 before the DDL binlog of job 8 at 55, version 7 after it, version 9 before 85."""


def stream(change: str) -> tuple[SchemaHistory, list[DdlEvent]]:
    before, changing, twins = CHANGES[change]
    h = history(database(1), job(2, 3, table(10, "t", before)), job(3, 3, table(20, "u", [ID])), changing, OTHER)
    events = [DdlEvent(55, 8, "x;", 0 if change == "drop" else 5), DdlEvent(85, 9, "x;", 5)]
    return h, events + [DdlEvent(ts, 8, "x;", state) for ts, state in twins]


def touches_of(rows: list[tuple[int, int, int]]) -> list[TableActivity]:
    """As the driver summarises them: one per table and version, cuts unknown."""
    found = []
    for (table_id, version), group in itertools.groupby(sorted(rows, key=lambda r: r[1:]), key=lambda r: r[1:]):
        times = [ts for ts, _, _ in group]
        found.append(TableActivity(table_id, version, min(times), len(times), max(times)))
    return found


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_every_cut(change: str, restarts: bool) -> None:
    h, ddls = stream(change)
    points = [r[0] for r in ROWS] + [d.commit_ts for d in ddls]
    for count in range(4):
        for cuts in itertools.combinations(sorted(points), count):
            run(h, ddls, cuts, restarts)


def run(h: SchemaHistory, ddls: list[DdlEvent], cuts: tuple[int, ...], restarts: bool) -> None:
    applied = AppliedJobs(3)
    done: list[int] = []
    at = 0
    placed: dict[int, int] = {}
    for upto in (*cuts, 100):
        rows = [r for r in ROWS if at < r[0] <= upto]
        steps = plan_steps((at, upto), ddls, touches_of(rows), h, applied)
        for step in steps:
            assert isinstance(step, DdlStep) or step.after_ts == at
            if isinstance(step, DdlStep):
                done.append(step.job.id)
                at = step.commit_ts
                continue
            here = [r for r in rows if step.after_ts < r[0] <= step.upto_ts]
            assert step.row_events >= len(here)
            for ts, table_id, version in here:
                check(step, h, done, table_id, version)
                placed[ts] = placed.get(ts, 0) + 1
            at = step.upto_ts
        assert at == upto
        applied = steps[-1].applied
        if restarts:
            applied = AppliedJobs(applied.version, applied.early)
    assert sorted(done) == [8, 9]
    assert placed == {ts: 1 for ts, _, _ in ROWS}
    assert applied == AppliedJobs(9)


def check(step: RowsStep, h: SchemaHistory, done: list[int], table_id: int, version: int) -> None:
    """The structure is exactly what the target has, includes all that the row includes, and completes what it lacks."""
    table = step.tables[table_id]
    jobs = [j for j in h.jobs_of_table(table_id, 0, 99) if j.version <= 3 or j.id in done]
    assert table.version == jobs[-1].version
    assert all(j in jobs for j in h.jobs_of_table(table_id, 0, version))
    assert version >= table.version or table.can_append_default(version)
