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
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, purge_text, refuse_damage
from pyspark_tidb_binlog.binlog_source.source.read_notes import ReadNote, noted
from pyspark_tidb_binlog.binlog_source.source.span_read import ReadTerms, read_raw, read_recorded, read_sorted
from pyspark_tidb_binlog.binlog_source.wire.damage import Damage
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import anew_text, refuse_replaced
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RECORDED
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, PumpUnavailable
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
    pump, losses = part.endpoint.pump, _Losses(part, config.fail_on_data_loss)
    with noted(extra.stop_file, pump) as note:
        runs = _records(part, _terms(part, config, extra, losses, note))
        for records in map(joined, gathered(runs, most_rows=_BATCH_ROWS)):
            failpoints.point("source-read")
            for run in in_pieces(records):
                yield raw_rows(run, pump, part.bucket_ids) if part.delivery is Delivery.RAW else sorted_rows(run, pump)
    yield from losses.rows
    if part.bucket_ids:
        span_after_ts = part.after_ts if part.span_after_ts is None else part.span_after_ts
        left_out = part.after_ts if part.delivery is Delivery.RAW and part.after_ts > span_after_ts else 0
        yield punctuation(pump, span_after_ts, part.upto_ts, part.bucket_ids, part.clock_ts, left_out)


class _Losses:
    """The binlogs that a Pump has lost in a partition's span: an error, or LOST rows."""

    def __init__(self, part: BinlogPartition, fail_on_data_loss: bool) -> None:
        self._part, self._fail = part, fail_on_data_loss
        self._pump = part.endpoint.pump
        self.rows: list[pa.RecordBatch] = []
        if part.anew:
            self._lost(part.after_ts, part.upto_ts, anew_text(self._pump, part.after_ts))
        for pump, upto_ts in part.left:
            self.rows.append(loss(pump, part.after_ts, upto_ts, left_out_text(pump, part.after_ts)))

    def _lost(self, after_ts: int, upto_ts: int, text: str) -> None:
        self.rows.append(loss(self._pump, after_ts, upto_ts, text))

    def on_purged(self, gc_ts: int) -> None:
        """The Pump has collected binlogs up to ``gc_ts``."""
        text = purge_text(self._pump, gc_ts, self._part.after_ts)
        if self._fail:
            raise BinlogPurged(text + ": load a fresh snapshot of the upstream, or set failOnDataLoss=false to continue with a gap")
        _log.warning("%s: the stream continues with a gap, because failOnDataLoss=false", text)
        self._lost(self._part.after_ts, gc_ts, text)

    def on_damage(self, damage: Damage, text: str) -> None:
        """A part of the Pump's log cannot be read."""
        if self._fail:
            refuse_damage(damage, text)
        _log.warning("%s: the stream continues without these binlogs, because failOnDataLoss=false", text)
        self._lost(damage.after_ts, damage.upto_ts or self._part.upto_ts, text)

    def on_replaced(self, text: str) -> None:
        """The Pump's log is not the one that the batch was planned with."""
        if self._fail:
            refuse_replaced(text)
        _log.warning("%s: the stream continues with what the new log holds, because failOnDataLoss=false", text)
        self._lost(self._part.after_ts, self._part.upto_ts, text)


def _terms(part: BinlogPartition, config: SourceConfig, extra: StreamOptions, losses: _Losses, note: ReadNote) -> ReadTerms:
    pump = part.endpoint.pump

    def find(endpoint: Endpoint) -> Endpoint:
        try:
            with closing(discovery_of(config)) as discovery:
                return replace(endpoint, address=discovery.pumps().get(pump, endpoint.address))
        except PumpUnavailable as error:
            _log.warning("the read of Pump %s uses the Pump's last known address, because the registry does not answer: %s", pump, error)
            return endpoint

    newest_ts = max(part.newest_ts, part.upto_ts)
    return ReadTerms(extra.read_patience, losses.on_purged, find, losses.on_damage, part.seen, losses.on_replaced, note, newest_ts)


def _records(part: BinlogPartition, terms: ReadTerms) -> Iterator[Records]:
    if part.endpoint.address.startswith(RECORDED):
        return read_recorded(part.endpoint, part.after_ts, part.upto_ts)
    if part.delivery is Delivery.RAW:
        return read_raw(part.endpoint, part.begin, part.end, part.after_ts, terms)
    return read_sorted(part.endpoint, part.after_ts, part.upto_ts, terms)
