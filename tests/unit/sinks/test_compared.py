"""Rows that DDLs took without row changes: an undo compares their tables before and behind the span, whatever else it did to them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.changes.row_images import image_cells
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows, carried, net_rows
from pyspark_tidb_binlog.sinks.past.past_changes import PastChanges
from pyspark_tidb_binlog.sinks.past.undo_plan import compared
from tests.support.ddl_jobs import INT, VARCHAR, column, database, partitions
from tests.support.ddl_jobs import job as ddl_job
from tests.support.ddl_jobs import table as ddl_table
from tests.support.lake_scene import KEY, LakeScene
from tests.support.mirror_rows import published
from tests.support.past_scene import past_of
from tests.support.taken_scene import taken_rows

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> PastChanges:
    lake = tmp_path_factory.mktemp("taken")
    taken_rows(lake)
    return past_of(lake)


def images_at(past: PastChanges, table: TableAt, ts: int) -> pa.RecordBatch:
    """All rows that a mirror has; beside a DDL it lacks none."""
    columns = table.info.target_columns()
    (state,) = [s for s in published(past.directory, ts).values() if s.table_id == table.table_id]
    rows = pa.table(DeltaTable(Path(past.directory, state.path), version=state.version).scan([c.name for c in columns]))
    cells = [image_cells(c, rows[c.name].combine_chunks()) for c in columns]
    return pa.RecordBatch.from_arrays(cells, schema=image_schema(columns))


def compare(past: PastChanges, before: TableAt | None, after: TableAt, after_ts: int, upto_ts: int) -> NetRows:
    def rows_at(ts: int, table: TableAt) -> pa.RecordBatch:
        return carried(images_at(past, table, ts), table, past.schema, int(after.version))

    now = rows_at(upto_ts, after)
    return compared(after, rows_at(after_ts, before) if before is not None else now.slice(0, 0), now)


def undone(past: PastChanges, after_ts: int, upto_ts: int, ids: set[int] | None = None) -> dict[str, list[Row]]:
    """What the tables are after the undo of a span: each of its changes finds the row that it expects."""
    found: dict[str, list[Row]] = {}
    pairs = [*past.around(after_ts, upto_ts, ids, past.taking(after_ts, upto_ts, ids))]
    apart = {i for _, after in pairs for i in past.schema.former_ids(after.table_id)}
    rest = past.changes(after_ts, upto_ts, ids).filter(~pc.field("table_id").isin(apart))
    nets = [compare(past, *pair, after_ts, upto_ts) for pair in pairs]
    for net in (*nets, *net_rows(rest, past.schema, past.version)):
        rows = {tuple(row.values()) for row in images_at(past, net.table, upto_ts).to_pylist()}
        rows = (rows - required(rows, sides(net.now, net.now_there))) | sides(net.was, net.was_there)
        found[net.table.name] = sorted(rows)
    return found


def sides(images: pa.RecordBatch, there: Any) -> set[Row]:
    return {tuple(row.values()) for row in images.filter(pa.array(there)).to_pylist()}


def required(rows: set[Row], expected: set[Row]) -> set[Row]:
    assert expected <= rows
    return expected


@pytest.mark.parametrize(
    ("after_ts", "wanted"),
    [
        (35, {"parent": [(1, 10), (2, 10), (150, 10)], "plain": [(5, 10), (6, 10), (7, 10)], "log": [(7,), (8,)]}),
        (55, {"parent": [(5, 11), (6, 10), (150, 11)], "plain": [(1, 11), (2, 10), (3, 10)], "log": [(7,), (8,), (9,)]}),
        (68, {"parent": [(5, 11), (6, 12), (150, 11)], "log": [(7,)]}),
        (71, {"parent": [(150, 11)], "log": [(7,)]}),
        (25, {"parent": [], "plain": [], "log": []}),
        (15, {"parent": [], "plain": [], "log": []}),
    ],
)
def test_the_undo_of_a_span_with_ddls_that_took_rows(after_ts: int, wanted: dict[str, list[Row]], past: PastChanges) -> None:
    assert undone(past, after_ts, 95) == wanted


def test_of_one_table_only_its_own_rows_come_back(past: PastChanges) -> None:
    assert undone(past, 55, 95, {20})["parent"] == [(5, 11), (6, 10), (150, 11)]


@pytest.mark.parametrize(
    ("ids", "refused"), [({20}, ["exchange", "drop"]), ({10, 21}, ["exchange"]), ({30, 31, 32}, []), (None, ["exchange", "drop"])]
)
def test_what_was_exchanged_is_refused_also_among_tables_that_the_span_has_made(
    ids: set[int] | None, refused: Sequence[str], past: PastChanges
) -> None:
    jobs = past.schema.rowless(past.jobs(15, 95), past.schema.version_at(15), ids)
    assert [word for job in jobs for word in ("exchange", "drop") if word in job.query] == [w for w in refused if w == "exchange"]
    later = past.schema.rowless(past.jobs(25, 95), past.schema.version_at(25), ids)
    assert [word for job in later for word in ("exchange", "drop") if word in job.query] == refused


@pytest.mark.parametrize(("name", "wanted"), [("d.log", {30, 31, 32}), ("d.plain", {10, 21}), ("d.parent", {20})])
def test_the_tables_that_a_name_may_have_meant(name: str, wanted: set[int], past: PastChanges) -> None:
    """Files without these are passed over; those of an exchange are always among them."""
    at = LakeAt(cast(Any, None), past.directory, past.published, past.commit_ts)
    assert at._maybe_called(past.published.called(name, past.commit_ts)) - {10, 20, 21} == wanted - {10, 20, 21}


def test_what_executors_get_of_the_schema_knows_a_table_that_was_exchanged(past: PastChanges) -> None:
    """Of a ledger that begins behind the exchange there is a history."""
    assert past.schema.only({10, 21}).table_of(21, 5).info == past.schema.table_of(21, 5).info


DATE, LATIN1 = {**INT, "Tp": 10, "Flag": 1, "Flen": 10}, {**VARCHAR, "Charset": "latin1", "Collate": "latin1_bin"}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "words"),
    [
        (DATE, "2026-11-20", "0000-00-00", "column v of d.t has NULL in place of dates that no calendar has"),
        (LATIN1, b"ok", b"\xe4", r"column v of d.t has U\+FFFD in place of bytes"),
    ],
)
def test_values_that_a_mirror_shows_not_to_keep_are_refused(kind: dict[str, Any], good: Any, bad: Any, words: str, tmp_path: Path) -> None:
    """Of rows that the span has not changed; else NULL, or another text, would come back."""
    scene, columns = LakeScene(), [column(1, "id", KEY), column(2, "v", kind)]
    scene.ddl(10, database(1))
    scene.ddl(20, ddl_job(2, 3, ddl_table(10, "t", columns)))
    scene.row(30, 10, 2, None, {"id": 1, "v": good})
    scene.ddl(50, ddl_job(3, 11, ddl_table(11, "t", columns), table_id=10, query="truncate table t"))
    scene.row(60, 11, 3, None, {"id": 1, "v": bad})
    scene.ddl(70, ddl_job(4, 11, ddl_table(12, "t", columns), table_id=11, query="truncate table t"))
    scene.moments(tmp_path, 30, 50, 60, 80)
    past = past_of(tmp_path)
    ((old, new),) = past.around(35, 55, None, past.taking(35, 55, None))
    net = compare(past, old, new, 35, 55)
    assert (net.counts, net.was.to_pylist()) == ((0, 1, 0), [{"id": 1, "v": good}])
    ((old, new),) = past.around(65, 80, None, past.taking(65, 80, None))
    with pytest.raises(ConfigError, match=words):
        compare(past, old, new, 65, 80)


def test_a_partition_that_is_exchanged_back(tmp_path: Path) -> None:
    """The table gets its former id."""
    scene = LakeScene()

    def parent(first: int) -> dict[str, Any]:
        return ddl_table(20, "parent", partition=partitions((first, "p0"), (22, "p1")))

    scene.ddl(10, database(1))
    scene.ddl(20, ddl_job(2, 3, ddl_table(10, "plain")))
    scene.ddl(21, ddl_job(3, 3, parent(21)))
    for table_id, key in ((10, 1), (10, 5), (20, 2)):
        scene.row(30, table_id, 3, None, {"id": key})
    scene.row(40, 10, 3, {"id": 5}, None)
    for ts, number, table_id in ((50, 4, 10), (60, 5, 21)):
        scene.ddl(
            ts, ddl_job(number, 42, parent(table_id), table_id=table_id, query="alter table parent exchange partition p0 with table plain")
        )
    scene.row(70, 10, 5, None, {"id": 7})
    scene.moments(tmp_path, 30, 40, 50, 60, 75)
    past = past_of(tmp_path)
    assert undone(past, 35, 75) == {"plain": [(1,), (5,)], "parent": [(2,)]}
    assert undone(past, 55, 75) == {"plain": [(2,)], "parent": [(1,)]}
