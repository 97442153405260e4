"""Times the decoder against the protobuf parse of the same binlogs, on one core.

    python -m benchmarks.bench_decode [--case tests/golden/bench] [--repeat 5]

Prints the medians of both, their ratio (goal: at most 10), and the share of rows that the reference decoder had to decode. The ratio is for inserted rows
as Arrow columns. Also timed: row keys, the images of all events, and the row events of the binlogs, for many transactions at a time and for a few. On a
busy machine, compare the printed CPU seconds.
"""

import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks.one_core import SLICE, begun, medians, parse
from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from pyspark_tidb_binlog.schemas.wire_lockstep import FEWEST

Part = tuple[TableAt, np.ndarray, pa.BinaryArray, np.ndarray]


def explode_by(count: int, transactions: pa.RecordBatch) -> None:
    """All of them, ``count`` at a time."""
    for begin in range(0, transactions.num_rows, count):
        explode(transactions.slice(begin, count))


def tables_of(history: SchemaHistory, transactions: pa.RecordBatch) -> list[Part]:
    events = explode(transactions).rows
    ids, ops, versions = (events.column(n).to_numpy() for n in ("table_id", "op", "schema_version"))
    parts = []
    for table_id in np.unique(ids).tolist():
        index = np.flatnonzero(ids == table_id)
        where = history.table_at(table_id, int(versions[index].max()))
        if where is None:
            raise SystemExit(f"the history has no table id {table_id}")
        parts.append((where, ops[index], events.column("row").take(pa.array(index)), versions[index]))
    return parts


def only(part: Part, *kinds: Op) -> Part:
    where, ops, rows, versions = part
    index = np.flatnonzero(np.isin(ops, kinds))
    return where, ops[index], rows.take(pa.array(index)), versions[index]


def main() -> int:
    case, repeat = begun("time the decoder against the protobuf parse", 5)
    payloads, transactions = case.payloads, case.transactions.select(TRANSACTION.names)
    parts = tables_of(case.history, transactions)
    inserts, writes, deletes = ([only(p, *k) for p in parts] for k in ((Op.INSERT,), (Op.INSERT, Op.UPDATE), (Op.UPDATE, Op.DELETE)))
    stats = decoder.DecodeStats()
    work: dict[str, Callable[[], object]] = {
        "protobuf parse": lambda: parse(payloads),
        "row events": lambda: explode_by(SLICE, transactions),
        "row events, few at a time": lambda: explode_by(FEWEST - 1, transactions),
        "inserted rows to Arrow": lambda: [decoder.new_images(*p, stats) for p in inserts],
        "new images of all events": lambda: [decoder.new_images(*p) for p in writes],
        "old images of all events": lambda: [decoder.old_images(*p) for p in deletes],
        "keys of all events": lambda: [decoder.row_keys(*p[:3]) for p in parts],
    }
    timed = {name: medians(run, repeat) for name, run in work.items()}
    counted = sum(len(p[1]) for p in inserts)
    print(f"{len(payloads)} binlogs, {counted} inserted rows, {sum(len(p[1]) for p in parts)} row events; medians of {repeat}")
    for name, (wall, cpu) in timed.items():
        print(f"  {name:26} {wall:.3f} s, CPU {cpu:.3f} s")
    base, own = timed["protobuf parse"], timed["inserted rows to Arrow"]
    print(f"inserted rows to Arrow / protobuf parse: {own[0] / base[0]:.1f} (CPU {own[1] / base[1]:.1f}); goal: at most 10")
    many, few = timed["row events"], timed["row events, few at a time"]
    print(f"row events, few at a time / many: {few[0] / many[0]:.1f} (CPU {few[1] / many[1]:.1f})")
    print(f"rows in the scalar fallback: {100 * stats.fallback / stats.rows:.2f}%")
    return 0 if own[1] <= 10 * base[1] and stats.fallback == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
