"""Whether a column of the target can hold the upstream's values. Pure.

``misfit``: has it the type, charset and nullability that a DDL gives it? Conversions that servers make implicitly are ignored: display widths, TEXT(50) as
TINYTEXT, a too long VARCHAR as TEXT, JSON as LONGTEXT. One that holds more is accepted, unless the job itself reduces it.

``inexact``: which columns change values although the server does not warn?

    fractions that are rounded off     DOUBLE or DECIMAL in an INT, DATETIME(6) in a DATETIME
    digits that are rounded off        BIGINT in a DOUBLE, DOUBLE in a FLOAT
    blanks and zeros                   VARCHAR in a CHAR loses blanks at the end, VARBINARY in a BINARY gets zeros
    values of another kind             VARCHAR in an INT: 007 becomes 7
    values that are computed upstream  no row writes them to a plain column, unless they are STORED upstream

A column that differs only in range, length, charset or collation counts as exact there: the server warns of a value that does not fit, and the warning is a
finding of that row. So does one with another name for the same type (JSON as longtext, TIMESTAMP for DATETIME of the same precision).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.ddl_tokens import TokenKind, text_of, tokenize
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_definition, column_type
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import GBK, Charset, Dialect, is_text_or_words, spelled
from pyspark_tidb_binlog.sinks.mysql.dialect import is_bytes, is_text, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn, TargetTable

_BITS = {
    ColumnType.TINYINT: 8,
    ColumnType.SMALLINT: 16,
    ColumnType.MEDIUMINT: 24,
    ColumnType.INT: 32,
    ColumnType.BIGINT: 64,
    ColumnType.YEAR: 12,
}
_MOMENTS = frozenset({"datetime", "timestamp"})
_TIMES = {
    ColumnType.DATETIME: _MOMENTS,
    ColumnType.TIMESTAMP: _MOMENTS,
    ColumnType.DATE: _MOMENTS | {"date"},
    ColumnType.NEWDATE: _MOMENTS | {"date"},
    ColumnType.TIME: frozenset({"time"}),
}
"""The kinds of columns that hold the values of each type, but for fractions of a second."""

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint"})
_FLOATS = {"float": 24, "double": 53, "real": 53}
"""How many binary digits they have."""
_DIGITS = {"float": 6, "double": 15, "real": 15}
"""So many decimal digits come back as they were."""
_CHARACTERS = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_TEXTS = _CHARACTERS | _BYTES | {"char"}
"""They hold a number or a time as it is written."""

_WHOLE = 64
"""The bits of the largest BIT."""
_COMPARED = 53
"""A number that is compared with a text is compared as a DOUBLE: with more binary digits it equals others."""


@dataclass(frozen=True, slots=True)
class Inexact:
    """A column of the target that cannot hold the values exactly."""

    column: str
    key: bool
    """Whether rows are found by it."""
    words: str
    """What differs, and what to do; without any value."""


def inexact(table: TableAt, there: TargetTable) -> tuple[Inexact, ...]:
    """The columns of ``there``, the target's table for ``table``, that do not hold their values exactly; columns that it lacks are not among them."""
    names = {c.name.lower(): c for c in there.columns}
    unique = table.info.unique_keys()
    first = next((key for key in unique if all(c.not_null for c in key)), None)
    keys, finding = ({c.id for key in some for c in key} for some in (unique, unique if first is None else [first]))
    found = []
    for column in table.info.columns:
        other = names.get(column.name.lower())
        if other is None or other.generated or not column.public or column.hidden:
            continue
        if column.generated and not column.generated_stored:
            why = "is computed upstream but a plain column in the target, so rows do not set it: define it as it is upstream"
            found.append(Inexact(column.name, False, f"column {column.name} {why}"))
        elif not same_type(other.type, column) and (
            why := changed(column, other) or (mistaken(column, other) if column.id in keys else "")
        ):
            label = table_name(table.schema, table.name)
            more = f"ALTER TABLE {label} MODIFY `{column.name}` {column_type(column)}{' NOT NULL' if column.not_null else ''}"
            words = f"column {column.name} is {other.type} instead of {column_type(column)}, which {why} without a warning. Execute {more}, with its charset and default"
            # Another unique key of a CHAR can only refuse a row; rounded numbers and times hit another one.
            found.append(Inexact(column.name, column.id in finding or (column.id in keys and other.kind != "char"), words))
    return tuple(found)


