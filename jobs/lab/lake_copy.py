"""A lake as ``compare`` looks at it. [spark]

Promises: reads only.
"""

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark_tidb_binlog.jobs.lab.compare import Columns, Row
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name

if TYPE_CHECKING:
    from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt


class LakeCopy:
    """The tables of a lake at one moment. A table that was set aside is none of them."""

    def __init__(self, lake: "LakeAt") -> None:
        """``lake``: at the moment."""
        found = lake.tables().where("state = 'mirrored'").collect()
        self._tables = {name: lake.table(name) for name in (f"{row['database']}.{row['table']}" for row in found)}

    def columns(self) -> dict[str, list[str]]:
        """See ``Copy``."""
        return {name: table.columns for name, table in self._tables.items()}

    def rows(self, name: str, columns: Columns) -> list[Row]:
        """See ``Copy``."""
        chosen = (_selected(quote_name(column), form) for column, form in columns)
        rows = self._tables[name].selectExpr(*chosen).collect()
        return [tuple(text_of(cell, form) for cell, (_, form) in zip(row, columns, strict=True)) for row in rows]


def _selected(column: str, form: str) -> str:
    if form == "json":
        return f"to_json({column})"
    return f"CAST({column} AS STRING)" if form.startswith("time") else column


def text_of(cell: Any, form: str) -> str | None:
    """A cell as a lake has it, in a form of ``binlog_source.emulator.values``; pure."""
    match cell:
        case None:
            return None
        case bytes() | bytearray():
            return cell.hex().upper()
        case bool() | int() | Decimal() if form == "hex":
            return f"{int(cell):X}"
        case float():
            return repr(cell).removesuffix(".0")
        case Decimal():
            return f"{cell:f}"
        case str() if form.startswith("time"):
            seconds, _, fraction = cell.partition(".")
            digits = int(form.removeprefix("time"))
            return f"{seconds}.{fraction:0<{digits}}" if digits else cell
        case _:
            return str(cell)
