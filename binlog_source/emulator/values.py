"""Random values for every column type, and the form in which a value is compared with its copy in a target.

Promises: pure; the same random source gives the same values. A value is in the form that ``schemas.codec.rowwriter`` takes.
"""

import json
import random
import string
from typing import Any

from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType

EVERY_TYPE = (
    "tinyint", "smallint unsigned", "mediumint", "int unsigned", "bigint", "bit(12)", "float", "double", "decimal(30,10)", "year", "date",
    "time(3)", "datetime", "timestamp(2)", "char(10)", "varchar(30)", "binary(8)", "varbinary(20)", "tinytext", "text", "mediumtext",
    "longtext", "tinyblob", "blob", "mediumblob", "longblob", "json", "enum('a','it''s')", "set('x','y','z')",
)  # fmt: skip
"""A column of every type that TiDB has."""
_ALPHABET = string.ascii_letters + string.digits + " '\"\\%_\n\tàß語😀"
INT_BITS: dict[int, int] = {
    ColumnType.TINYINT: 8,
    ColumnType.SMALLINT: 16,
    ColumnType.MEDIUMINT: 24,
    ColumnType.INT: 32,
    ColumnType.BIGINT: 64,
}
_BYTES = frozenset(
    {ColumnType.VARCHAR, ColumnType.STRING, ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB}
)


def value_for(column: ColumnInfo, chance: random.Random) -> Any:
    """A random value that ``column`` can hold, as ``schemas.codec.rowwriter`` takes it."""
    if not column.not_null and chance.random() < 0.1:
        return None
    match column.tp:
        case tp if tp in INT_BITS:
            bits = chance.randint(1, INT_BITS[tp] - (0 if column.unsigned else 1))
            return chance.getrandbits(bits) * (1 if column.unsigned else chance.choice((1, -1)))
        case ColumnType.BIT:
            return chance.getrandbits(column.flen)
        case ColumnType.FLOAT:
            # six significant digits: a server shows no more of a FLOAT
            return chance.randint(-39_999, 39_999) / 4
        case ColumnType.DOUBLE:
            return chance.randint(-80_000, 80_000) / 8
        case ColumnType.DECIMAL:
            return f"{chance.randint(0 if column.unsigned else -9_999_999, 9_999_999) / 10**column.decimal:.{column.decimal}f}"
        case ColumnType.YEAR:
            return chance.randint(1901, 2155)
        case ColumnType.DATE:
            return _day(chance)
        case ColumnType.TIME:
            return f"{chance.choice(('', '-'))}{_clock(chance, 838, column.decimal)}"
        case ColumnType.DATETIME | ColumnType.TIMESTAMP:
            return f"{_day(chance)} {_clock(chance, 24, column.decimal)}"
        case ColumnType.ENUM:
            return chance.choice(column.elems)
        case ColumnType.SET:
            return ",".join(word for word in column.elems if chance.random() < 0.5)
        case ColumnType.JSON:
            return {"n": chance.randint(-5, 5), "tags": [_text(chance, 5) for _ in range(chance.randint(0, 3))], "ok": True}
        case ColumnType.STRING if column.is_binary:
            return chance.randbytes(column.flen)
        case ColumnType.STRING:
            return _text(chance, column.flen).rstrip(" ")
        case _ if column.is_binary:
            return chance.randbytes(chance.randint(0, min(column.flen, 60)))
        case _:
            return _text(chance, column.flen)


def _day(chance: random.Random) -> str:
    return f"{chance.randint(1971, 2037)}-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}"


def _clock(chance: random.Random, hours: int, decimals: int) -> str:
    fraction = f".{chance.randrange(10**decimals):0{decimals}d}" if decimals else ""
    return f"{chance.randrange(hours):02d}:{chance.randrange(60):02d}:{chance.randrange(1, 60):02d}{fraction}"


def _text(chance: random.Random, longest: int) -> str:
    return "".join(chance.choices(_ALPHABET, k=chance.randint(0, min(longest, 20))))


def form_of(column: ColumnInfo) -> str:
    """How a column is compared with its copy: as ``text``, ``hex`` of its bytes, parsed ``json``, or ``timeN``, text with N digits behind the second."""
    if column.tp == ColumnType.JSON:
        return "json"
    if column.tp in (ColumnType.DATETIME, ColumnType.TIMESTAMP):
        return f"time{column.decimal}"
    binary = column.is_binary and column.tp in _BYTES
    return "hex" if binary or column.tp == ColumnType.BIT else "text"


def comparable(column: ColumnInfo, value: Any) -> str | None:
    """A value of the upstream as the text that a correct copy shows in ``form_of(column)``."""
    match value:
        case None:
            return None
        case bytes():
            return value.hex().upper()
        case int() if column.tp == ColumnType.BIT:
            return f"{value:X}"
        case float():
            return repr(value).removesuffix(".0")
        case dict() | list():
            return json.dumps(value, sort_keys=True)
        case _:
            return str(value)
