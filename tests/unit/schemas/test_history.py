"""The fold of DDL jobs: names, ids and snapshots at every version."""

import pickle

import pytest

from pyspark_tidb_binlog.schemas.changes.column_lineage import lineage
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobReader
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_fold import Fold
from tests.support.ddl_jobs import column, database, history, job, partitions, table
from tests.support.golden_case import load_case


@pytest.mark.shows("ddl gotcha 2", "ddl gotcha 10")
def test_a_table_is_known_from_its_version_on() -> None:
    h = history(database(1), job(2, 3, table(10, "t")), job(5, 4, table_id=10))
    assert h.table_at(10, 1) is None
    found = h.table_at(10, 4)
    assert found is not None and (found.schema, found.name, found.version) == ("d", "t", 2)
    assert h.table_at(10, 5) is None
    assert h.table_at(99, 5) is None


def test_defaults_come_from_the_first_snapshot_not_older_than_the_row() -> None:
    wide = [column(1, "id"), column(2, "a")]
    h = history(database(1), job(2, 3, table(10, "t")), job(6, 5, table(10, "t", wide)), job(9, 5, table(10, "t", [*wide, column(3, "b")])))
    at = h.table_at(10, 9)
    assert at is not None
    assert [len(i.columns) if (i := at.default_info(v)) else None for v in (1, 2, 3, 6, 7, 9, 10)] == [1, 1, 2, 2, 3, 3, None]
    assert [at.can_append_default(v) for v in (8, 9, 10)] == [True, False, False]
    dropping = h.table_at(10, 9, dropping=True)
    assert dropping is not None and dropping.can_append_default(10)


@pytest.mark.shows("ddl gotcha 7")
@pytest.mark.parametrize("change", [{"state": 5}, {"state": 3}, {"version": 0}, {"type": 57}])
def test_jobs_without_effect_change_nothing(change: dict[str, int]) -> None:
    fields = {"kind": 5, **change}
    kind = fields.pop("type", fields.pop("kind"))
    fields.pop("kind", None)
    h = history(database(1), job(2, 3, table(10, "t")), job(3, kind, table(10, "t", [column(1, "id"), column(2, "a")]), **fields))
    at = h.table_at(10, 99)
    assert at is not None and len(at.info.columns) == 1


def test_the_one_with_effect_wins_where_a_job_id_comes_twice() -> None:
    good = job(3, 5, table(10, "t", [column(1, "id"), column(2, "a")]))
    bad = {**job(3, 5, None), "state": 3}
    for pair in ([good, bad], [bad, good]):
        at = history(database(1), job(2, 3, table(10, "t")), *pair).table_at(10, 9)
        assert at is not None and len(at.info.columns) == 2


def test_truncate_gives_a_new_id() -> None:
    h = history(database(1), job(2, 3, table(10, "t")), job(3, 11, table(11, "t"), table_id=10))
    assert h.table_at(10, 3) is None
    assert [j.id for j in h.jobs_of_table(11, 0, 9)] == [3]
    assert [j.id for j in h.jobs_of_table(10, 2, 9)] == [3]
    assert h.tables_of_job(h.jobs[3]) == (10, 11)


@pytest.mark.shows("ddl rename tables")
def test_rename_tables_renames_all_of_them() -> None:
    many = [table(10, "b"), table(11, "a")]
    h = history(
        database(1),
        database(2, "e", 1001),
        job(3, 3, table(10, "a")),
        job(4, 3, table(11, "b")),
        job(5, 47, many[-1], many=many, query="rename /* swap */ table a to E.b, `b` to a"),
    )
    assert [(t.schema, t.name) for i in (10, 11) if (t := h.table_at(i, 5))] == [("e", "b"), ("d", "a")]
    assert [(t.schema, t.name) for i in (10, 11) if (t := h.table_at(i, 4))] == [("d", "a"), ("d", "b")]


@pytest.mark.shows("ddl rename tables", "known wrong: RENAME TABLES")
def test_a_three_way_swap_leaves_the_last_names() -> None:
    many = [table(10, "x"), table(11, "a"), table(10, "b")]
    h = history(
        database(1),
        job(3, 3, table(10, "a")),
        job(4, 3, table(11, "b")),
        job(5, 47, many[-1], many=many, query="rename table a to x, b to a, x to b"),
    )
    assert [t.name for t in h.tables_in("d", 5)] == ["b", "a"]
    assert len(h.jobs_of_table(10, 4, 9)) == 1


@pytest.mark.shows("ddl exchange partition", "known wrong: EXCHANGE PARTITION")
def test_exchange_partition_swaps_the_ids() -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "plain")),
        job(3, 3, table(20, "p", partition=partitions((21, "p0"), (22, "p1")))),
        job(4, 42, table(20, "p", partition=partitions((10, "p0"), (22, "p1"))), table_id=10),
    )
    assert h.table_at(10, 4) is None
    plain = h.table_at(21, 4)
    assert plain is not None and (plain.name, plain.info.id) == ("plain", 21)
    assert [j.id for j in h.jobs_of_table(21, 0, 9)] == [4]


