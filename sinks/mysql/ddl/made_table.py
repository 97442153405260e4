"""Creates a table in the first form that the target takes: the exact one, a nearer one (``QUIRKS``), or what rows need with the rest part by part. [db]

For a first load, and for a rehearsal on a temporary table, which tells beforehand in which form a table will be. A DDL of the stream goes the same way
in ``sinks.mysql.ddl.executor``, which also survives a crash between two statements.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, Alteration, alter_table
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare, without_partitions
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import OF_NO_DEFINITION, SentDdl, around
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target

Send = Callable[[SentDdl], None]

_NAME = "tidb_binlog_check"
_CANNOT_TRY = frozenset({1044, 1046, 1049, 1142, 1227, 1290, 1792})
"""No database, or no right to make a temporary table in it."""


def make_table(ddl: SentDdl, send: Send) -> tuple[str, ...]:
    """Create the table of ``ddl.subject`` by ``send``; what it lacks, in words.

    Raises:
        ApplyError: the target takes no form that holds and finds rows.
    """
    losses = list[str]()
    while True:
        (table,) = ddl.subject.after
        named = replace(table.info, name=table.name)
        text = create_table(table.schema, bare(named), ddl.dialect) if ddl.bare else rewrite(ddl.subject, ddl.dialect, restored=False)
        try:
            send(replace(ddl, sql=text.sql))
        except ServerRefused as error:
            quirk = around(replace(ddl, sql=text.sql, error=error, made=table))
            if quirk.subject is None and (ddl.bare or error.errno in OF_NO_DEFINITION):
                raise
            losses += quirk.losses
            ddl = replace(ddl, bare=True) if quirk.subject is None else replace(ddl, subject=quirk.subject)
            continue
        whole = create_table(table.schema, named, ddl.dialect).losses if ddl.bare else text.losses
        return (*losses, *whole, *(_parts(ddl, table, send) if ddl.bare else ()))


def _parts(ddl: SentDdl, table: TableAt, send: Send) -> Iterator[str]:
    """Make what the bare table lacks part by part."""
    altered = Alteration.of(bare(table.info), table.info, "", ddl.dialect, table.schema)
    there = {c.name.lower(): AS_UPSTREAM for c in visible(bare(table.info))}
    label = table_name(table.schema, table.name)
    parts = [("partitions", f"ALTER TABLE {label} {whole}")] if (whole := partition_by(table.info, ddl.dialect)) else []
    for what, sql in parts:
        yield from _part(ddl, table, what, sql, send)
    for change in altered.changes if altered else ():
        if altered and (sql := alter_table(table, altered.clauses((change,), there))):
            refused = list(_part(ddl, table, altered.words_of(change), sql, send))
            yield from refused
            if isinstance(change, AddColumn) and not refused:
                there[change.column.name.lower()] = AS_UPSTREAM


def _part(ddl: SentDdl, table: TableAt, what: str, sql: str, send: Send) -> Iterator[str]:
    try:
        send(replace(ddl, sql=sql))
    except ServerRefused as error:
        if error.errno in OF_NO_DEFINITION:
            raise
        yield f"{table.schema}.{table.name}: {what} left out: {error.said}"


def rehearsed(session: Target, database: str, subject: Subject, table: TableAt, dialect: Dialect) -> tuple[tuple[str, ...], str] | None:
    """In which form the target will take ``table``: what it will lack, and why it takes no form, both in words; found out with a temporary table.

    Foreign keys and partitions, which such a table cannot have, and sequences are left out of it. None: the account may not make one in ``database``.
    """
    # A sequence may be made by a DDL before.
    columns = tuple(
        replace(c, default=None, default_is_expr=False) if "nextval(" in str(c.default).lower() else c for c in table.info.columns
    )
    info = replace(without_partitions(table.info), foreign_keys=(), columns=columns)
    job = replace(subject.job, type=JobType.CREATE_TABLE, table_info=info)
    made = replace(table, info=info)
    as_made = replace(subject, job=job, before=(), after=(made,), given=DdlDelivery(DdlForm.INFOS))
    own, temporary = table_name(table.schema, table.name), table_name(database, _NAME)

    def send(ddl: SentDdl) -> None:
        sql = ddl.sql.replace(own, temporary, 1)
        session.execute(sql.replace("CREATE TABLE", "CREATE TEMPORARY TABLE", 1) if sql.startswith("CREATE TABLE") else sql)

    session.rollback()  # the caller's transaction only reads, and may not make even a temporary table
    try:
        return make_table(SentDdl(session, as_made, dialect), send), ""
    except ServerRefused as error:
        return None if error.errno in _CANNOT_TRY else ((), error.said)
    finally:
        with contextlib.suppress(ApplyError):
            session.execute(f"DROP TEMPORARY TABLE IF EXISTS {temporary}")
            session.execute("START TRANSACTION READ ONLY")
