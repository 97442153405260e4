"""The ladder of forms in which a server may take a definition (ADR 18): the exact one, nearer ones (``QUIRKS``), then what rows need with each other part by itself. [db]

A DDL of the stream takes the steps one by one, because a crash may come between two (``attempt``). A first load and a rehearsal take them at once (``make``).
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.errors import ApplyError, ServerRefused
from pyspark_tidb_binlog.schemas.history import JobType, TableAt
from pyspark_tidb_binlog.schemas.table_changes import AddColumn, TableChange
from pyspark_tidb_binlog.sinks.mysql.ddl.alteration import AS_UPSTREAM, Alteration, OwnColumn, alter_table
from pyspark_tidb_binlog.sinks.mysql.ddl.nearest_form import bare
from pyspark_tidb_binlog.sinks.mysql.ddl.server_quirks import OF_NO_DEFINITION, SentDdl, around
from pyspark_tidb_binlog.sinks.mysql.ddl.sql_kinds import rewrite
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import DdlDelivery, DdlForm, Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import create_table, partition_by
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import Dialect
from pyspark_tidb_binlog.sinks.mysql.ddl.text import DdlStatement
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.target import Target

_NAME = "tidb_binlog_check"
_CANNOT_TRY = frozenset({1044, 1046, 1049, 1142, 1227, 1290})
"""No database, or no right to make a temporary table in it."""

Part = Callable[[str], tuple[str, ...]]
"""Executes the statement of a part that rows do not need; the loss, if the server refuses it."""


def lower(refused: SentDdl) -> tuple[SentDdl, tuple[str, ...]] | None:
    """The step below a refused one, and its losses; None: there is none."""
    remedy = around(refused)
    if remedy.subject is not None:
        return replace(refused, subject=remedy.subject, error=None), remedy.losses
    if refused.made is None or refused.bare or (refused.error is not None and refused.error.errno in OF_NO_DEFINITION):
        return None
    return replace(refused, bare=True, error=None), ()


def form(text: DdlStatement, ddl: SentDdl) -> DdlStatement:
    """``text``, the statement of this step, with only what rows need if the step is that."""
    if not ddl.bare or ddl.made is None:
        return text
    return replace(text, sql=create_table(ddl.made.schema, bare(replace(ddl.made.info, name=ddl.made.name)), ddl.dialect).sql)


def parts_of(table: TableAt, dialect: Dialect) -> Alteration | None:
    """Changes that make ``table``, but for partitions, of a table with only what rows need."""
    return Alteration.of(bare(table.info), table.info, "", dialect, table.schema)


def each_by_itself(
    table: TableAt, altered: Alteration, changes: Iterable[TableChange], there: Mapping[str, OwnColumn], part: Part
) -> tuple[str, ...]:
    """Make each change by a statement of its own; the losses. ``there``: the target's columns before."""
    losses, columns = list[str](), dict(there)
    for change in changes:
        if sql := alter_table(table, altered.clauses((change,), columns)):
            lost = part(sql)
            losses += lost
            if isinstance(change, AddColumn) and not lost:
                columns[change.column.name.lower()] = AS_UPSTREAM
    return tuple(losses)


def make(ddl: SentDdl, send: Callable[[SentDdl], None]) -> tuple[str, ...]:
    """Make the table or view of ``ddl`` by ``send``; what it lacks, in words.

    Raises:
        ServerRefused: the server takes no form of a table that holds and finds rows, or no form of the view.
    """
    losses = list[str]()
    while True:
        text = form(rewrite(ddl.subject, ddl.dialect, restored=False), ddl)
        try:
            send(replace(ddl, sql=text.sql))
            break
        except ServerRefused as error:
            step = lower(replace(ddl, sql=text.sql, error=error))
            if step is None:
                raise
            ddl, more = step
            losses += more

    def part(sql: str) -> tuple[str, ...]:
        try:
            send(replace(ddl, sql=sql))
        except ServerRefused as error:
            if error.errno in OF_NO_DEFINITION:
                raise
            return (left_out(sql, error, ddl.subject.label),)
        return ()

    table = ddl.made
    if table is None or not ddl.bare or (altered := parts_of(table, ddl.dialect)) is None:
        return (*losses, *text.losses)
    whole = partition_by(table.info, ddl.dialect)
    divided = part(f"ALTER TABLE {table_name(table.schema, table.name)} {whole}") if whole else ()
    there = {c.name.lower(): AS_UPSTREAM for c in visible(bare(table.info))}
    return (*losses, *text.losses, *divided, *each_by_itself(table, altered, altered.changes, there, part))


def left_out(sql: str, error: ApplyError, label: str) -> str:
    """The loss of a part; ``label``: the table."""
    return f"{label}: left out: {sql}: {error.said}"


class Rehearsed(NamedTuple):
    """Result of making a table on trial."""

    losses: tuple[str, ...] = ()
    refused: str = ""
    """Why the server takes no form of it; empty: it takes one."""


def rehearsed(session: Target, database: str, subject: Subject, table: TableAt, dialect: Dialect) -> Rehearsed | None:
    """The form in which the target will take ``table``, found out with a temporary table; None: the account may not make one in ``database``.

    Foreign keys and partitions, which such a table cannot have, and sequences are left out of it.
    """
    # A sequence may be made by a DDL before.
    columns = tuple(
        replace(c, default=None, default_is_expr=False) if "nextval(" in str(c.default).lower() else c for c in table.info.columns
    )
    info = replace(table.info.without_partitions(), foreign_keys=(), columns=columns)
    job = replace(subject.job, type=JobType.CREATE_TABLE, table_info=info)
    as_made = replace(subject, job=job, before=(), after=(replace(table, info=info),), given=DdlDelivery(DdlForm.INFOS))
    own, temporary = table_name(table.schema, table.name), table_name(database, _NAME)

    def send(ddl: SentDdl) -> None:
        sql = ddl.sql.replace(own, temporary, 1)
        session.execute(sql.replace("CREATE TABLE", "CREATE TEMPORARY TABLE", 1) if sql.startswith("CREATE TABLE") else sql)

    session.rollback()  # the caller's transaction only reads, and may not make even a temporary table
    try:
        return Rehearsed(make(SentDdl(session, as_made, dialect, number=0), send))
    except ServerRefused as error:
        return None if error.errno in _CANNOT_TRY else Rehearsed(refused=error.said)
    finally:
        with contextlib.suppress(ApplyError):
            session.execute(f"DROP TEMPORARY TABLE IF EXISTS {temporary}")
            session.execute("START TRANSACTION READ ONLY")
