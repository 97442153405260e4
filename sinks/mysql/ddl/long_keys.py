"""Texts that a MySQL cannot index in utf8mb4, where a character takes four bytes in the limits of a key. Pure.

With old collations upstream, texts of utf8, ascii and gbk become utf8mb4 at a MySQL, whose only collation of bytes without padding is there. One in a
key of more than 3,072 bytes would be refused, and with it the table: such a column keeps its charset. Its ``_bin`` pads, so a unique key over it takes
'a' and 'a ' for one, which is named.
"""

from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, IndexInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.dialect import is_bytes, is_text

_LONGEST_KEY = 3072
"""Bytes of InnoDB's pages of 16 KiB."""
_PER_CHARACTER = 4
_OTHERS = 8
"""Bytes of a number or a time; a DECIMAL has up to 30."""


def too_long(column: ColumnInfo, info: TableInfo) -> bool:
    """Whether a column of ``info`` is a text in a key that is too long in utf8mb4."""
    keys = (i for i in info.indexes if i.state == PUBLIC and column in info.index_columns(i))
    return is_text(column) and any(_bytes(i, info) > _LONGEST_KEY for i in keys)


def _bytes(index: IndexInfo, info: TableInfo) -> int:
    """Of a key, if its texts are utf8mb4."""
    found = 0
    for column, part in zip(info.index_columns(index), index.columns, strict=True):
        length = column.flen if part.length == WHOLE_COLUMN else part.length
        if is_text(column):
            found += length * _PER_CHARACTER
        elif is_bytes(column):
            found += length
        else:
            found += _OTHERS if column.tp != ColumnType.DECIMAL else length // 2 + 1
    return found
