"""Peculiarities of servers in a DDL's way. [db]

the server gives a table without a        MySQL (``sql_generate_invisible_primary_key``): the hidden ``my_row_id``, which the upstream does not know. The
primary key one of its own                upstream's own key replaces it. A table that cannot have it is created without, where the account may ask for that
EXCHANGE refused for instant columns      MySQL: the tables are rebuilt first, before the intent is recorded: a rebuilt table has another id
an expression that it cannot index        the index is left out, a loss: no row depends on it. So is a DROP, RENAME or ALTER of an index that it lacks
an expression that compares texts         as the session does that creates the index, or at a MariaDB the generated column: the session gets their collation
texts converted to a smaller charset      where a key would be too long in utf8mb4: strictly
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType, TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import SchemaSnapshot
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import UPSTREAM_DEFAULT, Dialect, is_text_or_words
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, table_name
from pyspark_tidb_binlog.sinks.mysql.structure import read_tables, read_whole
from pyspark_tidb_binlog.sinks.mysql.target import Target

_log = logging.getLogger(__name__)

_TWO_PRIMARY_KEYS = 1068
_CANNOT_GIVE = frozenset({4108, 4109})
"""A column of the table has its name; the table has an AUTO_INCREMENT column already, as the key does."""
_NOT_SUPPORTED, _OF_A_DROP = 1235, "@@sql_generate_invisible_primary_key"
_KEY_REQUIRED = 3750
_SETTING = "SET SESSION sql_generate_invisible_primary_key = "


def execute_ddl(session: Target, sql: str) -> None:
    """Execute a DDL; what the server refuses because it cannot give the table a key is executed without one."""
    try:
        session.execute(sql)
    except RetryableApplyError:
        raise
    except ApplyError as error:
        if not _about_its_key(session, error) or not _set(session, 0):
            raise
        _log.info("the server cannot be told to add no primary key of its own: %s", error)
        try:
            session.execute(sql)
        except ApplyError as without:
            raise error if without.errno == _KEY_REQUIRED else without from without
        finally:
            _set(session, 1)


def in_place_of_its_key(session: Target, table: TableAt, sql: str, error: ApplyError) -> str:
    """``sql``, an ALTER TABLE that adds the upstream's primary key, with the server's key dropped, where ``sql`` is refused because of that; else empty."""
    if error.errno != _TWO_PRIMARY_KEYS or session.flavour is not Flavour.MYSQL:
        return ""
    there = read_tables(session, [(table.schema, table.name)]).get((table.schema, table.name))
    head = f"ALTER TABLE {table_name(table.schema, table.name)} "
    return "" if there and any(key.primary for key in there.unique_keys) else sql.replace(head, f"{head}DROP COLUMN `my_row_id`, ", 1)


def _about_its_key(session: Target, error: ApplyError) -> bool:
    if session.flavour is not Flavour.MYSQL:
        return False
    return error.errno in _CANNOT_GIVE or (error.errno == _NOT_SUPPORTED and _OF_A_DROP in error.words)


def _set(session: Target, value: int) -> bool:
    """Whether the session gives such keys, or does not, from here on: an account without the right may not choose."""
    try:
        session.execute(f"{_SETTING}{value}")
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("%s", error)
        return False
    return True


_DIFFERENT_OPTION = 1731
_INSTANT = "INSTANT"
"""In the server's words: ``Non matching attribute 'INSTANT COLUMN(s)' between partition and table``; else they name another attribute."""


def rebuilds(session: Target, subject: Subject, now: SchemaSnapshot) -> tuple[str, ...]:
    """The statements after which MySQL can exchange the job's partition; ``now``: the target's tables as they are."""
    if subject.job.type != JobType.EXCHANGE_PARTITION or session.flavour is not Flavour.MYSQL or not now.ids_known:
        return ()
    tables = [(table_name(t.schema, t.name), now.objects.get(f"{t.schema}.{t.name}")) for t in subject.before]
    ids = sorted({table_id for _, there in tables if there for table_id in there.ids.values()})
    if not ids:
        return ()
    try:
        rows = session.query(
            "SELECT table_id FROM information_schema.innodb_tables WHERE (instant_cols > 0 OR total_row_versions > 0) "
            f"AND table_id IN ({', '.join(map(str, ids))})"
        )
    except RetryableApplyError:
        raise
    except ApplyError as error:
        _log.debug("cannot read which tables have instant columns: %s", error)  # a server before 8.0.29
        return ()
    instant = {int(table_id) for (table_id,) in rows}
    return tuple(f"ALTER TABLE {name} FORCE" for name, there in tables if there and instant & set(there.ids.values()))


def rebuild_by_hand(job: Job, error: ApplyError) -> str:
    """What to do if the server has refused an exchange because the tables differ, in instant columns or otherwise; empty for another job or error."""
    if job.type != JobType.EXCHANGE_PARTITION or error.errno != _DIFFERENT_OPTION:
        return ""
    if _INSTANT in error.words.upper():
        return (
            "Grant PROCESS to the target's user, and start again. The start then rebuilds both tables before the exchange (ALTER TABLE ... FORCE), which a "
            "server of 8.0.29 or later needs after ADD COLUMN and DROP COLUMN"
        )
    return "Make this option equal in the two tables at the target (SHOW CREATE TABLE shows both; ALTER TABLE only one of them), and start again"


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


def comparing_as_upstream(before: Sequence[TableAt], after: Sequence[TableAt], dialect: Dialect) -> dict[str, str]:
    """The setting of a session that may make expressions of the tables ``after``: the collation that their texts have upstream."""
    collation = _collation(before, after, dialect)
    return {"collation_connection": quote_string(collation)} if collation else {}


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


def keeping_characters(subject: Subject, dialect: Dialect) -> dict[str, str]:
    """The setting of a session that may convert a column to a charset of fewer characters: a text that does not fit is an error, and gets no question marks."""
    return {"sql_mode": "CONCAT(@@SESSION.sql_mode, ',STRICT_TRANS_TABLES')"} if converts(subject, dialect) else {}


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
