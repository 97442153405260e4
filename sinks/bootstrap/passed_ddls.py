"""Finds DDLs that a filter left out and that a copied table therefore lacks: a copy keeps an existing table as it is. [db]

Promises: reads only. It compares only what those DDLs changed: other differences of the target's table do not count, nor DDLs that people executed
there themselves. ``spark_ddl`` says which DDLs a filter left out.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.after_state import lacks
from pyspark_tidb_binlog.sinks.mysql.ddl.subject import Subject
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import dialect_of
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.session import Session
from pyspark_tidb_binlog.sinks.mysql.structure import read_whole
from pyspark_tidb_binlog.sinks.routing.routes import Routes


def require_up_to_date(session: Session, apply: ApplyConfig, held: Lease, history: SchemaHistory, tables: Iterable[TableAt]) -> None:
    """Tables that are there have what DDLs that were filtered have changed of them; ``tables``: as they are upstream at the snapshot.

    Raises:
        BootstrapRefused: one has not; it would keep the definition of before the filter, and later rows come for the other.
    """
    sql = f"SELECT job_id FROM {quote_name(held.schema)}.spark_ddl WHERE cluster_id = %s AND note = 'filtered'"
    filtered = {int(job_id) for (job_id,) in session.query(sql, [held.cluster_id])}
    found = [words for table in tables if filtered for words in _behind(session, apply, history, table, filtered)]
    if found:
        raise BootstrapRefused(
            f"{'; '.join(found[:5])}: a filter left out the DDLs that made this change. Either drop the table at the target and start again, which creates it as it "
            "is upstream; or make the same change there"
        )


def _behind(session: Session, apply: ApplyConfig, history: SchemaHistory, table: TableAt, filtered: Collection[int]) -> list[str]:
    """What the table at the target lacks, in words."""
    first = next((job for job in history.jobs_of_table(table.table_id, 0, table.version) if job.id in filtered), None)
    if first is None:
        return []
    routes = Routes.of(apply)
    after = routes.moved(table)
    there = read_whole(session, after.schema, after.name)
    if there is None:
        return []
    before = _before(history, table, first)
    was = () if before is None else (replace(routes.moved(before), table_id=after.table_id),)
    subject = Subject(first, "", after.schema, after.name, was, (after,))
    found = lacks(subject, dialect_of(session, apply), {(after.schema, after.name): there})
    # A column that only the target has is no change of the DDLs, and one that is missing there is refused for itself. A table without partitions needs none.
    needed = {"type", "key", "foreign key"} | ({"partition"} if there.partitions else set())
    gone = {c.name.lower() for old in was for c in visible(old.info)} - {c.name.lower() for c in visible(after.info)}
    stays = [f"{after.schema}.{after.name}: column {c.name} still there" for c in there.columns if c.name.lower() in gone]
    return [lack.words for lack in found if lack.kind in needed] + stays


def _before(history: SchemaHistory, table: TableAt, first: Job) -> TableAt | None:
    """The table before its first DDL that was left out: another one by its id, if that was a TRUNCATE; None: the DDL made it."""
    found = history.table_at(table.table_id, first.version - 1)
    return found if found is not None or first.table_id == table.table_id else history.table_at(first.table_id, first.version - 1)
