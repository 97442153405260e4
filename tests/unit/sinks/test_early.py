"""Jobs that rows of a lower schema version need."""

import pytest

from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.online import Change
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.sinks.engine.early import needed_early
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, DdlEvent, DdlStep, RowsStep, TableActivity, plan_steps
from tests.support.ddl_jobs import database, history, job, partitions, table
from tests.support.fakes.written import Written

ADD = online.add_column(Column("d", "int"))
WIDER = online.modify_column(Column("a", "varchar(9)"), str)


def altered(*changes: Change) -> tuple[SchemaHistory, int, list[int]]:
    """The history, the table's id, and the schema version of each state that it went through."""
    upstream = Upstream(Written())
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", Table("t", (Column("a", "int"), Column("b", "int"), Column("c", "int")), unique=(("b",),)))
    ddl = upstream.ddl.alter("d.t", *changes)
    return SchemaHistory.of(JobReader().read(upstream.jobs())), upstream.store.table("d.t").id, ddl.versions


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ((ADD,), 3),
        ((WIDER,), 3),
        ((online.drop_column("c"),), 3),
        ((online.drop_column("b"),), 0),
        ((online.drop_index("u1"),), 0),
        ((ADD, WIDER), 6),
        ((ADD, online.drop_column("c")), 3),
        ((online.drop_column("c"), WIDER), 3),
        ((online.drop_column("b"), online.drop_index("u1"), WIDER), 3),
    ],
    ids=lambda value: " and ".join(c.text for c in value) if isinstance(value, tuple) else None,
)
def test_the_first_state_whose_rows_need_the_job(changes: tuple[Change, ...], first: int) -> None:
    history, table_id, versions = altered(*changes)
    job = history.ordered[-1]
    assert job.version == versions[-1]
    before, after = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
    assert before is not None
    assert after is not None
    needed = [needed_early(job, before, after, (v, 0), history) for v in (before.version, *versions)]
    assert needed == [False] + [place >= first for place in range(len(versions))]


def test_where_other_tables_change_meanwhile_the_time_tells() -> None:
    history, table_id, _ = altered(ADD, online.drop_column("c"))
    job = history.ordered[-1]
    before, after = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
    assert before is not None
    assert after is not None
    early = before.version + 1
    assert [needed_early(job, before, after, (early, ts), history) for ts in (0, job.start_ts, job.start_ts + 1)] == [False, False, True]


@pytest.mark.parametrize("recorded", [True, False], ids=["sub-versions", "counted"])
@pytest.mark.parametrize(
    "changes",
    [
        (WIDER, online.drop_column("c")),
        (online.drop_column("c"), WIDER),
        (ADD, WIDER, online.drop_column("c")),
        (online.drop_column("c"), ADD, WIDER),
        (WIDER, online.drop_column("c"), online.drop_index("u1")),
        (online.drop_index("u1"), WIDER, online.drop_column("c")),
    ],
    ids=lambda value: " and ".join(c.text for c in value) if isinstance(value, tuple) else None,
)
def test_a_conversion_beside_a_drop_while_other_tables_change(changes: tuple[Change, ...], recorded: bool) -> None:
    """Rows with the new column alone need the job; rows without it need the table before; the two states in between have both."""
    upstream = Upstream(Written())
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", Table("t", (Column("a", "int"), Column("b", "int"), Column("c", "int")), unique=(("b",),)))
    ddl = upstream.ddl.start("d.t", *changes)
    while not ddl.done:
        ddl.advance()
        for _ in range(0 if ddl.done else 2):
            upstream.ddl.create_table("d", Table(f"o{upstream.schema_version}", (Column("a", "int"),)))
    jobs = upstream.jobs()
    if not recorded:
        for part in next(j for j in jobs if j["type"] == 61)["multi_schema_info"]["sub_jobs"]:
            del part["schema_version"]
    history, table_id = SchemaHistory.of(JobReader().read(jobs)), upstream.store.table("d.t").id
    job = next(j for j in history.ordered if j.id == ddl.job["id"])
    before, after = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
    assert before is not None
    assert after is not None
    switch = len(ddl.versions) - 1 - 3 * sum("DROP" in c.text for c in changes)
    late = job.start_ts + 1
    needed = [needed_early(job, before, after, (v, late), history) for v in ddl.versions]
    assert needed[switch:] == [True] * (len(needed) - switch) and needed[: switch - 2] == [False] * (switch - 2)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "other tables change meanwhile"])
