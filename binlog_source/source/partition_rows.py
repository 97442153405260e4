"""Reads a partition on an executor: a Pump's records as rows of ``stages.RAW`` or ``stages.PACKED``, then the control rows. Shell.

Promises: a partition that is read again gives the same rows. A loss on a Pump raises an error, or with ``failOnDataLoss=false`` becomes a
LOST row after the rows that exist.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of
from pyspark_tidb_binlog.binlog_source.source.collected_values import REST, CollectedValues
from pyspark_tidb_binlog.binlog_source.source.departed import left_out_text
from pyspark_tidb_binlog.binlog_source.source.framing import (
    Records,
    clock_row,
    in_pieces,
    joined,
    loss,
    packed_rows,
    packed_values,
    punctuation,
    raw_rows,
    sorted_rows,
)
from pyspark_tidb_binlog.binlog_source.source.loss import LossPolicy
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.read_notes import ReadNote, noted
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw, read_recorded, read_sorted
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import anew_text
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RECORDED
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.packed import gathered

_BATCH_ROWS = 10_000

_log = logging.getLogger(__name__)


def rows_of(partition: BinlogPartition, config: SourceConfig, extra: StreamOptions) -> Iterator[pa.RecordBatch]:
    """A partition's rows, then its control rows, as ``stages.RAW`` or ``stages.PACKED``."""
    rows = raw_rows_of(partition, config, extra)
    if not extra.packed:
        return rows
    if partition.delivery is Delivery.SORTED:
        return _collected(packed_rows(rows))
    clock = [clock_row(partition.clock_ts)] if partition.clock_ts else []
    return chain(packed_rows(rows), clock)


def _collected(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``rows`` (``stages.PACKED``), as the task's job takes them; what it does not take is not read. Pairing needs all."""
    values = CollectedValues()
    for batch in rows:
        if not values.take(batch.column("rows").nbytes):
            yield packed_values([0], [REST], [None])
            return
        yield batch


def raw_rows_of(part: BinlogPartition, config: SourceConfig, extra: StreamOptions) -> Iterator[pa.RecordBatch]:
    """A partition's rows, then its control rows, as ``stages.RAW``."""
    pump, losses = part.endpoint.pump, LossPolicy(config.fail_on_data_loss)
    with noted(extra.stop_file, pump) as note:
        runs = _records(part, _terms(part, config, extra, losses, note))
        for records in map(joined, gathered(runs, most_rows=_BATCH_ROWS)):
            failpoints.point("source-read")
            for run in in_pieces(records):
                yield raw_rows(run, pump, part.bucket_ids) if part.delivery is Delivery.RAW else sorted_rows(run, pump)
    yield from _loss_rows(part, losses)
    if part.bucket_ids:
        span_after_ts = part.after_ts if part.span_after_ts is None else part.span_after_ts
        left_out = part.after_ts if part.delivery is Delivery.RAW and part.after_ts > span_after_ts else 0
        yield punctuation(pump, span_after_ts, part.upto_ts, part.bucket_ids, part.clock_ts, left_out)


def _loss_rows(part: BinlogPartition, losses: LossPolicy) -> Iterator[pa.RecordBatch]:
    """LOST rows of what the partition's span lacks."""
    pump = part.endpoint.pump
    if part.anew:
        yield loss(pump, part.after_ts, part.upto_ts, anew_text(pump, part.after_ts))
    for left, upto_ts in part.left:
        yield loss(left, part.after_ts, upto_ts, left_out_text(left, part.after_ts))
    for span in losses.spans:
        yield loss(pump, span.after_ts, span.upto_ts or part.upto_ts, span.text)


def _terms(part: BinlogPartition, config: SourceConfig, extra: StreamOptions, losses: LossPolicy, note: ReadNote) -> ReadTerms:
    pump = part.endpoint.pump

    def find(endpoint: Endpoint) -> Endpoint:
        try:
            with closing(discovery_of(config)) as discovery:
                return replace(endpoint, address=discovery.pumps().get(pump, endpoint.address))
        except PumpUnavailable as error:
            _log.warning("the read of Pump %s uses the Pump's last known address, because the registry does not answer: %s", pump, error)
            return endpoint

    newest_ts = max(part.newest_ts, part.upto_ts)
    return ReadTerms(extra.read_patience, losses.lost, find, part.seen, note, newest_ts)


def _records(part: BinlogPartition, terms: ReadTerms) -> Iterator[Records]:
    if part.endpoint.address.startswith(RECORDED):
        return read_recorded(part.endpoint, part.after_ts, part.upto_ts)
    if part.delivery is Delivery.RAW:
        return read_raw(part.endpoint, part.begin, part.end, part.after_ts, terms)
    return read_sorted(part.endpoint, part.after_ts, part.upto_ts, terms)
