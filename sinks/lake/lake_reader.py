"""The tables of a lake as DataFrames, all as they were at one moment. [spark]

A table is its mirror, at the version that was published last up to the moment, without the rows that the ledger changed since, and with
their last images. A handful of changes is read and decoded in this process; more are by executors.

Promises: nothing is written. All DataFrames of one ``LakeAt`` are of the same moment, whenever they are made or run.
"""

import datetime
import json
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
from pyspark_tidb_binlog.schemas.events import as_time, moment_of, physical_ms, ts_at
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.ledger import REFUSES_OLD, Ledger, ledger_ddls
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.moments import MIRRORED, Published, TablePlace, published_of, readable
from pyspark_tidb_binlog.sinks.lake.net_changes import NEEDED, held, identity, mirror_schema, net_changes

When = str | int | datetime.datetime
_GONE, _FOUND = "_tidb_gone", "_tidb_found_"
_READ = tuple(dict.fromkeys((*NEEDED, "schema_version")))
_FEW_BYTES = 64 << 20
"""Changes that are decoded in this process."""
_IN_PLAN = ("spark.sql.execution.arrow.localRelationThreshold", str(256 << 10))
"""Bytes of rows that are a constant of the plan, so that Spark knows their size. Each optimization walks it: 50,000 rows took 0.8 s of 3.4."""
_ONE_SETS = threading.Lock()
"""That setting is the session's; another thread would take ours for what to restore."""


