"""The Arrow schema of every stage that crosses a process boundary: raw, transaction, events.

``RAW``
    The rows of the source ``tidb_binlog``. *Sorted* delivery: one row per complete Commit binlog (DML and DDL, no fakes); ``payload`` holds
    prewrite_value or ddl_query. *Raw* delivery: one row per Prewrite, Commit and Rollback, in log order.
    Both contain control rows, with a ``control`` and no ``tp``:

    * RESOLVED, the punctuation: ``start_ts`` = resolved_ts of the batch's start offset (exclusive), ``commit_ts`` = resolved_ts of its end
      offset (inclusive; equal to start_ts if nothing is released). Sorted delivery has one per batch, raw delivery one per
      bucket from every partition.
    * LOST: the span (start_ts, commit_ts] is lost. ``payload`` says how.
``PACKED``
    RAW with the source option ``packed``: a value holds some megabytes of rows of one bucket (``schemas.packed``). One row of a batch has
    an ``event_time``: the physical time up to which every Pump has delivered (``clock_ts`` of the offset). Other rows have none, because Spark may
    drop a row as late.
``TRANSACTION``
    Complete transactions and punctuation: what pairing emits. RAW of sorted delivery is reduced to this.
``TRANSACTIONS``
    Many transactions per value: what the source or pairing passes to the sink.
``ROW_EVENT``, ``DDL_EVENT``, ``CONTROL``
    What ``schemas.explode`` makes of TRANSACTION: row changes, DDLs, control rows. Needs no schema history.
``ROW_SUMMARY``
    The tables and schema versions of the row changes in one Arrow batch, with numbers and sizes.

Promises: does not import pyspark. ``ddl_of`` returns the same schema as Spark DDL text.
"""

import pyarrow as pa

RAW = pa.schema(
    [
        pa.field("pump", pa.string(), nullable=False),
        pa.field("tp", pa.int32()),
        pa.field("control", pa.int8()),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("first_seq", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""``tp``: ``events.BinlogType``, null on control rows; ``control``: ``events.ControlType``, null on records.
``first_seq``: for a piece of a huge binlog, the ``seq`` of its first row event (``schemas.pieces``); null for a whole binlog.
``bucket``: pairing bucket of start_ts. ``event_time``: physical part of commit_ts, null on Prewrites; on control rows that of the batch's
clock_ts, or null. ``payload`` of a punctuation: null, or the ts as text up to which pairing leaves out what has committed."""

PACKED = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("rows", pa.binary(), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""``event_time`` is set on one row per raw batch, whose ``rows`` holds no records: the time up to which every Pump has delivered a fake
binlog or Commit. The watermark is its maximum, so a silent Pump holds it back. Null on all others: Spark never drops those as late."""

TRANSACTION = pa.schema(
    [
        pa.field("control", pa.int8()),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("first_seq", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""``control`` null: a complete Commit; ``payload`` = the whole ``Binlog`` message, or a piece of one as in RAW. Else a control row, as in
RAW."""

TRANSACTIONS = pa.schema([pa.field("transactions", pa.binary(), nullable=False)])
"""Values of ``schemas.packed``; each has at least the columns of TRANSACTION. An empty one: the rest of its Spark partition, see ``COLLECTS``."""

COLLECTS = "tidb_binlog.collects"
"""Local property of a Spark job: the bytes of TRANSACTIONS that it takes of each Spark partition at most; absent: all. Values beyond become one empty value."""

ROW_EVENT = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("row", pa.binary(), nullable=False),
        pa.field("start_ts", pa.int64()),
    ]
)
"""``seq``: 0-based position of the row change in its transaction, in execution order. ``op``: ``events.Op``.
``row``: INSERT: handle datums then row datums. UPDATE: old row then new row. DELETE: old row (rows.md 1). ``start_ts``: of the transaction; null where
it is unknown."""

DDL_EVENT = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("job_id", pa.int64(), nullable=False),
        pa.field("schema_state", pa.int64(), nullable=False),
        pa.field("query", pa.binary(), nullable=False),
    ]
)
"""A DDL binlog: ``ddl_job_id``, ``ddl_schema_state`` and ``ddl_query`` of the ``Binlog`` message (wire.md 2.1)."""

CONTROL = pa.schema(
    [
        pa.field("control", pa.int8(), nullable=False),
        pa.field("after_ts", pa.int64(), nullable=False),
        pa.field("upto_ts", pa.int64(), nullable=False),
        pa.field("text", pa.binary()),
    ]
)
"""``control``: ``events.ControlType``. (after_ts, upto_ts] is the batch's span of resolved_ts, or the span that is lost, of which ``text``
says how."""

ROW_SUMMARY = pa.schema(
    [
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("first_ts", pa.int64(), nullable=False),
        pa.field("last_ts", pa.int64(), nullable=False),
        pa.field("events", pa.int64(), nullable=False),
        pa.field("transactions", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
"""One row per table and schema version. ``first_ts``, ``last_ts``: commit_ts. ``transactions``: those whose first row change is among
these, so that each transaction is counted once over all summaries. ``bytes``: of the row images."""

_SPARK_TYPES = {
    pa.string(): "STRING",
    pa.int8(): "TINYINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.binary(): "BINARY",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


def ddl_of(schema: pa.Schema) -> str:
    """``schema`` as a Spark DDL string."""
    return ", ".join(f"`{f.name}` {_SPARK_TYPES[f.type]}" + ("" if f.nullable else " NOT NULL") for f in schema)
