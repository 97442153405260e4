"""``sinks.engine.keyed`` and its subsets in ``sinks.mysql.part_plans``: what goes in comes out."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_insert
from pyspark_tidb_binlog.schemas.events import ControlType, Op
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.packed import packed
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, ROW_SUMMARY, TRANSACTION, TRANSACTIONS
from pyspark_tidb_binlog.sinks.engine.batch import exploded_upto, slices, summarise
from pyspark_tidb_binlog.sinks.engine.keyed import BLOCK, FRAMES, KEYED, BlockKind, RowSpool, by_part, pack, unpack, unpack_each, with_keys
from pyspark_tidb_binlog.sinks.mysql.part_plans import ends_without, subset_numbers_of, subsets
from tests.support.ddl_jobs import INT, column, database, history, job, table


def events(*commit_ts: int) -> pa.Table:
    rows = [{"commit_ts": ts, "seq": 0, "op": int(Op.INSERT), "table_id": 7, "schema_version": 3, "row": b"r"} for ts in commit_ts]
    return pa.Table.from_pylist(rows, schema=ROW_EVENT)


def test_a_block_knows_its_ends_and_keeps_its_events() -> None:
    (block,) = pack(BlockKind.ROWS, 1, events(5, 9, 7))
    assert block.schema == BLOCK
    assert block.select(["kind", "part", "first_ts", "last_ts"]).to_pylist() == [{"kind": 0, "part": 1, "first_ts": 5, "last_ts": 9}]
    assert unpack([block], ROW_EVENT) == events(5, 9, 7)


def test_many_blocks_are_one_table_in_order() -> None:
    blocks = [*pack(BlockKind.ROWS, 0, events(1, 2)), *pack(BlockKind.ROWS, 1, events(3))]
    assert unpack(blocks, ROW_EVENT).column("commit_ts").to_pylist() == [1, 2, 3]


def test_nothing_is_no_block_and_no_block_is_nothing() -> None:
    assert list(pack(BlockKind.ROWS, 0, events())) == []
    assert unpack([], ROW_EVENT) == events()


@pytest.mark.parametrize("parts", [[], [0], [2, 0, 2, 2, 0], [300, 1, 300]])
def test_the_rows_of_each_part_keep_their_order(parts: list[int]) -> None:
    rows = (
        events(*range(len(parts)))
        .append_column("key", pa.nulls(len(parts), pa.binary()))
        .append_column("part", pa.array(parts, pa.int32()))
    )
    rows = rows.cast(KEYED)
    found = list(by_part(rows))
    assert [part for part, _ in found] == sorted(set(parts))
    assert all(table == rows.filter(pc.equal(rows.column("part"), part)) for part, table in found)


def test_each_kind_of_events_has_its_frame() -> None:
    made = {
        BlockKind.ROWS: events(5),
        BlockKind.DDLS: pa.Table.from_pylist([{"commit_ts": 6, "job_id": 2, "schema_state": 3, "query": b"q"}], schema=DDL_EVENT),
        BlockKind.CONTROLS: pa.Table.from_pylist([{"control": int(ControlType.LOST), "after_ts": 1, "upto_ts": 2}], schema=CONTROL),
        BlockKind.SUMMARIES: summarise(events(5, 6), ()).select(ROW_SUMMARY.names).cast(ROW_SUMMARY),
        BlockKind.MARKS: events(7),
    }
    assert set(made) == set(FRAMES)
    blocks = [block for kind, frame in made.items() for block in pack(kind, 0, frame)]
    assert [block.column("first_ts").to_pylist() for block in blocks] == [[5], [None], [None], [None], [None]]
    assert unpack_each(blocks) == made
    assert {kind: frame.num_rows for kind, frame in unpack_each([]).items()} == dict.fromkeys(FRAMES, 0)


@pytest.mark.parametrize("rows", [0, 1, 1999, 2000, 2001, 4500])
def test_slices_cover_the_batch(rows: int) -> None:
    columns = [
        pa.nulls(rows, pa.int8()),
        pa.array(range(rows), pa.int64()),
        pa.array(range(rows), pa.int64()),
        pa.nulls(rows, pa.int32()),
        pa.nulls(rows, pa.binary()),
    ]
    values = [packed(pa.Table.from_arrays(columns, schema=TRANSACTION)), packed(TRANSACTION.empty_table())]
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=TRANSACTIONS)
    assert [ts for piece in slices([batch]) for ts in piece.column("commit_ts").to_pylist()] == list(range(rows))


def stream_of(transactions: int, controls: int) -> Iterator[pa.RecordBatch]:
    """Control rows, then transactions of one row, a value each: as raw delivery gives them."""
    value = binlog_pb2.PrewriteValue(schema_version=3)
    value.mutations.add(table_id=7, inserted_rows=[b"r" * 20], sequence=[0])
    for n in range(controls):
        control = {"control": int(ControlType.LOST), "start_ts": n, "commit_ts": n + 1, "payload": b"gone"}
        yield pa.RecordBatch.from_pylist(
            [{"transactions": packed(pa.Table.from_pylist([control], schema=TRANSACTION))}], schema=TRANSACTIONS
        )
    for n in range(transactions):
        payload = binlog_pb2.Binlog(tp=binlog_pb2.Commit, prewrite_value=value.SerializeToString()).SerializeToString()
        row = {"start_ts": n, "commit_ts": n + 1, "payload": payload}
        yield pa.RecordBatch.from_pylist([{"transactions": packed(pa.Table.from_pylist([row], schema=TRANSACTION))}], schema=TRANSACTIONS)


@pytest.mark.parametrize("controls", [0, 1, 20])
def test_a_batch_comes_to_the_driver_whole_or_not_at_all(controls: int) -> None:
    values = pa.Table.from_batches(stream_of(30, controls))
    whole = exploded_upto(values, 1 << 30, 1 << 30)
    assert whole is not None
    assert (whole.rows.num_rows, whole.controls.num_rows) == (30, controls)
    for events_limit, size in [*((1 << 30, size) for size in range(0, 3000, 93)), *((count, 1 << 30) for count in range(0, 60, 3))]:
        found = exploded_upto(values, events_limit, size)
        fits = 30 + controls <= events_limit and sum(frame.nbytes for frame in (whole.rows, whole.ddls, whole.controls)) <= size
        assert found == (whole if fits else None)


def test_a_value_too_big_to_come_to_the_driver_is_not_passed_over() -> None:
    values = pa.Table.from_batches(stream_of(3, 1))
    left_out = pa.array([b"", *values.column("transactions").to_pylist()[1:]], pa.binary())
    assert exploded_upto(pa.table([left_out], names=["transactions"]), 1 << 30, 1 << 30) is None


def test_rows_of_an_unknown_table_have_no_key() -> None:
    keyed = with_keys(events(1, 2), SchemaHistory(), 3)
    assert keyed.schema == KEYED
    assert keyed.column("key").null_count == 2
    assert set(keyed.column("part").to_pylist()) == {0}


def test_subsets_hold_each_rows_events_together_and_leave_out_what_the_net_change_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part too big for memory is planned in subsets: any row's first and last event are in the same one."""
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.part_plans.IN_MEMORY", 4_000)
    keys = [n % 50 for n in range(1000)]
    made = [
        {"commit_ts": n + 1, "seq": 0, "op": int(Op.INSERT if n < 50 else Op.UPDATE), "table_id": 7, "schema_version": 3}
        | {"row": b"r" * 20, "key": b"%08d" % key, "part": key % 2}
        for n, key in enumerate(keys)
    ]
    table = pa.Table.from_pylist(made, schema=KEYED)
    for part in range(2):
        rows = table.filter(pa.array([row["part"] == part for row in made]))
        cut = list(subsets(rows, subset_numbers_of(rows, ends_without(rows, frozenset()))))
        assert len(cut) > 5
        found = [(row["key"], row["commit_ts"]) for subset in cut for row in subset.to_pylist()]
        assert sorted(found) == sorted((b"%08d" % key, ts + key) for key in range(50) if key % 2 == part for ts in (1, 951))
        assert sum(subset.num_rows > 0 for subset in cut) > 3


