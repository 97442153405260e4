"""A bucket's batch outside Spark: packed in, packed out, and what it refuses."""

import os

import pyarrow as pa
import pytest

from binlog_source.framing import loss, packed_rows, punctuation
from binlog_source.pair_bucket import Paired, pair_bucket
from conf.model import PairConfig, SourceConfig
from schemas.errors import ProtocolViolation
from schemas.events import BinlogType, Op
from schemas.packed import unpacked
from schemas.proto import binlog_pb2
from schemas.stages import RAW, TRANSACTION

SOURCE = SourceConfig("p:1")


def record(tp: BinlogType, start_ts: int, commit_ts: int = 0, value: bytes = b"v") -> dict[str, object]:
    binlog = binlog_pb2.Binlog(start_ts=start_ts, commit_ts=commit_ts)
    binlog.tp = binlog_pb2.BinlogType.Name(int(tp))  # type: ignore[assignment]
    if tp is BinlogType.PREWRITE:
        binlog.prewrite_value = value
    payload = binlog.SerializeToString()
    return {"pump": "p", "tp": int(tp), "start_ts": start_ts, "commit_ts": commit_ts, "bucket": 0, "event_time": None, "payload": payload}


def prewrite(start_ts: int, value: bytes = b"v") -> dict[str, object]:
    return record(BinlogType.PREWRITE, start_ts, value=value)


def commit(start_ts: int, commit_ts: int) -> dict[str, object]:
    return record(BinlogType.COMMIT, start_ts, commit_ts)


def run(bucket: int, *records: dict[str, object], span: tuple[int, int] = (0, 100), stored: bytes | None = None, **more: bool) -> Paired:
    batches = [pa.RecordBatch.from_pylist(list(records), schema=RAW), punctuation("p", *span, [0])]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    source = SourceConfig("p:1", **more) if more else SOURCE  # type: ignore[arg-type]
    return pair_bucket(bucket, values, stored, source, PairConfig())


def rows(paired: Paired) -> list[tuple[int, int, int]]:
    found = unpacked(map(pa.scalar, paired.transactions), TRANSACTION).to_pylist()
    return [(row["tp"], row["start_ts"], row["commit_ts"]) for row in found]


def test_a_pair_goes_out_and_nothing_is_kept() -> None:
    paired = run(1, prewrite(5), commit(5, 8))
    assert (paired.state, rows(paired)) == (None, [(BinlogType.COMMIT, 5, 8)])


def test_a_pair_over_two_batches() -> None:
    first = run(1, prewrite(5), span=(0, 4))
    assert first.state is not None and first.transactions == ()
    second = run(1, commit(5, 8), span=(4, 100), stored=first.state)
    assert (second.state, rows(second)) == (None, [(BinlogType.COMMIT, 5, 8)])


def test_only_bucket_0_passes_the_punctuation_on() -> None:
    assert rows(run(0)) == [(Op.RESOLVED, 0, 100)]
    assert run(3).transactions == ()


def test_what_a_pump_lost_is_passed_on_once() -> None:
    batches = [loss("p", 3, 7, "gone"), punctuation("p", 0, 100, [0])]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    assert rows(pair_bucket(0, values, None, SOURCE, PairConfig())) == [(Op.LOST, 3, 7), (Op.RESOLVED, 0, 100)]


def test_a_commit_without_its_prewrite() -> None:
    with pytest.raises(ProtocolViolation, match="commit_ts 8 .* has no Prewrite"):
        run(1, commit(5, 8))
    assert rows(run(1, commit(5, 8), fail_on_data_loss=False)) == [(Op.LOST, 5, 8)]


def test_a_bucket_without_a_control_row_is_refused() -> None:
    batches = [pa.RecordBatch.from_pylist([prewrite(5)], schema=RAW)]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    with pytest.raises(ProtocolViolation, match="no control row"):
        pair_bucket(1, values, None, SOURCE, PairConfig())


def test_a_big_release_is_cut() -> None:
    big = [item for ts in range(10, 22) for item in (prewrite(ts, os.urandom(1 << 20)), commit(ts, ts + 50))]
    paired = run(1, *big)
    assert len(paired.transactions) > 2 and max(map(len, paired.transactions)) < 6 << 20
    assert sorted(rows(paired)) == [(BinlogType.COMMIT, ts, ts + 50) for ts in range(10, 22)]
