"""The decoder on everything a real TiDB was recorded writing: it equals the reference, and replayed it gives TiDB's own tables."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.internal.decoder import _DecodeVarint32

from pyspark_tidb_binlog.schemas import decoder, reference_decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.ddl_jobs import JobReader
from pyspark_tidb_binlog.schemas.events import BinlogType, Op
from pyspark_tidb_binlog.schemas.explode import explode
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.proto import binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from tests.support.drawn_rows import at, column, table

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = ["types", "keys", "ddl", "txn", "beyond_mysql", "bank", "online"]
SAMPLE = 60
"""Rows of a (table, version) that the slow reference decodes too; it needs no more to meet every layout."""


def binlogs(path: Path) -> Iterator[tuple[int, int, bytes]]:
    data, pos = gzip.decompress(path.read_bytes()), 0
    while pos < len(data):
        size, pos = _DecodeVarint32(data, pos)
        payload = data[pos : pos + size]
        binlog = pb.Binlog.FromString(payload)
        if binlog.tp == BinlogType.COMMIT:
            yield binlog.commit_ts, binlog.start_ts, payload
        pos += size


def row_events(case: str) -> pa.RecordBatch:
    found = sorted(b for path in sorted((GOLDEN / case).glob("pump-*.gz")) for b in binlogs(path))
    cells = [pa.nulls(len(found), pa.int8())]
    cells += [pa.array([f[1] for f in found]), pa.array([f[0] for f in found])]
    cells += [pa.nulls(len(found), pa.int32()), pa.array([f[2] for f in found], pa.binary())]
    return explode(pa.RecordBatch.from_arrays(cells, schema=TRANSACTION)).rows


def history_of(case: str) -> SchemaHistory:
    return SchemaHistory.of(JobReader().read(json.loads(gzip.decompress((GOLDEN / case / "ddl_history.json.gz").read_bytes()))))


@pytest.mark.parametrize("case", CASES)
def test_real_rows_decode_alike_in_both_decoders(case: str) -> None:
    events, history, stats = row_events(case), history_of(case), decoder.DecodeStats()
    ids, versions, ops = (events.column(n).to_numpy() for n in ("table_id", "schema_version", "op"))
    for table_id, version in sorted(set(zip(ids.tolist(), versions.tolist(), strict=True))):
        where = history.table_at(table_id, version, dropping=True)
        assert where is not None
        index = np.flatnonzero((ids == table_id) & (versions == version))[:SAMPLE]
        compare(where, ops[index], events.column("row").take(pa.array(index)), versions[index], stats)
    assert stats.rows > 0
    assert stats.fallback == 0


def compare(where: TableAt, ops: np.ndarray, rows: pa.BinaryArray, versions: np.ndarray, stats: decoder.DecodeStats) -> None:
    assert decoder.row_keys(where, ops, rows, stats).equals(reference_decoder.row_keys(where, ops, rows))
    for half, kinds in (("new_images", (Op.INSERT, Op.UPDATE)), ("old_images", (Op.UPDATE, Op.DELETE))):
        index = np.flatnonzero(np.isin(ops, kinds))
        part = rows.take(pa.array(index))
        fast = getattr(decoder, half)(where, ops[index], part, versions[index], stats)
        fast.validate(full=True)
        assert fast.equals(getattr(reference_decoder, half)(where, ops[index], part, versions[index]))


@pytest.mark.parametrize("case", ["types", "keys", "txn"])
def test_replayed_rows_are_the_tables_that_tidb_had(case: str) -> None:
    events, history = row_events(case), history_of(case)
    ids = events.column("table_id").to_numpy()
    seen = 0
    for table_id in np.unique(ids).tolist():
        part = events.filter(pa.array(ids == table_id))
        where = history.table_at(table_id, int(part.column("schema_version").to_numpy().max()))
        assert where is not None
        expected = GOLDEN / case / "expected" / f"{where.schema}.{where.name}.tsv"
        if expected.exists():
            assert replay(where, part) == recorded(where, expected), where.name
            seen += 1
    assert seen >= 2


def replay(where: TableAt, events: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows that are left after all events, as text cells."""
    ops, versions, rows = events.column("op").to_numpy(), events.column("schema_version").to_numpy(), events.column("row")
    keys = decoder.row_keys(where, ops, rows).to_pylist()
    writing = np.flatnonzero(ops != int(Op.DELETE))
    images = decoder.new_images(where, ops[writing], rows.take(pa.array(writing)), versions[writing])
    shown = iter(zip(*(texts(c, images.column(i)) for i, c in enumerate(where.info.target_columns())), strict=True))
    left: dict[bytes, tuple[Any, ...]] = {}
    for op, key in zip(ops.tolist(), keys, strict=True):
        if op == Op.DELETE:
            del left[key]
        else:
            assert op == Op.UPDATE or key not in left
            left[key] = next(shown)
    return sorted(left.values(), key=repr)