def changed(column: ColumnInfo, there: TargetColumn) -> str:
    """What the target's column does to some values of ``column`` in silence; empty: nothing."""
    if column.tp in _BITS or column.tp == ColumnType.BIT:
        return _integer(column, there)
    if column.tp in (ColumnType.DECIMAL, ColumnType.FLOAT, ColumnType.DOUBLE):
        return _fraction(column, there)
    if column.tp in _TIMES:
        return _time(column, there)
    if column.tp == ColumnType.JSON or is_text(column) or is_bytes(column):
        return _characters(column, there)
    return ""


def mistaken(column: ColumnInfo, there: TargetColumn) -> str:
    """Why a search for a value of ``column`` finds others; empty: it does not."""
    many = column.flen > _DIGITS["double"] if column.tp == ColumnType.DECIMAL else column.tp in _BITS and _bits(column) > _COMPARED
    return "makes large numbers equal that are close to each other" if many and there.kind in _TEXTS else ""


_ROUNDS = "rounds off digits"
_OTHER_KIND = "holds values of another kind, and changes some"


def _bits(column: ColumnInfo) -> int:
    bits = max(column.flen, 1) if column.tp == ColumnType.BIT else _BITS[ColumnType(column.tp)]
    return bits if column.unsigned or column.tp == ColumnType.BIT else bits - 1


def _integer(column: ColumnInfo, there: TargetColumn) -> str:
    if there.kind in _FLOATS:
        return _ROUNDS if _bits(column) > _FLOATS[there.kind] else ""
    if there.kind in _INTEGERS or there.family == "decimal" or (column.tp == ColumnType.YEAR and there.kind == "year"):
        return ""
    if there.kind == "bit" and column.tp != ColumnType.YEAR:
        # A negative number is one of the largest of BIT(64), and too large for every shorter one.
        return "" if column.unsigned or column.tp == ColumnType.BIT or there.measures[0] < _WHOLE else "makes negative numbers large ones"
    return "" if there.kind in _TEXTS and column.tp != ColumnType.BIT else _OTHER_KIND


def _fraction(column: ColumnInfo, there: TargetColumn) -> str:
    precision, scale = there.measures
    exact = column.tp == ColumnType.DECIMAL
    if there.kind in _INTEGERS:
        return "" if exact and column.decimal <= 0 else "rounds off fractions"
    if there.family == "decimal":
        return "" if exact and scale >= max(column.decimal, 0) else "rounds off fractions"
    if there.kind in _FLOATS:
        cut = precision >= 0 and (column.decimal < 0 or scale < column.decimal or not 0 <= column.flen <= precision)
        narrow = column.flen > _DIGITS[there.kind] if exact else column.tp == ColumnType.DOUBLE and there.kind == "float"
        return _ROUNDS if narrow or cut else ""
    return "" if there.kind in _TEXTS else _OTHER_KIND


def _time(column: ColumnInfo, there: TargetColumn) -> str:
    if there.kind in _TEXTS:
        return ""
    if there.kind in _TIMES[ColumnType(column.tp)]:
        return "cuts off fractions of a second" if max(there.measures[0], 0) < max(column.decimal, 0) else ""
    return "cuts off the time of day" if there.kind == "date" and column.tp != ColumnType.TIME else _OTHER_KIND


