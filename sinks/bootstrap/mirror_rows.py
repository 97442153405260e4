"""Reads a table of the upstream at one moment as rows of its mirror in a lake. [db]

Promises: reads only. A value is what the ledger's decoder makes of the same value in a row image (``schemas.changes.typed_cells``): TiDB's text of it is
the image's.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.schemas.changes.change_rows import HANDLE, ROWID
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange, chunk_sql
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource, handle_of, require_same
from pyspark_tidb_binlog.sinks.bootstrap.upstream_values import arrow_of, expression
from pyspark_tidb_binlog.sinks.lake.net_changes import hidden_column, read_rows
from pyspark_tidb_binlog.sinks.mysql.dialect import table_name
from pyspark_tidb_binlog.sinks.mysql.session import Session

FEW_ROWS = 100_000
"""Up to so many, a table is read as one range."""
_ALL = (1 << 63) - 1


def ranges_of(source: SnapshotSource, session: Session, table: TableAt, ids: Mapping[tuple[str, str], int]) -> Sequence[KeyRange]:
    """The ranges that are read one by one: the whole table, if it is small. ``ids``: ``SnapshotSource.table_ids``.

    Raises:
        SchemaMoves: the upstream's table is another one, or has other columns.
        BootstrapRefused: no rows of a mirror can be made of it.
    """
    hidden = hidden_column(table.info)
    if hidden is not None and hidden.name == HANDLE:
        raise BootstrapRefused("its primary key has generated columns, of which no mirror that was read from the upstream has the bytes")
    require_same(table, source.columns(session, table), ids.get((table.schema.lower(), table.name.lower()), 0))
    if table.info.temp_table_type:
        return ()
    rows, _ = source.size(session, table)
    # In an order of all partitions TiDB would sort.
    return (KeyRange(),) if 0 < rows <= FEW_ROWS and not table.info.partitions else source.ranges(session, table)


def mirror_rows(session: Session, table: TableAt, within: KeyRange) -> Iterator[pa.RecordBatch]:
    """The rows of a range as ``mirror_schema``.

    Raises:
        SchemaMismatch: as ``read_rows`` does.
    """
    info = table.info
    columns, hidden = info.target_columns(), hidden_column(info)
    label, handle = table_name(table.schema, table.name), handle_of(info.handle_columns())
    with session.stream(chunk_sql(label, [expression(c) for c in columns], handle, within, (), _ALL)) as blocks:
        for block in blocks:
            (images,) = arrow_of(columns, block[: len(columns)]).combine_chunks().to_batches()
            rowids = block[len(columns)] if hidden is not None and hidden.name == ROWID else None
            yield read_rows(info, images, pc.cast(rowids.cast(pa.string()), pa.int64()) if rowids is not None else None)
