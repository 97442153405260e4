"""What a lake knows of the past: the life of a row, transactions, history, differences, and the undo of changes. [spark]

Promises: nothing of the lake is written. Answers are up to the moment of the ``Lake``.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, VariantType

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, image_schema, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import HANDLE, ROWID, columns_of
from pyspark_tidb_binlog.schemas.changes.row_images import image_cells, with_equal_documents
from pyspark_tidb_binlog.schemas.changes.typed_cells import type_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, laid_out
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeNow
from pyspark_tidb_binlog.sinks.lake.ledger_rows import ORDER
from pyspark_tidb_binlog.sinks.lake.net_changes import identity
from pyspark_tidb_binlog.sinks.lake.tables_at import When
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.past.net_rows import (
    HISTORY_MARKS,
    KeyUpdate,
    NetRows,
    RowChange,
    carried,
    key_updates,
    life,
    net_rows,
    typed_history,
)
from pyspark_tidb_binlog.sinks.past.past_changes import NET_COLUMNS, WITHOUT_DDL, Ints, PastChanges, among
from pyspark_tidb_binlog.sinks.past.undo_apply import Undone, undone
from pyspark_tidb_binlog.sinks.past.undo_plan import UndoPlan, compared, differences

_LIFE = ("commit_ts", "commit_time", "seq", "schema_version", "database", "table", "table_id", "row_key", "op", "before", "after", "ddl")
_MARKS = ("commit_ts", "seq", "schema_version", "row_key", "op")
_MOST_KEYS = 1000
_SIDE = "_tidb_side"
_ANCHORS = "with_anchors (--with-anchors) takes the rows of TRUNCATE, DROP or EXCHANGE PARTITION from the tables before the span"


class LakeUndo:
    """The inverse of a span's changes. Nothing is changed before ``apply``."""

    def __init__(self, spark: SparkSession, plan: UndoPlan) -> None:
        self._spark, self.plan = spark, plan

    def __repr__(self) -> str:
        return self.plan.summary()

    def sql(self, flavour: str = Flavour.TIDB) -> list[str]:
        """The statements, for a server of this product: ``tidb``, ``mysql`` or ``mariadb``."""
        return list(self.plan.sql(Flavour(flavour)))

    def rows(self) -> DataFrame:
        """The changes in their order: ``place``, ``database``, ``table``, ``op``, ``expected``, ``restored``, ``sql``."""
        return self._spark.createDataFrame(self.plan.rows()).orderBy("place")

    def apply(self, target: TargetConfig) -> Undone:
        """Execute it at a MySQL-protocol server (docs/lake.md, Undo). ``ApplyError``: the server refuses it; nothing is changed."""
        return undone(self.plan, target)