CLUSTERED = history(
    database(1, "d"),
    job(2, 3, table(10, "t", [column(1, "id", {**INT, "Flag": 4099})]), query="CREATE TABLE `t` (`id` INT PRIMARY KEY)", schema_name="d"),
)


def parts() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The part, of four, of each of 20,480 rows with consecutive handles from 0 on."""
    at = CLUSTERED.table_at(10, 2)
    assert at is not None
    event = {"commit_ts": 5, "op": int(Op.INSERT), "table_id": 10, "schema_version": 2}
    rows = [event | {"seq": n, "row": encode_insert(at.info, {1: n}, n)} for n in range(20 * 1024)]
    found: np.ndarray[tuple[int], np.dtype[np.int32]] = (
        with_keys(pa.Table.from_pylist(rows, schema=ROW_EVENT), CLUSTERED, 4).column("part").to_numpy()
    )
    return found


def test_a_block_of_neighbours_is_in_one_part() -> None:
    blocks = parts().reshape(20, 1024)
    assert (blocks == blocks[:, :1]).all() and set(blocks[:, 0].tolist()) == {0, 1, 2, 3}


SPOOLED = pa.schema([pa.field("n", pa.int64()), pa.field("row", pa.binary())])


@pytest.fixture
def no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


def spooled(first: int, count: int) -> pa.Table:
    return pa.table({"n": range(first, first + count), "row": [b"x" * n for n in range(count)]}, schema=SPOOLED)


@pytest.mark.parametrize("bound", [1 << 20, 300, 0])
def test_spooled_rows_come_out_as_they_went_in(no_file_is_left: None, bound: int) -> None:
    with RowSpool(SPOOLED, bound) as spool:
        whole = spool.extend(spooled(n * 20, 20) for n in range(5)).table()
        assert whole.equals(pa.concat_tables([spooled(n * 20, 20) for n in range(5)]))
    with RowSpool(SPOOLED, bound) as spool:
        assert spool.table().num_rows == 0


def test_a_spool_that_fails_half_way_leaves_no_file(no_file_is_left: None) -> None:
    def breaks() -> Iterator[pa.Table]:
        yield spooled(0, 20)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), RowSpool(SPOOLED, 0) as spool:
        spool.extend(breaks())
