"""Times the decoder against the protobuf parse of the same binlogs, on one core.

    python benchmarks/bench_decode.py [--case tests/golden/bench] [--repeat 5]

Prints the medians of both, their ratio (goal: at most 10) and the share of rows that the reference decoder had to decode. The ratio is that of
inserted rows to Arrow columns; row keys and the images of all events are timed too, and so are the row events of the binlogs, found in many
transactions at a time and parsed a few at a time. CPU seconds are printed as well: they are the ones to
compare on a busy machine.
"""

import argparse
import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from google.protobuf.internal.decoder import _DecodeVarint32

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pyspark_tidb_binlog.schemas import decoder  # noqa: E402
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader  # noqa: E402
from pyspark_tidb_binlog.schemas.events import BinlogType, Op  # noqa: E402
from pyspark_tidb_binlog.schemas.explode import explode  # noqa: E402
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt  # noqa: E402
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb  # noqa: E402
from pyspark_tidb_binlog.schemas.stages import TRANSACTION  # noqa: E402
from pyspark_tidb_binlog.schemas.wire_lockstep import FEWEST  # noqa: E402

Result = TypeVar("Result")
_SLICE = 2000
"""Transactions at a time, as in a batch."""
Part = tuple[TableAt, np.ndarray, pa.BinaryArray, np.ndarray]


def payloads_of(path: Path) -> Iterator[bytes]:
    data, pos = gzip.decompress(path.read_bytes()), 0
    while pos < len(data):
        size, pos = _DecodeVarint32(data, pos)
        yield data[pos : pos + size]
        pos += size


def parse(payloads: list[bytes]) -> None:
    for payload in payloads:
        pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)


def transactions_of(payloads: list[bytes]) -> pa.RecordBatch:
    commits = [(b.commit_ts, b.start_ts, p) for p in payloads if (b := pb.Binlog.FromString(p)).tp == BinlogType.COMMIT]
    commits.sort()
    rows = [{"start_ts": start_ts, "commit_ts": commit_ts, "payload": payload} for commit_ts, start_ts, payload in commits]
    return pa.RecordBatch.from_pylist(rows, schema=TRANSACTION)


def explode_by(count: int, transactions: pa.RecordBatch) -> None:
    """All of them, ``count`` at a time."""
    for begin in range(0, transactions.num_rows, count):
        explode(transactions.slice(begin, count))


def tables_of(case: Path, transactions: pa.RecordBatch) -> list[Part]:
    history = SchemaHistory.of(JobReader().read(json.loads(gzip.decompress((case / "ddl_history.json.gz").read_bytes()))))
    events = explode(transactions).rows
    ids, ops, versions = (events.column(n).to_numpy() for n in ("table_id", "op", "schema_version"))
    parts = []
    for table_id in np.unique(ids).tolist():
        index = np.flatnonzero(ids == table_id)
        where = history.table_at(table_id, int(versions[index].max()))
        if where is None:
            raise SystemExit(f"the history of {case} has no table id {table_id}")
        parts.append((where, ops[index], events.column("row").take(pa.array(index)), versions[index]))
    return parts


def only(part: Part, *kinds: Op) -> Part:
    where, ops, rows, versions = part
    index = np.flatnonzero(np.isin(ops, kinds))
    return where, ops[index], rows.take(pa.array(index)), versions[index]


def medians(work: Callable[[], Result], repeat: int) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = [], []
    for _ in range(repeat):
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    return statistics.median(wall), statistics.median(cpu)


def main() -> int:
    options = argparse.ArgumentParser(description="time the decoder against the protobuf parse")
    options.add_argument("--case", type=Path, default=ROOT / "tests" / "golden" / "bench")
    options.add_argument("--repeat", type=int, default=5)
    args = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    payloads = [p for path in sorted(args.case.glob("pump-*.binlogs.gz")) for p in payloads_of(path)]
    transactions = transactions_of(payloads)
    parts = tables_of(args.case, transactions)
    inserts, writes, deletes = ([only(p, *k) for p in parts] for k in ((Op.INSERT,), (Op.INSERT, Op.UPDATE), (Op.UPDATE, Op.DELETE)))
    stats = decoder.DecodeStats()
    work: dict[str, Callable[[], object]] = {
        "protobuf parse": lambda: parse(payloads),
        "row events": lambda: explode_by(_SLICE, transactions),
        "row events, few at a time": lambda: explode_by(FEWEST - 1, transactions),
        "inserted rows to Arrow": lambda: [decoder.new_images(*p, stats) for p in inserts],
        "new images of all events": lambda: [decoder.new_images(*p) for p in writes],
        "old images of all events": lambda: [decoder.old_images(*p) for p in deletes],
        "keys of all events": lambda: [decoder.row_keys(*p[:3]) for p in parts],
    }
    timed = {name: medians(run, args.repeat) for name, run in work.items()}
    counted = sum(len(p[1]) for p in inserts)
    print(f"{len(payloads)} binlogs, {counted} inserted rows, {sum(len(p[1]) for p in parts)} row events; medians of {args.repeat}")
    for name, (wall, cpu) in timed.items():
        print(f"  {name:26} {wall:.3f} s, CPU {cpu:.3f} s")
    base, own = timed["protobuf parse"], timed["inserted rows to Arrow"]
    print(f"inserted rows to Arrow / protobuf parse: {own[0] / base[0]:.1f} (CPU {own[1] / base[1]:.1f}); goal: at most 10")
    many, few = timed["row events"], timed["row events, few at a time"]
    print(f"row events, few at a time / many: {few[0] / many[0]:.1f} (CPU {few[1] / many[1]:.1f})")
    print(f"rows in the scalar fallback: {100 * stats.fallback_share:.2f}%")
    return 0 if own[1] <= 10 * base[1] and stats.fallback == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