def test_a_row_of_a_hidden_partition_is_not_dropped_with_it(others: bool) -> None:
    """TiDB hides the partition two versions before the job's own: RANGE rows of its values then go into the next one."""
    versions, meanwhile = ((4, 6, 8), (5, 7)) if others else ((4, 5, 6), ())
    parts = {**partitions((101, "p0"), (102, "p1")), "type": 1}
    made = job(3, 3, table(11, "t", partition=parts))
    dropped = job(20, 20, table(11, "t", partition={**partitions((102, "p1")), "type": 1}), version=versions[-1])
    jobs = [job(10 + v, 3, table(50 + v, f"o{v}"), version=v) for v in meanwhile]
    h = history(database(1), made, dropped, *jobs)
    touches = [TableActivity(11, 3, 35, 1, 35), TableActivity(11, versions[0], 50, 1, 50), TableActivity(11, 3, 55, 1, 55)]
    steps = plan_steps((30, 70), [DdlEvent(60, 20, "x;", 0)], touches, h, AppliedJobs(3))
    assert [(type(s), s.commit_ts if isinstance(s, DdlStep) else s.upto_ts) for s in steps] == [
        (RowsStep, 49),
        (DdlStep, 49),
        (RowsStep, 70),
    ]
    before, _, after = steps
    assert isinstance(before, RowsStep)
    assert isinstance(after, RowsStep)
    assert before.stranded == () and [t.table_id for t in after.stranded] == [11], "the row at 55 may be of p0: a finding names the table"


@pytest.mark.parametrize(
    ("kind", "gone", "values", "start_ts", "early"),
    [
        (1, 0, [], 0, True),
        (1, 1, [], 0, False),  # no partition behind the last one takes its rows
        (1, 0, [], 50, False),  # the job had not begun when the row was committed
        (1, 0, [], 49, True),
        (3, 0, [["1"], ["2"]], 0, False),
        (3, 0, [["1"], ["DEFAULT"]], 0, True),
    ],
)
def test_a_partition_is_dropped_early_only_where_another_one_takes_its_rows(
    kind: int, gone: int, values: list[list[str]], start_ts: int, early: bool
) -> None:
    parts = [(101, "p0"), (102, "p1")]
    info = {**partitions(*parts), "type": kind}
    for definition, value in zip(info["definitions"], values, strict=False):
        definition["in_values"] = [value]
    left = {**info, "definitions": [d for d in info["definitions"] if d["id"] != parts[gone][0]]}
    made = job(3, 3, table(11, "t", partition=info))
    dropped = job(20, 20, table(11, "t", partition=left), version=6, start_ts=start_ts)
    touches = [TableActivity(11, 4, 50, 1, 50)]
    steps = plan_steps((30, 70), [DdlEvent(60, 20, "x;", 0)], touches, history(database(1), made, dropped), AppliedJobs(3))
    assert [s.early for s in steps if isinstance(s, DdlStep)] == [early]


def test_the_job_is_done_before_such_a_row_and_its_binlog_does_nothing_more() -> None:
    history, table_id, versions = altered(ADD, online.drop_column("c"))
    job = history.ordered[-1]
    touches = [TableActivity(table_id, versions[0], 10, 1, 10), TableActivity(table_id, versions[3], 20, 1, 20)]
    steps = plan_steps((5, 30), (), touches, history, AppliedJobs(history.ordered[-2].version))
    assert [type(s) for s in steps] == [RowsStep, DdlStep, RowsStep]
    assert isinstance(steps[1], DdlStep)
    assert (steps[1].job.id, steps[1].early, steps[1].commit_ts) == (job.id, True, 19)
