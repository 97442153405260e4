"""``schemas.explode``: order of execution, DDLs, punctuation, damaged input."""

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import ControlType, Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, TRANSACTION


def mutation(table_id: int, **lists: list[bytes] | list[int]) -> pb.TableMutation:
    return pb.TableMutation(table_id=table_id, **lists)


Row = tuple[ControlType | None, int, int, bytes | None]


def commit(commit_ts: int, version: int, *mutations: pb.TableMutation) -> Row:
    value = pb.PrewriteValue(schema_version=version, mutations=mutations).SerializeToString()
    payload = pb.Binlog(tp=pb.Commit, start_ts=commit_ts - 1, commit_ts=commit_ts, prewrite_value=value).SerializeToString()
    return None, commit_ts - 1, commit_ts, payload


def batch(*rows: Row) -> pa.RecordBatch:
    whole = [(*row[:3], None, row[3]) for row in rows]
    columns = [pa.array(list(column), field.type) for column, field in zip(zip(*whole, strict=True), TRANSACTION, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=TRANSACTION)


@pytest.mark.shows("wire gotcha 5")
def test_events_follow_the_sequence_over_all_tables_of_a_transaction() -> None:
    first = mutation(7, inserted_rows=[b"i1", b"i2"], updated_rows=[b"u1"], deleted_rows=[b"d1"], sequence=[0, 1, 4, 0])
    second = mutation(9, inserted_rows=[b"j1"], sequence=[0])
    events = explode(batch(commit(100, 5, first, second))).rows
    assert events.schema == ROW_EVENT
    assert [(e["seq"], e["op"], e["table_id"], e["row"]) for e in events.to_pylist()] == [
        (0, Op.INSERT, 7, b"i1"),
        (1, Op.UPDATE, 7, b"u1"),
        (2, Op.DELETE, 7, b"d1"),
        (3, Op.INSERT, 7, b"i2"),
        (4, Op.INSERT, 9, b"j1"),
    ]
    assert set(zip(*(events.column(name).to_pylist() for name in ("schema_version", "start_ts")), strict=True)) == {(5, 99)}


def test_ddls_and_control_rows_have_frames_of_their_own() -> None:
    ddl = pb.Binlog(tp=pb.Commit, start_ts=1, commit_ts=2, ddl_query=b"DROP TABLE `t`;", ddl_job_id=31, ddl_schema_state=5)
    rows = commit(3, 5, mutation(7, inserted_rows=[b"i1"], sequence=[0]))
    lost, resolved = (ControlType.LOST, 41, 45, b"gone"), (ControlType.RESOLVED, 40, 50, None)
    found = explode(batch((None, 1, 2, ddl.SerializeToString()), lost, rows, resolved))
    assert (found.ddls.schema, found.controls.schema) == (DDL_EVENT, CONTROL)
    assert found.ddls.to_pylist() == [{"commit_ts": 2, "job_id": 31, "schema_state": 5, "query": b"DROP TABLE `t`;"}]
    assert found.controls.to_pylist() == [
        {"control": ControlType.LOST, "after_ts": 41, "upto_ts": 45, "text": b"gone"},
        {"control": ControlType.RESOLVED, "after_ts": 40, "upto_ts": 50, "text": None},
    ]
    assert found.rows.column("row").to_pylist() == [b"i1"]


def test_an_empty_batch_gives_an_empty_batch() -> None:
    found = explode(pa.RecordBatch.from_pylist([], schema=TRANSACTION))
    assert [frame.num_rows for frame in (found.rows, found.ddls, found.controls)] == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        mutation(7, inserted_rows=[b"i1"], sequence=[0, 0]),
        mutation(7, inserted_rows=[b"i1", b"i2"], sequence=[0]),
        mutation(7, inserted_rows=[b"i1"], deleted_rows=[b"d1"], sequence=[0, 0]),
        mutation(7, inserted_rows=[b"i1"], sequence=[2]),
    ],
)
def test_a_sequence_that_disagrees_with_the_rows_is_refused(wrong: pb.TableMutation) -> None:
    with pytest.raises(Corruption, match="table 7 at commit_ts 100"):
        explode(batch(commit(100, 5, wrong)))


def test_a_payload_that_does_not_parse_is_refused_with_its_commit_ts() -> None:
    with pytest.raises(Corruption, match="commit_ts 77"):
        explode(batch((None, 1, 77, b"\xff\xff")))
