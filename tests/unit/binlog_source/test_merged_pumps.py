"""Pumps merged: against a simple model, over every cut into batches that Hypothesis draws."""

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.changes.merged_pumps import merged

SCHEMA = pa.schema([("commit_ts", pa.int64()), ("pump", pa.int64()), ("piece", pa.int64())])
Rows = list[tuple[int, int, int]]


def batches(rows: Rows, cuts: list[int]) -> Iterator[pa.RecordBatch]:
    bounds = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    for begin, end in zip(bounds, bounds[1:], strict=False):
        columns = list(zip(*rows[begin:end], strict=True)) or [[], [], []]
        yield pa.RecordBatch.from_arrays([pa.array(list(c), pa.int64()) for c in columns], schema=SCHEMA)


@given(
    transactions=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=12),
    pumps=st.integers(1, 3),
    cuts=st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=3, max_size=3),
)
def test_each_transaction_once_whole_and_in_order(transactions: list[tuple[int, int]], pumps: int, cuts: list[list[int]]) -> None:
    """``transactions``: which Pumps have each, as bits, and its pieces."""
    logs: list[Rows] = [[] for _ in range(pumps)]
    wanted = []
    for number, (bits, pieces) in enumerate(transactions):
        holders = [p for p in range(pumps) if bits >> p & 1] or [0]
        for pump in holders:
            logs[pump] += [(10 * number, pump, piece) for piece in range(pieces)]
        wanted += [(10 * number, piece) for piece in range(pieces)]
    found = [row for batch in merged([batches(log, cut) for log, cut in zip(logs, cuts, strict=False)]) for row in batch.to_pylist()]
    assert [(row["commit_ts"], row["piece"]) for row in found] == wanted
    of = {}
    assert all(of.setdefault(row["commit_ts"], row["pump"]) == row["pump"] for row in found)
