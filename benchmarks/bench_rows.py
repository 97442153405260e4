"""Row operations per second on a private MariaDB: one connection with the upstream's transactions, lanes, and net changes, in the same run.

    python -m benchmarks.bench_rows [OPERATIONS]

Each mode applies each workload to equal tables; the ratio is to the mode with one connection. ``seconds`` includes decoding and planning.
"""

import random
import sys
import time
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_delete, encode_insert, encode_update
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, ColumnFlag, ColumnInfo, ColumnType, IndexColumn, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink

VERSION = SchemaVersion(1)
BASE = 100_000
"""Rows that are there before."""
PER_TRANSACTION = 5

BY_ROW: dict[str, Any] = {"net_change": False}
MODES: dict[str, dict[str, Any]] = {
    "one connection": BY_ROW | {"enable_dispatch": False, "txn_batch": 1},
    "16 lanes, groups": BY_ROW,
    "16 lanes, safe mode": BY_ROW | {"safe_mode": True},
    "4 lanes, groups": BY_ROW | {"worker_count": 4},
    "1 lane": BY_ROW | {"worker_count": 1},
    "net changes": {},
}


def _column(number: int, name: str, tp: int, flag: int = 0, charset: str = "binary") -> ColumnInfo:
    collate = "utf8mb4_bin" if charset != "binary" else charset
    return ColumnInfo(
        number, name, number - 1, tp, flag, 100, 0, charset, collate, (), None, None, None, None, False, "", False, False, PUBLIC, ""
    )


def _table() -> TableAt:
    columns = (
        _column(1, "id", ColumnType.BIGINT, int(ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY)),
        _column(2, "u", ColumnType.BIGINT),
        _column(3, "v", ColumnType.BIGINT),
        _column(4, "words", ColumnType.VARCHAR, charset="utf8mb4"),
    )
    unique = IndexInfo(1, "u", (IndexColumn("u", 1, -1),), True, False, PUBLIC, False, "")
    info = TableInfo(7, "t", "utf8mb4", "utf8mb4_bin", columns, (unique,), True, False, (), False, False, 0, "")
    return TableAt(7, "bench", "t", info, VERSION, (TableSnapshot(VERSION, "bench", "t", info),), False)


AT = _table()


def _events(kind: str, count: int) -> pa.Table:
    """``inserts``; ``mixed`` over many rows; ``hot``: half of the changes are of ten rows."""
    rng, info, found = random.Random(kind), AT.info, []
    rows = {i: (i, i, 0, f"row {i}") for i in range(BASE)}
    ids, born = list(rows), BASE
    for number in range(count):
        ts, seq = 10 + number // PER_TRANSACTION, number % PER_TRANSACTION
        draw = rng.random()
        if kind == "inserts" or draw < 0.3:
            new = (born, born, number, f"row {born} it's new")
            rows[born], born = new, born + 1
            op, row = Op.INSERT, encode_insert(info, _named(new), new[0])
        else:
            key = rng.randrange(10) if kind == "hot" and draw < 0.65 else rng.choice(ids)
            old = rows.get(key)
            if old is None or (draw > 0.85 and key >= 10):
                if old is None:
                    old = (key, key, number, "again")
                    rows[key] = old
                    op, row = Op.INSERT, encode_insert(info, _named(old), key)
                else:
                    del rows[key]
                    op, row = Op.DELETE, encode_delete(info, _named(old))
            else:
                new = (old[0], old[1], number, old[3])
                rows[key] = new
                op, row = Op.UPDATE, encode_update(info, _named(old), _named(new))
        found.append({"commit_ts": ts, "seq": seq, "op": int(op), "table_id": 7, "schema_version": int(VERSION), "row": row})
    return pa.Table.from_pylist(found, schema=ROW_EVENT)


def _named(values: tuple[Any, ...]) -> dict[int, Any]:
    return dict(enumerate(values, 1))


def _prepare(server: PrivateMariaDB) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for sql in (
            "DROP DATABASE IF EXISTS bench",
            "DROP DATABASE IF EXISTS tidb_binlog",
            "CREATE DATABASE bench",
            "CREATE TABLE bench.t (id bigint PRIMARY KEY, u bigint, v bigint, words varchar(100) COLLATE utf8mb4_bin, UNIQUE (u))",
            f"INSERT INTO bench.t SELECT seq, seq, 0, CONCAT('row ', seq) FROM bench.seq_0_to_{BASE - 1}",
        ):
            cursor.execute(sql)


def _checksum(server: PrivateMariaDB) -> Any:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CHECKSUM TABLE bench.t")
        return cursor.fetchall()[0][1]


def _seconds(server: PrivateMariaDB, events: pa.Table, settings: dict[str, Any]) -> float:
    _prepare(server)
    apply = ApplyConfig(on_finding="stop", atomic_rows=1 << 30, **settings)
    sink = MySQLSink(DrainerConfig(target=server.target(), apply=apply), 1)
    sink.open(lambda target, commit_ts: 1 if commit_ts is None else commit_ts, SchemaHistory)
    upto_ts = events.column("commit_ts").to_pylist()[-1]
    step = RowsStep(1, upto_ts, events.num_rows, {7: AT}, applied=AppliedJobs(int(VERSION)))
    begun = time.perf_counter()
    sink.apply(events, step, StageClock())
    seconds = time.perf_counter() - begun
    sink.close()
    return seconds


def main() -> None:
    """Print a line per workload and mode."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    chosen = {name: mode for name, mode in MODES.items() if not sys.argv[2:] or any(word in name for word in sys.argv[2:])}
    with PrivateMariaDB() as server:
        _seconds(server, _events("mixed", 500), MODES["16 lanes, groups"])
        for kind in ("inserts", "mixed", "hot"):
            events, base, sums = _events(kind, count), 0.0, set()
            for name, mode in chosen.items():
                seconds = _seconds(server, events, mode)
                base = base or seconds
                sums.add(_checksum(server))
                print(f"{kind:8} {name:20} {seconds:7.2f} s {count / seconds:9,.0f} operations/s {base / seconds:6.2f} times", flush=True)
            if len(sums) != 1:
                raise SystemExit(f"the modes ended with different tables: {sums}")


if __name__ == "__main__":
    main()
