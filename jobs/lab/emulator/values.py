"""Random values for every column type, and the form in which a value is compared with its copy in a target.

Promises: pure; the same random source gives the same values. A value is in the form that ``jobs.lab.emulator.row_encoder`` takes.
"""

import random
import string
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark_tidb_binlog.jobs.lab.emulator.datum_encoder import encode_json
from pyspark_tidb_binlog.schemas.codec.json_binary import json_text
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType

Draw: TypeAlias = Callable[[random.Random], Any]
"""Draws a value of one column."""

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
    """A random value that ``column`` can hold, as ``jobs.lab.emulator.row_encoder`` takes it."""
    return draw_of(column)(chance)


def draw_of(column: ColumnInfo) -> Draw:
    """``value_for`` this column: the type is looked at once, not for each value."""
    draw = _draw_of_type(column)
    return draw if column.not_null else lambda chance: None if chance.random() < 0.1 else draw(chance)


def _draw_of_type(column: ColumnInfo) -> Draw:
    unsigned, longest, decimals, elems = column.unsigned, column.flen, column.decimal, column.elems
    match column.tp:
        case tp if tp in INT_BITS:
            bits = INT_BITS[tp] - (0 if unsigned else 1)
            return lambda chance: chance.getrandbits(between(chance, 1, bits)) * (1 if unsigned else chance.choice((1, -1)))
        case ColumnType.BIT:
            return lambda chance: chance.getrandbits(longest)
        case ColumnType.FLOAT:
            # six significant digits: a server shows no more of a FLOAT
            return lambda chance: between(chance, -39_999, 39_999) / 4
        case ColumnType.DOUBLE:
            return lambda chance: between(chance, -80_000, 80_000) / 8
        case ColumnType.DECIMAL:
            least, unit = 0 if unsigned else -9_999_999, 10**decimals
            return lambda chance: f"{between(chance, least, 9_999_999) / unit:.{decimals}f}"
        case ColumnType.YEAR:
            return lambda chance: between(chance, 1901, 2155)
        case ColumnType.DATE:
            return _day
        case ColumnType.TIME:
            return lambda chance: f"{chance.choice(('', '-'))}{_clock(chance, 838, decimals)}"
        case ColumnType.DATETIME | ColumnType.TIMESTAMP:
            return lambda chance: f"{_day(chance)} {_clock(chance, 24, decimals)}"
        case ColumnType.ENUM:
            return lambda chance: chance.choice(elems)
        case ColumnType.SET:
            return lambda chance: ",".join([word for word in elems if chance.random() < 0.5])
        case ColumnType.JSON:
            return lambda chance: {
                "n": between(chance, -5, 5),
                "tags": [_text(chance, 5) for _ in range(between(chance, 0, 3))],
                "ok": True,
            }
        case ColumnType.STRING if column.is_binary:
            return lambda chance: chance.randbytes(longest)
        case ColumnType.STRING:
            return lambda chance: _text(chance, longest).rstrip(" ")
        case _ if column.is_binary:
            return lambda chance: chance.randbytes(between(chance, 0, min(longest, 60)))
        case _:
            return lambda chance: _text(chance, longest)


def between(chance: random.Random, least: int, most: int) -> int:
    """The number that ``chance.randint`` draws, at a third of its cost: most of the workload's draws are of this kind."""
    width = most - least + 1
    bits = width.bit_length()
    while (drawn := chance.getrandbits(bits)) >= width:
        pass
    return least + drawn


def _day(chance: random.Random) -> str:
    return f"{between(chance, 1971, 2037)}-{between(chance, 1, 12):02d}-{between(chance, 1, 28):02d}"


def _clock(chance: random.Random, hours: int, decimals: int) -> str:
    fraction = f".{between(chance, 0, 10**decimals - 1):0{decimals}d}" if decimals else ""
    return f"{between(chance, 0, hours - 1):02d}:{between(chance, 0, 59):02d}:{between(chance, 1, 59):02d}{fraction}"


def _text(chance: random.Random, longest: int) -> str:
    return "".join(chance.choices(_ALPHABET, k=between(chance, 0, min(longest, 20))))


def form_of(column: ColumnInfo) -> str:
    """How a column is compared with its copy: as ``text``, ``hex`` of its bytes, or parsed ``json``."""
    if column.tp == ColumnType.JSON:
        return "json"
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
            return json_text(encode_json(value))
        case _:
            return str(value)


def stored_value(column: ColumnInfo, text: str | None) -> str | bytes | int | None:
    """What an INSERT writes so that the column shows ``text``, which is in ``form_of(column)``."""
    if text is None:
        return None
    if column.tp == ColumnType.BIT:
        return int(text, 16)
    return bytes.fromhex(text) if form_of(column) == "hex" else text
