"""How a column's values are read from the upstream over SQL, and written to the target as literals. Pure.

Promises: the value at the target is that of the upstream, bit for bit: FLOAT is read as the double that it is; ENUM, SET and BIT are read as
numbers, so that neither an invalid ENUM nor a name decides. Texts travel as UTF-8, TIMESTAMP in UTC (both sides' sessions), bytes as they are.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.dialect import is_bytes, is_text
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, LiteralForm, literals
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns

_NUMBERED = frozenset({ColumnType.ENUM, ColumnType.SET, ColumnType.BIT})
_BARE = _NUMBERED | {
    ColumnType.TINYINT,
    ColumnType.SMALLINT,
    ColumnType.INT,
    ColumnType.MEDIUMINT,
    ColumnType.BIGINT,
    ColumnType.YEAR,
    ColumnType.FLOAT,
    ColumnType.DOUBLE,
    ColumnType.DECIMAL,
}


def expression(column: ColumnInfo) -> str:
    """What SELECT asks for, so that the answer's text is the value exactly."""
    name = quote_name(column.name)
    if column.tp == ColumnType.FLOAT:
        return f"{name} * 1e0"  # as FLOAT, servers show six digits
    return f"CAST({name} AS UNSIGNED)" if column.tp in _NUMBERED else name


def form_of(column: ColumnInfo) -> LiteralForm:
    """How the answer's text becomes a literal."""
    if column.tp in _BARE:
        return LiteralForm.BARE
    if is_bytes(column):
        return LiteralForm.BYTES
    return LiteralForm.TEXT if is_text(column) or column.tp == ColumnType.JSON else LiteralForm.QUOTED


def cells_of(forms: Sequence[LiteralForm], values: Columns) -> list[Cells]:
    """The literals of each column, for values as the server answered them."""
    return [literals(column, form) for form, column in zip(forms, values, strict=True)]


def arrow_of(columns: Sequence[ColumnInfo], values: Columns) -> pa.Table:
    """Values as the server answered them, in the types of ``image_schema``."""
    schema = image_schema(columns)
    found = [_typed(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(found, schema=schema)


def _typed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return texts
    words = pc.cast(texts, pa.string())
    return pc.cast(pc.cast(words, pa.float64()), kind) if pa.types.is_floating(kind) else pc.cast(words, kind)


def whole(cells: Cells) -> list[bytes]:
    """Each literal of a column, complete; NULL is ``NULL``."""
    return [b"NULL" if v is None else cells.opening + v + cells.closing for v in cells.values.to_pylist()]
