"""Matches the columns of a table after a job to its columns before the job.

Promises: pure; nothing is guessed: an ambiguous match gives None.
"""

from pyspark_tidb_binlog.schemas.ddl_tokens import significant
from pyspark_tidb_binlog.schemas.history import Job, JobType
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo


def visible(info: TableInfo) -> list[ColumnInfo]:
    """The public, non-hidden columns."""
    return [c for c in info.columns if c.public and not c.hidden]


def pair_columns(job: Job, query: str, old: TableInfo, new: TableInfo) -> dict[str, ColumnInfo] | None:
    """The old column of each new one (by lower-case name), matched by id, else by name; added columns are absent. None if ambiguous."""
    by_id = {c.id: c for c in visible(old)}
    by_name = {c.name.lower(): c for c in visible(old)}
    pairs = {c.name.lower(): by_id[c.id] for c in visible(new) if c.id in by_id}
    taken = {c.id for c in pairs.values()}
    for column in visible(new):
        same = by_name.get(column.name.lower())
        if column.name.lower() not in pairs and same is not None and same.id not in taken:
            pairs[column.name.lower()] = same
            taken.add(same.id)
    added = [c for c in visible(new) if c.name.lower() not in pairs]
    lost = [c for c in visible(old) if c.id not in taken]
    if added and lost:
        if job.type == JobType.MODIFY_COLUMN and len(added) == len(lost) == 1:
            pairs[added[0].name.lower()] = lost[0]
        elif any(t.word == "CHANGE" for t in significant(query)):
            return None
    return pairs
