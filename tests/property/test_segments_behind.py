"""A multi-schema change whose binlog follows that of a job with a higher schema version, over every cut into batches and lives: each job once, with its
own binlog or before the first row that needs it, and never a table that the target does not have.
"""

import itertools
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, TableActivity, plan_steps
from tests.support.ddl_jobs import column, database, history, job, table

ID, A, B, C = (column(i, name) for i, name in enumerate(("id", "a", "b", "c"), 1))
MULTI, OTHER, LATER = 8, 9, 12
BINLOGS = {OTHER: 40, MULTI: 60, LATER: 90}
"""commit_ts by job: version 11 before version 10."""
BOTH = {"sub_jobs": [{"type": 5, "schema_version": 10}, {"type": 5, "schema_version": 0}]}
ROWS = {
    "of every version": [(20, 10, 7), (30, 10, 9), (45, 20, 11), (50, 10, 10), (55, 10, 9), (65, 10, 11), (70, 20, 10), (95, 10, 12)],
    "of none that needs it": [(20, 10, 7), (45, 20, 11), (50, 10, 9), (65, 10, 11), (95, 10, 12)],
}
"""(commit_ts, table, schema_version)"""


def finished(found: dict[str, Any], ts: int) -> dict[str, Any]:
    found["binlog"]["FinishedTS"] = ts
    return found


def told() -> SchemaHistory:
    return history(
        finished(database(1), 1),
        finished(job(2, 3, table(10, "t", [ID])), 2),
        finished(job(3, 3, table(20, "u", [ID])), 3),
        finished(job(MULTI, 61, table(10, "t", [ID, A, B]), version=10, multi_schema_info=BOTH), 62),
        finished(job(OTHER, 5, table(20, "u", [ID, A]), version=11), 42),
        finished(job(LATER, 5, table(10, "t", [ID, A, B, C]), version=12), 92),
    )


def recorded(applied: AppliedJobs, done: list[int], at: int, h: SchemaHistory) -> AppliedJobs:
    """What a target tells at a start: the checkpoint's version, and the jobs that it has records of."""
    asked = {j.id for j in h.behind(applied.version, at, applied.since)}
    early = {i for i in done if i in asked or h.jobs[i].version > applied.version}
    return AppliedJobs(applied.version, frozenset(early)).at(at, h)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_every_cut(rows: str, restarts: bool) -> None:
    points = sorted([*(ts for ts, _, _ in ROWS[rows]), *BINLOGS.values(), 41, 61, 63])
    for count in range(4):
        for cuts in itertools.combinations(points, count):
            run(told(), ROWS[rows], cuts, restarts=restarts)


def run(h: SchemaHistory, rows: list[tuple[int, int, int]], cuts: tuple[int, ...], *, restarts: bool) -> None:
    applied, done, at = AppliedJobs(3), [], 0
    seen: list[int] = []
    for upto in (*cuts, 100):
        here = [r for r in rows if at < r[0] <= upto]
        events = [DdlEvent(ts, i, "x;", 5) for i, ts in BINLOGS.items() if at < ts <= upto]
        for step in plan_steps((at, upto), events, [TableActivity(t, v, ts, 1, ts) for ts, t, v in here], h, applied):
            if isinstance(step, DdlStep):
                done.append(step.job.id)
                assert step.early or step.commit_ts == BINLOGS[step.job.id]
            else:
                for ts, table_id, version in here:
                    if step.after_ts < ts <= step.upto_ts:
                        seen.append(ts)
                        on_target = [j.version for j in h.jobs_of_table(table_id, 0, 99) if j.version <= 3 or j.id in done]
                        assert (
                            step.tables[table_id].version == max(on_target) >= max(j.version for j in h.jobs_of_table(table_id, 0, version))
                        )
            applied = step.applied
        at = upto
        if restarts:
            applied = recorded(applied, done, at, h)
    assert sorted(done) == [MULTI, OTHER, LATER] and seen == [ts for ts, _, _ in rows], cuts
    assert applied == AppliedJobs(12)


def test_a_target_that_was_filled_before_has_what_was_visible_then() -> None:
    """A dump between the last version of the change and its binlog: the columns are in it."""
    h = told()
    (step,) = plan_steps((50, 70), [DdlEvent(60, MULTI, "x;", 5)], [], h, AppliedJobs(11).covering(50, h))
    assert not isinstance(step, DdlStep) and step.applied == AppliedJobs(11)


def test_the_ddls_that_wait_include_one_that_is_behind() -> None:
    assert [job.id for job in told().behind(11, 59, 0)] == [MULTI] and told().behind(9, 59, 0) == () and told().behind(11, 62, 0) == ()
