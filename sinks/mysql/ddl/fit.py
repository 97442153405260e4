"""Compares a column of the target, as ``information_schema`` shows it, with the upstream's: can it hold the same values?

Promises: pure. Conversions that servers make implicitly are ignored: display widths, TEXT(50) as TINYTEXT, a too long VARCHAR as TEXT, JSON
as LONGTEXT. A type or charset that holds more than needed is accepted, unless the job itself reduces it. A type or charset that holds less is not.
"""

import re

from pyspark_tidb_binlog.schemas.ddl_tokens import TokenKind, text_of, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import Charset
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.column_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn

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


def misfit(there: TargetColumn, column: ColumnInfo, was: ColumnInfo | None, wanted: Charset, *others: Charset) -> str:
    """Why the target's column cannot hold the values of ``column``; empty if it can.

    Args:
        there: the target's column.
        column: the column after the job.
        was: the column before the job; None if the job adds it.
        wanted: the column's charset translated for the target.
        others: charsets that are also accepted.
    """
    if not same_type(there.type, column, was):
        return f"{there.type} instead of {column_type(column)}"
    if not column.generated and there.nullable == column.not_null:
        return "NULL instead of NOT NULL" if column.not_null else "NOT NULL instead of NULL"
    if not is_text_or_words(column) or column.tp == ColumnType.JSON:
        return ""
    charset, collate = spelled(there.charset), spelled(there.collation)
    recoded = was is not None and (was.tp, was.charset, was.collate) != (column.tp, column.charset, column.collate)
    if charset not in {_HOLDS_ALL, wanted.charset, *(one.charset for one in others)} or (
        recoded and collate not in {spelled(one.collate) for one in (wanted, *others)}
    ):
        return f"{charset} {collate} instead of {wanted.charset} {wanted.collate}"
    return ""


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
            [t for t in tokenize(text.replace("\\\\", "\\"), backslash_escapes=False) if t.kind is TokenKind.STRING]
        )
    return _WIDTH.sub(r"\1", text.lower())


def spelled(name: str) -> str:
    """The charset or collation with ``utf8mb3`` for ``utf8``, as older servers call it."""
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name)
