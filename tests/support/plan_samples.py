"""Tables and row events made from plain values, for the tests of planning."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import Row, encode_delete, encode_insert, encode_update
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    PartitionDef,
    TableInfo,
)
from pyspark_tidb_binlog.sinks.engine.keyed import BlockKind, KeyedEvents, pack, with_keys
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.plan import Plan, PlanLimits, SpanPlan, planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_ID = 77
VERSION = SchemaVersion(40)


def column(name: str, tp: int = ColumnType.BIGINT, flag: int = 0, flen: int = 20, decimal: int = 0, charset: str = "binary") -> ColumnInfo:
    return ColumnInfo(
        0, name, 0, tp, flag, flen, decimal, charset, charset, (), None, None, None, None, False, "", False, False, PUBLIC, ""
    )


def text(name: str, flag: int = 0, charset: str = "utf8mb4") -> ColumnInfo:
    """In the collation of ``PrivateMariaDB``, which a table made by hand has."""
    made = column(name, ColumnType.VARCHAR, flag, 100, 0, charset)
    return dataclasses.replace(made, collate=made.collate if charset == "binary" else f"{charset}_general_ci")


NOT_NULL = int(ColumnFlag.NOT_NULL)
INT_PK = NOT_NULL | int(ColumnFlag.PRI_KEY)


def index(
    name: str, *columns: tuple[str, int], unique: bool = True, primary: bool = False
) -> tuple[str, tuple[tuple[str, int], ...], bool, bool]:
    return name, columns, unique, primary


def table(
    columns: Sequence[ColumnInfo], indexes: Sequence[Any] = (), *, handle: str = "", schema: str = "d", name: str = "t", view: bool = False
) -> TableAt:
    """A table; ``handle`` is "int", "common" or "" for ``_tidb_rowid``."""
    placed = tuple(dataclasses.replace(c, id=i + 1, offset=i) for i, c in enumerate(columns))
    offsets = {c.name: c.offset for c in placed}
    made = tuple(
        IndexInfo(i + 1, n, tuple(IndexColumn(c, offsets[c], length) for c, length in cols), unique, primary, PUBLIC, False, "")
        for i, (n, cols, unique, primary) in enumerate(indexes)
    )
    info = TableInfo(TABLE_ID, name, "utf8mb4", "utf8mb4_bin", placed, made, handle == "int", handle == "common", (), view, False, 0, "")
    return TableAt(TABLE_ID, schema, name, info, VERSION, (TableSnapshot(VERSION, schema, name, info),), False)


def parted(at: TableAt) -> TableAt:
    """The table with two partitions, so that two of its rows may have the same ``_tidb_rowid``."""
    partitions = (PartitionDef(78, "p0", ("5",)), PartitionDef(79, "p1", ("1000",)))
    info = dataclasses.replace(at.info, partitions=partitions, partition_type=1)
    return dataclasses.replace(at, info=info, snapshots=tuple(dataclasses.replace(s, info=info) for s in at.snapshots))


def named(at: TableAt, values: Sequence[Any]) -> Row:
    """A row from values in column order."""
    return {c.id: v for c, v in zip(at.info.columns, values, strict=True)}


def row_event(
    at: TableAt | None, commit_ts: int, seq: int, old: Row | None, new: Row | None, rowid: int | None = None, version: int = 0
) -> dict[str, Any]:
    """A ``ROW_EVENT`` row of images by column id; ``rowid``: of a table without a clustered key; ``version``: 0 is that of the table."""
    assert at is not None
    if old is None:
        assert new is not None
        op, row = Op.INSERT, encode_insert(at.info, new, rowid)
    elif new is None:
        op, row = Op.DELETE, encode_delete(at.info, old, rowid)
    else:
        op, row = Op.UPDATE, encode_update(at.info, old, new, rowid)
    numbers = {"commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": seq, "op": int(op)}
    return {**numbers, "table_id": at.table_id, "schema_version": version or int(at.version), "row": row}


def in_spark(spark: "SparkSession", rows: pa.Table, history: SchemaHistory, parts: int) -> KeyedEvents:
    """The rows as a batch in parts has them."""
    keyed = with_keys(rows, history, parts)
    blocks = [b for part in range(parts) for b in pack(BlockKind.ROWS, part, keyed.filter(pc.equal(keyed.column("part"), part)))]
    return KeyedEvents(spark.createDataFrame(pa.Table.from_batches(blocks)).repartitionById(parts, "part"), parts)


class Events:
    """Row events of one table, one transaction per call unless ``same`` is asked for."""

    def __init__(self, at: TableAt, first_ts: int = 1000) -> None:
        self._at = at
        self._ts = first_ts
        self._seq = 0
        self._rows: list[dict[str, Any]] = []

    def insert(self, *values: Any, rowid: int | None = None, same: bool = False) -> "Events":
        return self._add(None, values, rowid, same)

    def update(self, old: Sequence[Any], new: Sequence[Any], rowid: int | None = None, same: bool = False) -> "Events":
        return self._add(old, new, rowid, same)

    def delete(self, *values: Any, rowid: int | None = None, same: bool = False) -> "Events":
        return self._add(values, None, rowid, same)

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self._rows, schema=ROW_EVENT)

    def _add(self, old: Sequence[Any] | None, new: Sequence[Any] | None, rowid: int | None, same: bool) -> "Events":
        self._ts, self._seq = (self._ts, self._seq + 1) if same else (self._ts + 1, 0)
        before, after = (None if values is None else named(self._at, values) for values in (old, new))
        self._rows.append(row_event(self._at, self._ts, self._seq, before, after, rowid, int(VERSION)))
        return self


def plan_rows(
    events: pa.Table,
    tables: Mapping[int, TableAt],
    limits: PlanLimits,
    keys: pa.BinaryArray | None = None,
    *,
    flavour: Flavour = Flavour.MARIADB,
    gapped: Collection[int] = (),
) -> Plan:
    """All statements for ``events``; the arguments are those of ``SpanPlan``."""
    return planned(SpanPlan(events, tables, limits, keys, flavour=flavour, gapped=gapped))
