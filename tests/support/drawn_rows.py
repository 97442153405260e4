"""Strategies for tables of every column type and key kind, and for row events of them written by ``row_encoder``.

A value is drawn in the writer's form and, beside it, as the cell that a decoder must make of it.
"""

import decimal
import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from pyspark_tidb_binlog.jobs.lab.emulator import row_encoder
from pyspark_tidb_binlog.jobs.lab.emulator.datum_encoder import JsonDuration, JsonNull, JsonOpaque, JsonTime, encode_json
from pyspark_tidb_binlog.schemas.codec.json_binary import JsonType, json_text
from pyspark_tidb_binlog.schemas.events import Op, SchemaVersion
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.history_fold import TableSnapshot
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    WHOLE_COLUMN,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    TableInfo,
)

NEWEST = 10
"""Version of the drawn tables; rows of lower versions may lack columns."""
OLDEST = 9
NOT_NULL = ColumnFlag.NOT_NULL
UNSIGNED = ColumnFlag.UNSIGNED
SIZES = {ColumnType.TINYINT: 1, ColumnType.SMALLINT: 2, ColumnType.MEDIUMINT: 3, ColumnType.INT: 4, ColumnType.BIGINT: 8}
WORDS = ("", "a", "b", "ä", "日本")


def column(number: int, tp: int, flag: int = 0, **fields: Any) -> ColumnInfo:
    """A public column with everything at rest."""
    settings: dict[str, Any] = dict(flen=-1, decimal=-1, charset="binary", collate="binary", elems=(), origin_default=None, state=PUBLIC)
    settings |= dict(origin_default_bit=None, default=None, default_bit=None, default_is_expr=False, generated_expr="")
    settings |= dict(generated_stored=False, hidden=False, comment="") | fields
    return ColumnInfo(id=number, name=f"c{number}", offset=number - 1, tp=tp, flag=flag, **settings)


def table(columns: tuple[ColumnInfo, ...], key: tuple[tuple[int, int], ...] = (), *, pk_is_handle: bool = False) -> TableInfo:
    """A table; ``key`` = offset and prefix length of the columns of a clustered primary key."""
    parts = tuple(IndexColumn(columns[offset].name, offset, length) for offset, length in key)
    indexes = (IndexInfo(1, "PRIMARY", parts, True, True, PUBLIC, False, ""),) if parts else ()
    return TableInfo(7, "t", "utf8mb4", "utf8mb4_bin", columns, indexes, pk_is_handle, bool(parts), (), False, False, 0, "")


def at(info: TableInfo, *older: tuple[int, TableInfo], version: int = NEWEST, dropping: bool = False) -> TableAt:
    """``info`` as the newest of its snapshots."""
    snapshots = [TableSnapshot(SchemaVersion(v), "db", "t", i) for v, i in (*older, (version, info))]
    return TableAt(7, "db", "t", info, SchemaVersion(version), tuple(snapshots), dropping)


@dataclass(frozen=True)
class Drawn:
    """A value as the row writer takes it, and as the cell of the image."""

    written: Any
    cell: Any


@dataclass(frozen=True)
class Events:
    """Row events of one table, and what must come out."""

    table: TableAt
    ops: np.ndarray
    rows: pa.BinaryArray
    versions: np.ndarray
    old: list[list[Any] | None]
    new: list[list[Any] | None]
    owners: list[int]
    """Which upstream row each event is of."""

    def only(self, *ops: Op) -> "Events":
        """The events of these kinds."""
        index = np.flatnonzero(np.isin(self.ops, ops))
        old, new, owners = ([values[i] for i in index] for values in (self.old, self.new, self.owners))
        return replace(
            self, ops=self.ops[index], rows=self.rows.take(pa.array(index)), versions=self.versions[index], old=old, new=new, owners=owners
        )


def integers(tp: int, unsigned: bool) -> st.SearchStrategy[Drawn]:
    bits = 8 * SIZES[ColumnType(tp)]
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (st.integers(low, high) | st.integers(max(low, -2), 2)).map(lambda v: Drawn(v, v))


def texts(binary: bool, limit: int) -> st.SearchStrategy[Drawn]:
    raw = st.binary(max_size=limit) if binary else st.text(max_size=limit).map(lambda s: s.encode(errors="replace"))
    return (raw | st.sampled_from([b"", b"x" * 200, "é".encode() * 5000])).map(lambda v: Drawn(v, v))


