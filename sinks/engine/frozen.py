"""Tables frozen by a refused DDL (``ddl-policy`` skip or quarantine): their shape on the target, and how upstream rows are written to it.

Promises: pure. Only the ids of the refused jobs are stored: a shape is derived from them and the DDL history.

* The shape is the table before the first refused job, changed by every later job that the target executed.
* A row is written to the columns that both sides have, matched by TiDB's column id, else by name (a MODIFY COLUMN assigns a new id). A key
  is used only if both sides have it.
* A column that only the target has gets its default. If it is NOT NULL without a default, it gets the zero value of its type, as do NULLs
  of a column that is nullable only upstream.
* Rows cannot be written when the target has no such table, or when one of its unique keys consists only of columns that the upstream lacks:
  each row would replace the one before it. They are skipped and counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.schemas.arrowtypes import kind_of
from pyspark_tidb_binlog.schemas.column_pairs import pair_columns
from pyspark_tidb_binlog.schemas.history import FrozenAs, Job, JobType, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.tableinfo import (
    PUBLIC,
    ColumnFlag,
    ColumnInfo,
    ColumnType,
    IndexColumn,
    IndexInfo,
    PartitionDef,
    TableInfo,
)
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep

RefusedJobs = frozenset[int]
"""Ids of the jobs that were not executed on the target."""

_WITH_WORDS = frozenset({ColumnType.ENUM, ColumnType.SET})
_OF_ITS_OWN = frozenset({ColumnType.BIT, ColumnType.JSON})


@dataclass(frozen=True, slots=True)
class FrozenShape:
    """A table's shape on the target since one of its DDLs was refused."""

    schema: str
    name: str
    info: TableInfo | None
    """None: the target has no such table."""
    since: Job
    """The first job that was refused."""


@dataclass(frozen=True, slots=True)
class UnwritableTable:
    """A table whose rows cannot be written to the target."""

    table_id: int
    table: str
    why: str


def shape_of(history: SchemaHistory, refused: RefusedJobs, table_id: int, version: int) -> FrozenShape | None:
    """The shape at ``version``; None for a table that is not frozen."""
    shape: FrozenShape | None = None
    if not refused:
        return None
    for job in history.jobs_of_table(table_id, -1, version):
        before, after = history.table_at(table_id, job.version - 1), history.table_at(table_id, job.version)
        if after is None:
            shape = None
            continue
        former = _former_id(job, table_id) if before is None else table_id
        if former != table_id:
            before = history.table_at(former, job.version - 1)
            shape = shape_of(history, refused, former, job.version - 1)
        if job.id in refused:
            shape = shape or (
                FrozenShape(before.schema, before.name, before.info, job) if before else FrozenShape(after.schema, after.name, None, job)
            )
        elif shape is not None and shape.info is not None and before is not None:
            renamed = (before.schema, before.name) != (after.schema, after.name)
            schema, name = (after.schema, after.name) if renamed else (shape.schema, shape.name)
            shape = replace(shape, schema=schema, name=name, info=moved_on(shape.info, job, before.info, after.info))
    return shape


def _former_id(job: Job, table_id: int) -> int:
    """The table's id before ``job``: some jobs, and EXCHANGE, assign another one."""
    moves = job.kind.new_table_id or (job.type == JobType.EXCHANGE_PARTITION and job.table_info and job.table_info.id != table_id)
    return job.table_id if moves else table_id


def on_target(history: SchemaHistory, refused: RefusedJobs, table: TableAt, version: int) -> TableAt | None:
    """The table on the target, for DDLs; None when the target has none. ``version``: the upstream's schema version of the job."""
    shape = shape_of(history, refused, table.table_id, version)
    if shape is None:
        return table
    return replace(table, schema=shape.schema, name=shape.name, info=shape.info) if shape.info else None


def fitted(step: RowsStep, history: SchemaHistory, refused: RefusedJobs) -> tuple[RowsStep, tuple[UnwritableTable, ...]]:
    """``step`` with the tables as rows are written to them, and the tables whose rows cannot be written."""
    if not refused:
        return step, ()
    tables = dict(step.tables)
    unwritable: list[UnwritableTable] = []
    for table_id, table in step.tables.items():
        shape = shape_of(history, refused, table_id, table.version)
        found = writable(table, shape) if shape is not None else table
        if isinstance(found, UnwritableTable):
            unwritable.append(found)
            del tables[table_id]
        else:
            tables[table_id] = found
    gone = step.gone | (step.tables.keys() - tables.keys())
    return replace(step, tables=tables, gone=gone), tuple(unwritable)


