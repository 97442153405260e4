"""Pairing against a dict model: any interleaving, batch cut, duplication and restart gives the same transactions."""

import dataclasses
import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from binlog_source.pairing import RECORD, PairState, Span, empty_state, pack, step, unpack
from schemas.events import BinlogType, tso
from schemas.proto import binlog_pb2

PUMPS = ("a", "b", "c")


@dataclasses.dataclass(frozen=True)
class Txn:
    start: int
    commit: int
    """0 = rolled back."""
    pump: str
    copies: tuple[str, ...]
    """Pumps with a second Prewrite; they get their outcome at the end of their log."""


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


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 1 << 40))
def test_any_cut_gives_the_same_transactions(seed: int) -> None:
    rng = random.Random(seed)
    txns = history(rng)
    logs = logs_of(txns, rng)
    floor = rng.choice([0, tso(1100), tso(1300)])
    expected = sorted((t.commit, t.start) for t in txns if t.commit > floor)
    state, resolved, at = empty_state(), floor, dict.fromkeys(PUMPS, 0)
    released: list[tuple[int, int]] = []
    while any(at[p] < len(logs[p]) for p in PUMPS) or resolved < tso(9000):
        rows = []
        for pump in PUMPS:
            take = rng.randint(0, 4)
            rows += [(pump, *record) for record in logs[pump][at[pump] : at[pump] + take]]
            at[pump] = min(at[pump] + take, len(logs[pump]))
        before, resolved = resolved, max(resolved, min(promise(logs[p], at[p]) for p in PUMPS))
        again = rng.random() < 0.5
        result = step(state, batch(rng.sample(rows, len(rows))), Span(before, resolved))
        if again:  # a replay of the batch in another order, from the stored state
            replayed = step(unpack(pack(state)), batch(rows), Span(before, resolved))
            assert replayed.released == result.released
            assert known(replayed.state) == known(result.state)
            result = replayed
        assert not result.missing
        check_payloads(result.released, txns)
        commits = result.released.column("commit_ts").to_pylist()
        assert all(before < c <= resolved for c in commits) and commits == sorted(commits)
        released += list(zip(commits, result.released.column("start_ts").to_pylist(), strict=True))
        state = result.state
    assert released == expected
    assert leftovers(state) == []


def check_payloads(released: pa.Table, txns: list[Txn]) -> None:
    by_start = {t.start: t for t in txns}
    for row in released.to_pylist():
        binlog = binlog_pb2.Binlog.FromString(row["payload"])
        wanted = binlog_pb2.Binlog.FromString(payload_of(by_start[row["start_ts"]]))
        wanted.tp, wanted.commit_ts = BinlogType.COMMIT, row["commit_ts"]
        assert binlog == wanted


def known(state: PairState) -> object:
    """What a state knows; which copy of a Prewrite carries the payload is all the same."""
    rows = state.records.to_pylist()
    return (
        sorted((r["start_ts"], r["tp"], r["pump"], r["commit_ts"]) for r in rows),
        {r["start_ts"]: r["payload"] for r in rows if r["payload"] is not None},
    )


def leftovers(state: PairState) -> list[object]:
    return state.records.to_pylist()
