"""Pairing against a dict model: any interleaving, batch cut, duplication and restart gives the same transactions.

Beside it runs the same machine with all that it keeps in hand: wherever the chunks lie, each step must give and want the same.
"""

import dataclasses
import random
from collections.abc import Iterable
from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.pairing.state import NOTHING, Index, pack, put_away, take_up, unpack
from pyspark_tidb_binlog.binlog_source.pairing.transitions import KEPT, RECORD, ResolvedSpan, StepResult, look_after, step
from pyspark_tidb_binlog.schemas.events import BinlogType, tso
from pyspark_tidb_binlog.schemas.packed import unpacked
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.examples import examples
from tests.support.fakes.chunks import MemoryChunks

PUMPS = ("a", "b", "c")


@dataclasses.dataclass(frozen=True)
class Txn:
    start: int
    commit: int
    """0 = rolled back."""
    pump: str
    copies: tuple[str, ...]
    """Pumps with a second Prewrite; they get their outcome too."""


def payload_of(txn: Txn) -> bytes:
    binlog = binlog_pb2.Binlog(tp=BinlogType.PREWRITE, start_ts=txn.start, prewrite_key=b"k%d" % txn.start)
    binlog.prewrite_value = b"v" * (txn.start % 7)
    return binlog.SerializeToString()


def history(rng: random.Random) -> list[Txn]:
    count = rng.randint(1, 12)
    stamps = rng.sample(range(1, 400), 2 * count)
    txns = []
    for i in range(count):
        start, commit = sorted(stamps[2 * i : 2 * i + 2])
        pump = rng.choice(PUMPS)
        copies = tuple(p for p in PUMPS if p != pump and rng.random() < 0.2)
        txns.append(Txn(tso(1000 + start), tso(1000 + commit) if rng.random() < 0.8 else 0, pump, copies))
    return txns


def logs_of(txns: list[Txn], rng: random.Random) -> dict[str, list[tuple[int, int, int, bytes | None]]]:
    """One log per Pump: (tp, start_ts, commit_ts, payload), each P somewhere before its outcome."""
    logs: dict[str, list[tuple[int, int, int, bytes | None]]] = {pump: [] for pump in PUMPS}
    for txn in txns:
        for pump in (txn.pump, *txn.copies):
            log = logs[pump]
            at = rng.randint(0, len(log))
            log.insert(at, (BinlogType.PREWRITE, txn.start, 0, payload_of(txn)))
            outcome = BinlogType.COMMIT if txn.commit else BinlogType.ROLLBACK
            log.insert(rng.randint(at + 1, len(log)), (outcome, txn.start, txn.commit, b"c"))
    return logs


def promise(log: list[tuple[int, int, int, bytes | None]], upto: int) -> int:
    """T of a log's first ``upto`` records for a Pump that will write the rest."""
    rest = [c for tp, _, c, _ in log[upto:] if tp == BinlogType.COMMIT]
    return min(rest, default=tso(10_000)) - 1


def batch(rows: list[tuple[str, int, int, int, bytes | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], [], [], []]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, RECORD, strict=True)], schema=RECORD)


@dataclasses.dataclass
class Bucket:
    """One bucket with its chunks, and the same with everything in hand."""

    index: Index = NOTHING
    chunks: MemoryChunks = dataclasses.field(default_factory=MemoryChunks)
    whole: pa.Table = dataclasses.field(default_factory=KEPT.empty_table)

    def take(self, rows: pa.Table, span: ResolvedSpan) -> StepResult:
        hand = take_up(self.index, self.chunks, rows, span)
        result = step(hand.records, rows, span)
        self.index = put_away(self.index, hand, result.kept, self.chunks)
        plain = step(self.whole, rows, span)
        self.whole = plain.kept
        assert listed(result.released) == listed(plain.released) and result.missing == plain.missing
        assert (result.oldest_alone, result.unsettled) == (plain.oldest_alone, plain.unsettled)
        assert wanted(self.index.records) == wanted(plain.kept)
        assert {chunk.number for chunk in self.index.chunks} == set(self.chunks.values)
        return result

    def again(self) -> "Bucket":
        """As a restart finds it."""
        return Bucket(unpack(pack(self.index)), self.chunks.copy(), self.whole)