@pytest.mark.shows("ddl alter partitioning", "ddl remove partitioning")
@pytest.mark.parametrize("kind", [71, 72], ids=["PARTITION BY", "REMOVE PARTITIONING"])
def test_a_table_that_is_partitioned_anew_goes_on_under_its_new_id_only(kind: int) -> None:
    """``table_id`` is the old id, the info has the new one (ddl.md 3); its rows stay."""
    h = history(
        database(1),
        job(2, 3, table(10, "t", partition=partitions((11, "p0")))),
        job(3, kind, table(20, "t", partition=partitions((21, "p0"), (22, "p1"))), table_id=10),
        job(4, 14, table(20, "u")),
    )
    assert [t.table_id for t in h.tables_in("d", 2)] == [10] and [t.table_id for t in h.tables_in("d", 3)] == [20]
    assert h.table_at(10, 2) is not None and h.table_at(10, 3) is None
    assert [(t.table_id, t.name) for t in h.tables_in("d", 4)] == [(20, "u")], "nothing of the old name is left"
    assert sorted(h.tables_of_job(h.jobs_between(2, 3)[0])) == [10, 20]
    assert lineage(h, 10, 2, 4).table_id == 20


def test_dropping_a_database_drops_its_tables_and_flashback_brings_them_back() -> None:
    h = history(
        database(1),
        job(2, 3, table(10, "t")),
        job(3, 2),
        job(4, 63),
        job(5, 2),
        database(6, "d", 1001),
        job(7, 3, table(20, "t"), schema_id=1001),
    )
    assert h.table_at(10, 3) is None and h.schema_at("d", 3) is None
    assert h.table_at(10, 4) is not None and h.schema_at("D", 4) is not None
    assert [t.table_id for t in h.tables_in("d", 7)] == [20]


@pytest.mark.shows("ddl flashback cluster")
def test_flashback_cluster_and_unknown_types_are_not_fatal() -> None:
    h = history(database(1), job(2, 3, table(10, "t")), job(3, 62), job(4, 999, table(10, "t")))
    assert h.table_at(10, 9) is not None


def test_batch_create_and_recover() -> None:
    h = history(database(1), job(2, 60, None, many=[table(10, "a"), table(11, "b")]), job(3, 4, table_id=10), job(4, 25, table(10, "a2")))
    assert [t.name for t in h.tables_in("d", 2)] == ["a", "b"]
    assert [t.name for t in h.tables_in("d", 4)] == ["a2", "b"]
    restored = h.restored_by(h.jobs[4])
    assert restored is not None and (restored[0].name, restored[1].id) == ("a", 3) and h.restored_by(h.jobs[3]) is None
    unknown = history(database(1), job(4, 25, table(10, "a2")))
    assert unknown.restored_by(unknown.jobs[4]) is None


def test_a_history_that_begins_in_the_middle_is_taken_as_it_stands() -> None:
    h = history(job(5, 5, table(10, "t")), job(6, 4, table_id=77))
    at = h.table_at(10, 5)
    assert at is not None and (at.schema, at.name) == ("d", "t")


def test_replaced_views_do_not_linger() -> None:
    h = history(database(1), job(2, 21, table(10, "v", view={})), job(3, 21, table(11, "V", view={})))
    assert [t.table_id for t in h.tables_in("d", 3)] == [11]


def test_merged_keeps_everything_and_forgets_nothing() -> None:
    jobs = [Job.from_json(j) for j in (database(1), job(2, 3, table(10, "t")), job(3, 4, table_id=10))]
    whole = SchemaHistory.of(jobs)
    assert SchemaHistory.of(jobs[:2]).merged(jobs[1:]) == whole
    assert whole.merged(jobs) is whole
    assert len(whole) == 3


def test_version_at_goes_by_finished_ts() -> None:
    h = history(database(1), job(2, 3, table(10, "t")), job(3, 4, table_id=10))
    assert [h.version_at(ts) for ts in (9, 10, 29, 30)] == [0, 1, 2, 3]


def test_pickles_small_and_equal() -> None:
    case = load_case("ddl")
    assert pickle.loads(pickle.dumps(case.history)) == case.history
    only = case.history.only([287])
    assert len(pickle.dumps(only)) < 20_000
    assert only.table_at(287, 285) == case.history.table_at(287, 285)


@pytest.mark.shows("ddl gotcha 6")
def test_golden_ddl_ends_with_the_tables_that_tidb_had() -> None:
    case = load_case("ddl")
    version = max(j.version for d in case.ddls if (j := case.history.job(d.job_id)))
    names = sorted([t.schema, t.name] for t in case.history.tables_in("g_ddl", version) if not t.info.is_view)
    assert names == sorted(case.info["tables"])
    ids = {t.name: t.table_id for t in case.history.tables_in("g_ddl", version)}
    assert (ids["ed"], ids["t"], ids["t_old"], ids["tr"]) == (358, 287, 305, 310)


def test_finished_ts_lies_after_the_binlog() -> None:
    """What ``version_at`` promises: it never counts a job whose binlog is still to come."""
    for name in ("ddl", "beyond_mysql"):
        case = load_case(name)
        assert all(j.finished_ts > d.commit_ts for d in case.ddls if (j := case.history.job(d.job_id)))


def test_a_damaged_job_is_corruption() -> None:
    for damaged in ({}, {"id": 1}, {"id": 1, "type": 1, "state": 6, "schema_id": 1, "table_id": 1, "binlog": {"DBInfo": {"id": 1}}}):
        with pytest.raises(Corruption):
            Job.from_json(damaged)


def test_the_reader_shares_equal_columns() -> None:
    a, b = JobReader().read(
        [job(1, 3, table(10, "t")), job(2, 5, table(10, "t", [column(1, "id", {**table(10, "t")["cols"][0]["type"]}), column(2, "a")]))]
    )
    assert a.table_info is not None and b.table_info is not None
    assert a.table_info.columns[0] is b.table_info.columns[0]


def test_an_empty_fold_knows_the_system_database() -> None:
    assert [entries[-1][1].name for entries in Fold().schemas().values() if entries[-1][1]] == ["mysql"]
