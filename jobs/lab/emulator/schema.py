"""Tables of the embedded upstream: from a short description to the table info JSON and the DDL text of a real TiDB.

    Column("price", "decimal(10,2) unsigned", not_null=True, default="0.00")

Promises: pure. The JSON has the keys of ddl.md 2; the text has TiDB's restored form (ddl.md 1). Columns come back public and in order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnFlag, ColumnInfo, ColumnType, TableInfo

Json = dict[str, Any]

CHARSET = "utf8mb4"
COLLATION = "utf8mb4_bin"
DELETE_ONLY, WRITE_ONLY, WRITE_REORG, DELETE_REORG = 1, 2, 3, 4
"""Schema states of columns and indexes before ``PUBLIC`` and after."""
WRITABLE = frozenset({PUBLIC, WRITE_ONLY, WRITE_REORG})
"""States of the columns that an INSERT writes."""

_TYPE = re.compile(r"(?P<name>[a-z]+)(?:\((?P<args>.*)\))?(?P<unsigned> unsigned)?\Z")
_FLEN = {
    "tinyint": 4, "smallint": 6, "mediumint": 9, "int": 11, "bigint": 20, "float": 12, "double": 22, "decimal": 10, "bit": 1,
    "year": 4, "date": 10, "time": 10, "datetime": 19, "timestamp": 19, "char": 1, "binary": 1,
    "tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295,
    "tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295, "json": 4_294_967_295,
}  # fmt: skip
"""Display lengths where the declaration names none."""
_TYPES = {
    "tinyint": ColumnType.TINYINT,
    "smallint": ColumnType.SMALLINT,
    "mediumint": ColumnType.MEDIUMINT,
    "int": ColumnType.INT,
    "bigint": ColumnType.BIGINT,
    "float": ColumnType.FLOAT,
    "double": ColumnType.DOUBLE,
    "decimal": ColumnType.DECIMAL,
    "year": ColumnType.YEAR,
    "date": ColumnType.DATE,
    "time": ColumnType.TIME,
    "datetime": ColumnType.DATETIME,
    "timestamp": ColumnType.TIMESTAMP,
    "json": ColumnType.JSON,
    "char": ColumnType.STRING,
    "binary": ColumnType.STRING,
    "varchar": ColumnType.VARCHAR,
    "varbinary": ColumnType.VARCHAR,
    "tinytext": ColumnType.TINYBLOB,
    "text": ColumnType.BLOB,
    "mediumtext": ColumnType.MEDIUMBLOB,
    "longtext": ColumnType.LONGBLOB,
    "tinyblob": ColumnType.TINYBLOB,
    "blob": ColumnType.BLOB,
    "mediumblob": ColumnType.MEDIUMBLOB,
    "longblob": ColumnType.LONGBLOB,
    "enum": ColumnType.ENUM,
    "set": ColumnType.SET,
    "bit": ColumnType.BIT,
}
_TEXTUAL = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"})
_FRACTIONAL = frozenset({"time", "datetime", "timestamp"})
_INTEGERS = frozenset(ColumnType(n) for n in (1, 2, 3, 8, 9, 13, 16))


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as declared in SQL."""

    name: str
    kind: str
    """``bigint unsigned``, ``varchar(20)``, ``decimal(10,2)``, ``datetime(3)``, ``enum('a','b')``…"""
    not_null: bool = False
    default: str | int | float | None = None
    collate: str = ""
    """Collation of a text column; empty = the table's."""

    def text(self) -> str:
        """The column definition in TiDB's restored form."""
        kind = re.sub(r"^[a-z]+", lambda m: m[0].upper(), self.kind).replace(" unsigned", " UNSIGNED")
        default = "" if self.default is None else f" DEFAULT {_literal(self.default)}"
        collate = f" COLLATE {self.collate}" if self.collate else ""
        return f"{quote_name(self.name)} {kind}{collate}{' NOT NULL' if self.not_null else ''}{default}"


@dataclass(frozen=True, slots=True)
class Table:
    """One table, as declared in SQL."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    clustered: bool = True
    """False: the handle is ``_tidb_rowid`` although there is a primary key."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Unique keys; a column is ``c``, or ``c(3)`` for a prefix."""

    def text(self) -> str:
        """The CREATE TABLE in TiDB's restored form."""
        parts = [column.text() for column in self.columns]
        if self.primary_key:
            parts.append(
                f"PRIMARY KEY({_names(self.primary_key)}) /*T![clustered_index] {'CLUSTERED' if self.clustered else 'NONCLUSTERED'} */"
            )
        parts += [f"UNIQUE `u{number}`({', '.join(map(part_text, columns))})" for number, columns in enumerate(self.unique, 1)]
        return f"CREATE TABLE {quote_name(self.name)} ({','.join(parts)});"


def name_json(name: str) -> Json:
    """A name as written and in lower case."""
    return {"O": name, "L": name.lower()}


def database_json(name: str, schema_id: int) -> Json:
    """The database info."""
    return {"id": schema_id, "db_name": name_json(name), "charset": CHARSET, "collate": COLLATION, "state": PUBLIC}


