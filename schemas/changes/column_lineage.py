"""Follows a table's columns over its DDLs, by id. Pure.

A column keeps its id when it is renamed, and when the table gets another id (TRUNCATE, PARTITION BY, REMOVE PARTITIONING). A change of type that converts
the data gives the column another id; CHANGE COLUMN also gives it another name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.column_pairs import changed_names
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo

_CONVERTING = frozenset({JobType.MODIFY_COLUMN, JobType.MULTI_SCHEMA_CHANGE})


@dataclass(frozen=True, slots=True)
class Lineage:
    """A table at a later schema version."""

    table_id: int
    ids: Mapping[int, int] = field(default_factory=dict)
    """Earlier ids of columns -> later ones, where they differ. A column that is gone keeps its id."""


def lineage(history: SchemaHistory, table_id: int, after: int, upto: int) -> Lineage:
    """What the table and its columns at schema version ``after`` are at ``upto``."""
    ids: dict[int, int] = {}
    for job in history.jobs_of_table(table_id, after, upto):
        if job.kind.new_table_id and job.table_id == table_id and job.table_info is not None:
            later = lineage(history, job.table_info.id, job.version, upto)
            return Lineage(later.table_id, _then(ids, later.ids))
        if job.type in _CONVERTING:
            old, new = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
            if old is not None and new is not None:
                ids = _then(ids, converted_by(job, old.info, new.info))
    return Lineage(table_id, ids)


def _then(ids: Mapping[int, int], later: Mapping[int, int]) -> dict[int, int]:
    return {**later, **{first: later.get(last, last) for first, last in ids.items()}}


def converted_by(job: Job, before: TableInfo, after: TableInfo) -> dict[int, int]:
    """Ids of the columns whose data one job converted -> their ids afterwards."""
    known, there = {c.id for c in before.columns}, {c.id for c in after.columns}
    come = {c.name.lower(): c.id for c in after.columns if c.id not in known}
    if not come:
        return {}
    renamed = changed_names(job.query)
    gone = {c.id: renamed.get(c.name.lower(), c.name.lower()) for c in before.columns if c.id not in there}
    return {old: come[name] for old, name in gone.items() if name in come}
