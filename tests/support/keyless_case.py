"""A case of our own in the form of the recorded ones: rows inserted into a table without any key, many of them alike.

Promises: whatever is replicated twice or not at all shows in the number of equal rows, since the target has nothing to tell them apart by.
"""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_sorted
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas.codec.number import encode_uvarint
from tests.support.golden_case import GOLDEN

CLUSTER_ID = 77
_TABLE = Table("stream", (Column("n", "int"), Column("v", "varchar(20)")))


def keyless_case(directory: Path, transactions: int = 150) -> RecordedCase:
    """Make the case below ``directory``."""
    case_dir = directory / "keyless"
    (case_dir / "expected").mkdir(parents=True)
    shutil.copy(GOLDEN / "compare.py", directory / "compare.py")
    configs = [
        PumpConfig(
            f"pump-{n}", "127.0.0.1:0", data_dir=str(directory / f"recorder-{n}"), cluster_id=CLUSTER_ID, stop_write_at_available_space=""
        )
        for n in (1, 2)
    ]
    pumps = [PumpServer(config).start() for config in configs]
    try:
        addresses = [pump.address for pump in pumps]
        with Upstream(PumpClient.fixed(addresses, CLUSTER_ID)) as upstream:
            start_ts = upstream.oracle.next()
            rows = _write(upstream, transactions)
            end_ts = upstream.oracle.next()
            upstream.flush()
            history = upstream.jobs()
        for number, address in enumerate(addresses, 1):
            _record(case_dir / f"pump-{number}.binlogs.gz", address, start_ts, end_ts)
    finally:
        for pump in pumps:
            pump.stop()
    facts = {"cluster_id": CLUSTER_ID, "start_ts": start_ts, "end_ts": end_ts, "databases": ["keyless"], "tables": [["keyless", "stream"]]}
    (case_dir / "case.json").write_text(json.dumps(facts))
    (case_dir / "ddl_history.json.gz").write_bytes(gzip.compress(json.dumps(history).encode()))
    lines = sorted(f"{_cell(n)}\t{_cell(v)}" for n, v in rows.elements())
    (case_dir / "expected" / "keyless.stream.tsv").write_text("\n".join(["n\tv", *lines, ""]))
    return load(case_dir)


def _write(upstream: Upstream, transactions: int) -> Counter[tuple[int, str]]:
    upstream.ddl.create_database("keyless")
    upstream.ddl.create_table("keyless", _TABLE)
    rows: Counter[tuple[int, str]] = Counter()
    for number in range(transactions):
        txn = upstream.begin()
        for row in range(1 + number % 3):
            value = (number % 5, f"row {row}")
            txn.insert("keyless.stream", {"n": value[0], "v": value[1]})
            rows[value] += 1
        txn.commit()
    return rows


def _record(path: Path, address: str, start_ts: int, end_ts: int) -> None:
    """What one Pump delivers, as the recorded cases keep it."""
    found = bytearray()
    for records in read_sorted(
        Endpoint(address, address, CLUSTER_ID, by_address=True), start_ts, end_ts, ReadTerms(30.0, LossPolicy(fail=True).lost)
    ):
        for payload in records.payloads:
            found += encode_uvarint(len(payload)) + payload
    path.write_bytes(gzip.compress(bytes(found)))


def _cell(value: int | str) -> str:
    return str(value).encode().hex().upper()
