"""Evaluates conditions for rows (``where`` of ``[[spark.route]]``) in Spark: which images of a step they hide. [spark]

Promises: a condition sees the columns of the upstream's table with SQL's types: DECIMAL as decimal (above 38 digits as double), DATE and DATETIME as
date and timestamp_ntz (TIMESTAMP in UTC; zero dates are NULL), ENUM and SET as text, text as string, JSON and TIME as string, BIT and unsigned BIGINT as
decimal(20). NULL hides the row, as in SQL. The same rows always give the same answer: a condition that may change between two evaluations is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.schemas import decoder
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, image_schema, kind_of
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.engine.batch import rows_between
from pyspark_tidb_binlog.sinks.engine.fold import HIDDEN, HiddenRows
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, Span, unpack
from pyspark_tidb_binlog.sinks.engine.spark_jvm import may_change
from pyspark_tidb_binlog.sinks.routing.replicated import names_column

_IDS = tuple(f"_tidb_binlog_{name}" for name in HIDDEN.names)
_COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)
_MOMENT = re.compile(r"\b(?:date|time|timestamp\w*)\s*r?['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Literals that Spark reads as the time of the query."""
_ROWS = 16_384
"""Row events per Arrow batch that goes to Spark."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The rows of one table that are replicated."""

    table: TableAt
    """Upstream."""
    where: str


Conditions = Mapping[int, Condition]
"""By table id."""


def require(spark: SparkSession, condition: Condition) -> None:
    """The condition can be evaluated.

    Raises:
        ConfigError: it cannot, or may give another answer the next time.
    """
    what = f"spark.route: where of {condition.table.schema}.{condition.table.name}, {condition.where!r}"
    frame = spark.createDataFrame(_typed_images(condition.table, ROW_EVENT.empty_table()))
    try:
        hidden = _hidden_of(frame, condition)
        changing = may_change(spark, hidden) or _MOMENT.search(_COMMENT.sub(" ", condition.where)) is not None
    except PySparkException as error:
        raise ConfigError(
            f"{what}, is not valid for the table at schema version {condition.table.version}: {_first_line(error)}"
        ) from error
    if changing:
        raise ConfigError(f"{what}, may give another answer when a batch is applied again. Compare columns with constants only")


def require_values(condition: Condition) -> None:
    """The rows have what the condition asks for.

    Raises:
        ApplyError: it names a column that is being dropped: rows that change meanwhile lack it, so they would be taken for hidden.
    """
    table, where = condition.table, condition.where
    lost = next((c.name for c in table.info.public_columns() if c.id in table.leaving and names_column(where, c.name)), "")
    if lost:
        raise ApplyError(
            f"spark.route: where of {table.schema}.{table.name}, {where!r}, names column {lost}, which a running DROP COLUMN takes away: rows of this time "
            "no longer have it. Write the condition without that column, and start again"
        )


def hidden_rows(spark: SparkSession, rows: pa.Table, conditions: Conditions) -> HiddenRows:
    """The hidden images of ``rows`` (``ROW_EVENT``), which the driver holds; runs a Spark job per table with rows."""
    tables = [HIDDEN.empty_table()]
    for table_id, condition in conditions.items():
        here = rows.filter(pc.equal(rows.column("table_id"), table_id))
        if here.num_rows:
            images = _typed_images(condition.table, here)
            tables.append(_collected(spark.createDataFrame(images), condition))
    return HiddenRows.of(pa.concat_tables(tables).combine_chunks())


def hidden_places(spark: SparkSession, cells: pa.Table, condition: Condition) -> frozenset[int]:
    """The numbers of the rows that ``condition`` hides; ``cells``: the columns of ``image_schema``. Runs a Spark job."""
    numbers = pa.array(np.arange(cells.num_rows))
    zeros = pa.array(np.zeros(cells.num_rows, np.int32))
    columns = condition.table.info.target_columns()
    typed = [_for_spark(c, cells.column(c.name).combine_chunks()) for c in columns]
    images = pa.Table.from_arrays([numbers, zeros, zeros, *typed], names=[*_IDS, *image_schema(columns).names])
    return frozenset(_collected(spark.createDataFrame(images), condition).column("commit_ts").to_pylist())


