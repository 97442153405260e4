"""Where a bucket's records lie: what a batch costs, when a chunk is read and when it goes, and damaged bytes."""

import os

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.pairing import state as pair_state
from pyspark_tidb_binlog.binlog_source.pairing.state import NOTHING, Index, pack, put_away, take_up, unpack, without_rows
from pyspark_tidb_binlog.binlog_source.pairing.transitions import RECORD, ResolvedSpan, StepResult, look_after, step
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.packed import packed
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.fakes.chunks import MemoryChunks

P, C, R = 0, 1, 2
VALUE = 10_000


def records(*rows: tuple[str, int, int, int]) -> pa.Table:
    """(pump, tp, start, commit); a Prewrite has ``VALUE`` bytes that don't compress."""
    payloads = [payload_of(start_ts) if tp == P else b"" for _, tp, start_ts, _ in rows]
    columns = [[r[i] for r in rows] for i in range(4)] + [payloads]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RECORD, strict=True)], schema=RECORD)


def payload_of(start_ts: int) -> bytes:
    binlog = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=start_ts, prewrite_key=b"k%d" % start_ts)
    binlog.prewrite_value = os.urandom(VALUE)
    return binlog.SerializeToString()


class Bucket:
    """A bucket with its chunks."""

    def __init__(self) -> None:
        self.index: Index = NOTHING
        self.chunks = MemoryChunks()

    def take(self, after: int, upto: int, *rows: tuple[str, int, int, int]) -> StepResult:
        return self.take_table(ResolvedSpan(after, upto), records(*rows))

    def take_table(self, span: ResolvedSpan, table: pa.Table) -> StepResult:
        hand = take_up(self.index, self.chunks, table, span)
        result = step(hand.records, table, span)
        self.index = unpack(pack(put_away(self.index, hand, result.kept, self.chunks)))
        assert {chunk.number for chunk in self.index.chunks} == set(self.chunks.values)
        return result

    def cost(self) -> tuple[int, int]:
        """Bytes read and written since the last look."""
        found = (self.chunks.read, self.chunks.written)
        self.chunks.read = self.chunks.written = 0
        return found


def pairs(pump: str, begin: int, end: int, later: int) -> list[tuple[str, int, int, int]]:
    return [row for ts in range(begin, end) for row in ((pump, P, ts, 0), (pump, C, ts, ts + later))]


def starts(result: StepResult) -> list[int]:
    return sorted(result.released["start_ts"].to_pylist())


def test_a_batch_that_releases_nothing_costs_what_is_new_in_it() -> None:
    """Forty batches of 2 MB while R stands still: each writes 2 MB, and none reads; the index stays small."""
    bucket = Bucket()
    for number in range(40):
        bucket.take(0, 5, *pairs("a", 1000 * number + 10, 1000 * number + 210, 500))
        read, written = bucket.cost()
        assert read == 0 and written < 2.2e6
    assert len(pack(bucket.index)) < pair_state.INDEX_BYTES + 20_000
    assert sum(len(value) for value in bucket.chunks.values.values()) > 75e6


def test_a_release_in_steps_reads_what_it_releases() -> None:
    bucket = Bucket()
    for number in range(20):
        bucket.take(0, 5, *pairs("a", 1000 * number + 10, 1000 * number + 210, 300))
    bucket.cost()
    released, at = 0, 5
    for upto in range(500, 21_000, 500):
        result = bucket.take(at, upto)
        released, at = released + result.released.num_rows, upto
        read, written = bucket.cost()
        assert read <= result.released.num_rows * (VALUE + 200) + 2 * pair_state.CHUNK_BYTES
        assert written < pair_state.CHUNK_BYTES
    assert released == 20 * 200 and bucket.index.empty


def test_a_chunk_that_is_released_in_part_stays_as_it_is() -> None:
    bucket = Bucket()
    bucket.take(0, 5, *pairs("a", 10, 110, 500))
    bucket.cost()
    found = [start for upto in range(500, 700, 20) for start in starts(bucket.take(max(5, upto - 20), upto))]
    assert found == list(range(10, 110))
    assert bucket.cost()[1] == 0 and bucket.index.empty


