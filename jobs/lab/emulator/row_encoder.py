"""Rows as TiDB writes them into a binlog (rows.md 4 and 6), from plain Python values: for the embedded upstream and for tests.

A row is ``Mapping[column id, value]``; a missing column is NULL. Values:

    integers, YEAR, BIT         int
    FLOAT, DOUBLE               float
    DECIMAL                     decimal.Decimal, or its text
    text, blobs                 str (written as UTF-8) or bytes
    DATE, DATETIME, TIMESTAMP   text "YYYY-MM-DD[ hh:mm:ss[.f]]", TIMESTAMP in UTC
    TIME                        text "[-]hh:mm:ss[.f]"
    ENUM                        the member, or its number from 1 (0 = the error value)
    SET                         members joined by commas, or the bit mask
    JSON                        a plain Python value; JSON null is ``datum_encoder.JsonNull()``

Promises: pure; a value that no row can hold raises ``ValueError``. New collations are assumed to be enabled, TiDB's default.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from pyspark_tidb_binlog.jobs.lab.emulator.datum_encoder import decimal_datum, duration_datum, json_datum
from pyspark_tidb_binlog.schemas.codec import datum
from pyspark_tidb_binlog.schemas.codec.number import round_to_float32, to_signed
from pyspark_tidb_binlog.schemas.codec.temporal import pack_datetime, parse_time
from pyspark_tidb_binlog.schemas.row_layout import EMPTY_ROW, ROWID
from pyspark_tidb_binlog.schemas.tableinfo import PUBLIC, WHOLE_COLUMN, ColumnInfo, ColumnType, IndexColumn, TableInfo

Row: TypeAlias = Mapping[int, Any]

_WRITABLE_STATES = frozenset({PUBLIC, 2, 3})
"""Public, write-only and write-reorganisation."""
_TEMPORAL = frozenset({ColumnType.DATE, ColumnType.NEWDATE, ColumnType.DATETIME, ColumnType.TIMESTAMP})
_VARCHAR = frozenset({ColumnType.VARCHAR, ColumnType.VAR_STRING})
_TEXT = _VARCHAR | {ColumnType.STRING, ColumnType.TINYBLOB, ColumnType.BLOB, ColumnType.MEDIUMBLOB, ColumnType.LONGBLOB}

Encoder: TypeAlias = Callable[[Any], bytes]
"""Writes a value of one column, which is not None, as a datum."""
_Field: TypeAlias = tuple[int, bytes, bytes, Encoder]
"""A column of a row: id, what is written for NULL, what precedes another value, and how this value is written."""


def encode_insert(info: TableInfo, row: Row, rowid: int | None = None) -> bytes:
    """An element of ``inserted_rows``; ``rowid`` is the handle of a table without a clustered primary key."""
    return RowEncoder(info).insert(row, rowid)


def encode_update(info: TableInfo, old: Row, new: Row, rowid: int | None = None) -> bytes:
    """An element of ``updated_rows``; the handle must be the same in both rows."""
    return RowEncoder(info).update(old, new, rowid)


def encode_delete(info: TableInfo, row: Row, rowid: int | None = None) -> bytes:
    """An element of ``deleted_rows``."""
    return RowEncoder(info).delete(row, rowid)


class RowEncoder:
    """Writes rows of one table. What depends on the table alone is decided once, not for each row. Its methods are the functions above."""

    def __init__(self, info: TableInfo) -> None:
        self._info = info
        self._has_rowid = not (info.pk_is_handle or info.is_common_handle)

    def insert(self, row: Row, rowid: int | None = None) -> bytes:
        """``encode_insert``."""
        if self._has_rowid:
            handle = datum.encode_int(self._given(rowid))
        else:
            handle = b"".join([encode(row[column_id]) for column_id, encode in self._handle])
        return handle + (_pairs(self._inserted, row) or EMPTY_ROW)

    def update(self, old: Row, new: Row, rowid: int | None = None) -> bytes:
        """``encode_update``."""
        tail = self._tail(rowid)
        before, after = [], []
        for column_id, null, head, encode in self._updated:
            was, value = old.get(column_id), new.get(column_id)
            before.append(null if was is None else head + encode(was))
            # most values stay
            after.append(before[-1] if value is was else null if value is None else head + encode(value))
        return b"".join((*before, tail, *after, tail))

    def delete(self, row: Row, rowid: int | None = None) -> bytes:
        """``encode_delete``."""
        return _pairs(self._deleted, row) + self._tail(rowid)

    @cached_property
    def _handle(self) -> tuple[tuple[int, Encoder], ...]:
        info = self._info
        if info.pk_is_handle:
            return ((info.handle_columns()[0].id, lambda value: datum.encode_int(to_signed(value))),)
        parts = ((c, _handle_part(info, c)) for c in info.handle_columns())
        return tuple((c.id, _handle_encoder(c, part.length if part else WHOLE_COLUMN)) for c, part in parts)

    @cached_property
    def _inserted(self) -> tuple[_Field, ...]:
        integer_key = self._info.handle_columns() if self._info.pk_is_handle else ()
        return tuple(
            _field(c, null_written=_null_written(self._info, c))
            for c in self._info.columns
            if c.state in _WRITABLE_STATES and c not in integer_key and not _omitted(self._info, c)
        )

    @cached_property
    def _updated(self) -> tuple[_Field, ...]:
        return tuple(_field(c) for c in self._info.columns if c.state in _WRITABLE_STATES and not _virtual(c))

    @cached_property
    def _deleted(self) -> tuple[_Field, ...]:
        return tuple(map(_field, self._info.public_columns()))

    def _tail(self, rowid: int | None) -> bytes:
        return datum.encode_int(ROWID) + datum.encode_int(self._given(rowid)) if self._has_rowid else b""

    def _given(self, rowid: int | None) -> int:
        if rowid is None:
            raise ValueError(f"table {self._info.name} has no clustered primary key: its rows need a rowid")
        return rowid


def encoder_of(column: ColumnInfo) -> Encoder:
    """How the values of a column are written."""
    match column.tp:
        case ColumnType.FLOAT:
            return lambda value: datum.encode_float(round_to_float32(value))
        case ColumnType.DOUBLE:
            return datum.encode_float
        case ColumnType.DECIMAL:
            precision, scale = column.flen, column.decimal
            return lambda value: decimal_datum(value, precision, scale)
        case ColumnType.JSON:
            return json_datum
        case ColumnType.TIME:
            return lambda value: datum.encode_int(parse_time(value))
        case tp if tp in _TEMPORAL:
            return lambda value: datum.encode_uint(pack_datetime(value))
        case ColumnType.ENUM | ColumnType.SET | ColumnType.BIT:
            number_of = lru_cache(column.number_of)
            return lambda value: datum.encode_uint(value if isinstance(value, int) else number_of(value))
        case ColumnType.STRING:
            return lambda value: datum.encode_bytes(_padded(column, _raw(value)))
        case tp if tp in _TEXT:
            return lambda value: datum.encode_bytes(_raw(value))
        case ColumnType.YEAR:
            return datum.encode_int
        case _:
            return datum.encode_uint if column.unsigned else datum.encode_int


def _pairs(fields: tuple[_Field, ...], row: Row) -> bytes:
    get = row.get
    return b"".join([null if (value := get(column_id)) is None else head + encode(value) for column_id, null, head, encode in fields])


def _field(column: ColumnInfo, *, null_written: bool = True) -> _Field:
    head = datum.encode_int(column.id)
    return column.id, head + datum.NULL if null_written else b"", head, encoder_of(column)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _padded(column: ColumnInfo, raw: bytes) -> bytes:
    if column.tp != ColumnType.STRING:
        return raw
    return raw.ljust(max(column.flen, 0), b"\x00") if column.is_binary else raw.rstrip(b" ")


def _omitted(info: TableInfo, column: ColumnInfo) -> bool:
    """Whether no insert row holds the column: it is virtual, or a part of the handle that holds the whole value."""
    if (part := _handle_part(info, column)) is not None:
        return part.length == WHOLE_COLUMN and not _needs_restored_data(column)
    return _virtual(column)


def _null_written(info: TableInfo, column: ColumnInfo) -> bool:
    """Whether an insert row holds the column's NULL: it has a default, or is a part of the handle."""
    defaults = (column.default, column.default_bit, column.origin_default, column.origin_default_bit)
    return any(d is not None for d in defaults) or _handle_part(info, column) is not None