def _characters(column: ColumnInfo, there: TargetColumn) -> str:
    if there.kind in _CHARACTERS | _BYTES or (column.tp == ColumnType.JSON and there.kind == "json"):
        return ""
    if there.kind == "char":
        return "" if is_text(column) and column.tp == ColumnType.STRING else "cuts off blanks at the end"
    if there.kind == "binary":
        same = is_bytes(column) and column.tp == ColumnType.STRING and max(there.measures[0], 1) == max(column.flen, 1)
        return "" if same else "adds zeros at the end"
    return _OTHER_KIND


_WIDTH = re.compile(r"\b((?:tiny|small|medium|big)?int|year)\(\d+\)")
_LOB = re.compile(r"(tiny|medium|long|)(text|blob)(?:\(\d+\))?")
_WITH_WORDS = frozenset({ColumnType.ENUM, ColumnType.SET})
_VARYING = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING})
_LOB_BYTES = {
    ColumnType.TINYBLOB: 0xFF,
    ColumnType.BLOB: 0xFFFF,
    ColumnType.MEDIUMBLOB: 0xFFFFFF,
    ColumnType.LONGBLOB: 0xFFFFFFFF,
}
_PREFIX_BYTES = {"tiny": 0xFF, "": 0xFFFF, "medium": 0xFFFFFF, "long": 0xFFFFFFFF}
_CHARACTER_BYTES = {"ascii": 1, "binary": 1, "gbk": 2, "utf8": 3}
_HOLDS_ALL = "utf8mb4"


def misfit(there: TargetColumn, column: ColumnInfo, was: ColumnInfo | None, wanted: Charset, own: str) -> str:
    """Why the target's column cannot hold the values of ``column``; empty if it can.

    Args:
        there: the target's column.
        column: the column after the job.
        was: the column before the job; None if the job adds it.
        wanted: the column's charset translated for the target.
        own: the charset with the upstream's name, in which a table may have been made by hand.
    """
    if not same_type(there.type, column, was):
        return f"{there.type} instead of {column_type(column)}"
    if not column.generated and there.nullable == column.not_null:
        return "NULL instead of NOT NULL" if column.not_null else "NOT NULL instead of NULL"
    if not is_text_or_words(column) or column.tp == ColumnType.JSON:
        return ""
    charset, collate = spelled(there.charset), spelled(there.collation)
    recoded = was is not None and (was.tp, was.charset, was.collate) != (column.tp, column.charset, column.collate)
    if charset not in {_HOLDS_ALL, wanted.charset, own} or (recoded and collate != spelled(wanted.collate)):
        return f"{charset} {collate} instead of {wanted.charset} {wanted.collate}"
    return ""


def holds_less(there: TargetColumn, column: ColumnInfo, charsets: Collection[str]) -> bool:
    """Whether a column for which ``misfit`` has words loses values of ``column``; ``charsets``: those that hold its texts, beside utf8mb4."""
    texts = is_text_or_words(column) and column.tp != ColumnType.JSON and there.collation
    null = not there.nullable and not column.not_null and not column.generated
    other = not same_type(there.type, column) and (bool(changed(column, there)) or _shorter(column, there))
    return bool(null or other or (texts and spelled(there.charset) not in {_HOLDS_ALL, *charsets}))


def _shorter(column: ColumnInfo, there: TargetColumn) -> bool:
    """Whether the target's type, which is another one, has a smaller range or length."""
    length, scale = there.measures
    if column.tp in _WITH_WORDS:
        return bool({as_shown(e) for e in column.elems} - {as_shown(e) for e in there.words}) and there.kind in ("enum", "set")
    if there.kind in _INTEGERS:
        bits = _BITS.get(ColumnType["INT" if there.kind == "integer" else there.kind.upper()], 0)
        if column.tp == ColumnType.DECIMAL:
            return bool(10**column.flen > 2 ** (bits - 1))
        return (there.unsigned and not column.unsigned) or bits - (not there.unsigned) < _bits(column)
    if there.family == "decimal":
        digits = column.flen - max(column.decimal, 0) if column.tp == ColumnType.DECIMAL else len(str(2 ** _bits(column)))
        return length - scale < digits
    if there.kind == "bit":
        return max(length, 1) < _bits(column)
    if column.tp == ColumnType.DATETIME:
        return there.kind == "timestamp"
    if not (is_text(column) or is_bytes(column) or column.tp == ColumnType.JSON):
        return False
    if lob := _LOB.fullmatch(there.type.lower()):
        return _PREFIX_BYTES[lob[1]] < _needed(column)
    return there.kind != "json" and length < (_LOB_BYTES[ColumnType(column.tp)] if column.tp in _LOB_BYTES else column.flen)


