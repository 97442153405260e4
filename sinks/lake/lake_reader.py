"""The tables of a lake as DataFrames, all as they were at one moment. [spark]

A table is its mirror, at the version that was published last up to the moment, without the rows that the ledger changed since, and with
their last images. A handful of changes is read and decoded in this process; more are by executors.

Promises: nothing is written. All DataFrames of one ``LakeAt`` are of the same moment, whenever they are made or run.
"""

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, laid_out
from pyspark_tidb_binlog.schemas.ddl_jobs import RowsAfter
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time, moment_of
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.ledger import REFUSES_OLD, Ledger, ledger_ddls
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.moments import MIRRORED, TablePlace
from pyspark_tidb_binlog.sinks.lake.net_changes import held, identity, mirror_schema, net_changes
from pyspark_tidb_binlog.sinks.lake.tables_at import CHANGES_READ, TablesAt, When

_GONE, _FOUND = "_tidb_gone", "_tidb_found_"
_FEW_BYTES = 64 << 20
"""Changes that are decoded in this process."""
_IN_PLAN = ("spark.sql.execution.arrow.localRelationThreshold", str(256 << 10))
"""Bytes of rows that are a constant of the plan, so that Spark knows their size. Each optimization walks it: 50,000 rows took 0.8 s of 3.4."""
_ONE_SETS = threading.Lock()
"""That setting is the session's; another thread would take ours for what to restore."""


