"""Values of rows that a DDL gives other values at the target than upstream: what is mended, and what is a loss. [db] for ``other_values``, which reads only.

A column that a job adds, and that somebody added before, counts as the upstream's if every row holds the upstream's value of rows older than the column, or cannot be
compared. ``other_values`` names the others, with an UPDATE, which is right as long as no later row change is applied.

``converted_otherwise``, in words; rows that are written later are as upstream:

    FLOAT, DOUBLE to a text    servers write numbers in different ways: TiDB 16777215, 1e20 as 100000000000000000000, MariaDB 16777200, 1e20
    TEXT to JSON on MariaDB    MariaDB's JSON is a text and stays as it was written; TiDB rewrites it
    JSON to a text on MySQL    MySQL writes floating point numbers as 1.0
    DATETIME(3) to DATE        MySQL rounds 23:59:59.6 up to the next day, TiDB cuts the time off
    DATETIME(3) to an integer  MariaDB cuts the fraction off, TiDB rounds it; the same for TIME(3)
"""

from collections.abc import Iterator
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ServerRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_bytes, is_text, match_condition, table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target

_CHANGE_THEMSELVES = frozenset({ColumnType.TIMESTAMP, ColumnType.DATETIME})
"""Types that may have ON UPDATE CURRENT_TIMESTAMP, which some servers add implicitly."""


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
    return f"UPDATE {table_name(table.schema, table.name)} SET {own} = {value}{still} WHERE {where}"


_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """The difference, and what to do, for each column that the job adds and whose rows at the target have another value than upstream."""
    found = []
    for table, column in _added(subject):
        name, value = table_name(table.schema, table.name), origin_literal(column, session.flavour)
        same = _holds(column, _stored(column, value), session.flavour)
        try:
            if not session.query(f"SELECT 1 FROM {name} WHERE NOT ({same}) LIMIT 1"):
                continue
        except ServerRefused:
            continue
        update = filling(table, column, value, f"NOT ({same})")
        found.append(
            f"{table.label} already has the column {column.name}, and rows that are there hold another value than upstream, where it is "
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


_FLOATS = frozenset({ColumnType.FLOAT, ColumnType.DOUBLE})
_INTEGERS = frozenset({ColumnType.TINYINT, ColumnType.SMALLINT, ColumnType.MEDIUMINT, ColumnType.INT, ColumnType.BIGINT})
_MOMENTS = frozenset({ColumnType.DATETIME, ColumnType.TIMESTAMP})


def converted_otherwise(subject: Subject, flavour: Flavour) -> tuple[str, ...]:
    """Differences of rows that are there, each with the way to have them as upstream."""
    old, new = subject.old, subject.new
    if old is None or new is None or flavour is Flavour.TIDB:
        return ()
    pairs = pair_columns(subject.job, subject.query, old.info, new.info) or {}
    found = []
    for column in visible(new.info):
        was = pairs.get(column.name.lower())
        if was is not None and not column.generated:
            found += [f"{subject.label}: column {column.name}: {why}" for why in _why(was, column, flavour)]
    return tuple(f"{words}. To have the upstream's values, copy the table again: --bootstrap {subject.label}" for words in found)


def _why(was: ColumnInfo, column: ColumnInfo, flavour: Flavour) -> Iterator[str]:
    worded = is_text(column) or is_bytes(column) or column.tp in (ColumnType.JSON, ColumnType.ENUM, ColumnType.SET)
    if was.tp in _FLOATS and worded:
        yield "its numbers became texts as the target writes them, which may differ from the upstream's (1e20, digits of large numbers)"
    if is_text(was) and column.tp == ColumnType.JSON and flavour is Flavour.MARIADB:
        yield "its texts stay as they were written, but the upstream has rewritten them as JSON (blanks, order of keys)"
    if was.tp == ColumnType.JSON and (is_text(column) or is_bytes(column)) and flavour is Flavour.MYSQL:
        yield "its JSON became texts as the target writes them, which may differ from the upstream's (1.0, 1e20)"
    if was.tp in _MOMENTS and was.decimal > 0 and column.tp == ColumnType.DATE and flavour is Flavour.MYSQL:
        yield "its times in the last half second of a day became the next day"
    if was.tp in {*_MOMENTS, ColumnType.TIME} and was.decimal > 0 and column.tp in _INTEGERS and flavour is Flavour.MARIADB:
        yield "its fractions of seconds were cut off, but the upstream has rounded them"
