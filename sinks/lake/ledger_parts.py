"""The rows of a step that executors hold, written by them as files of the ledger. [spark]

Promises: each row change is in one file, once. A task that Spark runs again writes other files; only those of the run that counts are returned.
An executor holds some ten megabytes of decoded rows, and a row group of a file.
"""

from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT, ddl_of
from pyspark_tidb_binlog.sinks.engine.batch import rows_between, wanted, without
from pyspark_tidb_binlog.sinks.engine.keyed import KeyedEvents, unpack
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from pyspark_tidb_binlog.sinks.lake.ledger import WrittenPart, written_part
from pyspark_tidb_binlog.sinks.lake.ledger_rows import Doubled, ledger_rows

PARTS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("stats", pa.string(), nullable=False),
        pa.field("written_ms", pa.int64(), nullable=False),
    ]
)
"""Files as an executor names them."""


def row_of(part: WrittenPart) -> pa.RecordBatch:
    """A file as ``PARTS``."""
    return pa.RecordBatch.from_pylist([asdict(part)], schema=PARTS)


def parts_in(rows: pa.Table) -> list[WrittenPart]:
    """The inverse of ``row_of``."""
    return [WrittenPart(**row) for row in rows.to_pylist()]


def parts_of(events: KeyedEvents, step: RowsStep, skipped_ts: frozenset[int], lake: str) -> list[WrittenPart]:
    """The files with the rows of ``step`` but for the transactions ``skipped_ts``; runs a Spark job."""
    span, tables, gone, left_out = (step.after_ts, step.upto_ts), dict(step.tables), step.gone, step.left_out

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        doubled = Doubled()

        def changes() -> Iterator[pa.RecordBatch]:
            # Of a block at a time. All events of a row, and so both of a doubled one, are in this part.
            for block in (batch.slice(place, 1) for batch in batches for place in range(batch.num_rows)):
                rows = wanted(rows_between(unpack([block], ROW_EVENT), *span), gone, left_out)
                yield from ledger_rows(without(rows, "commit_ts", skipped_ts), tables, span[1], doubled)

        for part in written_part(lake, changes()):
            yield row_of(part)
        failpoints.point("after-part-write")

    return parts_in(events.overlapping(span).mapInArrow(run, ddl_of(PARTS)).toArrow())