def hidden_events(events: KeyedEvents, span: Span, conditions: Conditions) -> HiddenRows:
    """The hidden images of the row changes in ``span``, which the executors hold; runs a Spark job per table."""
    tables = [HIDDEN.empty_table()]
    for table_id, condition in conditions.items():
        table, schema = condition.table, _typed_images(condition.table, ROW_EVENT.empty_table()).schema

        def run(batches: Iterator[pa.RecordBatch], table_id: int = table_id, table: TableAt = table) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows = rows_between(unpack([batch], ROW_EVENT), *span)
                rows = rows.filter(pc.equal(rows.column("table_id"), table_id))
                for begin in range(0, rows.num_rows, _ROWS):
                    yield from _typed_images(table, rows.slice(begin, _ROWS)).to_batches()

        frame = events.overlapping(span).mapInArrow(run, events.frame.sparkSession.createDataFrame(schema.empty_table()).schema)
        tables.append(_collected(frame, condition))
    return HiddenRows.of(pa.concat_tables(tables).combine_chunks())


def _hidden_of(images: DataFrame, condition: Condition) -> DataFrame:
    columns = [f"{_cast(c)} AS {_quoted(c.name)}" for c in condition.table.info.target_columns()]
    typed = images.selectExpr(*_IDS, *columns)
    return typed.filter(~F.coalesce(F.expr(condition.where), F.lit(False))).selectExpr(
        *(f"{name} AS {short}" for name, short in zip(_IDS, HIDDEN.names, strict=True))
    )


def _collected(images: DataFrame, condition: Condition) -> pa.Table:
    try:
        return _hidden_of(images, condition).toArrow().cast(HIDDEN)
    except PySparkException as error:
        table = condition.table
        raise ApplyError(
            f"spark.route: where of {table.schema}.{table.name}, {condition.where!r}, cannot be evaluated: {_first_line(error)}. Correct it and start again: "
            "functions that begin with try_ give NULL instead of an error"
        ) from error


def _typed_images(table: TableAt, rows: pa.Table) -> pa.Table:
    """The images before and after ``rows``, all of ``table``, with what says of which event they are; types that Spark has."""
    ops, raw = rows.column("op").to_numpy(), rows.column("row").combine_chunks()
    versions = rows.column("schema_version").to_numpy()
    halves = []
    for half, kinds, decode in ((0, (Op.UPDATE, Op.DELETE), decoder.old_images), (1, (Op.INSERT, Op.UPDATE), decoder.new_images)):
        places = np.flatnonzero(np.isin(ops, kinds))
        chosen = pa.array(places)
        images = decode(table, ops[places], raw.take(chosen), versions[places])
        ids = [rows.column("commit_ts").take(chosen), rows.column("seq").take(chosen), pa.array(np.full(len(places), half, np.int32))]
        cells = [_for_spark(c, images.column(c.name)) for c in table.info.target_columns()]
        halves.append(pa.Table.from_arrays([*ids, *cells], names=[*_IDS, *image_schema(table.info.target_columns()).names]))
    return pa.concat_tables(halves)


def _for_spark(column: ColumnInfo, values: pa.Array) -> pa.Array:
    if column.tp in (ColumnType.ENUM, ColumnType.SET):
        encoded = pc.dictionary_encode(values)
        words = [_words(column, number) for number in encoded.dictionary.to_pylist()]
        return pa.array(words, pa.string()).take(encoded.indices)
    return pc.cast(values, pa.decimal128(20, 0)) if pa.types.is_uint64(values.type) else values


def _words(column: ColumnInfo, number: int) -> str:
    if column.tp == ColumnType.ENUM:
        return column.elems[number - 1] if 0 < number <= len(column.elems) else ""
    return ",".join(word for place, word in enumerate(column.elems) if number >> place & 1)


def _cast(column: ColumnInfo) -> str:
    name, kind = _quoted(column.name), kind_of(column)
    if kind is CellKind.DECIMAL:
        return (
            f"try_cast({name} AS DECIMAL({column.flen}, {max(column.decimal, 0)}))"
            if 0 < column.flen <= 38
            else f"try_cast({name} AS DOUBLE)"
        )
    if kind is CellKind.DATE:
        return f"try_cast({name} AS DATE)"
    if kind is CellKind.DATETIME:
        return f"try_cast({name} AS TIMESTAMP_NTZ)"
    return f"CAST({name} AS STRING)" if kind is CellKind.BYTES and not column.is_binary else name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _first_line(error: PySparkException) -> str:
    return str(error).strip().splitlines()[0]
