"""What the past of a lake is not known of, and that it is refused; and rows that DDLs took, which an undo has from their tables before the span.
In-process, with real lakes.
"""

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
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt
from pyspark_tidb_binlog.sinks.lake.tables_at import TablesAt
from pyspark_tidb_binlog.sinks.past.net_rows import NetRows, carried, key_updates, net_rows, typed_history
from pyspark_tidb_binlog.sinks.past.past_changes import PastChanges
from pyspark_tidb_binlog.sinks.past.undo_plan import TableUndo, compared
from tests.support.ddl_jobs import INT, VARCHAR, column, index, job, partitions, table
from tests.support.lake_scene import KEY, LakeScene
from tests.support.mirror_rows import published
from tests.support.past_scene import past_of
from tests.support.taken_scene import taken_rows


def test_what_a_ddl_took_of_a_table_before_it_got_another_id_is_no_history(tmp_path: Path) -> None:
    """A partition that was dropped before a TRUNCATE, and rows without a key that got other ``_tidb_rowid``s with another id of their table."""
    scene = LakeScene.of(
        table(20, "parts", partition=partitions((21, "p0"), (22, "p1"))),
        table(30, "loose", [column(1, "a")], pk_is_handle=False),
        table(40, "whole"),
    )
    for key in (1, 150):
        scene.row(30, 20, 2, None, {"id": key})
    scene.ddl(40, job(5, 20, table(20, "parts", partition=partitions((22, "p1"))), query="alter table parts drop partition p0"))
    scene.ddl(50, job(6, 11, table(25, "parts", partition=partitions((26, "p1"))), table_id=20, query="truncate table parts"))
    loose = table(35, "loose", [column(1, "a")], pk_is_handle=False, partition=partitions((36, "p0")))
    scene.ddl(51, job(7, 71, loose, table_id=30, query="alter table loose partition by range (a) (…)"))
    scene.ddl(52, job(8, 71, table(45, "whole", partition=partitions((46, "p0"))), table_id=40, query="alter table whole partition …"))
    scene.ddl(53, job(9, 11, table(47, "whole", partition=partitions((48, "p0"))), table_id=45, query="truncate table whole"))
    past = past_of(scene.run(tmp_path, 35, 60))
    found = {name: [j.query for j in past.unfollowed(past.ids_of(name))] for name in ("d.parts", "d.loose", "d.whole")}
    assert found == {
        "d.parts": ["alter table parts drop partition p0"],
        "d.loose": ["alter table loose partition by range (a) (…)"],
        "d.whole": [],
    }


def test_rows_of_a_table_that_the_lake_does_not_know_do_not_come_back(tmp_path: Path) -> None:
    """It is older than the lake, and a TRUNCATE is the first DDL of it."""
    scene = LakeScene.of(table(10, "t"), start=25)
    scene.row(30, 10, 2, None, {"id": 1})
    scene.ddl(50, job(3, 11, table(11, "t"), table_id=10, query="truncate table t"))
    past = past_of(scene.run(tmp_path, 35, 60))
    with pytest.raises(ConfigError, match=r"no definition of the table before truncate table t"):
        past.taking(30, 60, None)


def test_the_rows_that_a_truncate_took_end_before_those_that_came_behind_it(tmp_path: Path) -> None:
    """TiDB's FinishedTS is up to half a second above the commit_ts."""
    scene = LakeScene.of(table(10, "t"))
    scene.row(tso(1000), 10, 2, None, {"id": 1})
    truncate = job(3, 11, table(11, "t"), table_id=10, query="truncate table t")
    scene.ddl(tso(2000), truncate)
    truncate["binlog"]["FinishedTS"] = tso(2300)
    scene.row(tso(2100), 11, 3, None, {"id": 1})
    wider = table(11, "t", [column(1, "id", KEY), column(2, "price")])
    scene.ddl(tso(2400), job(4, 5, wider, query="alter table t add column price int"))
    past = past_of(scene.run(tmp_path, tso(3000)))
    states = typed_history(past.changes(0, past.commit_ts, {10, 11}), past.schema.only({10, 11}), past.schema.table_of(11, 4))
    # The same time is named, so that a span that ends before it is on one side of the DDL.
    with pytest.raises(ConfigError, match=rf"truncate table t at .* \({tso(2000)}\); todo"):
        past.require_images(tso(1500), tso(2000), {10}, todo="todo")
    past.require_images(tso(1500), tso(2000) - 1, {10})
    assert [end and end.timestamp() for end in states["ends"].to_pylist()] == [2.0, None]
    assert states.select(["id", "price"]).to_pylist() == [{"id": 1, "price": None}] * 2


