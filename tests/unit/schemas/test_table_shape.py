"""Which DDLs change what a reader of one table takes its columns and rows for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.changes.change_readers import asked_shape
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.changes.table_shape import shape_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.errors import ConfigError
from tests.support.ddl_jobs import INT, VARCHAR, column, history, job, partitions, table

ITEM = NamedTable("d", "item")
BEFORE = [job(10, JobType.CREATE_TABLE, table(1, "item")), job(11, JobType.CREATE_TABLE, table(2, "item_new"))]
PARTED = table(3, "item", partition=partitions((31, "p0"), (32, "p1")))


def changes(*later: Mapping[str, Any], before: list[dict[str, Any]] = BEFORE) -> bool:
    """Whether the last job changes ``d.item`` for who reads it as it is after ``before``."""
    known = history(*before, *later)
    shape = shape_of(ITEM, known, 11, InvalidDates.NULL)
    return shape.changed_by(known.ordered[-1], known)


def test_another_table_under_the_name_is_a_change_also_with_the_same_columns() -> None:
    """As tools for online schema changes end: the rows that come then are another table's."""
    both = [table(1, "item_old"), table(2, "item")]
    assert changes(job(12, JobType.RENAME_TABLES, many=both, query="RENAME TABLE d.item TO d.item_old, d.item_new TO d.item"))


def test_rows_that_a_flashback_takes_back_are_a_change_of_every_table() -> None:
    assert changes(job(12, JobType.FLASHBACK_CLUSTER, query="FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'"))


@pytest.mark.parametrize(
    ("kind", "info", "is_change"),
    [
        (JobType.ADD_PARTITION, PARTED | {"partition": partitions((31, "p0"), (32, "p1"), (33, "p2"))}, False),
        (JobType.REORGANIZE_PARTITION, PARTED | {"partition": partitions((34, "p0"), (35, "p1"))}, False),
        (JobType.ADD_INDEX, PARTED, False),
        (JobType.TRUNCATE_PARTITION, PARTED | {"partition": partitions((31, "p0"), (36, "p1"))}, True),
        (JobType.DROP_PARTITION, PARTED | {"partition": partitions((31, "p0"))}, True),
        (JobType.ADD_COLUMN, table(3, "item", [*PARTED["cols"], column(2, "n")]), True),
    ],
)
def test_jobs_on_a_table_with_partitions(kind: JobType, info: dict[str, Any], is_change: bool) -> None:
    """What moves rows between partitions is no change; what empties them is one without row changes."""
    assert changes(job(12, kind, info), before=[job(10, JobType.CREATE_TABLE, PARTED)]) == is_change


@pytest.mark.parametrize("name", ["item", "plain"])
def test_an_exchange_of_a_partition_changes_both_tables(name: str) -> None:
    """Rows of each are the other's afterwards."""
    parted, plain = (PARTED, table(4, "plain")) if name == "item" else (PARTED | {"name": {"O": "parted"}}, table(4, "item"))
    made = [job(10, JobType.CREATE_TABLE, parted), job(11, JobType.CREATE_TABLE, plain)]
    swapped = parted | {"partition": partitions((4, "p0"), (32, "p1"))}
    assert changes(job(12, JobType.EXCHANGE_PARTITION, swapped, table_id=4), before=made)


def test_a_start_that_options_name_hides_no_ddl_from_a_checkpoint_before_it(tmp_path: Path) -> None:
    truncated = job(12, JobType.TRUNCATE_TABLE, table(5, "item"), table_id=1, query="TRUNCATE TABLE item")
    jobs = [*BEFORE, truncated]
    path = tmp_path / "history.json"
    path.write_text(json.dumps(jobs))
    options = {"pumps": "127.0.0.1:1", "tidbStatus": str(path), "table": "d.item"}
    known = history(*jobs)
    for more, hides in (({}, False), ({"startingCommitTs": "130"}, False), ({"schemaCommitTs": "130"}, True)):
        shape = asked_shape(options | more)
        assert shape is not None and (shape.table_id, shape.changed_by(known.ordered[-1], known)) == (5, not hides)


def test_the_job_that_makes_the_table_is_no_change_of_it() -> None:
    known = history(
        *BEFORE, job(12, JobType.DROP_TABLE, None, table_id=1, table_name="item"), job(13, JobType.CREATE_TABLE, table(6, "item"))
    )
    first, again = (shape_of(ITEM, known, version, InvalidDates.NULL) for version in (9, 12))
    assert [first.changed_by(job, known) for job in known.ordered] == [False, False, True, True]
    assert [again.changed_by(job, known) for job in known.ordered] == [True, False, True, False]


