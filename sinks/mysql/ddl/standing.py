"""Tables with rows that already exist at the target where a job creates a table, or renames one. [db]

Promises: reads only. Such rows are older than the table: a restore left them, or somebody put them there. The binlogs add their rows to them. Without a
key nothing shows that a row is there twice.
"""

from pyspark_tidb_binlog.schemas.ddl_jobs import JobEffect
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType, TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names, is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.target import Target

EXISTS_TABLE = 1050

_SHORT_ROWS = 1709
"""Index column size too large: of a table with ROW_FORMAT COMPACT or REDUNDANT."""
_SNAPSHOT_TOO_OLD = 8055
"""TiDB: the GC has passed the DROP. By name it says so in words only, as error 1105."""


def way_out(job: Job, error: ApplyError) -> str:
    """What to do where the name is taken to which the job makes or renames a table, a TiDB cannot restore one, or the server's rows are too short for a key;
    empty otherwise.
    """
    if error.errno == _SHORT_ROWS:
        return (
            "The target limits keys to 767 bytes. Execute SET GLOBAL innodb_default_row_format = DYNAMIC there, for an existing table ALTER TABLE ... ROW_FORMAT = "
            "DYNAMIC, and start again"
        )
    if job.type == JobType.RECOVER_TABLE and error.errno == EXISTS_TABLE:
        return "Drop the table of that name at the target, or rename it, and start again. If its DROP was left out, so that it is this very table, skip the DDL"
    if job.type == JobType.RECOVER_TABLE and (error.errno == _SNAPSHOT_TOO_OLD or "dropped/truncated" in error.words):
        return (
            "The target cannot restore the table: its GC has passed the DROP or TRUNCATE, or it never had the table. Create the table there by hand with the rows "
            "that it had upstream at this commit_ts (dumpling --snapshot), and start again. For the next time, make the target's tidb_gc_life_time longer than "
            "the upstream's, by as much as the stream may lag"
        )
    if not _gives_a_name(job) or error.errno != EXISTS_TABLE:
        return ""
    emptying = "" if job.kind.effect is JobEffect.RENAMES else " (or, if it is equal, empty it)"
    return (
        f"Drop the table of that name at the target{emptying}, or rename it, and start again. If you skip the DDL instead, the rows of the binlogs "
        "are added to the rows that are there"
    )


def left_with_rows(session: Target, subject: Subject) -> tuple[str, ...]:
    """What is wrong where the job is left out as if somebody had executed it, in words, by table: it has rows, and no RENAME can have brought them."""
    if not _gives_a_name(subject.job):
        return ()
    names = {_name(table) for table in subject.before}
    renamed = {table.table_id: table for table in subject.before}
    found = []
    for table in subject.after:
        old = renamed.get(table.table_id)
        if _name(table) in names or (old is not None and not _stands(session, old)):
            continue
        if _stands(session, table) and not is_empty(session, table.schema, table.name):
            found.append(
                f"{table.schema}.{table.name}: has rows that do not come from the DDL, which was left out. The binlogs add their rows to "
                f"them. Compare {quote_name(table.schema)}.{quote_name(table.name)} with the upstream: a restore may have left it"
            )
    return tuple(found)


def _gives_a_name(job: Job) -> bool:
    return job.kind.effect is JobEffect.RENAMES or job.kind.makes_tables


def _name(table: TableAt) -> tuple[str, str]:
    return table.schema.casefold(), table.name.casefold()


def _stands(session: Target, table: TableAt) -> bool:
    return bool(column_names(session, table.schema, table.name))
