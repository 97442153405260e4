"""Planning on one core: fold, parts and literals of a big span, compared to Python formatting of the same rows.

Run: ``python benchmarks/bench_plan.py [rows]``. Prints medians of 5 repetitions and the speed-up of the columnar code; no server is needed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine.fold import fold, part_numbers
from pyspark_tidb_binlog.sinks.mysql.plan import Images, PlanLimits, TableBuilder
from pyspark_tidb_binlog.sinks.mysql.statements import Effect
from tests.support.plan_samples import INT_PK, column, table, text

REPETITIONS = 5

ORDERS = table(
    [
        column("id", flag=INT_PK),
        column("customer"),
        text("sku"),
        column("qty", ColumnType.INT),
        column("price", ColumnType.DECIMAL, flen=10, decimal=2),
        text("note"),
        column("created", ColumnType.DATETIME, flen=19),
        column("flags", ColumnType.BIT, flen=8),
        column("kind", ColumnType.ENUM, charset="utf8mb4"),
    ],
    handle="int",
    name="orders",
)


def median(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def images(rows: int) -> pa.RecordBatch:
    """Decoded rows like those of the recorded case ``bench``."""
    rng = np.random.default_rng(7)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(np.arange(rows)),
            "customer": pa.array(rng.integers(0, 100_000, rows)),
            "sku": pa.array([b"SKU-%06d" % i for i in rng.integers(0, 10**6, rows)], pa.binary()),
            "qty": pa.array(rng.integers(1, 100, rows)),
            "price": pa.array([f"{x / 100:.2f}" for x in rng.integers(1, 10**6, rows)]),
            "note": pa.array([b"it's note %d of the customer" % i if i % 9 else None for i in range(rows)], pa.binary()),
            "created": pa.array([f"2026-11-20 12:{i // 60 % 60:02d}:{i % 60:02d}" for i in range(rows)]),
            "flags": pa.array(rng.integers(0, 256, rows).astype(np.uint64)),
            "kind": pa.array(rng.integers(1, 4, rows).astype(np.uint64)),
        }
    )


def events(inserts: int, updates: int, deletes: int) -> pa.Table:
    """Events of one table without row bytes: inserts, then updates of few rows, then deletes."""
    rng = np.random.default_rng(7)
    touched = np.concatenate(
        [np.arange(inserts), (rng.random(updates) ** 3 * inserts).astype(np.int64), rng.permutation(inserts)[:deletes]]
    )
    ops = np.repeat([int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)], [inserts, updates, deletes])
    count = len(touched)
    return pa.table(
        {
            "commit_ts": pa.array(np.arange(count) // 20),
            "seq": pa.array((np.arange(count) % 20).astype(np.int32)),
            "op": pa.array(ops.astype(np.int32)),
            "table_id": pa.array(np.full(count, 96)),
            "key": pa.array([int(i).to_bytes(8, "big") for i in touched], pa.binary()),
        }
    )


def literal(value: Any) -> str:
    """One value as Python would format it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return "'" + value.decode().replace("\\", "\\\\").replace("'", "''") + "'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def scalar_statements(batch: pa.RecordBatch, limits: PlanLimits) -> list[bytes]:
    """The same statements by a loop over rows: the baseline."""
    head = "INSERT INTO `d`.`orders` VALUES "
    found = []
    rows = ["(" + ",".join(map(literal, row.values())) + ")" for row in batch.to_pylist()]
    for first in range(0, len(rows), limits.max_rows):
        found.append((head + ",".join(rows[first : first + limits.max_rows])).encode())
    return found


def main(rows: int) -> None:
    limits = PlanLimits()
    batch = images(rows)
    builder = TableBuilder(ORDERS, limits)
    fresh = Images(batch, np.arange(rows))
    columns = median(lambda: builder.writes(fresh, Effect.ADDS))
    size = sum(len(s.sql) for s in builder.writes(fresh, Effect.ADDS))
    scalar = median(lambda: scalar_statements(batch, limits))
    print(
        f"statements  {rows:>8,} rows x 9 columns  {size / 1e6:.1f} MB  {columns:.3f} s  Python loop {scalar:.3f} s  ratio {scalar / columns:.1f}"
    )
    span = events(rows, rows // 3, rows // 10)
    ids, keys = span["table_id"].to_numpy(), span["key"].combine_chunks()
    keyless = np.zeros(span.num_rows, dtype=bool)
    print(f"fold        {span.num_rows:>8,} events            {median(lambda: fold(span)):.3f} s")
    shuffled = shuffle(span)
    print(f"fold        {span.num_rows:>8,} events, shuffled  {median(lambda: fold(shuffled)):.3f} s")
    print(f"parts       {span.num_rows:>8,} keys              {median(lambda: part_numbers(ids, keys, keyless, 2)):.3f} s")


def shuffle(span: pa.Table) -> pa.Table:
    return span.take(pa.array(np.random.default_rng(1).permutation(span.num_rows))).combine_chunks()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 181_000)
