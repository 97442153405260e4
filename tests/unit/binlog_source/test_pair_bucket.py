"""A bucket's batch outside Spark: packed in, packed out, and what it refuses."""

import os
from collections.abc import Iterable

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery
from pyspark_tidb_binlog.binlog_source.pairing import bucket
from pyspark_tidb_binlog.binlog_source.pairing.bucket import Paired, look, pair_bucket, pieces_of
from pyspark_tidb_binlog.binlog_source.pairing.resolver import UpstreamAnswers
from pyspark_tidb_binlog.binlog_source.pairing.transitions import MissingOutcome, Orphan
from pyspark_tidb_binlog.binlog_source.source.framing import loss, packed_rows, punctuation
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import DamagedLog, ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import BinlogType, ControlType, tso
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.pieces import pieces
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.stages import RAW, TRANSACTION
from tests.support.fakes.chunks import MemoryChunks, MemoryPieces

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


def run(
    bucket: int,
    *records: dict[str, object],
    span: tuple[int, int] = (0, 100),
    stored: bytes | None = None,
    chunks: MemoryChunks | None = None,
    pieces: MemoryPieces | None = None,
    clock_ms: int = 0,
    **more: bool,
) -> Paired:
    batches = [pa.RecordBatch.from_pylist(list(records), schema=RAW), punctuation("p", *span, [0])]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    source = SourceConfig("p:1", **more) if more else SOURCE  # type: ignore[arg-type]
    return pair_bucket(bucket, values, stored, chunks or MemoryChunks(), pieces or MemoryPieces(), clock_ms, source)


def rows(paired: Paired) -> list[tuple[int, int, int]]:
    found = unpacked(map(pa.scalar, paired.transactions), TRANSACTION).to_pylist()
    return [(row["control"] or BinlogType.COMMIT, row["start_ts"], row["commit_ts"]) for row in found]


def test_a_pair_goes_out_and_nothing_is_kept() -> None:
    paired = run(1, prewrite(5), commit(5, 8))
    assert (paired.state, rows(paired)) == (None, [(BinlogType.COMMIT, 5, 8)])


def test_a_pair_over_two_batches() -> None:
    first = run(1, prewrite(5), span=(0, 4))
    assert first.state is not None and first.transactions == ()
    second = run(1, commit(5, 8), span=(4, 100), stored=first.state)
    assert rows(second) == [(BinlogType.COMMIT, 5, 8)]
    assert second.state is not None, "the timer that is set is remembered until it fires"
    assert look(second.state, 1000, SOURCE) == Paired(None, 0)


def test_timers() -> None:
    first = run(1, prewrite(tso(5000)), span=(0, 4), clock_ms=4000)
    assert first.timer_ms == 6000
    again = run(1, prewrite(tso(5500)), span=(4, 4), stored=first.state, clock_ms=5000)
    assert again.timer_ms == 0, "one is set, and earlier"
    earlier = run(1, prewrite(tso(4500)), span=(4, 4), stored=again.state, clock_ms=5000)
    assert earlier.timer_ms == 5500
    fired = look(earlier.state, 5501, SOURCE)
    assert fired.timer_ms == 6000, "the next one comes of age; the orphan of now is asked about in a second again"
    old = run(1, prewrite(tso(1000)), span=(0, 4), clock_ms=9000)
    assert 0 < old.timer_ms < 9000, "at once"


def test_a_bucket_that_keeps_nothing_needs_no_timer() -> None:
    assert look(None, 5000, SOURCE) == Paired(None, 0)


def test_what_waits_long_lies_in_chunks_and_comes_out_whole() -> None:
    chunks = MemoryChunks()
    big = [item for ts in range(10, 20) for item in (prewrite(ts, os.urandom(1 << 18)), commit(ts, ts + 50))]
    first = run(1, *big, span=(0, 5), chunks=chunks)
    assert first.state is not None and len(first.state) < 10_000
    assert len(chunks.values) >= 2
    still = run(1, span=(5, 5), stored=first.state, chunks=chunks)
    assert still.state == first.state and chunks.read == 0
    done = run(1, span=(5, 100), stored=first.state, chunks=chunks)
    assert done.state is None and not chunks.values
    assert sorted(rows(done)) == [(BinlogType.COMMIT, ts, ts + 50) for ts in range(10, 20)]


