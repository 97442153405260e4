"""Whether the target is an exact copy of an embedded upstream: every table, column and row, and nothing else.

Promises: ``difference`` is pure. Duplicate rows are counted, so tables without a key are compared, too.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark_tidb_binlog.binlog_source.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.sinks.mysql.session import Session

_SHOWN = 3
Row: TypeAlias = tuple[str | None, ...]
Columns: TypeAlias = Sequence[tuple[str, str]]
"""(name, form) in order; a form is ``text``, ``hex``, ``json`` or ``timeN`` (``binlog_source.emulator.values.form_of``)."""


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """The result for one table."""

    name: str
    rows: int
    """Rows in the upstream."""
    difference: str = ""
    """What differs, in words; empty = equal."""


def difference(source: Collection[Row], target: Collection[Row]) -> str:
    """How two multisets of rows differ, with a few examples; empty when they do not."""
    wanted, found = Counter(source), Counter(target)
    parts = []
    for words, rows in (("missing in the target", wanted - found), ("only in the target", found - wanted)):
        if rows:
            examples = ", ".join(repr(row) for row in sorted(rows, key=repr)[:_SHOWN])
            parts.append(f"{rows.total()} rows {words}, e.g. {examples}")
    return "; ".join(parts)


class Copy(Protocol):
    """The tables of a target."""

    def columns(self) -> Mapping[str, Sequence[str]]:
        """By ``db.table``: the names of its columns, in order."""

    def rows(self, name: str, columns: Columns) -> Sequence[Row]:
        """All rows of a table, each value in the form of its column."""


@dataclass(frozen=True, slots=True)
class ServerCopy:
    """The tables of a MySQL-protocol server."""

    session: Session
    ignored: Collection[str]
    """Schemas that are not looked at."""

    def columns(self) -> dict[str, list[str]]:
        """See ``Copy``."""
        found: dict[str, list[str]] = {}
        sql = "SELECT table_schema, table_name, column_name FROM information_schema.columns ORDER BY table_schema, table_name, ordinal_position"
        for schema, table, column in self.session.query(sql):
            if schema not in self.ignored:
                found.setdefault(f"{schema}.{table}", []).append(column)
        return found

    def rows(self, name: str, columns: Columns) -> list[Row]:
        """See ``Copy``."""
        schema, _, table = name.partition(".")
        chosen = ", ".join(f"HEX({quote_name(c)})" if form == "hex" else f"CAST({quote_name(c)} AS CHAR)" for c, form in columns)
        return list(self.session.query(f"SELECT {chosen} FROM {quote_name(schema)}.{quote_name(table)}"))


def compare(workload: WorkloadProcess, copy: Copy) -> list[TableOutcome]:
    """Every table of the upstream, then every table that should not be in the target."""
    wanted = workload.tables()
    there = copy.columns()
    outcomes = []
    for name, columns in wanted.items():
        rows = workload.rows(name)
        outcomes.append(TableOutcome(name, len(rows), _table_difference(copy, name, columns, rows, there)))
    outcomes += [TableOutcome(name, 0, "is not in the upstream") for name in sorted(set(there) - set(wanted))]
    return outcomes


def _table_difference(copy: Copy, name: str, columns: Columns, rows: Sequence[Row], there: Mapping[str, Sequence[str]]) -> str:
    if name not in there:
        return "is not in the target"
    names = [column for column, _ in columns]
    if list(there[name]) != names:
        return f"has the columns {', '.join(there[name])} in the target instead of {', '.join(names)}"
    return difference([_normal(row, columns) for row in rows], [_normal(row, columns) for row in copy.rows(name, columns)])


def _normal(row: Row, columns: Columns) -> Row:
    """JSON values normalized, other values unchanged."""
    pairs = zip(row, columns, strict=True)
    return tuple(json.dumps(json.loads(v), sort_keys=True) if form == "json" and v is not None else v for v, (_, form) in pairs)


if TYPE_CHECKING:
    from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt


class LakeCopy:
    """The tables of a lake at one moment, read only. A table that was set aside is none of them. [spark]"""

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
