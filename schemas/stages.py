"""The Arrow schema of every stage that crosses a process boundary: raw, transaction, row event.

Promises: does not import pyspark; ``ddl_of`` returns the same schema as Spark DDL text.

``RAW``          what the source ``tidb_binlog`` emits. *Sorted* delivery: one row per complete Commit binlog
                 (DML and DDL; no fakes), ``payload`` holding prewrite_value or ddl_query. *Raw* delivery: one row per bare
                 Prewrite, Commit and Rollback in log order. Both contain control rows, the punctuation: ``tp = RESOLVED``,
                 ``start_ts`` = resolved_ts of the batch's start offset (exclusive), ``commit_ts`` = resolved_ts of its end
                 offset (inclusive; equal to start_ts in a raw batch that releases nothing), null payload. Sorted
                 delivery has one control row per batch, raw delivery one per bucket from every partition.
``PACKED``       RAW with the source option ``packed``: rows of one bucket, some megabytes of them per value (``schemas.packed``).
``TRANSACTION``  what pairing emits, and what RAW of sorted delivery is reduced to: complete transactions and punctuation.
``TRANSACTIONS`` many transactions per value: what the source or pairing passes to the sink.
``ROW_EVENT``    one row per row change, DDL or punctuation, made by ``schemas.explode``; needs no schema history.
"""

import pyarrow as pa

RAW = pa.schema(
    [
        pa.field("pump", pa.string(), nullable=False),
        pa.field("tp", pa.int32(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("first_seq", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""``first_seq``: for a piece of a huge binlog, the ``seq`` of its first row event (``schemas.pieces``); null for a whole binlog.
``bucket``: pairing bucket of start_ts. ``event_time``: physical part of commit_ts, null on Prewrites; on control rows that of the batch's
clock_ts, or null."""

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
        pa.field("tp", pa.int32(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("first_seq", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""``tp`` is COMMIT (payload = complete ``Binlog`` message, or a piece of one as in RAW), RESOLVED (punctuation, as in RAW) or
LOST (``binlog_source.source.framing``)."""

TRANSACTIONS = pa.schema([pa.field("transactions", pa.binary(), nullable=False)])
"""Values of ``schemas.packed``; each has at least the columns of TRANSACTION."""

ROW_EVENT = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("row", pa.binary()),
    ]
)
"""``seq``: 0-based position of the event in its transaction, in execution order. ``op``: ``events.Op``.

INSERT: ``row`` = handle datums then row datums. UPDATE: old row then new row. DELETE: old row (rows.md 1).
DDL: ``row`` = ddl_query, ``table_id`` = ddl_job_id, ``schema_version`` = ddl_schema_state, ``seq`` = 0.
RESOLVED: ``commit_ts`` = resolved_ts of the batch (inclusive), ``schema_version`` = resolved_ts before it (exclusive).
LOST: ``row`` = description of what was lost; ``schema_version`` and ``commit_ts`` bound the span.
"""

_SPARK_TYPES = {
    pa.string(): "STRING",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.binary(): "BINARY",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


def ddl_of(schema: pa.Schema) -> str:
    """``schema`` as a Spark DDL string."""
    return ", ".join(f"`{f.name}` {_SPARK_TYPES[f.type]}" + ("" if f.nullable else " NOT NULL") for f in schema)
