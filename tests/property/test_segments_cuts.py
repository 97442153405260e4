"""Rows and DDL binlogs out of step, over every cut into batches and lives: each job once, with its own binlog or before the first row that needs it, and
never a row before a job it includes.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from tests.support.ddl_jobs import VARCHAR, column, database, history, job, table

ID, A, B, C = (column(i, name) for i, name in enumerate(("id", "a", "b", "c"), 1))
NEW_A = column(5, "a", VARCHAR)
BOTH = {"sub_jobs": [{"type": 5, "schema_version": 10}, {"type": 5, "schema_version": 0}]}
Row = tuple[int, int, int]
"""commit_ts, table, schema_version"""


@dataclass(frozen=True)
class Scene:
    """A target with the jobs up to version 3, and what comes."""

    history: SchemaHistory
    ddls: tuple[DdlEvent, ...]
    rows: tuple[Row, ...]


def scene(before: list[dict[str, Any]], jobs: dict[int, dict[str, Any]], rows: list[Row], twin: int = 0) -> Scene:
    """``jobs`` by the commit_ts of their binlogs; at ``twin`` the first has one more, from when its column became delete-only."""
    for ts, one in jobs.items():
        one["binlog"]["FinishedTS"] = ts + 2
    made = [database(1), job(2, 3, table(10, "t", before)), job(3, 3, table(20, "u", [ID]))]
    for ts, one in enumerate(made, 1):
        one["binlog"]["FinishedTS"] = ts
    first = next(iter(jobs))
    ddls = [DdlEvent(ts, one["id"], "x;", 0 if twin and ts == first else 5) for ts, one in jobs.items()]
    ddls += [DdlEvent(twin, jobs[first]["id"], "x;", 1)] if twin else []
    return Scene(history(*made, *jobs.values()), tuple(ddls), tuple(rows))


def other(version: int = 9) -> dict[str, Any]:
    return job(9, 5, table(20, "u", [ID, A]), version=version)


def behind() -> dict[int, dict[str, Any]]:
    """A multi-schema change whose binlog follows that of a job with a higher version."""
    multi = job(8, 61, table(10, "t", [ID, A, B]), version=10, multi_schema_info=BOTH)
    return {40: other(11), 60: multi, 90: job(12, 5, table(10, "t", [ID, A, B, C]))}


ROWS = [(10, 10, 7), (20, 10, 8), (30, 20, 8), (40, 10, 7), (50, 10, 8), (60, 10, 7), (70, 10, 8), (80, 20, 9), (90, 10, 9)]
"""Version 8 before the DDL binlog of job 8 at 55, version 7 after it, version 9 before 85."""
SCENES = {
    "add": scene([ID], {55: job(8, 5, table(10, "t", [ID, A])), 85: other()}, ROWS),
    "drop": scene([ID, A], {55: job(8, 6, table(10, "t", [ID])), 85: other()}, ROWS, twin=35),
    "modify": scene([ID, A], {55: job(8, 12, table(10, "t", [ID, NEW_A])), 85: other()}, ROWS),
    "behind, with rows of every version": scene(
        [ID], behind(), [(20, 10, 7), (30, 10, 9), (45, 20, 11), (50, 10, 10), (55, 10, 9), (65, 10, 11), (70, 20, 10), (95, 10, 12)]
    ),
    "behind, with rows of none that needs it": scene([ID], behind(), [(20, 10, 7), (45, 20, 11), (50, 10, 9), (65, 10, 11), (95, 10, 12)]),
}


def summarised(rows: list[Row]) -> list[TableActivity]:
    """As the driver has them: one per table and version, cuts unknown."""
    found = []
    for (table_id, version), group in itertools.groupby(sorted(rows, key=lambda r: r[1:]), key=lambda r: r[1:]):
        times = [ts for ts, _, _ in group]
        found.append(TableActivity(table_id, version, min(times), len(times), max(times)))
    return found


def one_by_one(rows: list[Row]) -> list[TableActivity]:
    return [TableActivity(table_id, version, ts, 1, ts) for ts, table_id, version in rows]


def by_files(applied: AppliedJobs, done: list[int], at: int, h: SchemaHistory) -> AppliedJobs:
    return AppliedJobs(applied.version, applied.early)


def by_server(applied: AppliedJobs, done: list[int], at: int, h: SchemaHistory) -> AppliedJobs:
    """What a target tells at a start: the checkpoint's version, and the jobs that it has records of."""
    asked = {j.id for j in h.behind(applied.version, at, applied.since)}
    early = {i for i in done if i in asked or h.jobs[i].version > applied.version}
    return AppliedJobs(applied.version, frozenset(early)).at(at, h)


