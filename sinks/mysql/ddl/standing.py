"""Columns that stand at the target already where a job adds them, and what to do where a name is taken. [db] for ``other_values``, which reads only.

Of a column that a job adds and somebody added before:

    every row holds the upstream's value of rows older than the column    the column counts as the upstream's
    a row holds another value, because the column has another use         a text says so, with the UPDATE that mends it

Promises: columns that cannot be compared count as equal. The UPDATE is right as long as no later row change is applied. Do not compare where
another Drainer may have applied later row changes.
"""

from collections.abc import Iterator

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import filling
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import origin_literal
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text, match_condition, table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target

EXISTS_TABLE = 1050

_SNAPSHOT_TOO_OLD = 8055
"""TiDB: the GC has passed the DROP. By name it says so in words only, as error 1105."""


def way_out(job: Job, error: ApplyError) -> str:
    """What to do where the name is taken to which the job makes or renames a table, or a TiDB cannot restore one; empty otherwise."""
    if job.type == JobType.RECOVER_TABLE and error.errno == EXISTS_TABLE:
        return "Drop the table of that name at the target, or rename it, and start again. If its DROP was left out, so that it is this very table, skip the DDL"
    if job.type == JobType.RECOVER_TABLE and (error.errno == _SNAPSHOT_TOO_OLD or "dropped/truncated" in error.words):
        return (
            "The target cannot restore the table: its GC has passed the DROP or TRUNCATE, or it never had the table. Create the table there by hand with the rows "
            "that it had upstream at this commit_ts (dumpling --snapshot), and start again. For the next time, make the target's tidb_gc_life_time longer than "
            "the upstream's, by as much as the stream may lag"
        )
    if error.errno != EXISTS_TABLE or not (job.kind.effect is JobEffect.RENAMES or job.kind.makes_tables):
        return ""
    emptying = "" if job.kind.effect is JobEffect.RENAMES else " (or, if it is equal, empty it)"
    return (
        f"Drop the table of that name at the target{emptying}, or rename it, and start again. If you skip the DDL instead, the rows of the binlogs "
        "are added to the rows that are there"
    )


_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """For each column that the job adds, and for which the target has rows with another value than upstream: the difference, and what to do."""
    found = []
    for table, column in _added(subject):
        name, value = table_name(table.schema, table.name), origin_literal(column, session.flavour)
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