class LakeAt:
    """The tables as they were at one moment."""

    def __init__(self, spark: SparkSession, lake: TablesAt) -> None:
        """``lake``: at the moment. ``LakeNow`` makes it."""
        self._spark, self._lake = spark, lake

    @property
    def commit_ts(self) -> int:
        """The moment: every transaction up to this commit_ts, and none above."""
        return self._lake.commit_ts

    @property
    def begin_ts(self) -> int:
        """Row changes up to this commit_ts are not kept; 0: all are, since the lake began."""
        return self._lake.published.begin_ts

    @property
    def time(self) -> datetime.datetime:
        """The moment's time, in UTC."""
        return moment_of(self._lake.commit_ts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lake.directory!r} at {self._lake.commit_ts}, {as_time(self._lake.commit_ts)})"

    def tables(self) -> DataFrame:
        """The tables that there are: ``database``, ``table``, ``table_id``, ``state``, ``why``."""
        return self._spark.createDataFrame(self._lake.tables())

    def versions(self) -> DataFrame:
        """What any engine reads of the moment: ``database``, ``table``, ``path``, ``version``, ``complete_ts``. docs/lake.md, In another engine."""
        return self._spark.createDataFrame(self._lake.versions())

    def views(self, database: str) -> list[str]:
        """Make each table of a database a temporary view for ``spark.sql``; their names. Tables that are set aside or not loaded have none.

        Raises:
            ConfigError: the lake has no such database at the moment.
        """
        places = [place for place in self._lake.tables().to_pylist() if place["database"].lower() == database.lower()]
        if not places:
            raise ConfigError(
                f"the lake has no table of a database {database} at {as_time(self.commit_ts)}; lake.tables() lists the tables"
            )
        names = [place["table"] for place in places if place["state"] == MIRRORED]
        for name in names:
            self.table(f"{quote_name(database)}.{quote_name(name)}").createOrReplaceTempView(quote_name(name))
        return names

    def table(self, name: str) -> DataFrame:
        """The table ``name`` (``shop.orders``), with the types of docs/changes.md; a JSON column is a VARIANT.

        Raises:
            ConfigError: there is no such table at the moment, or it was set aside then.
        """
        place = self._lake.published.table_at(name, self._lake.commit_ts)
        info = self._lake.info(place)
        mirror = self._mirror(place, info)
        columns = [quote_name(c.name) for c in info.target_columns()]
        changed = self._changed(place, info, mirror.schema)
        if changed is None:
            return mirror.select(columns)
        names = identity(info)
        ids = changed.select([F.col(f"{_FOUND}{number}").alias(name) for number, name in enumerate(names)])
        fresh = changed.where(f"not {_GONE}")
        return mirror.join(F.broadcast(ids), list(names), "left_anti").select(columns).unionByName(fresh.select(columns))

    def changes(self, name: str = "") -> DataFrame:
        """The ledger up to the moment, of all tables or of one: docs/lake.md has the columns. Rows are in any order.

        Of one table: what was committed under its name, and under the names that the table of this name had before.

        Raises:
            ConfigError: there is no such table at the moment, or changes up to a later ``begin_ts`` have gone since the lake was read.
        """
        Ledger(self._lake.directory).require_kept(self.begin_ts)
        changes = self._delta("changes").where(f"commit_ts <= {self._lake.commit_ts} AND (commit_ts > {self.begin_ts} OR op = 'ddl')")
        if not name:
            return changes
        place = self._lake.published.called(name, self._lake.commit_ts)
        same_name = (F.lower("database") == place.database.lower()) & (F.lower("table") == place.table.lower())
        # By names alone no file could be passed over.
        ids = F.col("table_id").isin(sorted(self._maybe_called(place)))
        return changes.where(ids & ((F.col("table_id") == place.table_id) | same_name))

    def _maybe_called(self, place: TablePlace) -> set[int]:
        """The tables that may ever have had the name of one, and more."""
        wanted = [place.database.lower(), place.table.lower()]
        # A job of several tables is a row with the name of one of them.
        ddls = ledger_ddls(self._lake.directory, self._lake.commit_ts)
        jobs = [
            d.job
            for d in ddls
            if d.job.multiple_table_infos or d.job.kind.effect.rows is RowsAfter.EXCHANGED or [name.lower() for name in d.name] == wanted
        ]
        history = SchemaHistory.of(d.job for d in ddls)
        called = self._lake.published.rows_called(place.database, place.table)["table_id"].to_pylist()
        ids = (i for job in jobs for i in (job.table_id, *history.tables_of_job(job)))
        return {place.table_id, *called, *ids}

    def _mirror(self, place: TablePlace, info: TableInfo) -> DataFrame:
        """A mirror at its version, whose documents are VARIANT."""
        rows = self._delta(place.path, place.version)
        texts = {
            c.name for c in info.target_columns() if kind_of(c) is CellKind.JSON and isinstance(rows.schema[c.name].dataType, StringType)
        }
        cells = ((name, F.col(quote_name(name))) for name in rows.columns)
        return rows.select([F.parse_json(cell).alias(name) if name in texts else cell for name, cell in cells]) if texts else rows

    def _delta(self, path: str, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(f"{self._lake.directory}/{path}")

    def _changed(self, place: TablePlace, info: TableInfo, mirror: StructType) -> DataFrame | None:
        """The rows that the ledger changed since the mirror's version: whether they are gone, their identity in the mirror, and themselves."""
        where = self._lake.changed_since(place)
        found = [StructField(f"{_FOUND}{number}", mirror[name].dataType) for number, name in enumerate(identity(info))]
        images = [StructField(name, mirror[name].dataType) for name in mirror_schema(info).names]
        schema = StructType([StructField(_GONE, BooleanType()), *found, *images])
        reader = scanned(f"{self._lake.directory}/changes", CHANGES_READ, where)
        assert reader is not None
        # More of them are decoded by executors.
        rows = held(reader, reader.schema, _FEW_BYTES)
        if rows is not None:
            changed = _marked(rows, info, schema.names)
            return self._frame(changed, schema) if changed is not None else None

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            mine = list(batches)
            changed = _marked(pa.Table.from_batches(mine), info, schema.names) if mine else None
            yield from changed.to_batches() if changed is not None else ()

        return self._delta("changes").where(where).select(*CHANGES_READ).repartition("row_key").mapInArrow(run, schema)

    def _frame(self, rows: pa.Table, schema: StructType) -> DataFrame:
        (setting, ours), conf = _IN_PLAN, self._spark.conf
        with _ONE_SETS:
            theirs = conf.get(setting) or ours
            conf.set(setting, ours)
            try:
                return self._spark.createDataFrame(rows, schema)
            finally:
                conf.set(setting, theirs)


class LakeNow(LakeAt):
    """A lake, at the newest moment that it had when this was made, or ``refresh`` was called."""

    def __init__(self, spark: SparkSession, directory: str | Path) -> None:
        """``directory``: path or URI of the lake (``syncer.to.dir``). From then on ``spark`` reads old versions of any Delta table.

        Raises:
            ConfigError: it is no lake, or nothing was published yet.
        """
        spark.conf.set(REFUSES_OLD, "false")
        super().__init__(spark, TablesAt.newest(directory))

    def refresh(self) -> None:
        """Go to the moment that is the newest now. DataFrames that were made before stay at theirs."""
        self._lake = TablesAt.newest(self._lake.directory)

    def at(self, when: When) -> LakeAt:
        """The tables as they were at ``when``: a time (ISO text or datetime; UTC if it names no offset), with its millisecond, or a TSO.

        Raises:
            ConfigError: it is before the first moment that was published, or that is kept, or above this lake's moment.
        """
        return LakeAt(self._spark, self._lake.at(when))

    def stream(self, after: int = 0) -> DataFrame:
        """The ledger as a stream without end: what was committed after the commit_ts ``after``, up to which the stream's target has everything.

        One batch has all that there is at the first start, and later ones follow each other by commit_ts. A DDL at ``after`` itself is among them.

        Raises:
            ConfigError: row changes since ``after`` have gone; it names ``begin_ts``.
        """
        state = Ledger(self._lake.directory).load()
        if state is not None and (begin_ts := state.begin_ts) > after:
            raise ConfigError(
                f"the lake {self._lake.directory} keeps row changes after {as_time(begin_ts)} ({begin_ts}) only, so some since {after} are missing; "
                f"load the target anew as of a later moment, and go on with lake.stream(after=…); lake.begin_ts is {begin_ts}"
            )
        # In several batches the files that are there would come in no order of commit_ts.
        reader = self._spark.readStream.format("delta").option("maxFilesPerTrigger", (1 << 31) - 1)
        changes = reader.load(f"{self._lake.directory}/changes")
        return changes.where(f"commit_ts > {int(after)} OR (commit_ts = {int(after)} AND op = 'ddl')")

    def snapshots(self) -> DataFrame:
        """The published rows in order: the version of each table that changed, at ``resolved_ts``."""
        return self._spark.createDataFrame(self._lake.snapshots())


def _marked(rows: pa.Table, info: TableInfo, names: list[str]) -> pa.Table | None:
    """The net changes of ``rows`` (``CHANGES_READ``) as Spark takes them; None: there are none."""
    net = net_changes(rows.sort_by(ORDER), info) if rows.num_rows else None
    if net is None:
        return None
    return pa.Table.from_arrays(
        [net.gone, *net.found_by.columns, *(laid_out(c.combine_chunks(), VARIANT) for c in net.rows.columns)], names=names
    )
