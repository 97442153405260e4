"""Which DDL job a row needs on the target although its schema version is below the job's own.

A job's version is that of its last state, but some states before it change already what rows may hold (``binlog_source/emulator/online.py`` shows them):

* DROP INDEX, and DROP COLUMN with an index: from delete-only on nobody checks the unique key, so two rows may share it.
* A multi-schema change with a DROP among others: the other changes are public three versions, for each DROP, before the job's own.

Promises: pure. A job that is done early does no harm to rows of the states before, which lack nothing then but columns that the job takes away; but for
a MODIFY COLUMN that changes data: rows from before its new column has values must find the old one.
"""

from schemas.history import TableAt
from schemas.jobs import Job, JobType
from schemas.tableinfo import ColumnInfo, TableInfo

_DROPS = frozenset({JobType.DROP_COLUMN, JobType.DROP_INDEX, JobType.DROP_PRIMARY_KEY})
_STATES_OF_A_DROP = 3
"""Schema versions of a DROP after its first: delete-only, delete-reorg, none."""


def needed_early(job: Job, before: TableAt, after: TableAt, row_version: int, last_commit_ts: int) -> bool:
    """Rows of a table need its next job.

    Args:
        job: the table's next job.
        before: the table without it.
        after: the table with it.
        row_version: the rows' schema version.
        last_commit_ts: not before the last of them; 0 = unknown.
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