def table_json(table: Table, table_id: int) -> Json:
    """The table info of a new table."""
    columns = [column_json(column, number, number - 1) for number, column in enumerate(table.columns, 1)]
    by_name = {column["name"]["O"]: column for column in columns}
    for name in table.primary_key:
        by_name[name]["type"]["Flag"] |= int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
    integer_key = len(table.primary_key) == 1 and by_name[table.primary_key[0]]["type"]["Tp"] in (1, 2, 3, 8, 9)
    pk_is_handle = table.clustered and integer_key
    keys = [("PRIMARY", table.primary_key, True)] if table.primary_key and not pk_is_handle else []
    keys += [(f"u{number}", columns_of, False) for number, columns_of in enumerate(table.unique, 1)]
    return {
        "id": table_id,
        "name": name_json(table.name),
        "charset": CHARSET,
        "collate": COLLATION,
        "cols": columns,
        "index_info": [index_json(i, n, c, by_name, primary=p) for i, (n, c, p) in enumerate(keys, 1)] or None,
        "state": PUBLIC,
        "pk_is_handle": pk_is_handle,
        "is_common_handle": bool(table.primary_key) and table.clustered and not integer_key,
        "common_handle_version": 1,
        "comment": "",
        "max_col_id": len(columns),
        "max_idx_id": len(keys),
        "partition": None,
        "view": None,
        "sequence": None,
        "temp_table_type": 0,
    }


def column_json(column: Column, column_id: int, offset: int, *, added: bool = False) -> Json:
    """One element of ``cols``; an ``added`` column keeps its default for existing rows."""
    default = column.default if column.default is None or column.kind.startswith("bit") else str(column.default)
    return {
        "id": column_id,
        "name": name_json(column.name),
        "offset": offset,
        "origin_default": default if added else None,
        "origin_default_bit": None,
        "default": default,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "type": _type_json(column),
        "state": PUBLIC,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _type_json(column: Column) -> Json:
    match = _TYPE.match(column.kind)
    if match is None or match["name"] not in _TYPES:
        raise ConfigError(f"column {column.name}: the embedded upstream has no type {column.kind!r}")
    name, args = match["name"], match["args"]
    words = re.findall(r"'((?:[^']|'')*)'", args or "") if name in ("enum", "set") else []
    numbers = [int(part) for part in args.split(",")] if args and not words else []
    flen = numbers[0] if numbers and name not in _FRACTIONAL else _FLEN.get(name, 1)
    plain = -1 if name in ("float", "double") else 0
    scale = numbers[1] if len(numbers) > 1 else numbers[0] if numbers and name in _FRACTIONAL else plain
    flag = (ColumnFlag.NOT_NULL if column.not_null else 0) | (ColumnFlag.UNSIGNED if match["unsigned"] else 0)
    textual = name in _TEXTUAL
    return {
        "Tp": int(_TYPES[name]),
        "Flag": int(flag),
        "Flen": flen,
        "Decimal": scale,
        "Charset": CHARSET if textual else "binary",
        "Collate": (column.collate or COLLATION) if textual else "binary",
        "Elems": [word.replace("''", "'") for word in words] or None,
        "ElemsIsBinaryLit": None,
        "Array": False,
    }


def index_json(
    index_id: int, name: str, columns: Sequence[str], by_name: dict[str, Json], *, unique: bool = True, primary: bool = False
) -> Json:
    """One element of ``index_info``, public."""
    parts = [(match["name"], int(match["length"] or WHOLE_COLUMN)) for match in map(_part, columns)]
    return {
        "id": index_id,
        "idx_name": name_json(name),
        "idx_cols": [{"name": name_json(c), "offset": by_name[c]["offset"], "length": length} for c, length in parts],
        "is_unique": unique,
        "is_primary": primary,
        "state": PUBLIC,
        "comment": "",
        "is_invisible": False,
        "mv_index": False,
    }


def part_text(part: str) -> str:
    """A column of an index, or a prefix of one, as SQL."""
    match = _part(part)
    return quote_name(match["name"]) + (f"({match['length']})" if match["length"] else "")


def _part(part: str) -> re.Match[str]:
    match = re.fullmatch(r"(?P<name>[^(]+)(?:\((?P<length>\d+)\))?", part)
    if match is None:
        raise ConfigError(f"{part!r} is neither a column nor a prefix like c(3)")
    return match


def with_columns(info: Json, columns: Sequence[Json]) -> Json:
    """``info`` with these columns, and the offsets of columns and index columns adjusted."""
    cols = [{**column, "offset": offset} for offset, column in enumerate(columns)]
    offsets = {column["name"]["L"]: column["offset"] for column in cols}
    indexes = [
        {**index, "idx_cols": [{**part, "offset": offsets[part["name"]["L"]]} for part in index["idx_cols"]]}
        for index in info["index_info"] or ()
    ]
    newest = max([info["max_col_id"], *(column["id"] for column in columns)])
    return {**info, "cols": cols, "index_info": None if info["index_info"] is None else indexes, "max_col_id": newest}


def parsed(info: Json) -> TableInfo:
    """The table info, parsed."""
    return TableInfo.from_json(info)


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quote_name, names))


def _literal(value: str | int | float) -> str:
    return "_UTF8MB4'" + value.replace("\\", "\\\\").replace("'", "''") + "'" if isinstance(value, str) else str(value)


def default_of(column: ColumnInfo) -> Any:
    """The value of a column that an INSERT does not name."""
    return _value(column, column.default)


def origin_of(column: ColumnInfo) -> Any:
    """The value of the column in a row that was written before the column existed."""
    return _value(column, column.origin_default)


def _value(column: ColumnInfo, default: str | int | float | None) -> Any:
    if default is None:
        return _zero(column) if column.not_null else None
    if column.tp in _INTEGERS:
        return int(default)
    return float(default) if column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE) else default


def _zero(column: ColumnInfo) -> Any:
    match column.tp:
        case ColumnType.FLOAT | ColumnType.DOUBLE:
            return 0.0
        case ColumnType.DECIMAL:
            return "0"
        case ColumnType.DATE:
            return "0000-00-00"
        case ColumnType.DATETIME | ColumnType.TIMESTAMP:
            return "0000-00-00 00:00:00"
        case ColumnType.TIME:
            return "00:00:00"
        case ColumnType.ENUM:
            return 1
        case tp if tp in _INTEGERS or tp == ColumnType.SET:
            return 0
        case _:
            return ""
