"""A ledger of years: what a question about a moment, a table or a row reads of it.

    python -m benchmarks.bench_past [--rows 100000000]

It writes files as a compaction does, with rows of 50 tables over three years, and commits them together. Then it asks, without Spark, and prints for each
question the rows it found, the seconds, and the bytes that were read of all files.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.change_rows import commit_time
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, VariantColumn, laid_out, rows_as_variants
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake.lake_table import WrittenPart, scanned
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger, LedgerWrite, _sorted_part
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER

TABLES, ROW_KEYS = 50, 100_000
BEGIN_MS, YEARS_MS = 1_700_000_000_000, 3 * 365 * 86_400_000
PER_FILE = 400_000
"""Rows: some 64 MiB in memory, as ``RUN_BYTES``."""
HOUR_MS = 3_600_000


def filled(lake: Path, rows: int) -> Ledger:
    """A ledger with so many rows."""
    ledger = Ledger(str(lake))
    begun = LakeState("bench", 1, 1, 0)
    ledger.create(begun)
    parts = list[WrittenPart]()
    for begin in range(0, rows, PER_FILE):
        parts += _sorted_part(str(lake), [_rows(begin, min(PER_FILE, rows - begin), rows)], "runs")
    ledger.commit(begun, LakeState("bench", 1, 1, 1, commit_ts=tso(BEGIN_MS + YEARS_MS)), LedgerWrite(parts=parts))
    return ledger


def _rows(begin: int, count: int, of: int) -> pa.Table:
    numbers = np.arange(begin, begin + count)
    ts = (BEGIN_MS + numbers * YEARS_MS // of) << 18
    ids = numbers % TABLES + 100
    keys = (numbers // TABLES * 7919 % ROW_KEYS).astype(">i8")
    image = rows_as_variants([VariantColumn("n", TypedCells(pa.array(numbers)))], count)
    variants = laid_out(image, STORED_VARIANT)
    made = {
        "database": _same("shop", count),
        "table": pa.array(ids).cast(pa.string()),
        "op": _same("update", count),
        "commit_ts": pa.array(ts),
        "commit_time": commit_time(ts),
        "start_ts": pa.array(ts - 1),
        "seq": pa.array(np.zeros(count, np.int32)),
        "schema_version": pa.array(np.ones(count, np.int64)),
        "key": variants,
        "before": variants,
        "after": variants,
        "table_id": pa.array(ids),
        "row_key": pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer((np.arange(count + 1) * 8).astype(np.int32)), pa.py_buffer(keys)]
        ),
        "resolved_ts": pa.array(ts),
    }
    return pa.Table.from_arrays([made.get(f.name, pa.nulls(count, f.type)) for f in LEDGER], schema=LEDGER)


def _same(text: str, count: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(count, np.int64)))


def questions(rows: int) -> Iterator[tuple[str, str]]:
    """Each with its condition."""
    begin = tso(BEGIN_MS + YEARS_MS // 2)
    hour = f"commit_ts > {begin} AND commit_ts <= {begin + tso(HOUR_MS)}"
    one = (BEGIN_MS + rows // 2 * YEARS_MS // rows) << 18
    yield "a transaction", f"commit_ts = {one}"
    yield "an hour", hour
    yield "an hour of a table", f"{hour} AND table_id = 107"
    yield "a table", "table_id = 107"
    yield "a row", f"table_id = 107 AND row_key = X'{(7919 * 3 % ROW_KEYS).to_bytes(8, 'big').hex()}'"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the answers."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rows", type=int, default=100_000_000, help="changes in the ledger")
    rows = options.parse_args(argv).rows
    with tempfile.TemporaryDirectory(prefix="past-") as lake:
        begun = time.monotonic()
        ledger = filled(Path(lake), rows)
        files = ledger.files()
        size = sum(file.size for file in files)
        print(f"{rows:,} changes in {len(files)} files, {size >> 20:,} MiB, written in {time.monotonic() - begun:.0f} s")
        for name, where in questions(rows):
            before, begun = _read_bytes(), time.monotonic()
            found = scanned(ledger.uri, ("commit_ts", "seq", "op", "row_key", "before", "after"), where)
            assert found is not None
            count = sum(batch.num_rows for batch in found)
            took, read = time.monotonic() - begun, _read_bytes() - before
            print(f"{name}: {count:,} rows in {took:.2f} s, {read / (1 << 20):,.1f} MiB read, {100 * read / size:.2f} %")


def _read_bytes() -> int:
    """What this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


if __name__ == "__main__":
    main()