class Lake(LakeNow):
    """A lake, at the newest moment that it had when this was made, or ``refresh`` was called: ``Lake(spark, "/data/lake")``."""

    def refresh(self) -> None:
        """Go to the moment that is the newest now. DataFrames that were made before stay at theirs."""
        super().refresh()
        self.__dict__.pop("_past", None)

    @cached_property
    def _past(self) -> PastChanges:
        return PastChanges(self._lake.directory, self._lake.published, self._lake.commit_ts)

    def transaction(self, commit_ts: int) -> DataFrame:
        """All changes of one transaction, in order. ``ConfigError``: the lake begins later."""
        self._past.require_known(int(commit_ts) - 1)
        return self.changes().where(f"commit_ts = {int(commit_ts)}").orderBy("seq", "schema_version")

    def life(self, name: str, /, **values: Any) -> DataFrame:
        """The changes of the rows that ever had these values, in order, and the DDLs of their table meanwhile.

        A row goes on under another key, and under other names of its table and columns. ``others`` says how many other rows of which tables the transaction
        changed. Values are compared by their texts, as ``id=42`` or ``day="2026-11-20"``, but 1.5 is 1.50. A row's key is found in the ledger whatever its table was called.

        Raises:
            ConfigError: the table has no such column now, or so many rows have these values that more columns are needed.
        """
        past, ids = self._past, self._past.ids_of(name)
        found = self.changes().where(F.col("table_id").isin(sorted(ids))).where(self._condition(name, ids, values))
        keys = [bytes(row[0]) for row in found.select("row_key").distinct().limit(_MOST_KEYS + 1).collect()]
        if len(keys) > _MOST_KEYS:
            raise ConfigError(f"more than {_MOST_KEYS} rows of {name} had {values}: give more columns, as those of its key")

        def changes_of(keys: Collection[bytes]) -> list[RowChange]:
            return _row_changes(past.changes(0, self._lake.commit_ts, ids, _MARKS, among("row_key", keys)))

        def updates_of(times: Collection[int]) -> list[KeyUpdate]:
            rows = past.changes(min(times) - 1, max(times), ids, where=among("commit_ts", times))
            changes = _row_changes(rows)
            return [(changes[at], changes[at + 1]) for at in key_updates(rows, past.schema).tolist()]

        places = life(keys, changes_of, updates_of)
        times = sorted({ts for ts, _ in places}) or [0]
        whole = past.changes(times[0] - 1, times[-1], None, _LIFE, among("commit_ts", times))
        changed: dict[int, Counter[str]] = {ts: Counter() for ts in times}
        for ts, database, table in _tuples(whole, "commit_ts", "database", "table"):
            changed[ts][f"{database}.{table}"] += 1
        mine = [(ts, seq) in places and table_id in ids for ts, seq, table_id in _tuples(whole, "commit_ts", "seq", "table_id")]
        rows = pa.concat_tables([whole.filter(pa.array(mine, pa.bool_())), past.ddl_rows(times[0], times[-1], ids, _LIFE)]).sort_by(ORDER)
        others = [
            [*(changed[ts] - Counter([f"{database}.{table}"])).items()] if op != "ddl" else []
            for ts, database, table, op in _tuples(rows, "commit_ts", "database", "table", "op")
        ]
        cells = {name: laid_out(rows[name].combine_chunks(), VARIANT) for name in _LIFE if name not in ("row_key", "table_id")}
        return self._spark.createDataFrame(pa.table({**cells, "others": pa.array(others, pa.map_(pa.string(), pa.int64()))}))

    def history(self, name: str) -> DataFrame:
        """Each state of each row of the table (slowly changing dimension, type 2): its columns, ``valid_from``, ``valid_to``, ``current``.

        The columns are those of now. ``valid_from`` is NULL where the row was there before the lake, or ``begin_ts``. TRUNCATE ends all rows.

        Raises:
            ConfigError: there is no such table now, or rows of it went or came without row changes.
        """
        past, place = self._past, self._lake.published.table_at(name, self._lake.commit_ts)
        ids, schema = past.ids_of(name), past.schema
        target = schema.table_of(place.table_id, past.version)
        if jobs := past.unfollowed(ids):
            raise ConfigError(f"{name} has no history: {schema.in_words(jobs[0])} took or gave rows without row changes")
        mirror = self._mirror(place, target.info)
        marks: Any = StructType.fromDDL(", ".join(f"{mark} {kind}" for mark, kind in HISTORY_MARKS.items()))
        wanted = StructType([*marks, *(mirror.schema[c.name] for c in target.info.target_columns())])
        small = schema.only(ids)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = list(batches)
            if rows:
                yield from typed_history(pa.Table.from_batches(rows), small, target).to_batches()

        changes = self.changes().where(F.col("table_id").isin(sorted(ids)) & (F.col("op") != "ddl")).select(*NET_COLUMNS)
        states = changes.repartition("row_key").mapInArrow(run, wanted)
        each = Window.partitionBy("chain", "row_key").orderBy("commit_ts", "seq")
        at = F.timestamp_millis(F.shiftright("commit_ts", 18))
        columns = [quote_name(c.name) for c in target.info.target_columns()]
        ended = states.withColumns(
            {"valid_from": F.when(F.col("commit_ts") > 0, at), "valid_to": F.coalesce(F.lead(at).over(each), "ends")}
        )
        rows = ended.where("there").select(*columns, "valid_from", "valid_to")
        if ids & schema.loaded:
            # Rows that never changed are only in the mirror.
            names, hidden = identity(target.info), {ROWID: F.conv(F.hex("row_key"), 16, 10).cast("bigint"), HANDLE: F.col("row_key")}
            known = states.where("there").select(*(hidden.get(n, F.col(quote_name(n))).alias(n) for n in names)).distinct()
            never = mirror.join(known, list(names), "left_anti").select(*columns)
            nothing = F.lit(None).cast("timestamp")
            rows = rows.unionByName(never.withColumns({"valid_from": nothing, "valid_to": nothing}))
        return rows.withColumn("current", F.col("valid_to").isNull())

    def rebuilt(self, name: str) -> DataFrame:
        """The table from its first load and the ledger alone: what ``table`` is from the mirror. ``ConfigError``: as ``history``.

        Rows that the ledger shows no change of, because the table was loaded or is older than ``begin_ts``, are the mirror's.
        """
        return self.history(name).where("current").drop("valid_from", "valid_to", "current")

    def rebuilt_differs(self, name: str) -> tuple[int, int, int]:
        """The number of rows that ``rebuilt`` has, of those that ``table`` lacks, and of others that ``table`` has. ``ConfigError``: as ``history``."""
        made, there = (_as_texts(rows) for rows in (self.rebuilt(name), self.table(name)))
        sides = made.select("*", F.lit(1).alias(_SIDE)).unionByName(there.select("*", F.lit(-1).alias(_SIDE)))
        rows = sides.groupBy(*map(quote_name, made.columns)).agg(
            F.sum(_SIDE).alias("more"), F.sum(F.expr(f"int({_SIDE} > 0)")).alias("made")
        )
        (found,) = rows.selectExpr("sum(made)", "sum(greatest(more, 0))", "sum(greatest(-more, 0))").collect()
        return found[0] or 0, found[1] or 0, found[2] or 0

    def diff(self, name: When, begin: When, end: When | None = None) -> DataFrame:
        """The differences between two moments: ``diff("shop.orders", t1, t2)`` row by row, ``diff(t1, t2)`` in numbers, table by table.

        Of a row: ``op`` (insert, delete, update), ``columns`` that changed, ``before`` and ``after``, under the columns at the later moment. The numbers of a
        table are NULL if rows of it went or came without row changes in between.

        Raises:
            ConfigError: they did so in the one table.
        """
        if end is None:
            return self._counts(*self._span((name, begin)))
        after_ts, upto_ts = self._span((begin, end))
        past, ids = self._past, self._past.ids_of(str(name))
        past.require_same_tables(after_ts, [str(name)])
        past.require_images(after_ts, upto_ts, ids)
        return self._spark.createDataFrame(
            differences(net_rows(past.changes(after_ts, upto_ts, ids), past.schema, past.schema.version_at(upto_ts)))
        )

    def _counts(self, after_ts: int, upto_ts: int) -> DataFrame:
        past, version = self._past, self._past.schema.version_at(upto_ts)
        jobs = past.schema.rowless(past.jobs(after_ts, upto_ts), past.schema.version_at(after_ts), None)
        touched = {(i, int(job.version) - 1) for job in jobs for i in {job.table_id, *past.schema.history.tables_of_job(job)}}
        unknown = {past.schema.end_of(*one, version)[0] for one in touched}
        rows: dict[tuple[str, str], tuple[int | None, ...]] = {}
        nets = net_rows(past.changes(after_ts, upto_ts, None), past.schema, version)
        rows |= {(net.table.schema, net.table.name): net.counts for net in nets if len(net)}
        tables = (past.schema.last_of(i, version) for i in unknown if i in past.schema.history.tracks)
        rows |= {(table.schema, table.name): (None, None, None) for table in tables}
        schema = "database string, table string, inserted bigint, deleted bigint, updated bigint"
        return self._spark.createDataFrame([(*name, *counts) for name, counts in sorted(rows.items())], schema)

    def undo(self, span: int | tuple[When, When], tables: Sequence[str] = (), where: str = "", *, with_anchors: bool = False) -> LakeUndo:
        """The inverse of a transaction (its commit_ts), or of all changes after one moment up to another.

        Args:
            span: which changes.
            tables: only of these; none: of all.
            where: only of rows for which this condition in Spark's SQL holds, over the columns of the row before the span, or of a row that came: as it is.
            with_anchors: tables that TRUNCATE, DROP PARTITION or EXCHANGE PARTITION took rows of are compared, before and behind the span.

        Raises:
            ConfigError: rows went or came without row changes (TRUNCATE, DROP PARTITION), or a table is gone now, or not kept.
        """
        after_ts, upto_ts = self._span(span)
        past = self._past
        ids = past.ids_of(*tables) or None
        taking = past.taking(after_ts, upto_ts, ids) if with_anchors else []
        todo = WITHOUT_DDL if with_anchors else f"{WITHOUT_DDL}; {_ANCHORS}"
        past.require_images(after_ts, upto_ts, ids, {job.id for job in taking}, todo)
        changes, schema, found = past.changes(after_ts, upto_ts, ids), past.schema, list[NetRows]()
        for before, after in past.around(after_ts, upto_ts, ids, taking):
            changes = changes.filter(~pc.field("table_id").isin(schema.former_ids(after.table_id)))
            target = schema.left_at(schema.end_of(after.table_id, int(after.version), past.version), past.version)
            now = self._rows_at(upto_ts, after, target)
            found.append(compared(target, self._rows_at(after_ts, before, target) if before is not None else now.slice(0, 0), now))
        nets = [net for net in (*found, *net_rows(changes, schema, past.version, chained=True)) if len(net)]
        for net in nets:
            if (gone := schema.end_of(net.table.table_id, int(net.table.version), past.version)[1]) is not None:
                raise ConfigError(
                    f"{net.table.schema}.{net.table.name} is gone since {schema.in_words(gone)}: its rows of then are in "
                    f'lake.at({upto_ts}).table("{net.table.schema}.{net.table.name}"); name other tables to undo their changes'
                )
        past.require_same_tables(after_ts, tables, (net.table.table_id for net in nets))
        if where:
            nets = [chosen for net in nets if len(chosen := net.only(self._where(net, where)))]
        return LakeUndo(self._spark, UndoPlan(after_ts, upto_ts, nets))

    def _rows_at(self, ts: int, table: TableAt, target: TableAt) -> pa.RecordBatch:
        """Images of all rows that a table had, under the columns of ``target``."""
        place = self._lake.published.at(ts).get(table.table_id)
        if place is None:
            raise ConfigError(f"the lake has no rows of {table.schema}.{table.name} at {as_time(ts)} ({ts}); name other tables")
        rows = self.at(ts).table(f"{quote_name(place.database)}.{quote_name(place.table)}")
        return carried(_images(rows, table.info.target_columns()), table, self._past.schema, int(target.version))

    def _span(self, span: int | tuple[When, When]) -> tuple[int, int]:
        after_ts, upto_ts = map(self._lake.ts_of, span) if isinstance(span, tuple) else (int(span) - 1, int(span))
        if not after_ts < upto_ts:
            raise ConfigError(f"the span ends at {as_time(upto_ts)}, before it begins at {as_time(after_ts)}")
        self._past.require_known(after_ts)
        self._lake.require_read(upto_ts, f"changes up to {as_time(upto_ts)} are")
        return after_ts, upto_ts

    def _where(self, net: NetRows, where: str) -> Ints:
        count, names = len(net), [c.name for c in net.table.info.target_columns()]
        images = pa.concat_batches([net.was, net.now]).take(pa.array(np.where(net.was_there, 0, count) + np.arange(count)))
        place = "_place"
        cells = [cells.values for _, cells in columns_of(net.table.info, images)]
        rows = pa.Table.from_arrays([*cells, pa.array(np.arange(count))], names=[*names, place])
        try:
            return np.array([row[0] for row in self._spark.createDataFrame(rows).where(where).select(place).collect()], np.int64)
        except AnalysisException as error:
            raise ConfigError(
                f"where = {where!r} does not fit {net.table.schema}.{net.table.name}: {str(error).splitlines()[0]}"
            ) from error

    def _condition(self, name: str, ids: set[int], values: dict[str, Any]) -> Any:
        """The condition that an image has these values, under the names that the columns had then."""
        if not values:
            raise ConfigError("name the row: life needs a column and its value, as id=42")
        past, place = self._past, self._lake.published.called(name, self._lake.commit_ts)
        columns = {c.name.lower(): c for c in past.schema.last_of(place.table_id, past.version).info.target_columns()}
        if unknown := [name for name in values if name.lower() not in columns]:
            raise ConfigError(f"the table has no column {unknown[0]}; its columns are {', '.join(c.name for c in columns.values())}")
        asked = {columns[name.lower()].id: (_compared_as(columns[name.lower()]), value) for name, value in values.items()}
        found = F.lit(False)
        for after_ts, upto_ts, called in past.schema.names_of(asked, ids):
            for image in ("before", "after"):
                one = (F.col("commit_ts") > after_ts) & (F.col("commit_ts") <= upto_ts)
                for column, (kind, value) in asked.items():
                    path = f"$['{called[column]}']" if "'" not in called[column] else f'$["{called[column]}"]'
                    one = one & (F.try_variant_get(image, path, kind) == F.lit(_text(value)).try_cast(kind))
                found = found | one
        return found


