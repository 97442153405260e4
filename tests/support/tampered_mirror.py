"""A lake whose published mirrors are not what the stream made of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from pyspark_tidb_binlog.schemas.changes.json_texts import documents_as
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp, rows_of_version
from pyspark_tidb_binlog.sinks.lake.moments import Snapshots
from pyspark_tidb_binlog.sinks.lake.net_changes import mirror_schema
from tests.support.mirror_rows import published

_EPOCH = tso(1)
"""Above that of each writer."""


def rows_in(lake: Path, name: str) -> pa.Table:
    """The rows of a mirror as it was published last, in the order of its key."""
    state = published(lake)[name]
    assert state.info is not None and state.version is not None
    schema = mirror_schema(state.info)
    rows = pa.Table.from_batches(rows_of_version(f"{lake}/{state.path}", state.version)).sort_by(schema.names[0])
    cells = [documents_as(rows[field.name].combine_chunks(), field.type).cast(field.type) for field in schema]
    return pa.Table.from_arrays(cells, schema=schema)


def tampered(lake: Path, name: str, change: Callable[[pa.Table], pa.Table], *, publish: bool = True) -> None:
    """Write a mirror's rows as ``change`` makes them, and publish them at the same moment. The stream's sink is closed."""
    state, rows = published(lake)[name], rows_in(lake, name)
    assert state.version is not None
    stamp = Stamp(state.upto_ts, _EPOCH)
    mirror = MirrorTable.at(f"{lake}/{state.path}", state.version, stamp)
    write_deltalake(mirror._table, mirror._as_kept(change(rows)), mode="overwrite", commit_properties=stamp.commit)
    if publish:
        snapshots = Snapshots(str(lake))
        snapshots.take(_EPOCH)
        ts = snapshots.moment.resolved_ts
        snapshots.publish(ts, snapshots.moment.jobs, [(ts, replace(state, version=mirror.version))])


def with_cell(rows: pa.Table, row: int, column: str, value: pa.Scalar) -> pa.Table:
    """``rows`` with one other cell."""
    place, cells = rows.schema.get_field_index(column), rows[column].combine_chunks()
    made = pa.concat_arrays([cells.slice(0, row), _one(value, cells), cells.slice(row + 1)])
    return rows.set_column(place, rows.schema.field(place), made)


def _one(value: pa.Scalar, cells: pa.Array) -> pa.Array:
    return pa.array([value.as_py()], cells.type)


def without(rows: pa.Table, row: int) -> pa.Table:
    """``rows`` without one."""
    return pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)])
