"""Where a span is cut, what is left out, and which jobs go early."""

import pytest

from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.segments import (
    AppliedJobs,
    DdlEvent,
    DdlStep,
    RowsStep,
    SetVal,
    TableActivity,
    events_by_table,
    plan_steps,
    replay_steps,
)
from tests.support.ddl_jobs import INT, column, database, history, index, job, table
from tests.support.golden_case import load_case

WIDE = [column(1, "id"), column(2, "a")]


def outline(steps: tuple[RowsStep | DdlStep, ...]) -> list[object]:
    return [
        (s.after_ts, s.upto_ts, s.row_events) if isinstance(s, RowsStep) else ("early" if s.early else "ddl", s.commit_ts, s.job.id)
        for s in steps
    ]


def some() -> SchemaHistory:
    return history(
        database(1),
        job(2, 3, table(10, "t")),
        job(3, 3, table(20, "u")),
        job(7, 5, table(10, "t", WIDE)),
        job(12, 6, table(10, "t")),
        job(13, 57, table(10, "t")),
        {**job(14, 5, None), "state": 5},
        job(15, 11, table(11, "t"), table_id=10),
    )


def ddl(ts: int, job_id: int, state: int = 5, query: str = "x;") -> DdlEvent:
    return DdlEvent(ts, job_id, query, state)


def test_a_ddl_is_a_barrier() -> None:
    steps = plan_steps((0, 100), [ddl(50, 7)], [TableActivity(10, 3, 20, 5, 49), TableActivity(10, 7, 60, 3, 90)], some(), AppliedJobs(3))
    assert outline(steps) == [(0, 49, 5), ("ddl", 50, 7), (50, 100, 3)]
    before, after = (s for s in steps if isinstance(s, RowsStep))
    assert (before.tables[10].version, after.tables[10].version) == (2, 7)
    assert steps[-1].applied == AppliedJobs(7)


def test_a_span_without_anything_is_one_empty_step() -> None:
    assert outline(plan_steps((5, 9), [], [], some(), AppliedJobs(3))) == [(5, 9, 0)]


def test_a_ddl_at_the_very_end_needs_no_step_behind_it() -> None:
    assert outline(plan_steps((0, 50), [ddl(50, 7)], [], some(), AppliedJobs(3))) == [("ddl", 50, 7)]


@pytest.mark.shows("ddl SELECT SETVAL", "ddl gotcha 9")
def test_sequences_are_set_between_the_ddls_around_them() -> None:
    events = [
        ddl(10, 998, query="SELECT SETVAL(`d`.`s`, 2008);"),
        ddl(50, 7),
        ddl(60, 999, query=" select /* x */ setval(`d`.`a``b`, -3)"),
        ddl(70, 998, query='SELECT SETVAL("d"."s", 3008);'),
    ]
    steps = plan_steps((0, 100), events, [TableActivity(20, 3, 55, 5, 90)], some(), AppliedJobs(3))
    assert outline(steps) == [(0, 49, 0), ("ddl", 50, 7), (50, 100, 5)]
    assert [s.setvals for s in steps if isinstance(s, RowsStep)] == [
        (SetVal("d", "s", 2008),),
        (SetVal("d", "a`b", -3), SetVal("d", "s", 3008)),
    ]


@pytest.mark.parametrize(
    "event",
    [
        ddl(50, 13),
        ddl(50, 14),
        ddl(50, 2),
        ddl(50, 12, state=1),
    ],
    ids=["unsupported", "cancelled", "applied", "delete-only twin"],
)
def test_skipped_entirely(event: DdlEvent) -> None:
    steps = plan_steps((0, 100), [event], [TableActivity(20, 3, 20, 5, 90)], some(), AppliedJobs(11))
    assert outline(steps) == [(0, 100, 5)]


@pytest.mark.shows("ddl gotcha 1")
def test_the_delete_only_twin_marks_the_table_until_the_drop() -> None:
    touches = [TableActivity(10, 9, 20, 5, 30), TableActivity(10, 12, 60, 1, 60)]
    steps = plan_steps((0, 100), [ddl(10, 12, state=1), ddl(50, 12, state=0)], touches, some(), AppliedJobs(11))
    rows = [s for s in steps if isinstance(s, RowsStep)]
    assert [s.tables[10].dropping for s in rows] == [True, False]
    assert steps[-1].applied == AppliedJobs(12)


