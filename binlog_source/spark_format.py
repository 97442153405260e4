"""The Spark source ``tidb_binlog``: changes of rows, or with option ``format`` = ``protocol`` binlogs as Pumps deliver them. Spark shell.

    spark.readStream.format("tidb_binlog").option("pumps", "host:8250,host:8250").option("tidbStatus", "http://tidb:10080").load()
    spark.read.format("tidb_binlog").option("pumps", "pd://pd:2379").option("startingTimestamp", "2026-11-20T12:00:00").load()

The schema of changes is in ``changes.change_rows`` for all tables, in ``changes.table_shape`` for one table (docs/changes.md). The schema of the protocol
is ``stages.RAW``, with option ``packed`` ``stages.PACKED``.
"""

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_tidb_binlog.binlog_source.changes.change_options import change_options_of, is_protocol
from pyspark_tidb_binlog.binlog_source.changes.change_readers import (
    ChangeReader,
    ChangeStreamReader,
    asked_shape,
    reading_of,
    require_reachable,
    told_plainly,
)
from pyspark_tidb_binlog.binlog_source.source.options import source_of, stream_options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader, BinlogStreamReader
from pyspark_tidb_binlog.schemas.changes.change_rows import CHANGE
from pyspark_tidb_binlog.schemas.changes.table_shape import TableShape
from pyspark_tidb_binlog.schemas.stages import PACKED, RAW, ddl_of


class BinlogDataSource(DataSource):
    """``format("tidb_binlog")``."""

    _shape: TableShape | None = None
    """The columns of the one table that is read. They are read once: Spark pickles this object, and the rows must keep its schema."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tidb_binlog"

    @told_plainly()
    def schema(self) -> str | StructType:
        """The schema of the rows."""
        if is_protocol(self.options):
            return ddl_of(PACKED if stream_options_of(self.options).packed else RAW)
        require_reachable(self.options.get("pumps", ""))
        shape = self._found_shape()
        # what is wrong with an option is an error of load(), not of the first action
        source_of(reading_of(self.options))
        return from_arrow_schema(CHANGE if shape is None else shape.schema, prefer_timestamp_ntz=True)

    @told_plainly()
    def reader(self, schema: StructType) -> BinlogReader | ChangeReader:
        """A batch reader over (startingCommitTs, endingCommitTs]."""
        if is_protocol(self.options):
            return BinlogReader(self.options)
        return ChangeReader(self.options, self._found_shape())

    @told_plainly()
    def streamReader(self, schema: StructType) -> BinlogStreamReader:
        """A stream reader."""
        if is_protocol(self.options):
            return BinlogStreamReader(self.options)
        return ChangeStreamReader(self.options, self._found_shape())

    def _found_shape(self) -> TableShape | None:
        if self._shape is None and change_options_of(self.options).table is not None:
            self._shape = asked_shape(self.options)
        return self._shape
