"""Reads a column's values from the upstream over SQL, and writes them to the target as literals. Pure.

Promises: the target's value equals the upstream's, bit for bit. A FLOAT is read as its double; ENUM, SET and BIT are read as
numbers. Texts travel as UTF-8, TIMESTAMP in UTC (in both sessions), bytes as they are. Whatever the upstream answers, a literal is one value:
text where a number is expected is refused, everything else is escaped.
"""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, image_schema, kind_of
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.dialect import is_bytes
from pyspark_tidb_binlog.sinks.mysql.exactness import same_type
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, LiteralForm, literals
from pyspark_tidb_binlog.sinks.mysql.row_packets import Columns

_NUMBERS = frozenset({CellKind.INT, CellKind.UINT, CellKind.NUMBER, CellKind.FLOAT, CellKind.DOUBLE, CellKind.DECIMAL})
_FLOATS = frozenset({ColumnType.FLOAT, ColumnType.DOUBLE})
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"


def expression(column: ColumnInfo) -> str:
    """The expression that SELECT asks for, so that the answer's text is the value exactly."""
    name = quote_name(column.name)
    if column.tp == ColumnType.FLOAT:
        return f"{name} * 1e0"  # as FLOAT, servers show six digits
    return f"CAST({name} AS UNSIGNED)" if kind_of(column) is CellKind.NUMBER else name


def form_of(column: ColumnInfo) -> LiteralForm:
    """The form in which the answer's text becomes a literal."""
    if kind_of(column) in _NUMBERS:
        return LiteralForm.BARE
    return LiteralForm.BYTES if is_bytes(column) else LiteralForm.TEXT


def shows(shown: str, column: ColumnInfo) -> bool:
    """Whether ``shown``, a type as SHOW COLUMNS has it, is the type of ``column``: its values are read and written alike."""
    if column.tp in _FLOATS or column.flen < 0:
        # TiDB leaves out digits and lengths that are its defaults
        return re.split(r"[ (]", shown.lower(), maxsplit=1)[0] == re.split(r"[ (]", column_type(column).lower(), maxsplit=1)[0]
    return same_type(shown, column) or (bool(column.elems) and shown.partition("(")[2] == _words(column))


def _words(column: ColumnInfo) -> str:
    """The words of an ENUM or SET as TiDB shows them: a backslash stands as it is."""
    shown = (word.replace("'", "''").replace("\0", "\\0").replace("\n", "\\n").replace("\r", "\\r") for word in column.elems)
    return ",".join(f"'{word}'" for word in shown) + ")"


def cells_of(forms: Sequence[LiteralForm], values: Columns) -> list[Cells]:
    """The literals of each column, for values as the server answered them.

    Raises:
        BootstrapRefused: a value of a column of numbers is none.
    """
    for form, column in zip(forms, values, strict=True):
        if form is LiteralForm.BARE:
            _require_numbers(column)
    return [literals(column, form) for form, column in zip(forms, values, strict=True)]


def _require_numbers(texts: pa.Array) -> None:
    odd = pc.fill_null(pc.invert(pc.match_substring_regex(texts, _NUMBER)), False)
    if pc.any(odd).as_py():
        raise BootstrapRefused(
            "the upstream answered with text for a column that is a number in the DDL history. Either it is another table, or a running DDL changes the type of "
            "the column. Nothing of this chunk is written. Start with --bootstrap-restart when the DDL has ended"
        )


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