def out_of_gbk(table: TableAt, there: TargetTable, dialect: Dialect) -> str:
    """The ALTER TABLE that makes gbk columns of the target what a CREATE TABLE would make them; empty: there are none, or they must stay."""
    found = ((c, there.column(c.name)) for c in table.info.public_columns() if dialect.charset(c.charset, c.collate).charset == GBK)
    changes = [
        f"MODIFY {column_definition(c, table.info, dialect, explicit=True, type_=at.type.upper() if is_text(c) else '')}"
        for c, at in found
        if at is not None and at.charset == GBK and dialect.column_charset(c, table.info).charset != GBK
    ]
    return f"ALTER TABLE {table_name(there.schema, there.name)} {', '.join(changes)}" if changes else ""


def differs(old: ColumnInfo | None, new: ColumnInfo) -> bool:
    """Whether the job changes something that ``misfit`` compares."""
    return old is None or _seen(old) != _seen(new)


def same_type(there: str, column: ColumnInfo, was: ColumnInfo | None = None) -> bool:
    """Whether the server's ``COLUMN_TYPE`` is equivalent to the column's type."""
    lob = _LOB.fullmatch(there.lower())
    if lob is not None and (column.tp in _LOB_BYTES or column.tp in _VARYING):
        size = _PREFIX_BYTES[lob[1]]
        larger_before = was is not None and was.tp in _LOB_BYTES and _most(was) > _most(column)
        most = _most(column) if larger_before else size
        return lob[2] == ("blob" if column.is_binary else "text") and _needed(column) <= size <= most
    wanted = "longtext" if column.tp == ColumnType.JSON and there.lower() == "longtext" else column_type(column)
    return _plain(there, column) == _plain(wanted, column)


def as_shown(words: str) -> str:
    """Words of an ENUM or SET as every server's information_schema shows them: characters beyond 16 bits as question marks, and a backslash once or twice."""
    return re.sub(r"[?\U00010000-\U0010ffff]+", "?", words.replace("\\\\", "\\"))


def _seen(column: ColumnInfo) -> tuple[object, ...]:
    measure = column.flen if column.tp in _LOB_BYTES else 0
    charset = (column.charset, column.collate) if is_text_or_words(column) else ()
    return column_type(column), column.not_null, measure, charset


def _most(column: ColumnInfo) -> int:
    """The maximum number of bytes that the column's type holds."""
    return _LOB_BYTES[ColumnType(column.tp)] if column.tp in _LOB_BYTES else _needed(column)


def _needed(column: ColumnInfo) -> int:
    """Bytes that the target's TEXT or BLOB must hold. Old TiDB versions store TEXT(50) as such; other servers choose a smaller type."""
    own = _LOB_BYTES.get(ColumnType(column.tp), 0xFFFFFFFF)
    if not 0 <= column.flen < own:
        return own
    return min(column.flen * _CHARACTER_BYTES.get(column.charset, 4), own)


def _plain(text: str, column: ColumnInfo) -> str:
    if column.tp in _WITH_WORDS:
        return text.lower().partition("(")[0] + text_of(
            [t for t in tokenize(as_shown(text), backslash_escapes=False) if t.kind is TokenKind.STRING]
        )
    return _WIDTH.sub(r"\1", text.lower())