def in_one_life(applied: AppliedJobs, done: list[int], at: int, h: SchemaHistory) -> AppliedJobs:
    return applied


@pytest.mark.parametrize("restarted", [in_one_life, by_files, by_server])
@pytest.mark.parametrize("touches", [summarised, one_by_one])
@pytest.mark.parametrize("name", SCENES)
def test_every_cut(name: str, touches: Callable[[list[Row]], list[TableActivity]], restarted: Callable[..., AppliedJobs]) -> None:
    found = SCENES[name]
    points = sorted([*(r[0] for r in found.rows), *(ts for d in found.ddls for ts in (d.commit_ts, d.commit_ts + 1))])
    for count in range(4):
        for cuts in itertools.combinations(points, count):
            run(found, cuts, touches, restarted)


def run(found: Scene, cuts: tuple[int, ...], touches: Callable[[list[Row]], list[TableActivity]], restarted: Any) -> None:
    h, applied, done, placed, at = found.history, AppliedJobs(3), list[int](), list[int](), 0
    binlogs = {d.job_id: d.commit_ts for d in found.ddls if d.schema_state != 1}
    for upto in (*cuts, 100):
        rows = [r for r in found.rows if at < r[0] <= upto]
        for step in plan_steps((at, upto), found.ddls, touches(rows), h, applied):
            assert isinstance(step, DdlStep) or step.after_ts == at
            if isinstance(step, DdlStep):
                done.append(step.job.id)
                assert step.early or step.commit_ts == binlogs[step.job.id]
                at = step.commit_ts
            else:
                here = [r for r in rows if step.after_ts < r[0] <= step.upto_ts]
                assert step.row_events >= len(here)
                for ts, table_id, version in here:
                    check(step, h, done, table_id, version)
                    placed.append(ts)
                at = step.upto_ts
            applied = step.applied
        assert at == upto
        applied = restarted(applied, done, at, h)
    assert sorted(done) == sorted(binlogs) and sorted(placed) == [ts for ts, _, _ in found.rows], cuts
    assert applied == AppliedJobs(max(h.jobs[i].version for i in binlogs))


def check(step: RowsStep, h: SchemaHistory, done: list[int], table_id: int, version: int) -> None:
    """The structure is exactly what the target has, includes all that the row includes, and completes what it lacks."""
    table = step.tables[table_id]
    jobs = [j for j in h.jobs_of_table(table_id, 0, 99) if j.version <= 3 or j.id in done]
    assert table.version == jobs[-1].version
    assert all(j in jobs for j in h.jobs_of_table(table_id, 0, version))
    assert version >= table.version or table.can_append_default(version)


def test_a_target_that_was_filled_before_has_what_was_visible_then() -> None:
    """A dump between the last version of the change and its binlog: the columns are in it."""
    h = SCENES["behind, with rows of every version"].history
    (step,) = plan_steps((50, 70), [DdlEvent(60, 8, "x;", 5)], [], h, AppliedJobs(11).covering(50, h))
    assert not isinstance(step, DdlStep) and step.applied == AppliedJobs(11)


def test_the_ddls_that_wait_include_one_that_is_behind() -> None:
    h = SCENES["behind, with rows of every version"].history
    assert [job.id for job in h.behind(11, 59, 0)] == [8] and h.behind(9, 59, 0) == () and h.behind(11, 62, 0) == ()