def listed(released: pa.Table) -> list[tuple[int, int]]:
    return list(zip(released.column("commit_ts").to_pylist(), released.column("start_ts").to_pylist(), strict=True))


def wanted(records: pa.Table) -> object:
    found = look_after(records, 1200, 50)
    keys = [binlog_pb2.Binlog.FromString(orphan.payload).prewrite_key for orphan in found.orphans]
    return found.settles, [(o.pump, o.start_ts, o.age_ms) for o in found.orphans], keys, found.again_ms


@examples(300)
@given(st.integers(0, 1 << 40), st.sampled_from([(1 << 20, 1 << 20), (200, 150), (0, 1), (0, 300)]))
def test_any_cut_gives_the_same_transactions(seed: int, sizes: tuple[int, int]) -> None:
    with mock.patch.multiple("pyspark_tidb_binlog.binlog_source.pairing.state", INDEX_BYTES=sizes[0], CHUNK_BYTES=sizes[1]):
        run(random.Random(seed))


def run(rng: random.Random) -> None:
    txns = history(rng)
    logs = logs_of(txns, rng)
    floor = rng.choice([0, tso(1100), tso(1300)])
    expected = sorted((t.commit, t.start) for t in txns if t.commit > floor)
    bucket, resolved, at = Bucket(), floor, dict.fromkeys(PUMPS, 0)
    released: list[tuple[int, int]] = []
    while any(at[p] < len(logs[p]) for p in PUMPS) or resolved < tso(9000):
        rows = []
        for pump in PUMPS:
            take = rng.randint(0, 4)
            rows += [(pump, *record) for record in logs[pump][at[pump] : at[pump] + take]]
            at[pump] = min(at[pump] + take, len(logs[pump]))
        promised = min(promise(logs[p], at[p]) for p in PUMPS)
        before, resolved = resolved, max(resolved, rng.choice([promised, resolved + (promised - resolved) // 3]))
        before_it = bucket.again()
        result = bucket.take(batch(rng.sample(rows, len(rows))), ResolvedSpan(before, resolved))
        if rng.random() < 0.5:  # a replay of the batch in another order, from the stored state
            replayed = before_it.take(batch(rows), ResolvedSpan(before, resolved))
            assert replayed.released == result.released
            assert known(before_it, resolved) == known(bucket, resolved)
            bucket, result = before_it, replayed
        assert not result.missing
        check_payloads(result.released, txns)
        commits = result.released.column("commit_ts").to_pylist()
        assert all(before < c <= resolved for c in commits) and commits == sorted(commits)
        released += listed(result.released)
    assert released == expected
    assert bucket.index.empty and not bucket.chunks.values


def check_payloads(released: pa.Table, txns: list[Txn]) -> None:
    by_start = {t.start: t for t in txns}
    for row in released.to_pylist():
        binlog = binlog_pb2.Binlog.FromString(row["payload"])
        wanted = binlog_pb2.Binlog.FromString(payload_of(by_start[row["start_ts"]]))
        wanted.tp, wanted.commit_ts = BinlogType.COMMIT, row["commit_ts"]
        assert binlog == wanted


def known(bucket: Bucket, resolved: int) -> object:
    """What a bucket knows; which copy of a Prewrite carries the payload is all the same."""
    values = {chunk.number: bucket.chunks.values[chunk.number] for chunk in bucket.index.chunks if chunk.last_due}
    stored = [row for row in rows_of(values.values()) if row["due"] > resolved]
    rows = [*bucket.index.records.to_pylist(), *stored]
    return (
        sorted({(r["start_ts"], r["tp"], r["pump"], r["commit_ts"]) for r in rows}),
        {r["start_ts"] for r in rows if r["payload"] is not None},
    )


def rows_of(values: Iterable[bytes]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = unpacked(map(pa.scalar, values), KEPT).to_pylist()
    return found
