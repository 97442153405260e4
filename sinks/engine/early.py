"""Determines whether rows need a DDL job on the target although their schema version is below the job's.

A job's version is that of its last state, but some earlier states already change what rows may hold (``jobs/lab/emulator/online.py``):

* DROP INDEX, and DROP COLUMN with an index: from delete-only on the unique key is not checked, so two rows may share a value.
* A multi-schema change that contains a DROP: its other changes become public together, then its DROPs go on, three versions each. TiDB
  records the version of a sub-job's last step, and 0 for a sub-job that shared a step with an earlier one (``_public_from``).
* DROP PARTITION: two versions before its own the partition is hidden. A row of its range goes into the next partition of a RANGE table (or the DEFAULT
  partition of a LIST table), and stays there. Binlogs do not name partitions, so such rows cannot be told from rows that a session of an
  earlier version writes into the hidden partition (``may_be_stranded``).

Promises: pure. Executing a job early is harmless for rows of earlier states: they only lose the columns that the job drops. The exception
is a MODIFY COLUMN that converts data: rows from before its last two states need the old column; rows of these states have both.
"""

from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType, kind_of
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, PartitionType, TableInfo

_STATES_OF_A_DROP = 3
"""Schema versions of a DROP after its first one: delete-only, delete-reorg, none."""
_STATES_WITH_BOTH = 2
"""Schema versions of a MODIFY that converts data, before it is public, whose rows have both columns: write-only, write-reorg."""
_STATES_WITHOUT_PARTITION = 2
"""Schema versions of a DROP PARTITION after the one that hides the partition: delete-reorg, none."""


def needed_early(job: Job, before: TableAt, after: TableAt, rows: tuple[int, int], history: SchemaHistory) -> bool:
    """Whether rows of a table need its next job.

    Args:
        job: the table's next job.
        before: the table before the job.
        after: the table after the job.
        rows: their schema version, and an upper bound of their commit_ts; 0 = unknown.
        history: the jobs whose versions may be between those of ``job``.
    """
    row_version, last_commit_ts = rows
    if row_version <= before.version:
        return False
    if row_version >= job.version:
        return True
    if job.type == JobType.DROP_PARTITION:
        if not _takes_over(before.info, after.info) or 0 < last_commit_ts <= job.start_ts:
            return False
        return row_version >= _counted_back(int(job.version), _STATES_WITHOUT_PARTITION, int(before.version), history)
    drops = sum(kind_of(kind).recedes for kind in job.sub_jobs or (job.type,))
    if not (_frees_a_key(before.info, after.info) or (job.type == JobType.MULTI_SCHEMA_CHANGE and drops)):
        return False
    converts = _replaces_a_column(before.info, after.info)
    if row_version >= _public_from(job, int(before.version), drops, history, converts=converts):
        return True
    return job.start_ts > 0 and last_commit_ts > job.start_ts and not converts


def may_be_stranded(job: Job, row_version: int) -> bool:
    """Whether rows of ``row_version`` that follow ``job``, which was executed early, may be of a partition that it has dropped: upstream they are gone
    with it.
    """
    return job.type == JobType.DROP_PARTITION and row_version < job.version - _STATES_WITHOUT_PARTITION


def _public_from(job: Job, after: int, drops: int, history: SchemaHistory, *, converts: bool) -> int:
    """The version above ``after`` at which everything that ``job`` does not drop became public. If it is counted and other jobs took versions meanwhile, the history
    knows only the last of their versions. Then the result is an earlier version, whose rows have the new column and the old one.
    """
    parts = [(kind, version) for kind, version in zip(job.sub_jobs, job.sub_versions, strict=False) if version > 0]
    # A foreign key is done before the others become public.
    together = [version for kind, version in parts if not kind_of(kind).recedes and kind != JobType.ADD_FOREIGN_KEY]
    if together:
        return max(together)
    ended = [version for kind, version in parts if kind_of(kind).recedes]
    end, steps = (min(ended), _STATES_OF_A_DROP) if ended else (int(job.version), _STATES_OF_A_DROP * drops)
    steps += _STATES_WITH_BOTH if converts and _taken(after, end, history) else 0
    return _counted_back(end, steps, after, history)


def _counted_back(end: int, steps: int, after: int, history: SchemaHistory) -> int:
    """The version ``steps`` before ``end`` and above ``after``, without those that other jobs took last."""
    taken, version = _taken(after, end, history), end
    while steps and version > after:
        version -= 1
        steps -= version not in taken
    return version


def _taken(after: int, end: int, history: SchemaHistory) -> frozenset[int]:
    return frozenset(int(j.version) for j in (*history.jobs_between(after, end - 1), *history.passed_between(after, end - 1)))


def _takes_over(before: TableInfo, after: TableInfo) -> bool:
    """Whether another partition takes rows of the ranges or values of those that ``after`` lacks."""
    kept = [partition.id in {p.id for p in after.partitions} for partition in before.partitions]
    if before.partition_type == PartitionType.LIST:
        return any(left and ("DEFAULT",) in partition.in_values for left, partition in zip(kept, before.partitions, strict=True))
    return not all(kept) and any(kept[kept.index(False) :])


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
