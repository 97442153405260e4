"""Compares existing rows of the target with the upstream, in a column that a job adds and somebody added to the target before. [db]

    every row holds the upstream's value of rows older than the column    the column counts as the upstream's
    a row holds another value, because the column has another use         a text says so, with the UPDATE that mends it
    the column is of another kind, as a number for a text                 not the upstream's column: skipping the DDL freezes the table

Promises: reads only. Columns that cannot be compared count as equal. The UPDATE is right as long as no later row change is applied. Do not call this where
another Drainer may have applied later row changes.
"""

from collections.abc import Iterator

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.derive import filling
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text, match_condition
from pyspark_tidb_binlog.sinks.mysql.exactness import OTHER_KIND, changed
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables
from pyspark_tidb_binlog.sinks.mysql.target import Target

_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """For each column that the job adds, and for which the target has rows with another value than upstream: the difference, and what to do."""
    found = []
    for table, column in _added(subject):
        name, value = quoted(table.schema, table.name), origin_literal(column, session.flavour)
        same = _holds(column, _stored(column, value), session.flavour)
        try:
            if not session.query(f"SELECT 1 FROM {name} WHERE NOT ({same}) LIMIT 1"):
                continue
        except RetryableApplyError:
            raise
        except ApplyError:
            continue
        update = filling(table, column, value, f"NOT ({same})")
        found.append(
            f"{table.schema}.{table.name} already has the column {column.name}, and rows that are there hold another value than upstream, where it is "
            f"{value}. If somebody made the column for another use, rename it and start again. Otherwise, before any later row is written, execute {update}"
        )
    return tuple(found)


def of_another_kind(session: Target, subject: Subject) -> bool:
    """Whether the target has a column that the job adds, as a column that holds values of another kind."""
    added = list(_added(subject))
    tables = read_tables(session, list({(table.schema, table.name) for table, _ in added})) if added else {}
    for table, column in added:
        there = tables.get((table.schema, table.name))
        other = there.column(column.name) if there else None
        if other is not None and (other.generated or changed(column, other) == OTHER_KIND):
            return True
    return False


def _added(subject: Subject) -> Iterator[tuple[TableAt, ColumnInfo]]:
    before = {t.table_id: t for t in subject.before}
    for after in subject.after:
        old = before.get(after.table_id)
        pairs = pair_columns(subject.job, subject.query, old.info, after.info) if old else None
        if pairs is not None:
            fresh = (c for c in visible(after.info) if c.name.lower() not in pairs)
            yield from ((after, c) for c in fresh if not c.generated and not c.flag & ColumnFlag.AUTO_INCREMENT)


def _stored(column: ColumnInfo, literal: str) -> str:
    """``literal`` as a row of the target shows it: a CHAR has no blanks at its end."""
    if column.tp != ColumnType.STRING or not is_text(column) or not literal.endswith(" '"):
        return literal
    return f"{literal[:-1].rstrip(' ')}'"


def _holds(column: ColumnInfo, literal: str, flavour: Flavour) -> str:
    """The condition that the column is ``literal``."""
    shown = quote_name(column.name)
    if literal == "NULL":
        return f"{shown} IS NULL"
    if column.tp in (ColumnType.FLOAT, ColumnType.DOUBLE) and column.decimal >= 0:
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= {0.5 * 10.0**-column.decimal!r} + ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.FLOAT:
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.SET:
        return f"{shown} <=> {literal}"  # a text
    first, *others = (text.decode() for text in match_condition(column, flavour, indexed=False))
    return f"{first}{literal}{literal.join(others)}"
