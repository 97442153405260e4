"""Converts texts strictly to a charset that holds fewer characters, where a key would be too long in utf8mb4 (``long_keys``). [db]

Promises: a text that does not fit is an error, and the DDL is not executed. A session without a strict sql_mode would write question marks.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text


@contextmanager
def keeping_characters(session: Target, subject: Subject, dialect: Dialect) -> Iterator[None]:
    """Run the block with a strict sql_mode if the job's statement may convert a column to a smaller charset."""
    if not converts(subject, dialect):
        yield
        return
    ((own,),) = session.query("SELECT @@SESSION.sql_mode")
    session.execute("SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_TRANS_TABLES')")
    try:
        yield
    finally:
        session.execute("SET SESSION sql_mode = %s", [as_text(own)])


def converts(subject: Subject, dialect: Dialect) -> bool:
    """Whether a column has the same charset upstream before and after, and another one at the target."""
    if subject.old is None or subject.new is None:
        return False
    old, new = subject.old.info, subject.new.info
    was = {c.id: c for c in old.columns}
    return any(
        (before := was.get(column.id)) is not None
        and (before.charset, before.collate) == (column.charset, column.collate)
        and dialect.column_charset(before, old) != dialect.column_charset(column, new)
        for column in new.columns
    )
