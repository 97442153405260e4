"""Whether a server is an exact copy of a workload, found apart from ``verify``: every table, column and row, and nothing else. Duplicate rows are counted."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.values import form_of
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

_SHOWN = 3
_OTHERS = ("information_schema", "performance_schema", "mysql", "sys", "tidb_binlog")
Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """The result for one table."""

    name: str
    rows: int
    """Rows in the upstream."""
    difference: str = ""
    """What differs, in words; empty = equal."""


def compared(workload: WorkloadProcess, target: TargetConfig) -> list[TableOutcome]:
    """Every table of the upstream, then every table that should not be in the target."""
    wanted = workload.tables()
    with connect(target, ApplyConfig()) as session:
        there = _columns(session)
        outcomes = []
        for name, info in wanted.items():
            rows = workload.rows(name)
            outcomes.append(TableOutcome(name, len(rows), _difference(session, name, info, rows, there.get(name))))
    return outcomes + [TableOutcome(name, 0, "is not in the upstream") for name in sorted(set(there) - set(wanted))]


def differing(workload: WorkloadProcess, target: TargetConfig) -> list[str]:
    """The tables that are not as upstream, and why."""
    return [f"{found.name} {found.difference}" for found in compared(workload, target) if found.difference]


def difference(source: Collection[Row], target: Collection[Row]) -> str:
    """How two multisets of rows differ, with a few examples; empty when they do not."""
    wanted, found = Counter(source), Counter(target)
    parts = []
    for words, rows in (("missing in the target", wanted - found), ("only in the target", found - wanted)):
        if rows:
            examples = ", ".join(repr(row) for row in sorted(rows, key=repr)[:_SHOWN])
            parts.append(f"{rows.total()} rows {words}, e.g. {examples}")
    return "; ".join(parts)


def _columns(session: Session) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    sql = "SELECT table_schema, table_name, column_name FROM information_schema.columns ORDER BY table_schema, table_name, ordinal_position"
    for schema, table, column in session.query(sql):
        if schema not in _OTHERS:
            found.setdefault(f"{schema}.{table}", []).append(column)
    return found


def _difference(session: Session, name: str, info: TableInfo, rows: Sequence[Row], there: Sequence[str] | None) -> str:
    columns = info.public_columns()
    names = [column.name for column in columns]
    if there is None:
        return "is not in the target"
    if there != names:
        return f"has the columns {', '.join(there)} in the target instead of {', '.join(names)}"
    schema, _, table = name.partition(".")
    chosen = ", ".join(
        f"HEX({quote_name(column.name)})" if form_of(column) == "hex" else f"CAST({quote_name(column.name)} AS CHAR)" for column in columns
    )
    found = session.query(f"SELECT {chosen} FROM {quote_name(schema)}.{quote_name(table)}")
    return difference([_normal(row, columns) for row in rows], [_normal(row, columns) for row in found])


def _normal(row: Row, columns: Sequence[ColumnInfo]) -> Row:
    """JSON values normalized, other values unchanged."""
    pairs = zip(row, columns, strict=True)
    return tuple(json.dumps(json.loads(v), sort_keys=True) if form_of(column) == "json" and v is not None else v for v, column in pairs)
