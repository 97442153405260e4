"""The recorded content of a golden case's tables (``expected/*.tsv``), in a form in which rows of changes can be compared with it."""

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo


def recorded_rows(case: Path, table: str, info: TableInfo) -> list[tuple[Any, ...]]:
    """The rows of ``db.table`` as TiDB had them at the end: the columns that binlogs hold, in their order, sorted."""
    lines = (case / "expected" / f"{table}.tsv").read_text(encoding="utf-8").split("\n")
    names = lines[0].split("\t")
    places = [(column, names.index(column.name)) for column in info.target_columns()]
    cells = (line.split("\t") for line in lines[1:] if line)
    return sorted((tuple(_recorded(column, row[place]) for column, place in places) for row in cells), key=repr)


def _recorded(column: ColumnInfo, cell: str) -> Any:
    return None if cell == r"\N" else comparable(column, bytes.fromhex(cell))


def comparable(column: ColumnInfo, value: Any) -> Any:
    """A cell in one form: from the recorded bytes, or as Spark gives it."""
    if value is None:
        return None
    kind = kind_of(column)
    raw = kind is CellKind.BYTES and column.is_binary
    if isinstance(value, bytes | bytearray) and not raw:
        value = bytes(value).decode()
    match kind:
        case CellKind.BYTES if raw:
            return bytes(value)
        case CellKind.FLOAT:
            return struct.pack("<f", float(value))
        case CellKind.DOUBLE:
            return float(value)
        case CellKind.DECIMAL:
            return Decimal(value)
        case CellKind.JSON:
            return json.dumps(json.loads(value, parse_float=float), sort_keys=True)
        case CellKind.INT | CellKind.UINT:
            return int(value)
        case CellKind.NUMBER if column.tp == ColumnType.BIT:
            return {"true": 1, "false": 0}.get(str(value).lower()) if str(value).lower() in ("true", "false") else int(value)
        case CellKind.DATETIME:
            return str(value).removesuffix("+00:00").partition(".")[0], str(value).removesuffix("+00:00").partition(".")[2].rstrip("0")
        case _:
            return str(value)