def test_open_prewrites_are_stashed_and_come_back_for_their_outcome() -> None:
    bucket = Bucket()
    bucket.take(0, 5, *(("a", P, ts, 0) for ts in range(10, 60)))
    assert bucket.chunks.values and len(pack(bucket.index)) < 10_000
    orphans = look_after(bucket.index.records, 5000, 1000).orphans
    assert [binlog_pb2.Binlog.FromString(orphan.payload).prewrite_key for orphan in orphans] == [b"k%d" % ts for ts in range(10, 60)]
    bucket.cost()
    bucket.take(5, 5)
    assert bucket.cost() == (0, 0), "nobody asks for them"
    result = bucket.take(5, 9, *(("a", C, ts, ts + 100) for ts in range(10, 60)))
    assert not result.released.num_rows
    result = bucket.take(9, 1000)
    assert starts(result) == list(range(10, 60)) and bucket.index.empty and not bucket.chunks.values
    assert min(map(len, result.released["payload"].to_pylist())) > VALUE


def test_a_stash_goes_when_most_of_it_is_gone() -> None:
    bucket = Bucket()
    bucket.take(0, 5, *(("a", P, ts, 0) for ts in range(10, 60)))
    bucket.take(5, 6, *(("a", R, ts, 0) for ts in range(10, 20)))
    assert len(bucket.chunks.values) == 1, "most of it is still wanted"
    bucket.take(6, 20, *(("a", R, ts, 0) for ts in range(20, 50)))
    bucket.take(20, 50)
    assert not bucket.chunks.values, "ten of fifty are left: they fit the index"
    assert starts(bucket.take(50, 99, *(("a", C, ts, 98) for ts in range(50, 60)))) == list(range(50, 60))


def test_a_late_copy_of_what_lies_in_a_chunk_is_told_and_goes_out_once() -> None:
    bucket = Bucket()
    bucket.take(0, 5, *pairs("a", 10, 110, 500))
    result = bucket.take(5, 5, ("b", P, 50, 0))
    assert result.unsettled and not result.oldest_alone
    assert [(s.pump, s.start_ts, s.commit_ts) for s in look_after(bucket.index.records, 9, 1000).settles] == [("b", 50, 550)]
    bucket.take(5, 6, ("b", C, 50, 550))
    assert starts(bucket.take(6, 1000)) == list(range(10, 110)) and bucket.index.empty


def test_a_transaction_bigger_than_any_chunk() -> None:
    bucket = Bucket()
    big = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=10, prewrite_value=os.urandom(5 << 20)).SerializeToString()
    table = pa.table([["a"], [P], [10], [0], [big]], schema=RECORD)
    bucket.take_table(ResolvedSpan(0, 5), table)
    assert [chunk.rows for chunk in bucket.index.chunks] == [1]
    bucket.take(5, 6, ("a", C, 10, 20), ("a", P, 11, 0))
    result = bucket.take(6, 30)
    assert starts(result) == [10] and len(result.released["payload"][0].as_py()) > 5 << 20


def test_without_rows() -> None:
    whole = binlog_pb2.Binlog(tp=0, start_ts=1 << 60, prewrite_key=b"k" * 300, prewrite_value=b"v" * 300, ddl_query=b"q", ddl_job_id=9)
    bare = binlog_pb2.Binlog.FromString(without_rows(whole.SerializeToString()))
    assert not bare.HasField("prewrite_value")
    bare.prewrite_value = whole.prewrite_value
    assert bare == whole
    for odd in (b"", b"\x2a", b"\x22\x85", b"\x0d1234", whole.SerializeToString()[:-1]):
        assert without_rows(odd) in (odd, odd[:0]) or len(without_rows(odd)) < 400


def test_the_index_survives_packing() -> None:
    bucket = Bucket()
    bucket.take(0, 5, *pairs("a", 10, 110, 500), ("b", P, 500, 0))
    again = unpack(pack(bucket.index))
    assert again == bucket.index and again.chunks


OLD = packed(NOTHING.records.select(RECORD.names).replace_schema_metadata({b"version": b"1", b"clock_ms": b"0", b"asked_ms": b"0"}))


@pytest.mark.parametrize("blob", [b"", b"garbage", pack(NOTHING)[:-20], pack(NOTHING).replace(b"version", b"verzion"), OLD])
def test_a_damaged_or_old_state_is_corruption(blob: bytes) -> None:
    with pytest.raises(Corruption, match="delete Spark's checkpoint directory"):
        unpack(blob)