def test_a_table_that_has_an_id_again_is_there(tmp_path: Path) -> None:
    """FLASHBACK TABLE after a TRUNCATE, and a second EXCHANGE with the same partition: what came before the id was free is not what has it now."""

    def parent(first: int) -> dict[str, Any]:
        return table(20, "parent", partition=partitions((first, "p0"), (22, "p1")))

    scene = LakeScene.of(table(10, "plain"), parent(21), table(30, "log"))
    for table_id in (10, 30):
        scene.row(30, table_id, 4, None, {"id": 1})
    scene.ddl(40, job(5, 11, table(31, "log"), table_id=30, query="truncate table log"))
    scene.ddl(41, job(6, 25, table(30, "log_then"), query="flashback table log to log_then"))
    for version, old in ((7, 10), (8, 21)):
        scene.ddl(
            35 + version, job(version, 42, parent(old), table_id=old, query="alter table parent exchange partition p0 with table plain")
        )
    for table_id in (10, 30):
        scene.row(60, table_id, 8, None, {"id": 2})
    past = past_of(scene.run(tmp_path, 35, 70))
    nets = list(net_rows(past.changes(50, 70, None), past.schema, past.version))
    assert {net.table.name: (net.now.to_pylist(), net.now_there.tolist()) for net in nets} == {
        "plain": ([{"id": 2}], [True]),
        "log_then": ([{"id": 2}], [True]),
    }
    for table_id in (10, 30):
        states = typed_history(past.changes(50, 70, {table_id}), past.schema, past.schema.table_of(table_id, 8))
        assert states["ends"].to_pylist() == [None]
    # Those of before are of other tables, or gone.
    assert [net.now_there.any() for net in net_rows(past.changes(25, 35, None), past.schema, past.version)] == [False, False]


def test_which_delete_and_insert_are_an_update_of_the_key(tmp_path: Path) -> None:
    """Half of the columns that are in no key are the same, or there are none; also under columns that the table does not have any more."""
    former = [column(1, "id", KEY), column(2, "u"), column(3, "name", VARCHAR), column(4, "price"), column(5, "day")]
    unique = {"index_info": [index(1, "u", ("u", 1), unique=True)]}
    scene = LakeScene.of(table(10, "t", former, **unique), table(11, "bare"))
    row = {"id": 1, "u": 1, "name": b"a", "price": 5, "day": None}
    pairs = [
        (30, 10, row, {**row, "id": 2}),
        (31, 10, row, {**row, "id": 2, "u": 3, "price": 6}),
        (32, 10, row, {**row, "id": 2, "name": b"b", "price": 6}),
        (33, 10, row, {"id": 2, "u": 2, "name": b"b", "price": 6, "day": 7}),
        (34, 10, row, row),
        (35, 11, {"id": 1}, {"id": 2}),
    ]
    for ts, table_id, old, new in pairs:
        scene.row(ts, table_id, 3, old, None)
        scene.row(ts, table_id, 3, None, new)
    # Not of one table, nor next to each other.
    scene.row(36, 11, 3, {"id": 1}, None)
    scene.row(36, 10, 3, None, row)
    scene.row(37, 11, 3, {"id": 2}, None)
    scene.row(38, 11, 3, None, {"id": 3})
    scene.ddl(40, job(4, 4, table(10, "t", former[:2] + former[4:], **unique), query="alter table t drop name, drop price"))
    past = past_of(scene.run(tmp_path, 50))
    rows = past.changes(0, 50, None)
    assert [rows["commit_ts"][at].as_py() for at in key_updates(rows, past.schema).tolist()] == [30, 31, 35]
    assert key_updates(rows.slice(0, 0), past.schema).tolist() == key_updates(rows.slice(0, 1), past.schema).tolist() == []