@st.composite
def decimals(draw: st.DrawFn, precision: int, scale: int) -> Drawn:
    number = decimal.Decimal(draw(st.integers(-(10**precision) + 1, 10**precision - 1))).scaleb(-scale, decimal.Context(prec=80))
    text = format(number, "f")
    return Drawn(text, text.removeprefix("-") if not number else text)


@st.composite
def moments(draw: st.DrawFn, fsp: int, *, date_only: bool = False) -> Drawn:
    date = f"{draw(st.integers(0, 9999)):04}-{draw(st.integers(0, 12)):02}-{draw(st.integers(0, 31)):02}"
    if date_only:
        return Drawn(date, date)
    part = f".{draw(st.integers(0, 10**fsp - 1)):0{fsp}}" if fsp else ""
    text = f"{date} {draw(st.integers(0, 23)):02}:{draw(st.integers(0, 59)):02}:{draw(st.integers(0, 59)):02}{part}"
    return Drawn(text, text)


@st.composite
def durations(draw: st.DrawFn, fsp: int) -> Drawn:
    units = draw(st.integers(-(838 * 3600 + 3599) * 10**fsp, (838 * 3600 + 3599) * 10**fsp))
    seconds, part = divmod(abs(units), 10**fsp)
    text = f"{'-' if units < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{f'.{part:0{fsp}}' if fsp else ''}"
    return Drawn(text, text)


def floats(width: int) -> st.SearchStrategy[Drawn]:
    def drawn(value: float) -> Drawn:
        value = struct.unpack(">f", struct.pack(">f", value))[0] if width == 32 else value
        return Drawn(value, abs(value) if value == 0 else value)

    limit = 3.4e38 if width == 32 else math.inf
    return st.floats(-limit, limit, allow_nan=False, allow_infinity=False).map(drawn)


JSON_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12).map(lambda s: s.encode(errors="replace").decode())
    | st.builds(JsonOpaque, st.integers(0, 255), st.binary(max_size=9))
    | moments(6).map(lambda d: JsonTime(JsonType.DATETIME, d.written))
    | st.integers(-(10**15), 10**15).map(JsonDuration)
)
KEYS = st.text(max_size=5).map(lambda s: s.encode(errors="replace").decode())
JSONS = st.recursive(JSON_LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)


def jsons() -> st.SearchStrategy[Drawn]:
    return JSONS.map(lambda v: Drawn(JsonNull() if v is None else v, json_text(encode_json(v))))


@st.composite
def typed_columns(draw: st.DrawFn, number: int, *, for_key: bool = False) -> tuple[ColumnInfo, st.SearchStrategy[Drawn]]:
    """A column and the strategy of its values (never NULL)."""
    kinds = ["int", "real", "decimal", "moment", "date", "time", "words", "bit", "year", "text", "char", "binary", "json"]
    kind = draw(st.sampled_from(kinds[:-1] if for_key else kinds))
    flag = draw(st.sampled_from([0, NOT_NULL])) if not for_key else NOT_NULL
    fsp = draw(st.integers(0, 6))
    match kind:
        case "int":
            tp, unsigned = draw(st.sampled_from(sorted(SIZES))), draw(st.booleans())
            return column(number, tp, flag | (UNSIGNED if unsigned else 0)), integers(tp, unsigned)
        case "real":
            tp = draw(st.sampled_from([ColumnType.FLOAT, ColumnType.DOUBLE]))
            return column(number, tp, flag), floats(32 if tp == ColumnType.FLOAT else 64)
        case "decimal":
            precision = draw(st.integers(1, 65))
            scale = draw(st.integers(0, min(precision, 30)))
            return column(number, ColumnType.DECIMAL, flag, flen=precision, decimal=scale), decimals(precision, scale)
        case "moment":
            return column(number, draw(st.sampled_from([ColumnType.DATETIME, ColumnType.TIMESTAMP])), flag, decimal=fsp), moments(fsp)
        case "date":
            return column(number, ColumnType.DATE, flag), moments(0, date_only=True)
        case "time":
            return column(number, ColumnType.TIME, flag, decimal=fsp), durations(fsp)
        case "words":
            tp = draw(st.sampled_from([ColumnType.ENUM, ColumnType.SET]))
            return column(number, tp, flag, elems=WORDS), st.integers(0, 5).map(lambda v: Drawn(v, v))
        case "bit":
            return column(number, ColumnType.BIT, flag | UNSIGNED, flen=64), st.integers(0, 2**64 - 1).map(lambda v: Drawn(v, v))
        case "year":
            return column(number, ColumnType.YEAR, flag | UNSIGNED), st.sampled_from([0, 1901, 2155]).map(lambda v: Drawn(v, v))
        case "json":
            return column(number, ColumnType.JSON, flag), jsons()
        case "binary":
            fixed = column(number, ColumnType.STRING, flag, flen=6)
            return fixed, st.binary(max_size=6).map(lambda v: Drawn(v, v.ljust(6, b"\x00")))
        case "char":
            char = column(
                number,
                ColumnType.STRING,
                flag,
                flen=9,
                charset="utf8mb4",
                collate=draw(st.sampled_from(["utf8mb4_bin", "utf8mb4_general_ci"])),
            )
            return char, st.text("aBé日 ", max_size=9).map(lambda v: Drawn(v, v.encode().rstrip(b" ")))
        case _:
            binary = draw(st.booleans())
            charset, collate = ("binary", "binary") if binary else ("utf8mb4", draw(st.sampled_from(["utf8mb4_bin", "utf8mb4_general_ci"])))
            return column(number, ColumnType.VARCHAR, flag, flen=9, charset=charset, collate=collate), texts(binary, 9)


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableInfo, list[st.SearchStrategy[Drawn]]]:
    """A table with any kind of handle."""
    keys = draw(st.sampled_from([0, 0, 1, 2, 3]))
    count = draw(st.integers(max(keys, 1), 7))
    made = [draw(typed_columns(i + 1, for_key=i < keys)) for i in range(count)]
    columns, values = tuple(c for c, _ in made), [v for _, v in made]
    if keys == 1 and columns[0].tp in SIZES:
        columns = (replace(columns[0], flag=columns[0].flag | ColumnFlag.PRI_KEY), *columns[1:])
        return table(columns, pk_is_handle=True), values
    key = tuple((i, _prefix(draw, columns[i])) for i in draw(st.permutations(range(keys))))
    return table(columns, key), values