def writable(table: TableAt, shape: FrozenShape) -> TableAt | UnwritableTable:
    """The table with which upstream rows are decoded and written to the target."""
    label = f"{shape.schema}.{shape.name}"
    since = f"since the {shape.since.type_name} of job {shape.since.id} was refused"
    if shape.info is None:
        return UnwritableTable(table.table_id, label, f"{label}: the target has no such table {since}; its rows are not written")
    pairs = _shared(table.info, shape.info)
    shared = {t.id for _, t in pairs}
    left = [c for c in _public(shape.info) if c.id not in shared and not c.generated]
    ids = {c.id for c, _ in pairs}
    lost_key = next((i for i in shape.info.indexes if _stands_alone(i, shape.info, shared)), None)
    if lost_key is not None or not {c.id for c in table.info.handle_columns()} <= ids:
        key = lost_key.name if lost_key else "PRIMARY"
        return UnwritableTable(
            table.table_id, label, f"{label}: the upstream has no columns of key {key} {since}; its rows are not written"
        )
    zeros = [c for c in left if _needs_value(c)]
    columns = [replace(c, name=t.name) for c, t in pairs] + [replace(c, origin_default=None, origin_default_bit=None) for c in zeros]
    info = _assembled(table.info, columns, _keys_of_both(table.info, shape.info, pairs))
    narrow = frozenset(c.id for c, t in pairs if t.not_null and not c.not_null)
    leaving = table.leaving | {c.id for c in zeros}
    frozen = FrozenAs(narrow, frozenset(c.id for c in zeros))
    return replace(table, schema=shape.schema, name=shape.name, info=info, dropping=True, leaving=leaving, frozen=frozen)


def renamed_columns(upstream: TableInfo, shape: FrozenShape) -> tuple[tuple[str, str], ...]:
    """(upstream name, target name) of the columns that have different names on the two sides."""
    pairs = _shared(upstream, shape.info) if shape.info else []
    return tuple((c.name, t.name) for c, t in pairs if c.name.lower() != t.name.lower())


def _public(info: TableInfo) -> list[ColumnInfo]:
    return [c for c in info.columns if c.public]


def _shared(upstream: TableInfo, there: TableInfo) -> list[tuple[ColumnInfo, ColumnInfo]]:
    """(upstream column, target column) for each column that is written to the target."""
    by_id = {c.id: c for c in _public(there)}
    ids = {c.id for c in _public(upstream)}
    by_name = {c.name.lower(): c for c in _public(there) if c.id not in ids}
    found = []
    for column in _public(upstream):
        same = by_id.get(column.id) or by_name.get(column.name.lower())
        if same is not None and not column.generated and not same.generated and _takes(same, column):
            found.append((column, same))
    return found


def _takes(there: ColumnInfo, column: ColumnInfo) -> bool:
    """Whether a literal of ``column`` means the same in ``there``, or is converted by the server, with a warning if the value changes."""
    if there.tp in _WITH_WORDS or column.tp in _WITH_WORDS:
        shorter = min(len(there.elems), len(column.elems))
        return there.tp == column.tp and there.elems[:shorter] == column.elems[:shorter]
    return there.tp == column.tp or not {there.tp, column.tp} & _OF_ITS_OWN or kind_of(there) is kind_of(column)


def _needs_value(column: ColumnInfo) -> bool:
    has_default = column.default is not None or column.default_bit is not None
    return column.not_null and not has_default and not column.flag & ColumnFlag.AUTO_INCREMENT


def _stands_alone(index: IndexInfo, info: TableInfo, shared: set[int]) -> bool:
    """Whether the index is a unique key without a column that rows write, and without one that stays NULL, counts or is generated."""
    columns = info.index_columns(index)
    own = all(c.id not in shared for c in columns)
    null = any(not c.not_null and c.default is None and c.default_bit is None for c in columns)
    counts = any(c.flag & ColumnFlag.AUTO_INCREMENT or c.generated for c in columns)
    return (index.unique or index.primary) and index.state == PUBLIC and own and not null and not counts


def _keys_of_both(upstream: TableInfo, there: TableInfo, pairs: list[tuple[ColumnInfo, ColumnInfo]]) -> list[tuple[IndexInfo, list[int]]]:
    """The target's keys with the upstream ids of their columns; unique keys only if the upstream has them too."""
    upstream_id = {t.id: c.id for c, t in pairs}
    unique = {_parts(upstream, i) for i in upstream.indexes if (i.unique or i.primary) and i.state == PUBLIC}
    found = []
    for index in there.indexes:
        ids = [upstream_id.get(c.id, -1) for c in there.index_columns(index)]
        parts = tuple(zip(ids, (c.length for c in index.columns), strict=True))
        if -1 not in ids and (not (index.unique or index.primary) or parts in unique):
            found.append((index, ids))
    return found