def test_the_twin_of_a_job_that_the_target_has_marks_nothing() -> None:
    (step,) = plan_steps((0, 100), [ddl(10, 12, state=1)], [TableActivity(10, 12, 60, 1, 60)], some(), AppliedJobs(12))
    assert isinstance(step, RowsStep) and not step.tables[10].dropping and step.applied == AppliedJobs(12)


def test_tables_that_lose_columns_at_the_same_time() -> None:
    both = AppliedJobs(11).with_dropping(10).with_dropping(20)
    assert both.dropping == {10, 20}
    assert both.with_binlog(some().job(12), some()).dropping == {20}


@pytest.mark.parametrize(("newest", "dropping"), [(7, False), (8, True)])
def test_rows_of_a_version_that_the_history_does_not_show_may_lack_columns(newest: int, dropping: bool) -> None:
    h = history(database(1), job(2, 3, table(10, "t")), job(7, 5, table(10, "t", WIDE)))
    (step,) = plan_steps((0, 100), [], [TableActivity(10, newest, 20, 1, 30)], h, AppliedJobs(7))
    assert isinstance(step, RowsStep) and step.tables[10].dropping == dropping


def test_a_column_that_another_of_its_name_replaces_does_not_leave() -> None:
    """MODIFY COLUMN with new data: the column's id changes, and the rows keep a value under its name."""
    h = history(
        database(1),
        job(2, 3, table(10, "t", [column(1, "id"), column(2, "a"), column(3, "b")])),
        job(9, 12, table(10, "t", [column(1, "id"), column(4, "a")])),
    )
    (step,) = plan_steps((0, 100), [], [TableActivity(10, 5, 20, 1, 30)], h, AppliedJobs(2))
    assert isinstance(step, RowsStep) and step.tables[10].dropping and step.tables[10].leaving == {3}


def test_a_table_about_to_lose_a_column_is_dropping_also_after_a_restart() -> None:
    (step,) = plan_steps((0, 100), [], [TableActivity(10, 9, 20, 5, 30)], some(), AppliedJobs(11))
    assert isinstance(step, RowsStep) and step.tables[10].dropping


def test_an_unknown_job_must_be_waited_for() -> None:
    with pytest.raises(HistoryUnavailable, match="job 999 .commit_ts 50"):
        plan_steps((0, 100), [ddl(50, 999)], [], some(), AppliedJobs(3))


def test_a_row_ahead_of_the_binlogs_has_its_job_done_early() -> None:
    touches = [TableActivity(10, 3, 20, 5, 29), TableActivity(20, 7, 25, 1, 25), TableActivity(10, 7, 30, 2, 40)]
    steps = plan_steps((0, 100), [ddl(50, 7)], touches, some(), AppliedJobs(3))
    assert outline(steps) == [(0, 29, 6), ("early", 29, 7), (29, 100, 2)]
    early = steps[1]
    assert isinstance(early, DdlStep) and early.applied == AppliedJobs(3, frozenset({7})) and early.query == "job 7"
    assert steps[-1].applied == AppliedJobs(7)


def test_early_jobs_are_remembered_over_batches() -> None:
    first = plan_steps((0, 45), [], [TableActivity(10, 7, 30, 2, 40)], some(), AppliedJobs(3))
    assert outline(first) == [("early", 29, 7), (29, 45, 2)]
    second = plan_steps((45, 100), [ddl(50, 7)], [TableActivity(10, 3, 47, 1, 47)], some(), first[-1].applied)
    assert outline(second) == [(45, 100, 1)]
    rows = second[0]
    assert isinstance(rows, RowsStep) and rows.tables[10].version == 7 and rows.tables[10].can_append_default(3)
    assert rows.applied == AppliedJobs(7)


def test_other_tables_keep_their_version_beside_an_early_job() -> None:
    h = history(
        database(1), job(2, 3, table(10, "t")), job(3, 3, table(20, "u")), job(6, 5, table(20, "u", WIDE)), job(7, 5, table(10, "t", WIDE))
    )
    steps = plan_steps((0, 100), [], [TableActivity(10, 7, 30, 2, 40), TableActivity(20, 5, 35, 2, 40)], h, AppliedJobs(3))
    rows = steps[-1]
    assert isinstance(rows, RowsStep) and (rows.tables[10].version, rows.tables[20].version) == (7, 3)