def _prefix(draw: st.DrawFn, part: ColumnInfo) -> int:
    return draw(st.sampled_from([WHOLE_COLUMN, 3])) if part.tp == ColumnType.VARCHAR else WHOLE_COLUMN


@st.composite
def events(draw: st.DrawFn, max_rows: int = 12) -> Events:
    """Events of a table; older rows may lack its last column, whose default then fills them, and newer ones have a column more."""
    info, values = draw(tables())
    keyed = {c.id for c in info.handle_columns()}
    last = info.columns[-1]
    older = replace(info, columns=info.columns[:-1]) if last.id not in keyed and len(info.columns) > 1 and not last.not_null else info
    newer = replace(info, columns=(*info.columns, column(99, ColumnType.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")))
    ops, rows, versions, old, new, owners = [], [], [], [], [], []
    for owner in range(draw(st.integers(0, max_rows))):
        op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]))
        writer, version = draw(st.sampled_from([(info, NEWEST), (older, OLDEST), (newer, NEWEST)]))
        before = _row(draw, info, values)
        after = {i: v for i, v in _row(draw, info, values).items() if i not in keyed} | {i: before[i] for i in keyed}
        raw, rowid = {i: d.written for i, d in before.items()} | {99: "ü"}, draw(st.integers(-(2**63), 2**63 - 1))
        changed = {i: d.written for i, d in after.items()} | {99: None}
        known = {c.id for c in writer.columns}
        cells_before = [before[c.id].cell if c.id in known else None for c in info.columns]
        cells_after = [after[c.id].cell if c.id in known else None for c in info.columns]
        match op:
            case Op.INSERT:
                rows.append(row_encoder.encode_insert(writer, raw, rowid))
            case Op.UPDATE:
                rows.append(row_encoder.encode_update(writer, raw, changed, rowid))
            case _:
                rows.append(row_encoder.encode_delete(writer, raw, rowid))
        ops.append(int(op))
        versions.append(version)
        owners.append(owner)
        old.append(None if op == Op.INSERT else cells_before)
        new.append(None if op == Op.DELETE else cells_after if op == Op.UPDATE else cells_before)
    table_at = at(info, (OLDEST - 1, older))
    return Events(table_at, np.array(ops, np.int32), pa.array(rows, pa.binary()), np.array(versions, np.int64), old, new, owners)


def _row(draw: st.DrawFn, info: TableInfo, values: list[st.SearchStrategy[Drawn]]) -> dict[int, Drawn]:
    drawn = {c.id: draw(v) for c, v in zip(info.columns, values, strict=True)}
    return {c.id: Drawn(None, None) if not c.not_null and draw(st.booleans()) else drawn[c.id] for c in info.columns}