def _virtual(column: ColumnInfo) -> bool:
    return column.generated and not column.generated_stored


def _handle_part(info: TableInfo, column: ColumnInfo) -> IndexColumn | None:
    index = info.primary_index() if info.is_common_handle else None
    return next((c for c in index.columns if c.offset == column.offset), None) if index else None


def _needs_restored_data(column: ColumnInfo) -> bool:
    return column.tp in _TEXT and not column.is_binary and (column.tp in _VARCHAR or not column.collate.endswith("_bin"))


def _handle_encoder(column: ColumnInfo, length: int) -> Encoder:
    if column.tp == ColumnType.TIME:
        return lambda value: duration_datum(parse_time(value))
    if column.tp in _TEXT:
        return lambda value: datum.encode_bytes(_sort_key(column, _prefix(column, _padded(column, _raw(value)), length)))
    return encoder_of(column)


def _prefix(column: ColumnInfo, raw: bytes, length: int) -> bytes:
    if length == WHOLE_COLUMN:
        return raw
    return raw[:length] if column.is_binary else raw.decode()[:length].encode()


def _sort_key(column: ColumnInfo, raw: bytes) -> bytes:
    """The collation key that the handle holds instead of the value: a weight per character, approximating TiDB's general_ci."""
    if column.is_binary or column.collate.endswith("_bin"):
        return raw
    return b"".join((ord(c.upper()[0]) & 0xFFFF).to_bytes(2, "big") for c in raw.decode().rstrip(" "))
