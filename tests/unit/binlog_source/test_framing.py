"""Framing: responses to rows, batched or not, and what is refused."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.source.framing import joined, loss, packed_rows, parse, punctuation, raw_rows, sorted_rows
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.events import ControlType, tso
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2
from pyspark_tidb_binlog.schemas.stages import PACKED, RAW


def entity(tp: int, start_ts: int, commit_ts: int, at: int = 0, meta: bool = True) -> pump_pb2.Entity:
    binlog = binlog_pb2.Binlog(start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k")
    binlog.tp = binlog_pb2.BinlogType.Name(tp)  # type: ignore[assignment]
    made = pump_pb2.Entity(payload=binlog.SerializeToString())
    made.pos.suffix, made.pos.offset = 2, at
    if meta:
        made.meta.startTs, made.meta.commitTs = start_ts, commit_ts
    return made


PREWRITE, COMMIT, FAKE = entity(0, 5, 0, 10), entity(1, 5, tso(3000), 20), entity(2, 9, 9, 30)


def test_single_and_batched_messages_parse_alike() -> None:
    batch = pump_pb2.PullBinlogBatch(entity=[PREWRITE, COMMIT, FAKE]).SerializeToString()
    singles = b"".join(pump_pb2.PullBinlogResp(entity=e).SerializeToString() for e in (PREWRITE, COMMIT, FAKE))
    assert batch == singles
    records = parse(batch, "p")
    assert records.types.tolist() == [0, 1, 2]
    assert records.offsets.tolist() == [10, 20, 30] and records.suffixes.tolist() == [2, 2, 2]


def test_a_message_without_meta_is_read_from_its_payload() -> None:
    records = parse(pump_pb2.PullBinlogResp(entity=entity(1, 5, 8, meta=False)).SerializeToString(), "p")
    assert (records.start_ts.tolist(), records.commit_ts.tolist()) == ([5], [8])


def test_raw_rows_leave_out_fakes_and_prewrites_have_no_event_time() -> None:
    records = parse(pump_pb2.PullBinlogBatch(entity=[PREWRITE, COMMIT, FAKE]).SerializeToString(), "p")
    rows = raw_rows(records, "p", range(8))
    assert rows.schema == RAW
    assert [(r["tp"], r["start_ts"], r["commit_ts"]) for r in rows.to_pylist()] == [(0, 5, 0), (1, 5, tso(3000))]
    assert rows["event_time"].is_null().to_pylist() == [True, False]
    assert len(set(rows["bucket"].to_pylist())) == 1


def test_sorted_rows_are_commits_whatever_stands_first_in_the_payload() -> None:
    merged = entity(0, 5, 8)
    merged.payload += b"\x08\x01\x18\x08"
    rows = sorted_rows(parse(pump_pb2.PullBinlogBatch(entity=[merged, FAKE]).SerializeToString(), "p"), "p")
    assert [(r["tp"], r["commit_ts"]) for r in rows.to_pylist()] == [(1, 8)]


def test_control_rows() -> None:
    rows = punctuation("p", 3, 7, range(2), tso(5000)).to_pylist()
    assert [(r["tp"], r["control"], r["start_ts"], r["commit_ts"], r["bucket"]) for r in rows] == [
        (None, ControlType.RESOLVED, 3, 7, bucket) for bucket in (0, 1)
    ]
    assert punctuation("p", 3, 7, range(1))["event_time"].null_count == 1
    assert loss("p", 3, 7, "gone").to_pylist()[0]["payload"] == b"gone"


def test_joined_runs_keep_their_order() -> None:
    one = parse(pump_pb2.PullBinlogBatch(entity=[PREWRITE, COMMIT]).SerializeToString(), "p")
    assert joined([one.cut(0, 1), one.cut(1, 2)]).commit_ts.tolist() == one.commit_ts.tolist()


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x05ab", pump_pb2.PullBinlogResp(entity=pump_pb2.Entity(payload=b"\xff\xff")).SerializeToString()]
)
def test_garbage_names_the_pump(data: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="Pump p9"):
        parse(data, "p9")


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_a_violation(data: bytes) -> None:
    try:
        records = parse(data, "p")
    except ProtocolViolation as violation:
        assert "Pump p answered" in str(violation)
        return
    assert len(records) == len(records.types) == len(pump_pb2.PullBinlogBatch.FromString(data).entity)


def test_an_unknown_type_is_refused_in_raw() -> None:
    records = parse(pump_pb2.PullBinlogResp(entity=entity(3, 5, 8)).SerializeToString(), "p")
    with pytest.raises(ProtocolViolation, match="type 3 at start_ts 5"):
        raw_rows(records, "p", range(8))


def test_packed_rows_are_the_rows_of_each_bucket_in_order() -> None:
    records = parse(pump_pb2.PullBinlogBatch(entity=[entity(0, ts, 0, ts) for ts in range(1, 41)]).SerializeToString(), "p")
    rows, controls = raw_rows(records, "p", range(4)), punctuation("p", 3, 7, range(4))
    values: dict[int, list[pa.BinaryScalar]] = {}
    for batch in packed_rows([rows.slice(0, 25), rows.slice(0, 0), rows.slice(25), controls]):
        assert batch.schema == PACKED
        for bucket, value in zip(batch["bucket"].to_pylist(), batch["rows"], strict=True):
            values.setdefault(bucket, []).append(value)
    assert sorted(values) == [0, 1, 2, 3]
    for bucket, parts in values.items():
        wanted = [r for r in (*rows.to_pylist(), *controls.to_pylist()) if r["bucket"] == bucket]
        assert unpacked(parts, RAW).to_pylist() == wanted


def test_nothing_packed_is_nothing() -> None:
    assert list(packed_rows([])) == []
    assert unpacked([], RAW) == RAW.empty_table()


def test_payloads_of_any_size_arrive_whole() -> None:
    sizes = [0, 1, 70_000, 0, 3]
    entities = [pump_pb2.Entity(payload=b"\x08\x01" + b"x" * n) for n in sizes]
    for number, made in enumerate(entities):
        made.meta.startTs, made.meta.commitTs = number + 1, number + 2
    records = parse(pump_pb2.PullBinlogBatch(entity=entities).SerializeToString(), "p")
    assert sorted_rows(records, "p")["payload"].to_pylist() == [bytes(e.payload) for e in entities]
