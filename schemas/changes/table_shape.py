"""The columns of one table's changes: the columns of its definition at one schema version, with Spark's types. Pure.

Promises: the columns are fixed for the life of a query. Cells of other definitions are matched by column id, also after a TRUNCATE or a change of type,
which gives another id. In another table, or if the id is gone, they are matched by name. A column that another definition lacks is null.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from pyspark_tidb_binlog.conf.setting import nearest
from pyspark_tidb_binlog.schemas.changes.column_lineage import lineage
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates, is_date, type_of
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobType
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

TIME = pa.timestamp("us", tz="UTC")
MARKS = (
    pa.field("_change_type", pa.string()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", TIME),
    pa.field("_change_seq", pa.int32()),
)
"""The columns beside the table's own: as Delta's change feed names them, and the place of the change in its transaction."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns of one table's changes."""

    name: NamedTable
    table_id: int
    version: int
    """The schema version that the columns are those of: it contains all DDLs up to it."""
    columns: tuple[ColumnInfo, ...]
    invalid_dates: InvalidDates = InvalidDates.NULL
    agreed: int = 0
    """The schema version up to which its reader knows of changes: that of the columns, if options named their ts."""

    @property
    def schema(self) -> pa.Schema:
        """The rows' Arrow schema."""
        return pa.schema([*(pa.field(c.name, self.type_of(c)) for c in self.columns), *MARKS])

    def type_of(self, column: ColumnInfo) -> pa.DataType:
        """The Arrow type of a column's cells, of this shape or of a later definition."""
        return pa.string() if is_date(column) and self.invalid_dates is InvalidDates.STRING else type_of(column)

    def sources(self, table: TableAt, history: SchemaHistory) -> list[int | None]:
        """For each column the place among ``table``'s target columns of what is put under it."""
        there = table.info.target_columns()
        ids = self._ids_in(table, history)
        by_id = {c.id: place for place, c in enumerate(there)} if ids is not None else {}
        found = [by_id.get((ids or {}).get(c.id, c.id)) for c in self.columns]
        by_name = {c.name.lower(): place for place, c in enumerate(there) if place not in found}
        return [by_name.get(c.name.lower()) if place is None else place for c, place in zip(self.columns, found, strict=True)]

    def _ids_in(self, table: TableAt, history: SchemaHistory) -> Mapping[int, int] | None:
        """The ids of the columns in another definition, where they differ; None: it is another table's."""
        if table.version >= self.version:
            later = lineage(history, self.table_id, self.version, table.version)
            return later.ids if later.table_id == table.table_id else None
        later = lineage(history, table.table_id, table.version, self.version)
        return {new: old for old, new in later.ids.items()} if later.table_id == self.table_id else None

    def changed_by(self, job: Job, history: SchemaHistory) -> bool:
        """Whether a job that the options did not accept changes the columns, the table of this name, or rows without a row change.

        A query may have the columns after the job: if it was down, or failed because of the job, it restarts without an error.
        """
        if job.version <= self.agreed:
            return False
        if job.type == JobType.FLASHBACK_CLUSTER:
            return True
        before = [t for i in history.tables_of_job(job) if (t := history.table_at(i, job.version - 1)) is not None and self._names(t)]
        after = [t for i in history.tables_of_job(job) if (t := history.table_at(i, job.version)) is not None and self._names(t)]
        if not before and (not after or self._is_made_by(job, after)):
            return False
        another = [t.table_id for t in before] != [t.table_id for t in after]
        return another or job.kind.rowless or any(not self.fits(table.info) for table in (*before, *after))

    def _is_made_by(self, job: Job, after: list[TableAt]) -> bool:
        """Whether the columns are those of the job that gave a table this name: the table did not exist at the start."""
        return job.version <= self.version and [t.table_id for t in after] == [self.table_id]

    def fits(self, info: TableInfo) -> bool:
        """Whether a definition has the same columns, in any order; dates that are given as text differ by what they are."""
        return {c.name: type_of(c) for c in info.target_columns()} == {c.name: type_of(c) for c in self.columns}

    def _names(self, table: TableAt) -> bool:
        return self.name.is_of(table.schema, table.name)


def shape_of(name: NamedTable, history: SchemaHistory, version: int, invalid_dates: InvalidDates) -> TableShape:
    """The shape of the table at ``version``; if it is not there then, as it is first created afterwards.

    Raises:
        ConfigError: the history has no such table from there on, or one of its columns has the name of one of ours.
    """
    table = history.find(name.database, name.table, version)
    for job in history.jobs_between(version, history.newest_version) if table is None else ():
        made = (history.table_at(i, job.version) for i in history.tables_of_job(job))
        table = next((t for t in made if t is not None and name.is_of(t.schema, t.name)), None)
        if table is not None:
            version = job.version
            break
    if table is None or table.info.is_view or table.info.is_sequence:
        raise ConfigError(
            f"there is no table {name} at schema version {version} or later in the DDL history; {_what_became(name, history)}"
        )
    columns = table.info.target_columns()
    if both := sorted({c.name.lower() for c in columns} & {mark.name for mark in MARKS}):
        raise ConfigError(
            f"table {name} has a column {', '.join(both)}, which is also a column of changes: use option tables instead of table"
        )
    return TableShape(NamedTable(table.schema, table.name), table.table_id, max(version, int(table.version)), columns, invalid_dates)


def _what_became(name: NamedTable, history: SchemaHistory) -> str:
    """Why there is no such table in the end, and what to do."""
    for job in reversed(history.ordered):
        for i in history.tables_of_job(job):
            before, after = history.table_at(i, job.version - 1), history.table_at(i, job.version)
            if before is None or not name.is_of(before.schema, before.name) or (after is not None and name.is_of(after.schema, after.name)):
                continue
            made = history.jobs_of_table(i, 0, job.version - 1)
            return (
                f"DDL job {job.id} removed the table at {job.finished_ts} ({as_time(job.finished_ts)}): {job.query[:300]} -- start again when it has been created "
                f'again; for its changes until then set option("schemaCommitTs", "{made[-1].finished_ts if made else 0}"), when it had its last columns'
            )
    live = (history.table_at(i, history.newest_version) for i in history.tracks)
    meant = "".join(f"did you mean {near}? " for near in nearest(str(name), (f"{t.schema}.{t.name}" for t in live if t is not None)))
    return f"{meant}Check the name, and that tidbStatus is the history of the cluster whose Pumps are read"
