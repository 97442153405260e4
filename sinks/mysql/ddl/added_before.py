"""Columns that a job adds and somebody else has added to the target before: do the rows that are there hold the upstream's value? [db]

    the target's default is the upstream's, as it was when the column came or as it is declared    the rows are taken to hold it
    it is another one, and so is the value of a row                                               in words, with the UPDATE that mends it

Promises: reads only, and reads rows only where the default is another one. What cannot be compared is taken for equal. The UPDATE is right while no later row
change is applied. Not to be asked where another Drainer may have applied later row changes.
"""

from collections.abc import Iterator

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.column_pairs import pair_columns, visible
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import quoted
from pyspark_tidb_binlog.sinks.mysql.ddl.defaults import declared_literal, origin_literal
from pyspark_tidb_binlog.sinks.mysql.ddl.derive import filling
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, match_condition
from pyspark_tidb_binlog.sinks.mysql.target import Target

_NO_DEFAULT = 1364
_FLOAT_DIGITS = 1e-6
"""A FLOAT is compared with this relative difference: it is not the number that its literal is."""


def other_values(session: Target, subject: Subject) -> tuple[str, ...]:
    """For each column that the job adds, and in which rows of the target hold another value than upstream, what that is and what to do."""
    found = []
    for table, column in _added(subject):
        name, value = quoted(table.schema, table.name), origin_literal(column, session.flavour)
        same = _holds(quote_name(column.name), column, value, session.flavour)
        try:
            if not _has_another_default(session, name, column) or not session.query(f"SELECT 1 FROM {name} WHERE NOT ({same}) LIMIT 1"):
                continue
        except RetryableApplyError:
            raise
        except ApplyError:
            continue
        update = filling(table, column, value, f"NOT ({same})")
        found.append(
            f"{table.schema}.{table.name} has the column {column.name} already, with another default, and rows that are there hold another value than "
            f"upstream, where it is {value}: before any later row is written, {update}"
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


def _has_another_default(session: Target, name: str, column: ColumnInfo) -> bool:
    """Whether the target's default is neither the value of old rows nor the declared one; False for a table without rows."""
    default, declared = f"DEFAULT({quote_name(column.name)})", declared_literal(column)
    expression = declared is None and column.default is not None
    values = [origin_literal(column, session.flavour), *([] if declared is None else [declared])]
    same = [_holds(default, column, value, session.flavour) for value in values] + ([f"{default} IS NOT NULL"] if expression else [])
    try:
        rows = session.query(f"SELECT {' OR '.join(f'({one})' for one in same)} FROM {name} LIMIT 1")
    except RetryableApplyError:
        raise
    except ApplyError as error:
        return error.errno == _NO_DEFAULT and (declared is not None or expression)
    return bool(rows) and not rows[0][0]


def _holds(shown: str, column: ColumnInfo, literal: str, flavour: Flavour) -> str:
    """The condition that ``shown``, the column or its default, is ``literal``."""
    if literal == "NULL":
        return f"{shown} IS NULL"
    if column.tp == ColumnType.FLOAT:
        return f"{shown} IS NOT NULL AND ABS({shown} - {literal}) <= ABS({literal}) * {_FLOAT_DIGITS}"
    if column.tp == ColumnType.SET:
        return f"{shown} <=> {literal}"  # a text
    first, *others = (text.decode() for text in match_condition(column, flavour, indexed=False))
    return f"{first}{literal}{literal.join(others)}".replace(quote_name(column.name), shown)
