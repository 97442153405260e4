"""Tables with rows that stand at the target where a job makes one, or renames one to. [db]

Promises: reads only. Such rows are of another life of the table: of before a restore that left it in place, or somebody's own. What the binlogs write comes
beside them, so that without a key nothing shows that a row is there twice.
"""

from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.history import Job, JobType, TableAt
from pyspark_tidb_binlog.sinks.mysql.ddl.snapshots import column_names, is_empty
from pyspark_tidb_binlog.sinks.mysql.ddl.text import Subject
from pyspark_tidb_binlog.sinks.mysql.target import Target

RENAMES = frozenset({JobType.RENAME_TABLE, JobType.RENAME_TABLES})
EXISTS_TABLE = 1050
_MAKES = frozenset({JobType.CREATE_TABLE, JobType.CREATE_TABLES})

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
            "The target makes tables whose keys hold 767 bytes: SET GLOBAL innodb_default_row_format = DYNAMIC there, ALTER TABLE ... ROW_FORMAT = DYNAMIC for a "
            "table that is there already, and start again"
        )
    if job.type == JobType.RECOVER_TABLE and error.errno == EXISTS_TABLE:
        return "Drop the table of that name at the target, or rename it away, and start again; if its DROP was left out, so that it is this table, skip the DDL"
    if job.type == JobType.RECOVER_TABLE and (error.errno == _SNAPSHOT_TOO_OLD or "dropped/truncated" in error.words):
        return (
            "The target cannot restore the table, because its GC has passed the DROP or TRUNCATE, or it never had the table: make it there by hand, with the rows "
            "that it had upstream at this commit_ts (dumpling --snapshot), and start again. For the next time, give the target a longer tidb_gc_life_time than "
            "the upstream's, by as much as the stream may lag"
        )
    if job.type not in RENAMES | _MAKES or error.errno != EXISTS_TABLE:
        return ""
    emptying = "" if job.type in RENAMES else " (or, if it is equal, empty it)"
    return (
        f"Drop the table of that name at the target{emptying}, or rename it away, and start again. Skipping the DDL would have the rows of the binlogs "
        "applied beside those that are there"
    )


def left_with_rows(session: Target, subject: Subject) -> tuple[str, ...]:
    """What is wrong where the job is left out as if somebody had executed it, in words, by table: it has rows, and no RENAME can have brought them."""
    if subject.job.type not in RENAMES | _MAKES:
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
                f"{table.schema}.{table.name}: has rows already, which the DDL that was left out did not bring; what the binlogs write comes beside "
                f"them. Compare it with the upstream: {quote_name(table.schema)}.{quote_name(table.name)} may have been left over by a restore"
            )
    return tuple(found)


def _name(table: TableAt) -> tuple[str, str]:
    return table.schema.casefold(), table.name.casefold()


def _stands(session: Target, table: TableAt) -> bool:
    return bool(column_names(session, table.schema, table.name))