@pytest.mark.parametrize("dates", list(InvalidDates))
def test_local_times_that_become_instants_are_a_change_also_where_both_are_text(dates: InvalidDates) -> None:
    made = [table(1, "item", [column(1, "id"), column(2, "at", {**INT, "Tp": tp, "Flen": 19})]) for tp in (12, 7)]
    known = history(job(10, JobType.CREATE_TABLE, made[0]), job(11, JobType.MODIFY_COLUMN, made[1]))
    assert shape_of(ITEM, known, 10, dates).changed_by(known.ordered[-1], known)


COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "a", VARCHAR), column(3, "b")]


def sources(*later: dict[str, Any], version: int = 10) -> list[int | None]:
    """Where the columns of ``d.item`` at ``version`` come from in the table that the last job leaves; backwards, in the first one, behind it."""
    known = history(job(10, JobType.CREATE_TABLE, table(1, "item", COLUMNS)), *later)
    shape = shape_of(ITEM, known, version, InvalidDates.NULL)
    found = known.find("d", "item", known.newest_version if version == 10 else 10)
    assert found is not None
    return shape.sources(found, known)


def test_a_column_whose_type_and_name_a_change_converted_goes_on() -> None:
    """CHANGE COLUMN with a conversion gives it another id and another name: nothing else says that it is the same."""
    converted = table(1, "item", [COLUMNS[0], column(3, "b"), column(4, "A2")])
    change = job(12, JobType.MODIFY_COLUMN, converted, query="ALTER TABLE d.item /* x */ CHANGE `a` A2 INT AFTER b")
    assert sources(change) == [0, 2, 1]
    assert sources(change, version=12) == [0, 2, 1], "rows from before it, read under the columns behind it"
    again = table(1, "item", [COLUMNS[0], column(5, "a3"), column(3, "b")])
    more = job(
        13, JobType.MULTI_SCHEMA_CHANGE, again, query="ALTER TABLE item DROP INDEX i, CHANGE COLUMN IF EXISTS a2 a3 DATE, ADD INDEX (b)"
    )
    assert sources(change, more) == [0, 1, 2]


def test_a_column_that_is_dropped_beside_one_that_is_added_does_not_become_it() -> None:
    other = table(1, "item", [COLUMNS[0], column(3, "b"), column(4, "c")])
    assert sources(job(12, JobType.MULTI_SCHEMA_CHANGE, other, query="ALTER TABLE item DROP COLUMN a, ADD COLUMN c INT")) == [0, None, 1]


def test_a_renamed_column_goes_on_over_a_truncate() -> None:
    renamed = [COLUMNS[0], column(2, "text", VARCHAR), COLUMNS[2]]
    rename = job(12, JobType.MODIFY_COLUMN, table(1, "item", renamed), query="ALTER TABLE item RENAME COLUMN a TO text")
    emptied = job(13, JobType.TRUNCATE_TABLE, table(9, "item", renamed), table_id=1, query="TRUNCATE TABLE item")
    assert sources(rename, emptied) == [0, 1, 2]
    assert sources(rename, emptied, version=13) == [0, 1, 2]


@pytest.mark.parametrize("kind", [JobType.DROP_TABLE, JobType.RENAME_TABLE])
def test_a_table_that_is_gone_is_an_error_that_names_what_took_it_away(kind: JobType) -> None:
    """Whoever starts a query again meanwhile learns when, and how its last changes are read."""
    gone = job(13, kind, table(1, "aside", COLUMNS) if kind is JobType.RENAME_TABLE else None, table_id=1, query="the statement")
    known = history(
        job(10, JobType.CREATE_TABLE, table(1, "item")), job(11, JobType.ADD_COLUMN, table(1, "item", COLUMNS)), job(12, 1), gone
    )
    with pytest.raises(
        ConfigError, match=r'DDL job 13 removed the table at 130 .*: the statement -- .*created again; .*"schemaCommitTs", "110"'
    ):
        shape_of(ITEM, known, 13, InvalidDates.NULL)
    assert [c.name for c in shape_of(ITEM, known, known.version_at(110), InvalidDates.NULL).columns] == ["id", "a", "b"]
    with pytest.raises(ConfigError, match="no table d.other .*; Check the name"):
        shape_of(NamedTable("d", "other"), known, 13, InvalidDates.NULL)