class LakeAt:
    """The tables as they were at one moment."""

    def __init__(self, spark: SparkSession, directory: str, published: Published, commit_ts: int) -> None:
        """``commit_ts``: the moment. ``LakeNow`` makes it."""
        self._spark = spark
        self._directory = directory
        self._published = published
        self._commit_ts = commit_ts

    @property
    def commit_ts(self) -> int:
        """The moment: every transaction up to this commit_ts, and none above."""
        return self._commit_ts

    @property
    def begin_ts(self) -> int:
        """Row changes up to this commit_ts are not kept; 0: all are, since the lake began."""
        return self._published.begin_ts

    @property
    def time(self) -> datetime.datetime:
        """The moment's time, in UTC."""
        return moment_of(self._commit_ts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r} at {self._commit_ts}, {as_time(self._commit_ts)})"

    def tables(self) -> DataFrame:
        """The tables that there are: ``database``, ``table``, ``table_id``, ``state``, ``why``."""
        rows = [(t.database, t.table, t.table_id, t.state, t.why) for t in readable(self._published.at(self._commit_ts))]
        return self._spark.createDataFrame(rows, "database string, table string, table_id bigint, state string, why string")

    def table(self, name: str) -> DataFrame:
        """The table ``name`` (``shop.orders``), with the types of docs/changes.md; a JSON column is a VARIANT.

        Raises:
            ConfigError: there is no such table at the moment, or it was set aside then.
        """
        place = self._published.table_at(name, self._commit_ts)
        info = self._info(place)
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
        Ledger(self._directory).require_kept(self.begin_ts)
        changes = self._delta("changes").where(f"commit_ts <= {self._commit_ts} AND (commit_ts > {self.begin_ts} OR op = 'ddl')")
        if not name:
            return changes
        place = self._published.called(name, self._commit_ts)
        same_name = (F.lower("database") == place.database.lower()) & (F.lower("table") == place.table.lower())
        # By names alone no file could be passed over.
        ids = F.col("table_id").isin(sorted(self._maybe_called(place)))
        return changes.where(ids & ((F.col("table_id") == place.table_id) | same_name))

    def _maybe_called(self, place: TablePlace) -> set[int]:
        """The tables that may ever have had the name of one, and more."""
        wanted = [place.database.lower(), place.table.lower()]
        # A job of several tables is a row with the name of one of them.
        ddls = ledger_ddls(self._directory, self._commit_ts)
        jobs = [
            d.job
            for d in ddls
            if d.job.multiple_table_infos or d.job.kind.effect.rows is RowsAfter.EXCHANGED or [name.lower() for name in d.name] == wanted
        ]
        history = SchemaHistory.of(d.job for d in ddls)
        called = self._published.rows_called(place.database, place.table)["table_id"].to_pylist()
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
        return reader.load(f"{self._directory}/{path}")

    def _info(self, place: TablePlace) -> TableInfo:
        # Its own row may have been thinned since this lake was read; others of the same definition stay.
        where = f"table_id = {place.table_id} AND schema_version = {place.schema_version} AND state = '{MIRRORED}'"
        found = scanned(f"{self._directory}/snapshots", ["info"], where)
        infos = found.read_all()["info"] if found is not None else []
        if not len(infos):
            raise ConfigError(
                f"{place} as of {as_time(self._commit_ts)} ({self._commit_ts}) is not kept any more: make the Lake anew, or refresh it"
            )
        return TableInfo.from_json(json.loads(infos[0].as_py()))

    def _changed(self, place: TablePlace, info: TableInfo, mirror: StructType) -> DataFrame | None:
        """The rows that the ledger changed since the mirror's version: whether they are gone, their identity in the mirror, and themselves."""
        since_ts = self._published.complete_ts(place, self._commit_ts)
        where = f"table_id = {place.table_id} AND commit_ts > {since_ts} AND commit_ts <= {self._commit_ts} AND op <> 'ddl'"
        found = [StructField(f"{_FOUND}{number}", mirror[name].dataType) for number, name in enumerate(identity(info))]
        images = [StructField(name, mirror[name].dataType) for name in mirror_schema(info).names]
        schema = StructType([StructField(_GONE, BooleanType()), *found, *images])
        reader = scanned(f"{self._directory}/changes", _READ, where)
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

        return self._delta("changes").where(where).select(*_READ).repartition("row_key").mapInArrow(run, schema)

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
        place = str(directory).rstrip("/")
        spark.conf.set(REFUSES_OLD, "false")
        super().__init__(spark, place, *_newest(place))

    def refresh(self) -> None:
        """Go to the moment that is the newest now. DataFrames that were made before stay at theirs."""
        self._published, self._commit_ts = _newest(self._directory)

    def at(self, when: When) -> LakeAt:
        """The tables as they were at ``when``: a time (ISO text or datetime; UTC if it names no offset), with its millisecond, or a TSO.

        Raises:
            ConfigError: it is before the first moment that was published, or that is kept, or above this lake's moment.
        """
        ts, first, kept_ts = self._ts_of(when), self._published.first_ts, self._published.kept_ts
        if first is not None and first <= kept_ts and ts < kept_ts:
            since = f" since {as_time(self.begin_ts)}" if self.begin_ts else ""
            raise ConfigError(
                f"the lake {self._directory} keeps its tables from {as_time(kept_ts)} ({kept_ts}) on, so there are none at {when}; lake.changes() "
                f"has every change{since}, and spark.delta-retention says how far back tables are kept from then on"
            )
        if first is None or ts < first:
            raise ConfigError(f"the lake {self._directory} has no tables before {as_time(first or 0)} ({first}), so none at {when}")
        self._require_read(ts, f"{when} is")
        return LakeAt(self._spark, self._directory, self._published, ts)

    def _ts_of(self, when: When) -> int:
        """The ts that ``when`` means, as ``at`` takes it: of a time the last one in its millisecond, as far as the lake was read."""
        if isinstance(when, int) or (isinstance(when, str) and when.strip().isdigit()):
            return int(when)
        ts = ts_at("at", when.isoformat() if isinstance(when, datetime.datetime) else when, last=True)
        return self._commit_ts if physical_ms(ts) == physical_ms(self._commit_ts) else ts

    def _require_read(self, ts: int, what: str) -> None:
        if ts > self._commit_ts:
            raise ConfigError(
                f"the lake {self._directory} was read up to {as_time(self._commit_ts)} ({self._commit_ts}), so {what} not known; lake.refresh() reads on"
            )

    def snapshots(self) -> DataFrame:
        """The published rows in order: the version of each table that changed, at ``resolved_ts``."""
        rows = self._delta("snapshots").where(f"resolved_ts <= {self._commit_ts}")
        return rows.orderBy("resolved_ts", "number").drop("info", "job", "number")


def _newest(directory: str) -> tuple[Published, int]:
    """The published rows, and the newest moment that can be known."""
    state = Ledger(directory).load()
    if state is None:
        raise ConfigError(f"{directory} is no lake: there is no ledger in {directory}/changes; give the directory of syncer.to.dir")
    published = published_of(directory, state.begin_ts)
    ddls = scanned(f"{directory}/changes", ("commit_ts", "job_id"), f"op = 'ddl' AND commit_ts >= {published.followed_ts}")
    found = [(row["commit_ts"], row["job_id"]) for row in ddls.read_all().to_pylist()] if ddls is not None else []
    return published, published.newest_moment(state.commit_ts or 0, found)


def _marked(rows: pa.Table, info: TableInfo, names: list[str]) -> pa.Table | None:
    """The net changes of ``rows`` (``_READ``) as Spark takes them; None: there are none."""
    net = net_changes(rows.sort_by(ORDER), info) if rows.num_rows else None
    if net is None:
        return None
    return pa.Table.from_arrays(
        [net.gone, *net.found_by.columns, *(laid_out(c.combine_chunks(), VARIANT) for c in net.rows.columns)], names=names
    )