def test_only_bucket_0_passes_the_punctuation_on() -> None:
    assert rows(run(0)) == [(ControlType.RESOLVED, 0, 100)]
    assert run(3).transactions == ()


def test_what_a_pump_lost_is_passed_on_once() -> None:
    batches = [loss("p", 3, 7, "gone"), punctuation("p", 0, 100, [0])]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    assert rows(pair_bucket(0, values, None, MemoryChunks(), MemoryPieces(), 0, SOURCE)) == [
        (ControlType.LOST, 3, 7),
        (ControlType.RESOLVED, 0, 100),
    ]


def test_a_commit_without_its_prewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.late_commits._PATIENCE", 0.2)
    with pytest.raises(
        ProtocolViolation, match="commit_ts 8 .* has no Prewrite .*; Pump p:1 could not be asked: Pump p:1 at p:1 gave nothing"
    ):
        run(1, commit(5, 8))
    assert rows(run(1, commit(5, 8), fail_on_data_loss=False)) == [(ControlType.LOST, 5, 8)]


def test_a_bucket_without_a_control_row_is_refused() -> None:
    batches = [pa.RecordBatch.from_pylist([prewrite(5)], schema=RAW)]
    values = [value.as_py() for batch in packed_rows(batches) for value in batch.column("rows")]
    with pytest.raises(ProtocolViolation, match="no control row"):
        pair_bucket(1, values, None, MemoryChunks(), MemoryPieces(), 0, SOURCE)


def test_a_big_release_is_cut() -> None:
    big = [item for ts in range(10, 22) for item in (prewrite(ts, os.urandom(1 << 20)), commit(ts, ts + 50))]
    paired = run(1, *big)
    assert len(paired.transactions) > 2 and max(map(len, paired.transactions)) < 6 << 20
    assert sorted(rows(paired)) == [(BinlogType.COMMIT, ts, ts + 50) for ts in range(10, 22)]


