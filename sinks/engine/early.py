"""Determines whether rows need a DDL job on the target although their schema version is below the job's.

A job's version is that of its last state, but some earlier states already change what rows may hold (see
``binlog_source/emulator/online.py``):

* DROP INDEX, and DROP COLUMN with an index: from delete-only on the unique key is not checked, so two rows may share a value.
* A multi-schema change that contains a DROP: its other changes become public three versions per DROP before the job's own version.

Promises: pure. Executing a job early is harmless for rows of earlier states: they only lose the columns that the job drops. The exception
is a MODIFY COLUMN that converts data: rows written before its new column has values need the old column.
"""

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

_DROPS = frozenset({JobType.DROP_COLUMN, JobType.DROP_INDEX, JobType.DROP_PRIMARY_KEY})
_STATES_OF_A_DROP = 3
"""Schema versions of a DROP after its first one: delete-only, delete-reorg, none."""


def needed_early(job: Job, before: TableAt, after: TableAt, row_version: int, last_commit_ts: int) -> bool:
    """Whether rows of a table need its next job.

    Args:
        job: the table's next job.
        before: the table before the job.
        after: the table after the job.
        row_version: the schema version of the rows.
        last_commit_ts: upper bound of their commit_ts; 0 = unknown.
    """
    if row_version <= before.version:
        return False
    if row_version >= job.version:
        return True
    drops = sum(kind in _DROPS for kind in job.sub_jobs or (job.type,))
    if not (_frees_a_key(before.info, after.info) or (job.type == JobType.MULTI_SCHEMA_CHANGE and drops)):
        return False
    if row_version >= job.version - _STATES_OF_A_DROP * drops:
        return True
    return job.start_ts > 0 and last_commit_ts > job.start_ts and not _replaces_a_column(before.info, after.info)


def _frees_a_key(before: TableInfo, after: TableInfo) -> bool:
    left = {_ids(key) for key in after.unique_keys()} | {_names(key) for key in after.unique_keys()}
    return any(_ids(key) not in left and _names(key) not in left for key in before.unique_keys())


def _replaces_a_column(before: TableInfo, after: TableInfo) -> bool:
    ids = {c.name: c.id for c in after.columns}
    return any(ids.get(c.name, c.id) != c.id for c in before.public_columns())


def _ids(key: tuple[ColumnInfo, ...]) -> tuple[object, ...]:
    return tuple(c.id for c in key)


def _names(key: tuple[ColumnInfo, ...]) -> tuple[object, ...]:
    return tuple(c.name for c in key)
