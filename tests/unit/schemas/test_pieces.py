"""``schemas.pieces``: a huge binlog in pieces says what the whole says."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.pieces import pieces
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import TRANSACTION

OPS = {0: "inserted_rows", 1: "updated_rows", 4: "deleted_rows"}


def binlog(mutations: list[tuple[int, list[tuple[int, bytes]]]], tp: int = 1) -> bytes:
    value = pb.PrewriteValue(schema_version=77)
    for table_id, changes in mutations:
        mutation = value.mutations.add(table_id=table_id)
        for op, row in changes:
            getattr(mutation, OPS[op]).append(row)
            mutation.sequence.append(op)
    message = pb.Binlog(tp=tp, start_ts=41, commit_ts=42, prewrite_key=b"key", prewrite_value=value.SerializeToString(), ddl_job_id=0)
    return message.SerializeToString()


def events(payloads: list[tuple[int, bytes]]) -> list[dict[str, object]]:
    rows = [{"start_ts": 41, "commit_ts": 42, "first_seq": seq, "payload": data} for seq, data in payloads]
    return explode(pa.RecordBatch.from_pylist(rows, schema=TRANSACTION)).rows.to_pylist()


changes = st.lists(st.tuples(st.sampled_from(list(OPS)), st.binary(max_size=40)), max_size=30)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), changes), max_size=6), st.integers(1, 300))
@settings(deadline=None)
def test_the_pieces_together_are_the_whole(mutations: list[tuple[int, list[tuple[int, bytes]]]], limit: int) -> None:
    whole = binlog(mutations)
    found = list(pieces(whole, limit))
    assert [p.more for p in found] == [True] * (len(found) - 1) + [False]
    assert events([(p.first_seq, bytes(p.payload)) for p in found]) == events([(0, whole)])
    if not any(rows for _, rows in mutations):
        assert len(found) == 1


def test_each_piece_is_about_as_big_as_the_limit_and_knows_whose_it_is() -> None:
    rows = [(n % 2, bytes([n % 251]) * 900) for n in range(500)]
    found = list(pieces(binlog([(7, rows), (9, rows[:3])]), 10_000))
    assert len(found) > 40
    for piece in found:
        message = pb.Binlog.FromString(piece.payload)
        assert (message.tp, message.start_ts, message.commit_ts, message.prewrite_key) == (1, 41, 42, b"key")
        assert len(piece.payload) < 11_000
    assert pb.PrewriteValue.FromString(message.prewrite_value).schema_version == 77


def test_a_row_above_the_limit_is_a_piece_by_itself() -> None:
    found = list(pieces(binlog([(7, [(0, b"a"), (0, b"b" * 5000), (0, b"c")])]), 1000))
    assert [p.first_seq for p in found] == [0, 1, 2]


def test_small_binlogs_and_ddls_stay_whole() -> None:
    small = binlog([(7, [(0, b"a")])])
    assert [bytes(p.payload) for p in pieces(small, 1000)] == [small]
    ddl = pb.Binlog(tp=1, start_ts=1, commit_ts=2, ddl_query=b"x" * 5000, ddl_job_id=3).SerializeToString()
    assert [bytes(p.payload) for p in pieces(ddl, 1000)] == [ddl]


@pytest.mark.parametrize("cut", [1, 17, 900])
def test_a_truncated_binlog_is_corruption(cut: int) -> None:
    whole = binlog([(7, [(0, b"x" * 900), (1, b"y" * 900)])])
    with pytest.raises(Corruption):
        list(pieces(whole[:-cut], 100))


def test_a_sequence_that_disagrees_with_the_rows_is_corruption() -> None:
    value = pb.PrewriteValue(schema_version=1, mutations=[pb.TableMutation(table_id=7, inserted_rows=[b"x" * 200] * 3, sequence=[0, 0])])
    wrong = pb.Binlog(tp=1, start_ts=1, commit_ts=2, prewrite_value=value.SerializeToString()).SerializeToString()
    with pytest.raises(Corruption, match="sequence names 2 operations, its row lists hold 3"):
        list(pieces(wrong, 100))
