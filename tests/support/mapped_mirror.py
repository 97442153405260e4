"""Mirrors as earlier builds made them: each with column mapping, and names of its own in the files."""

import pyarrow as pa
from deltalake import DeltaTable, TableFeatures

from pyspark_tidb_binlog.sinks.lake import lake_table
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp


def mapped(uri: str, schema: pa.Schema, stamp: Stamp, large: LargeMirrors | None = None) -> MirrorTable:
    """As ``MirrorTable.created``."""
    table = DeltaTable.create(
        lake_table.with_directory(uri),
        lake_table.delta_schema(schema),
        configuration={"delta.columnMapping.mode": "name", "delta.enableExpiredLogCleanup": "false"},
        commit_properties=stamp.commit,
    )
    table.alter.add_feature([TableFeatures.ColumnMapping], allow_protocol_versions_increase=True, commit_properties=stamp.commit)
    return MirrorTable(uri, table, large)