def texts(info: ColumnInfo, cells: pa.Array) -> list[Any]:
    """Cells in a form that can be compared with the recorded text."""
    values = cells.to_pylist()
    if info.tp == 247:
        return [None if v is None else b"" if v == 0 else info.elems[v - 1].encode() for v in values]
    if info.tp == 248:
        return [None if v is None else ",".join(w for i, w in enumerate(info.elems) if v >> i & 1).encode() for v in values]
    if kind_of(info) in (CellKind.FLOAT, CellKind.DOUBLE):
        return [None if v is None else np.float32(v) if kind_of(info) is CellKind.FLOAT else v for v in values]
    return [v if v is None or isinstance(v, bytes) else str(v).encode() for v in values]


def recorded(where: TableAt, path: Path) -> list[tuple[Any, ...]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    places = [head.split("\t").index(c.name) for c in where.info.target_columns()]
    cells = [[line.split("\t")[i] for i in places] for line in lines]
    return sorted((tuple(read(c, v) for c, v in zip(where.info.target_columns(), row, strict=True)) for row in cells), key=repr)


def read(info: ColumnInfo, cell: str) -> Any:
    if cell == "\\N":
        return None
    raw = bytes.fromhex(cell)
    if kind_of(info) is CellKind.FLOAT:
        return np.float32(float(raw))
    if kind_of(info) is CellKind.DOUBLE:
        return float(raw)
    return str(int(raw)).encode() if kind_of(info) in (CellKind.INT, CellKind.UINT) else raw


def test_rows_of_every_kind_come_back_in_the_order_of_the_events() -> None:
    where = at(table((column(1, 8, 3), column(2, 8)), pk_is_handle=True))
    insert, update = b"\x08\x02\x08\x04\x08\x02", b"\x08\x02\x08\x04\x08\x04\x08\x06\x08\x02\x08\x04\x08\x04\x08\x08"
    ops = np.array([1, 0, 1, 0] * 5000, np.int32)
    rows = pa.array([update, insert] * 10_000, pa.binary())
    image = decoder.new_images(where, ops, rows, np.full(20_000, 10, np.int64))
    assert image.column("c1").to_pylist() == [2, 1] * 10_000
    assert image.column("c2").to_pylist() == [4, 1] * 10_000


def test_odd_but_right_rows_take_the_slow_way_and_are_counted() -> None:
    where = at(table((column(1, 8, 3), column(2, 15, charset="utf8mb4")), pk_is_handle=True))
    plain, odd = b"\x08\x02\x08\x04\x02\x02K", b"\x08\x04\x08\x04\x01K\0\0\0\0\0\0\0\xf8"
    stats = decoder.DecodeStats()
    image = decoder.new_images(where, np.zeros(3, np.int32), pa.array([plain, odd, plain], pa.binary()), np.full(3, 10, np.int64), stats)
    assert image.to_pylist() == [{"c1": 1, "c2": b"K"}, {"c1": 2, "c2": b"K"}, {"c1": 1, "c2": b"K"}]
    assert (stats.rows, stats.fallback) == (3, 1)
    assert 3 * stats.fallback == stats.rows


def test_no_rows_and_slices_of_bigger_arrays() -> None:
    where = at(table((column(1, 8, 3),), pk_is_handle=True))
    none = decoder.new_images(where, np.array([], np.int32), pa.array([], pa.binary()), np.array([], np.int64))
    assert none.num_rows == 0 and none.schema.names == ["c1"]
    rows = pa.array([b"\xff" * 9, b"\x08\x06\x00", b"\xff"], pa.binary())[1:2]
    assert decoder.new_images(where, np.zeros(1, np.int32), rows, np.full(1, 10, np.int64)).to_pylist() == [{"c1": 3}]
    assert decoder.row_keys(where, np.zeros(1, np.int32), rows).to_pylist() == [b"\0" * 7 + b"\x03"]
