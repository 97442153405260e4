"""What a DDL does to the rows of a mirror. Pure.

    ADD COLUMN c INT, RENAME COLUMN a TO b        -> metadata, or every row of a small mirror is written again for the RENAME
    MODIFY c INT FIRST                            -> nothing
    ADD COLUMN c INT NOT NULL DEFAULT 5, MODIFY   -> every row is written again
    DROP PARTITION p                              -> the rows of p, as a condition in SQL

Promises: a value is kept exactly, or becomes TiDB's own text of it. Whatever would need TiDB's casts, functions or collations is ``Unfollowed``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, digits_of, image_schema, kind_of, missing_value
from pyspark_tidb_binlog.schemas.changes.former_types import fitted
from pyspark_tidb_binlog.schemas.changes.row_images import image_cells
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date, type_of, typed
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, RenameColumn, diff
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, PartitionType, TableInfo
from pyspark_tidb_binlog.sinks.lake.net_changes import field_of, hidden_column, mirror_cells, mirror_schema


class Unfollowed(Exception):
    """The rows after a DDL do not follow from the rows before; the text says why."""


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """A mirror's columns before and after a DDL."""

    before: TableInfo
    after: TableInfo
    sources: tuple[ColumnInfo | None, ...]
    """For each column after it: the column before it; None: it is new."""

    @classmethod
    def of(cls, before: TableInfo, after: TableInfo, query: str) -> "ColumnMapping":
        """Map the columns by the DDL's meaning."""
        changes = diff(before, after, query)
        former = {c.after: c.before for c in changes if isinstance(c, RenameColumn)}
        new = {c.column.name for c in changes if isinstance(c, AddColumn)}
        there = {c.name: c for c in before.target_columns()}
        sources = tuple(None if c.name in new else there.get(former.get(c.name, c.name)) for c in after.target_columns())
        for column, source in zip(after.target_columns(), sources, strict=True):
            if source is None and column.name not in new:
                raise Unfollowed(f"column {column.name} was a generated one, of which no mirror has the values")
        return cls(before, after, sources)

    @property
    def none(self) -> bool:
        """Whether the mirror stays as it is: it may have the columns in another order."""
        columns = self.metadata
        return columns is not None and {(name, name) for name in mirror_schema(self.before).names} == {(c.name, was) for c, was in columns}

    @property
    def metadata(self) -> list[tuple[pa.Field, str | None]] | None:
        """If no row changes: the mirror's columns afterwards, each with its name before, or None where it is new. None: rows change."""
        pairs = list(zip(self.after.target_columns(), self.sources, strict=True))
        if any(missing_value(c, None) is not None if source is None else not _same(source, c) for c, source in pairs):
            return None
        hidden = hidden_column(self.after)
        columns = [(field_of(c), source.name if source is not None else None) for c, source in pairs]
        return [(hidden, hidden.name), *columns] if hidden is not None else columns

    def turned(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the mirror as they are afterwards; JSON documents are as they were, text or VARIANT.

        Raises:
            Unfollowed: a value would change.
        """
        schema, hidden = mirror_schema(self.after), hidden_column(self.after)
        cells = [rows.column(hidden.name)] if hidden is not None else []
        for column, source in zip(self.after.target_columns(), self.sources, strict=True):
            cells.append(_constant(column, len(rows)) if source is None else _converted(source, column, rows.column(source.name)))
        return pa.RecordBatch.from_arrays(cells, names=schema.names)

    def carried(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Decoded images of rows (``schemas.arrowtypes``) as they are afterwards.

        Raises:
            Unfollowed: a value would change.
        """
        cells = []
        for column, source in zip(self.after.target_columns(), self.sources, strict=True):
            if source is None:
                cells.append(pa.array([missing_value(column, None)] * len(images), kind_of(column).arrow))
            elif _same(source, column):
                cells.append(images.column(source.name))
            else:
                found = typed(source, images.column(source.name))
                if found.odd is not None:
                    raise Unfollowed(f"column {column.name} was converted from {source.name}, which had dates that no calendar has")
                cells.append(image_cells(column, _converted(source, column, found.values)))
        return pa.RecordBatch.from_arrays(cells, schema=image_schema(self.after.target_columns()))


def _same(old: ColumnInfo, new: ColumnInfo) -> bool:
    """Whether all values of a column are those of another definition, as they are."""
    if (old.tp, old.unsigned, old.is_binary, digits_of(old)) != (new.tp, new.unsigned, new.is_binary, digits_of(new)):
        return False
    if new.elems[: len(old.elems)] != old.elems:
        return False
    longer = old.flen < new.flen and not (new.is_binary and new.tp == ColumnType.STRING)
    return type_of(old) == type_of(new) and (old.flen == new.flen or kind_of(new) is not CellKind.BYTES or longer)


def _constant(column: ColumnInfo, count: int) -> pa.Array:
    """The cells of a new column in the rows from before."""
    field, value = field_of(column), missing_value(column, None)
    if value is None:
        return pa.nulls(count, field.type)
    return mirror_cells(column, typed(column, pa.array([value] * count, kind_of(column).arrow))).cast(field.type)


_NUMBERS = (CellKind.INT, CellKind.UINT, CellKind.FLOAT, CellKind.DOUBLE, CellKind.DECIMAL)


def _converted(old: ColumnInfo, new: ColumnInfo, cells: pa.Array) -> pa.Array:
    """The values of a column that was converted."""
    if _same(old, new):
        return cells
    former, kind, wanted = kind_of(old), kind_of(new), type_of(new)
    words = f"column {new.name} was converted from {old.name}, and TiDB's cast is needed for"
    try:
        if (
            former in _NUMBERS
            and kind in _NUMBERS
            and not _rounds(new)
            and not _of_two_bases(former, kind)
            and ColumnType.YEAR not in (old.tp, new.tp)
        ):
            return fitted(_within(fitted(_numbers(old, cells), _number_type(new)), new), wanted)
        if is_date(old) and is_date(new) and (old.tp == ColumnType.TIMESTAMP) == (new.tp == ColumnType.TIMESTAMP):
            return _with_digits(fitted(cells, wanted), digits_of(new))
        if kind is CellKind.BYTES and not new.is_binary and (former in _NUMBERS or _is_text(old)) and old.tp != ColumnType.YEAR:
            return _fitting(fitted(cells, wanted) if former in _NUMBERS else cells, new)
        if kind is CellKind.BYTES and former is CellKind.BYTES and old.is_binary and new.is_binary and new.tp != ColumnType.STRING:
            return _fitting(cells, new)
        if new.tp == ColumnType.ENUM and _is_text(old):
            if set(cells.drop_null().to_pylist()) <= set(new.elems):
                return cells
    except pa.ArrowInvalid as error:
        raise Unfollowed(f"{words} some values: {error}") from error
    raise Unfollowed(f"{words} its values")


def _numbers(column: ColumnInfo, cells: pa.Array) -> pa.Array:
    """Cells of a column of numbers, of which a mirror may have texts."""
    return cells.cast(_number_type(column)) if pa.types.is_string(cells.type) else cells


def _number_type(column: ColumnInfo) -> pa.DataType:
    """The type of the column's numbers, also of a DECIMAL that has more digits than a mirror's numbers."""
    return pa.decimal256(column.flen, digits_of(column)) if pa.types.is_string(type_of(column)) else type_of(column)


def _of_two_bases(former: CellKind, kind: CellKind) -> bool:
    """Whether one is a decimal and the other a binary fraction: TiDB goes by its text of the value, Arrow does not."""
    return CellKind.DECIMAL in (former, kind) and bool({CellKind.FLOAT, CellKind.DOUBLE} & {former, kind})


_BYTES_OF: Mapping[int, int] = {
    ColumnType.TINYINT: 1,
    ColumnType.SMALLINT: 2,
    ColumnType.MEDIUMINT: 3,
    ColumnType.INT: 4,
    ColumnType.BIGINT: 8,
}


def _within(cells: pa.Array, column: ColumnInfo) -> pa.Array:
    """Numbers that an integer column can hold; of other columns all."""
    if (size := _BYTES_OF.get(column.tp)) is not None and len(cells):
        bits = 8 * size - (not column.unsigned)
        found = pc.min_max(cells)
        if (
            found["min"].is_valid
            and not (0 if column.unsigned else -(1 << bits)) <= int(found["min"].as_py()) <= int(found["max"].as_py()) < 1 << bits
        ):
            raise pa.ArrowInvalid(f"one is out of the range of {column.name}")
    return cells


def _rounds(column: ColumnInfo) -> bool:
    """Whether a FLOAT or DOUBLE has a scale."""
    return kind_of(column) in (CellKind.FLOAT, CellKind.DOUBLE) and column.decimal >= 0


def _is_text(column: ColumnInfo) -> bool:
    kind = kind_of(column)
    return (kind is CellKind.BYTES and not column.is_binary) or column.tp in (ColumnType.ENUM, ColumnType.SET)


def _with_digits(cells: pa.Array, digits: int) -> pa.Array:
    if pa.types.is_timestamp(cells.type):
        micros, unit = cells.view(pa.int64()), 10 ** (6 - digits)
        if pc.any(pc.not_equal(micros, pc.multiply(pc.divide(micros, unit), unit))).as_py():
            raise pa.ArrowInvalid(f"fractions of a second have more than {digits} digits")
    return cells


def _fitting(cells: pa.Array, column: ColumnInfo) -> pa.Array:
    """Texts that need not be cut or padded."""
    length = pc.binary_length(cells) if column.is_binary else pc.utf8_length(cells)
    if column.flen >= 0 and (pc.max(length).as_py() or 0) > column.flen:
        raise pa.ArrowInvalid(f"one is longer than {column.flen}")
    if column.tp == ColumnType.STRING and pc.any(pc.ends_with(cells, " ")).as_py():
        raise pa.ArrowInvalid("one ends with a space")
    return cells


# Partitions.


def rows_of_partitions(info: TableInfo, names: Sequence[str]) -> str:
    """The condition, in delta-rs's SQL, that holds of the rows of these partitions of ``info``.

    Raises:
        Unfollowed: TiDB distributes the rows by a function or a collation that is not known here.
    """
    places = [place for place, p in enumerate(info.partitions) if p.name in names]
    if info.partition_type == PartitionType.HASH:
        # TiDB takes the upper half of BIGINT UNSIGNED for negative numbers.
        term, half, whole = (f"arrow_cast({number}, 'Decimal128(20, 0)')" for number in (*_terms(info), f"'{1 << 63}'", f"'{1 << 64}'"))
        signed = f"coalesce(CASE WHEN {term} < {half} THEN {term} ELSE {term} - {whole} END, 0)"
        return " OR ".join(f"abs({signed} % {len(info.partitions)}) = {place}" for place in places)
    if info.partition_type == PartitionType.RANGE:
        return " OR ".join(f"({_of_range(info, place)})" for place in places)
    if info.partition_type == PartitionType.LIST:
        return " OR ".join(f"({_of_list(info, place)})" for place in places)
    raise Unfollowed(f"table {info.name} has partitions of type {info.partition_type}")


def _of_range(info: TableInfo, place: int) -> str:
    terms = _terms(info)
    lower = _below(info, terms, info.partitions[place - 1].less_than) if place else ""
    upper = _below(info, terms, info.partitions[place].less_than)
    return f"{upper} AND NOT ({lower})" if lower else upper


def _below(info: TableInfo, terms: Sequence[str], limits: Sequence[str]) -> str:
    """The condition that the terms are below the limits, column by column; NULL is below everything."""
    found = "FALSE"
    for term, limit, column in reversed(list(zip(terms, limits, _columns_of(info), strict=True))):
        if limit.upper() == "MAXVALUE":
            found = "TRUE"
            continue
        value = _literal(limit, column)
        found = f"coalesce({term} < {value}, TRUE) OR (coalesce({term} = {value}, FALSE) AND ({found}))"
    return f"({found})"


def _of_list(info: TableInfo, place: int) -> str:
    terms, columns = _terms(info), _columns_of(info)
    rows = []
    for values in info.partitions[place].in_values:
        pairs = zip(terms, values, columns, strict=True)
        rows.append(
            " AND ".join(
                f"{t} IS NULL" if v.upper() == "NULL" else f"coalesce({_unpadded(t, _literal(v, c), c)}, FALSE)" for t, v, c in pairs
            )
        )
    if not rows or any("DEFAULT" in v.upper() for values in info.partitions[place].in_values for v in values):
        raise Unfollowed(f"partition {info.partitions[place].name} of table {info.name} has a default")
    return " OR ".join(f"({row})" for row in rows)


def _unpadded(term: str, literal: str, column: ColumnInfo | None) -> str:
    """The condition that both are equal; texts but for spaces at the end, as most collations compare."""
    if column is None or not _is_text(column) or column.collate == "utf8mb4_0900_bin":
        return f"{term} = {literal}"
    return f"rtrim({term}) = rtrim({literal})"


def _columns_of(info: TableInfo) -> list[ColumnInfo | None]:
    """The columns that are compared themselves; None: an expression."""
    named = {c.name.lower(): c for c in info.target_columns()}
    return [named[n.lower()] for n in info.partition_columns] or [None]


_FUNCTIONS = {
    "year": "date_part('year', {})",
    "month": "date_part('month', {})",
    "dayofmonth": "date_part('day', {})",
    "day": "date_part('day', {})",
    "to_days": "(arrow_cast(arrow_cast({}, 'Date32'), 'Int32') + 719528)",
    "unix_timestamp": "floor(arrow_cast({}, 'Int64') / 1000000)",
}


def _terms(info: TableInfo) -> list[str]:
    """The terms that are compared with the limits, in SQL."""
    named = {c.name.lower(): c for c in info.target_columns()}
    if info.partition_columns:
        columns = [named.get(n.lower()) for n in info.partition_columns]
        if any(c is None or (_is_text(c) and not c.collate.endswith("_bin")) for c in columns):
            raise Unfollowed(f"table {info.name} has partitions by a column whose values a collation compares")
        return [quote_name(c.name) for c in columns if c is not None]
    name, _, rest = info.partition_expr.strip().partition("(")
    function, inner = (name.strip().lower(), rest.rstrip().removesuffix(")")) if rest else ("", name)
    column = named.get(inner.strip().strip("`").replace("``", "`").lower())
    if column is None or (function and function not in _FUNCTIONS) or (not function and kind_of(column) not in _NUMBERS):
        raise Unfollowed(f"table {info.name} has partitions by {info.partition_expr}")
    return [_FUNCTIONS[function].format(quote_name(column.name)) if function else quote_name(column.name)]


def _literal(text: str, column: ColumnInfo | None) -> str:
    """A limit as a literal of its column."""
    inner = text[1:-1].replace("''", "'") if text[:1] in "'\"" else text
    if column is None or kind_of(column) in _NUMBERS:
        if not inner.lstrip("-").replace(".", "", 1).isdigit():
            raise Unfollowed(f"a partition's limit is {text}")
        return inner
    value = "'" + inner.replace("'", "''") + "'"
    kind = type_of(column)
    if pa.types.is_date(kind):
        return f"arrow_cast({value}, 'Date32')"
    if pa.types.is_timestamp(kind) and not kind.tz:
        return f"arrow_cast({value}, 'Timestamp(Microsecond, None)')"
    if kind == pa.string():
        return value
    raise Unfollowed(f"a partition's limit is {text}")
