"""Indexes over expressions: a target may not know every function of TiDB. No row depends on such an index. [db]

    the target cannot make it                          left out, a loss
    DROP, RENAME or ALTER of an index that it lacks    left out

An expression of more than columns (``CAST(c AS CHAR(20))``) compares texts as the session that creates the index does; a later ALTER TABLE of
another session keeps that. The same holds for a generated column at a MariaDB.

Promises: reads only, and sets only ``collation_connection``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import UPSTREAM_DEFAULT
from pyspark_tidb_binlog.sinks.mysql.ddl.clauses import Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target, as_text

_CANNOT = frozenset({1064, 1071, 1170, 1235, 1305, 3751, 3752, 3753, 3754, 3757, 3758, 3761, 3762, *range(3903, 3909)})
"""A syntax or function that the server does not have, a value that it does not index. Not a lack of rights or of space, nor a duplicate value."""


def knowing_indexes(session: Target, subject: Subject) -> Subject:
    """``subject`` with the names of the expression indexes that the target's table lacks: it was made without them, or somebody has dropped them."""
    old = subject.old
    named = frozenset(i.name.lower() for i in old.info.indexes if old.info.over_expression(i)) if old else frozenset()
    there = read_whole(session, old.schema, old.name) if old and named and session.flavour is not Flavour.TIDB else None
    if there is None:
        return subject
    # A plain index of that name is another one, of somebody's own.
    keys = (*there.unique_keys, *there.other_keys)
    return replace(subject, lacking=named - {key.name.lower() for key in keys if any(not column for column, _ in key.columns)})


def cannot_index(refused: ApplyError) -> bool:
    """Whether the server has refused an index over an expression because it cannot make it."""
    return refused.errno in _CANNOT


@contextmanager
def comparing_as_upstream(session: Target, before: Sequence[TableAt], after: Sequence[TableAt], dialect: Dialect) -> Iterator[None]:
    """Run the block, which may make expressions of the tables ``after``, with the session in the collation that their texts have upstream."""
    collation = _collation(before, after, dialect)
    if not collation:
        yield
        return
    ((own,),) = session.query("SELECT @@SESSION.collation_connection")
    session.execute("SET SESSION collation_connection = %s", [collation])
    try:
        yield
    finally:
        session.execute("SET SESSION collation_connection = %s", [as_text(own)])


def _collation(before: Sequence[TableAt], after: Sequence[TableAt], dialect: Dialect) -> str:
    """The collation of the texts in the indexes that are created; empty if there are none. Of several collations, the one that distinguishes all texts.

    A MariaDB, which has no such indexes, stores it in generated columns.
    """
    plain = dialect.charset(UPSTREAM_DEFAULT.charset, UPSTREAM_DEFAULT.collate)
    if dialect.flavour is Flavour.MARIADB and any(c.generated for table in after for c in table.info.columns):
        return plain.collate
    if dialect.flavour is not Flavour.MYSQL:
        return ""
    there = {c.id for table in before for c in table.info.columns}
    texts = [c for table in after for c in table.info.columns if c.hidden and c.id not in there and is_text_or_words(c)]
    found = {dialect.charset(c.charset, c.collate) for c in texts}
    chosen = found.pop() if len(found) == 1 else plain
    # The session's texts are utf8mb4, and with a collation of another charset they would be converted.
    return "" if not texts else (chosen if chosen.charset == plain.charset else plain).collate