def _images(rows: DataFrame, columns: Sequence[ColumnInfo]) -> pa.RecordBatch:
    """Rows of a mirror as decoded images. Spark gives Arrow no VARIANT that is NULL."""
    found = zip(columns, (cells.combine_chunks() for cells in _as_texts(rows).toArrow().columns), strict=True)
    cells = [with_equal_documents(c, v) if kind_of(c) is CellKind.JSON else image_cells(c, v.cast(type_of(c))) for c, v in found]
    return pa.RecordBatch.from_arrays(cells, schema=image_schema(columns))


def _tuples(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _row_changes(rows: pa.Table) -> list[RowChange]:
    return [RowChange((ts, seq), key, op) for ts, seq, key, op in _tuples(rows, "commit_ts", "seq", "row_key", "op")]


def _compared_as(column: ColumnInfo) -> str:
    """The type of Spark in which values of a column are equal: 1.5 and 1.50 have two texts."""
    kind = type_of(column)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return {pa.float32(): "float", pa.float64(): "double"}.get(kind, "string")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _as_texts(rows: DataFrame) -> DataFrame:
    """Rows that can be compared: a VARIANT cannot."""
    json = {f.name for f in rows.schema if isinstance(f.dataType, VariantType)}
    return rows.select([F.to_json(quote_name(n)).alias(n) if n in json else F.col(quote_name(n)) for n in rows.columns])