class TestHuge:
    """A Prewrite in pieces, which lie beside the index until it is due."""

    ROWS = tuple(b"%03d" % n * 30 for n in range(40))

    def setup_method(self) -> None:
        """A bucket of its own."""
        self.chunks, self.pieces = MemoryChunks(), MemoryPieces()

    def prewrite(self, start_ts: int) -> list[dict[str, object]]:
        value = binlog_pb2.PrewriteValue(schema_version=3)
        value.mutations.add(table_id=9, inserted_rows=self.ROWS, sequence=[0] * len(self.ROWS))
        binlog = binlog_pb2.Binlog(tp=binlog_pb2.Prewrite, start_ts=start_ts, prewrite_key=b"key", prewrite_value=value.SerializeToString())
        found = pieces(binlog.SerializeToString(), 1000)
        return [prewrite(start_ts) | {"first_seq": piece.first_seq, "payload": bytes(piece.payload)} for piece in found]

    def run(self, stored: bytes | None, span: tuple[int, int], *records: dict[str, object]) -> Paired:
        return run(1, *records, span=span, stored=stored, chunks=self.chunks, pieces=self.pieces)

    def rows_out(self, paired: Paired) -> list[bytes]:
        out = unpacked(map(pa.scalar, pieces_of(paired.huge, self.pieces)), TRANSACTION).to_pylist()
        rows: list[bytes] = []
        for row in out:
            binlog = binlog_pb2.Binlog.FromString(row["payload"])
            assert (row["control"], row["first_seq"]) == (None, len(rows))
            assert (binlog.tp, binlog.commit_ts) == (binlog_pb2.Commit, row["commit_ts"])
            (mutation,) = binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).mutations
            rows += mutation.inserted_rows
        return rows

    def test_in_one_batch(self) -> None:
        paired = self.run(None, (0, 100), *self.prewrite(5), commit(5, 8), prewrite(6), commit(6, 9))
        assert rows(paired) == [(BinlogType.COMMIT, 6, 9)]
        assert self.rows_out(paired) == list(self.ROWS)
        assert paired.state is None and self.pieces.values == {}

    def test_over_batches_with_a_copy_on_another_pump(self) -> None:
        first = self.run(None, (0, 4), *self.prewrite(5))
        assert first.state is not None and len(first.state) < 2000 and len(self.pieces.values) > 3
        copy = [row | {"pump": "q"} for row in self.prewrite(5)]
        second = self.run(first.state, (4, 4), *copy, commit(5, 8) | {"pump": "p"}, commit(5, 8) | {"pump": "q"})
        assert second.huge == ()
        third = self.run(second.state, (4, 100))
        assert self.rows_out(third) == list(self.ROWS)
        assert self.pieces.values == {}

    def test_what_is_rolled_back_leaves_nothing(self) -> None:
        first = self.run(None, (0, 4), *self.prewrite(5))
        second = self.run(first.state, (4, 100), record(BinlogType.ROLLBACK, 5))
        assert (second.huge, self.pieces.values) == ((), {})

    def test_one_that_comes_again_after_its_release_leaves_nothing(self) -> None:
        first = self.run(None, (0, 100), *self.prewrite(5), commit(5, 8))
        assert self.rows_out(first) == list(self.ROWS)
        again = self.run(first.state, (100, 200), *self.prewrite(5), commit(5, 8))
        assert (again.huge, self.pieces.values) == ((), {})


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The upstream knows that start_ts 5 committed at 8, and 6 at 200; what it was asked about."""
    asked: list[list[int]] = []

    def answers(orphans: Iterable[Orphan], *rest: object) -> UpstreamAnswers:
        asked.append([orphan.start_ts for orphan in orphans])
        commits = {5: 8, 6: 200}
        return UpstreamAnswers(tuple(MissingOutcome("p", ts, commits[ts]) for ts in asked[-1] if ts in commits))

    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.pairing.bucket.outcomes_of", answers)
    return asked


def test_what_was_read_from_a_pump_that_left_is_released_by_the_upstreams_word(upstream: list[list[int]]) -> None:
    """It died before it had the Commit, and was set offline: nobody can write the outcome to it."""
    first = run(1, prewrite(5), prewrite(6), prewrite(7), span=(0, 4))
    assert upstream == [], "R is below them: the Pump may be there"
    second = run(1, span=(4, 100), stored=first.state)
    assert rows(second) == [(BinlogType.COMMIT, 5, 8)] and upstream == [[5, 6, 7]]
    third = run(1, span=(100, 300), stored=second.state)
    assert rows(third) == [(BinlogType.COMMIT, 6, 200)] and upstream[1:] == [[7]]


def test_one_whose_outcome_is_found_too_late_is_told(upstream: list[list[int]]) -> None:
    first = run(1, prewrite(5), span=(0, 4))
    with pytest.raises(DamagedLog, match="start_ts 5, which was read from Pump p, committed at 8.*copy its tables again"):
        run(1, span=(10, 100), stored=first.state)
    later = run(1, span=(10, 100), stored=first.state, fail_on_data_loss=False)
    assert rows(later) == [(ControlType.LOST, 5, 8)]
    assert rows(run(1, span=(100, 200), stored=later.state)) == [] and len(upstream) == 2, "told once"


def test_a_pump_that_is_listed_is_left_to_write_its_outcomes(upstream: list[list[int]]) -> None:
    first = run(1, prewrite(5) | {"pump": "p:1"}, span=(0, 4))
    assert rows(run(1, span=(4, 100), stored=first.state)) == [] and upstream == []


def test_what_was_released_with_a_commit_of_another_pump_is_not_told_as_lost(
    upstream: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Pump left, and it was kept because the registry did not answer when R passed it."""
    where = "pyspark_tidb_binlog.binlog_source.pairing.bucket._discovery"
    found = bucket._discovery

    def away(source: SourceConfig) -> PumpDiscovery:
        raise PumpUnavailable("no answer")

    monkeypatch.setattr(where, away)
    first = run(1, prewrite(5), commit(5, 8) | {"pump": "p:1"}, span=(0, 4))
    second = run(1, span=(4, 100), stored=first.state)
    assert rows(second) == [(BinlogType.COMMIT, 5, 8)] and second.state is not None
    monkeypatch.setattr(where, found)
    third = run(1, span=(100, 200), stored=second.state)
    assert rows(third) == []
