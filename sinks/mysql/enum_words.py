"""The values of ENUM and SET columns as their words, where a server compares the words but not the numbers. Pure."""

import pyarrow as pa

from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType


def words_of(column: ColumnInfo, values: pa.Array) -> pa.Array:
    """The words (binary, UTF-8) of the numbers ``values`` of an ENUM or SET ``column``; each number is looked up once."""
    coded = values.dictionary_encode()
    words = [None if number is None else _words(column, number).encode() for number in coded.dictionary.to_pylist()]
    return pa.array(words, pa.binary()).take(coded.indices)


def can_be_told_apart(column: ColumnInfo) -> bool:
    """Whether each number of ``column`` has words of its own: those of 0 are empty, which a member of an ENUM or SET can be too."""
    return not any(word == "" for word in map(_stored, column.elems))


def _words(column: ColumnInfo, number: int) -> str:
    if column.tp == ColumnType.ENUM:
        known = 0 < number <= len(column.elems)
        return _stored(column.elems[number - 1]) if known else str(number or "")
    return ",".join(_stored(word) for place, word in enumerate(column.elems) if number >> place & 1)


def _stored(word: str) -> str:
    """A server removes the spaces at a word's end when it makes the column."""
    return word.rstrip(" ")
