"""Derives statements from the table infos before and after a job, for a target that refuses the first statement.

Promises: pure. Nothing is guessed: if the infos are ambiguous, there is no derived statement. A derived CREATE TABLE is without what a server may refuse.
"""

from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject

_CHANGE_THEMSELVES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME})
"""Types that may have ON UPDATE CURRENT_TIMESTAMP, which some servers add implicitly."""


def with_plain_columns(subject: Subject) -> tuple[Subject, tuple[str, ...]]:
    """``subject`` with its STORED generated columns as plain ones, which rows write, and what that loses."""
    losses = tuple(
        f"{t.schema}.{t.name}: column {c.name} is not computed by the target, which refuses its expression; it gets the upstream's values"
        for t in subject.after
        for c in t.info.columns
        if c.generated_stored
    )
    after = tuple(
        replace(
            t,
            info=replace(
                t.info,
                columns=tuple(replace(c, generated_expr="", generated_stored=False) if c.generated_stored else c for c in t.info.columns),
            ),
        )
        for t in subject.after
    )
    return replace(subject, after=after), losses


def null_fills(subject: Subject, dialect: Dialect) -> tuple[tuple[str, str], ...]:
    """(column, statement) for each column that becomes NOT NULL. TiDB has no NULLs there; at the target they get TiDB's default, not the server's."""
    if subject.old is None or subject.new is None:
        return ()
    info = subject.new.info
    found = []
    for column_name, was in (pair_columns(subject.job, subject.query, subject.old.info, info) or {}).items():
        column = next(c for c in visible(info) if c.name.lower() == column_name)
        if column.not_null and not was.not_null and not was.generated:
            value = origin_literal(replace(was, flag=column.flag), dialect.flavour)
            found.append((was.name, filling(subject.old, was, value, f"{quote_name(was.name)} IS NULL")))
    return tuple(found)


def filling(table: TableAt, column: ColumnInfo, value: str, where: str) -> str:
    """The UPDATE that gives ``column`` the literal ``value`` in some rows, and changes nothing else."""
    own = quote_name(column.name)
    # A column that is assigned is not changed by its ON UPDATE clause.
    names = (quote_name(c.name) for c in visible(table.info) if c.tp in _CHANGE_THEMSELVES and not c.generated)
    still = "".join(f", {name} = {name}" for name in names if name != own)
    return f"UPDATE {quoted(table.schema, table.name)} SET {own} = {value}{still} WHERE {where}"