def _parts(info: TableInfo, index: IndexInfo) -> tuple[tuple[int, int], ...]:
    return tuple((c.id, part.length) for c, part in zip(info.index_columns(index), index.columns, strict=True))


def _assembled(like: TableInfo, columns: Iterable[ColumnInfo], keys: Iterable[tuple[IndexInfo, list[int]]]) -> TableInfo:
    """``like`` with these columns in this order, and those of the keys whose columns are all among them."""
    placed = {c.id: replace(c, offset=i) for i, c in enumerate(columns)}
    indexes = []
    for index, ids in keys:
        if all(i in placed for i in ids):
            parts = [IndexColumn(placed[i].name, placed[i].offset, p.length) for i, p in zip(ids, index.columns, strict=True)]
            indexes.append(replace(index, columns=tuple(parts)))
    return replace(like, columns=tuple(placed.values()), indexes=tuple(indexes))


def moved_on(shape: TableInfo, job: Job, before: TableInfo, after: TableInfo) -> TableInfo:
    """The shape after a job that the target executed: the job's upstream changes, applied to the shape."""
    fate = _fates(job, before, after)
    old_ids = {c.id for c in before.columns}
    by_name = {c.name.lower(): c.id for c in before.columns if c.id not in {s.id for s in shape.columns}}
    columns: list[ColumnInfo] = []
    became: dict[int, int] = {}
    for column in _public(shape):
        known = column.id if column.id in old_ids else by_name.get(column.name.lower())
        new = fate.get(known, column) if known is not None else column
        if new is not None:
            columns.append(new)
            became[column.id] = new.id
    here = set(became.values())
    came_from = {new.id for new in fate.values() if new is not None} | old_ids
    for column in _public(after):
        if column.id not in came_from and column.id not in here:
            columns.insert(_place(column, after, columns), column)
            here.add(column.id)
    return replace(_assembled(after, columns, _keys_after(shape, before, after, became)), partitions=_newer(shape, before, after))


def _newer(shape: TableInfo, before: TableInfo, after: TableInfo) -> tuple[PartitionDef, ...]:
    return after.partitions if before.partitions != after.partitions else shape.partitions


def _fates(job: Job, before: TableInfo, after: TableInfo) -> dict[int, ColumnInfo | None]:
    """By the id before the job, the new form of each column that it changed; None for a dropped column."""
    pairs = pair_columns(job, job.query, before, after) or {c.name.lower(): c for c in before.columns}
    became = {pairs[c.name.lower()].id: c for c in _public(after) if c.name.lower() in pairs}
    became |= {c.id: c for c in _public(after) if c.id in {b.id for b in before.columns}}
    fates: dict[int, ColumnInfo | None] = {}
    for column in _public(before):
        new = became.get(column.id)
        if new is None or replace(new, offset=0) != replace(column, offset=0):
            fates[column.id] = new
    return fates


def _place(column: ColumnInfo, after: TableInfo, columns: list[ColumnInfo]) -> int:
    """The position after the nearest preceding column that the shape has."""
    names = [c.name.lower() for c in columns]
    for earlier in reversed([c for c in _public(after) if c.offset < column.offset]):
        if earlier.name.lower() in names:
            return names.index(earlier.name.lower()) + 1
    return 0


def _keys_after(shape: TableInfo, before: TableInfo, after: TableInfo, became: dict[int, int]) -> list[tuple[IndexInfo, list[int]]]:
    """The shape's keys with the ids that their columns have after the job; -1 for a dropped column."""
    was, now = ({i.name.lower(): i for i in info.indexes if i.state == PUBLIC} for info in (before, after))
    renamed = {i.name.lower(): n for i in before.indexes for n in after.indexes if n.id == i.id and n.name.lower() != i.name.lower()}
    keys: list[tuple[IndexInfo, list[int]]] = []
    for index in shape.indexes:
        name = index.name.lower()
        if name in was and name not in now and name not in renamed:
            continue
        ids = [became.get(c.id, -1) for c in shape.index_columns(index)]
        keys.append((replace(index, name=renamed[name].name) if name in renamed else index, ids))
    there = {i.name.lower() for i, _ in keys}
    fresh = [i for name, i in now.items() if name not in was and name not in there]
    return keys + [(i, [c.id for c in after.index_columns(i)]) for i in fresh]