def test_a_row_that_came_or_went_is_found_by_its_key(tmp_path: Path) -> None:
    """Else a MariaDB's table with documents would be refused."""
    scene = LakeScene.of(table(10, "t"))
    scene.row(30, 10, 2, None, {"id": 1})
    scene.row(40, 10, 2, {"id": 1}, None)
    scene.row(40, 10, 2, None, {"id": 2})
    past = past_of(scene.run(tmp_path, 50))
    assert [(net.counts, TableUndo(net).finds_by_all) for net in net_rows(past.changes(35, 50, None), past.schema, past.version)] == [
        ((1, 1, 0), False)
    ]


def test_a_value_that_needs_tidb_is_refused_with_the_ddl(tmp_path: Path) -> None:
    """A command ends with a message, not with the trace of a defect."""
    double = {**column(2, "twice"), "generated_expr_string": "`id` * 2", "generated_stored": True}
    scene = LakeScene.of(table(10, "t", [column(1, "id", KEY), double]))
    scene.row(30, 10, 2, None, {"id": 1})
    scene.ddl(40, job(3, 12, table(10, "t", [column(1, "id", KEY), column(2, "twice")]), query="alter table t modify twice int"))
    past = past_of(scene.run(tmp_path, 35, 45))
    with pytest.raises(ConfigError, match=r"d\.t: alter table t modify twice int at .*: column twice was a generated one"):
        list(net_rows(past.changes(25, 35, None), past.schema, past.version))


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
    at = LakeAt(cast(Any, None), TablesAt(past.directory, past.published, past.commit_ts, 0))
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
    columns = [column(1, "id", KEY), column(2, "v", kind)]
    scene = LakeScene.of(table(10, "t", columns))
    scene.row(30, 10, 2, None, {"id": 1, "v": good})
    scene.ddl(50, job(3, 11, table(11, "t", columns), table_id=10, query="truncate table t"))
    scene.row(60, 11, 3, None, {"id": 1, "v": bad})
    scene.ddl(70, job(4, 11, table(12, "t", columns), table_id=11, query="truncate table t"))
    past = past_of(scene.moments(tmp_path, 30, 50, 60, 80))
    ((old, new),) = past.around(35, 55, None, past.taking(35, 55, None))
    net = compare(past, old, new, 35, 55)
    assert (net.counts, net.was.to_pylist()) == ((0, 1, 0), [{"id": 1, "v": good}])
    ((old, new),) = past.around(65, 80, None, past.taking(65, 80, None))
    with pytest.raises(ConfigError, match=words):
        compare(past, old, new, 65, 80)


def test_a_partition_that_is_exchanged_back(tmp_path: Path) -> None:
    """The table gets its former id."""

    def parent(first: int) -> dict[str, Any]:
        return table(20, "parent", partition=partitions((first, "p0"), (22, "p1")))

    scene = LakeScene.of(table(10, "plain"), parent(21))
    for table_id, key in ((10, 1), (10, 5), (20, 2)):
        scene.row(30, table_id, 3, None, {"id": key})
    scene.row(40, 10, 3, {"id": 5}, None)
    for ts, number, table_id in ((50, 4, 10), (60, 5, 21)):
        scene.ddl(
            ts, job(number, 42, parent(table_id), table_id=table_id, query="alter table parent exchange partition p0 with table plain")
        )
    scene.row(70, 10, 5, None, {"id": 7})
    past = past_of(scene.moments(tmp_path, 30, 40, 50, 60, 75))
    assert undone(past, 35, 75) == {"plain": [(1,), (5,)], "parent": [(2,)]}
    assert undone(past, 55, 75) == {"plain": [(2,)], "parent": [(1,)]}