def test_an_early_job_brings_what_it_builds_on() -> None:
    h = history(
        database(1),
        database(4, "e", 1004),
        job(5, 3, table(10, "t"), schema_id=1004),
        job(6, 3, table(20, "u")),
        job(7, 11, table(11, "t"), table_id=10, schema_id=1004),
    )
    steps = plan_steps((0, 100), [ddl(50, 4), ddl(51, 5), ddl(52, 6), ddl(53, 7)], [TableActivity(11, 7, 30, 1, 30)], h, AppliedJobs(3))
    assert outline(steps) == [
        ("early", 29, 4),
        ("early", 29, 5),
        ("early", 29, 7),
        (29, 51, 1),
        ("ddl", 52, 6),
        (52, 100, 0),
    ]


def test_rows_of_a_truncated_table_have_nowhere_to_go() -> None:
    (step,) = plan_steps((0, 100), [], [TableActivity(10, 14, 30, 1, 30), TableActivity(777, 14, 31, 1, 31)], some(), AppliedJobs(15))
    assert isinstance(step, RowsStep) and step.gone == {10} and not step.tables


def test_events_outside_the_span_are_left_alone() -> None:
    steps = plan_steps((40, 60), [ddl(30, 7), ddl(70, 12)], [], some(), AppliedJobs(3))
    assert outline(steps) == [(40, 60, 0)]


def test_three_hundred_ddls_share_a_batch() -> None:
    tables = [table(10 + i, f"t{i}") for i in range(10)]
    made = [database(1), *(job(2 + i, 3, t) for i, t in enumerate(tables))]
    jobs, events, touches = [], [], []
    for n in range(300):
        info = table(10 + n % 10, f"t{n % 10}", [column(c + 1, f"c{c}") for c in range(n // 10 + 2)])
        jobs.append(job(100 + n, 5, info))
        events.append(ddl(1000 + 10 * n, 100 + n))
        touches.append(TableActivity(10 + n % 10, 100 + n, 1005 + 10 * n, 1, 1005 + 10 * n))
    steps = plan_steps((0, 9999), events, touches, history(*made, *jobs), AppliedJobs(50))
    assert [type(s) for s in steps] == [DdlStep, RowsStep] * 300
    assert all(s.row_events == 1 and len(s.tables) == 1 for s in steps if isinstance(s, RowsStep))


def test_a_begun_span_is_one_step_whatever_the_history_shows_since() -> None:
    """Its rows were written when nobody checked the unique key any more; the job of that was not shown yet when the span was begun."""
    pk, v = column(1, "id", {**INT, "Flag": 4099}), column(2, "v")
    create = job(2, 3, table(10, "t", [pk, v], index_info=[index(1, "u", ("v", 1), unique=True)]))
    drop = job(9, 8, table(10, "t", [pk, v]), version=9, start_ts=70)
    other = job(3, 3, table(20, "u"))
    touches = [TableActivity(20, 3, 60, 5, 80), TableActivity(10, 7, 100, 5000, 110)]
    ddls, rows = replay_steps((50, 200), touches, history(database(1), create, other), AppliedJobs(3))
    assert (ddls, outline((rows,))) == ((), [(50, 200, 5005)])
    ddls, rows = replay_steps((50, 200), touches, history(database(1), create, other, drop), AppliedJobs(3))
    assert outline((*ddls, rows)) == [("early", 50, 9), (50, 200, 5005)]
    assert rows.tables[10].info.indexes == () and rows.applied == ddls[0].applied == AppliedJobs(3, frozenset({9}))


def test_row_events_are_counted_by_the_names_that_tables_have_upstream() -> None:
    history_ = history(database(1), job(2, 3, table(10, "t", [column(1, "id")])), job(3, 3, table(20, "u", [column(1, "id")])))
    touches = [TableActivity(10, 3, 60, 5, 80), TableActivity(10, 3, 90, 2, 95), TableActivity(20, 3, 60, 1, 80)]
    steps = plan_steps((50, 200), [], touches, history_, AppliedJobs(9))
    assert events_by_table(touches, steps) == {"d.t": 7, "d.u": 1}
    assert events_by_table([TableActivity(99, 3, 60, 5, 80)], steps) == {}, "of a table that is not written"


def test_golden_ddl() -> None:
    case = load_case("ddl")
    steps = plan_steps((case.info["start_ts"], case.info["end_ts"]), case.ddls, [], case.history, AppliedJobs(219))
    done = [s.job.id for s in steps if isinstance(s, DdlStep)]
    assert len(done) == len(set(done)) == len({d.job_id for d in case.ddls})
    assert steps[-1].applied == AppliedJobs(337)
