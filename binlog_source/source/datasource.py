"""The Spark source ``tidb_binlog``: ``readStream``, and batch ``read`` of a span of timestamps. Spark shell.

    spark.readStream.format("tidb_binlog").option("pumps", "host:8250,host:8250").load()
    spark.read.format("tidb_binlog").option("pumps", …).option("startingCommitTs", a).option("endingCommitTs", b).load()

Rows are ``stages.RAW``, or with option ``packed`` ``stages.PACKED``. Offsets are ``offset.BinlogOffset``. ``start`` and ``end``
determine the content of a batch (start, end], however often it is read: executors pull it from the Pumps again and cache only channels.

Stopping: while ``stopFile`` exists, ``latestOffset`` returns ``start``, no further batch begins, and the query can be
stopped while it is idle. ``query.stop()`` during a batch may end in an error raised by Spark itself.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from binlog_source.cluster.discovery import PumpDiscovery, discovery_of, patiently
from binlog_source.source.admission import Limits, TailView, holder, pending_bytes, plan_raw, plan_sorted, unread_bytes
from binlog_source.source.framing import Records, clock_row, in_pieces, joined, loss, packed_rows, punctuation, raw_rows, sorted_rows
from binlog_source.source.offset import BinlogOffset, from_json, require_advance, seen_of
from binlog_source.source.options import StreamOptions, source_of, stream_options_of
from binlog_source.source.pull import Endpoint, offers_raw, purge_text, read_raw, read_sorted, refuse_damage
from binlog_source.source.read_notes import noted
from binlog_source.source.tails import Tails
from binlog_source.wire.damage import Damage
from binlog_source.wire.fingerprint import LogFingerprint, anew_text, refuse_replaced
from binlog_source.wire.position import Position
from conf import failpoints
from conf.model import SourceConfig
from schemas.errors import BinlogPurged, ConfigError, PumpUnavailable
from schemas.events import Delivery, as_time
from schemas.stages import PACKED, RAW, ddl_of

_WAIT_SECONDS = 0.2
"""How long ``latestOffset`` waits for new steps; bounds how late a stop is noticed."""
_HELD_SECONDS = 1.0
"""After this long without progress of R a raw batch is planned anyway, so that pairing can resolve orphans."""
_QUIET_SECONDS = 0.5
_AHEAD_MS = 1000
"""How much further beyond R than ``orphanAskAfter`` each Pump may be read: timers fire only when the watermark has passed them."""
_FLUSH_ROWS, _FLUSH_BYTES = 10_000, 4 * 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass
class BinlogPartition(InputPartition):
    """One Pump's share of a batch: what to read, and which control rows to add."""

    endpoint: Endpoint
    delivery: Delivery
    after_ts: int
    upto_ts: int
    begin: Position
    end: Position
    buckets: int
    """Number of buckets for which this partition emits a control row; 0 = none."""
    clock_ts: int = 0
    """The ts to which this partition advances the query's watermark; 0 = none."""
    seen: LogFingerprint | None = None
    """What the Pump's log must contain at the batch's end; otherwise it is not the log that the batch was planned with."""
    span_from: int | None = None
    """Where the span begins for the following stages, if not at ``after_ts``: a stream from 0 on skips what the Pumps have collected."""
    anew: bool = False
    """The Pump's log was replaced before this batch: what the former log held and the stream had not read is lost."""


class BinlogDataSource(DataSource):
    """``format("tidb_binlog")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tidb_binlog"

    def schema(self) -> str:
        """``stages.RAW``, or ``stages.PACKED`` with option ``packed``."""
        return ddl_of(PACKED if stream_options_of(self.options).packed else RAW)

    def reader(self, schema: StructType) -> "BinlogReader":
        """A batch reader over (startingCommitTs, endingCommitTs]."""
        return BinlogReader(self.options)

    def streamReader(self, schema: StructType) -> "BinlogStreamReader":
        """A stream reader."""
        return BinlogStreamReader(self.options)


class BinlogReader(DataSourceReader):
    """Batch ``read``: sorted delivery of (startingCommitTs, endingCommitTs]."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._config, self._extra = source_of(options), stream_options_of(options)

    def partitions(self) -> list[BinlogPartition]:
        """One partition per Pump."""
        after_ts, upto_ts = self._config.starting_commit_ts, self._config.ending_commit_ts
        if after_ts < 0 or upto_ts <= 0:
            raise ConfigError("a batch read needs startingCommitTs (0 = the beginning) and endingCommitTs: it reads the span between them")
        if upto_ts < after_ts:
            raise ConfigError(f"endingCommitTs {upto_ts} is below startingCommitTs {after_ts}")
        with closing(discovery_of(self._config)) as discovery:
            return _sorted_partitions(_endpoints(discovery, discovery.pumps(after_ts)), after_ts, upto_ts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one Pump."""
        return _read(partition, self._config, self._extra)


class BinlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``readStream``. Spark creates it in several processes; only the one in the driver-side worker ever gets tails."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._config, self._extra = source_of(options), stream_options_of(options)
        self._discovery: PumpDiscovery | None = None
        self._tails: Tails | None = None
        self._ceiling = self._config.ending_commit_ts or None
        self._available_now = self._finite = False
        self._reported: dict[str, Any] | None = None
        self._advanced_at = 0.0
        self._troubled_since = 0.0

    def initialOffset(self) -> dict[str, Any]:
        """The stream's floor: startingCommitTs, or the current time."""
        floor = self._config.starting_commit_ts
        if floor < 0:
            floor = patiently(self._known_discovery().now, self._extra.patience)
        return BinlogOffset(resolve_delivery(self._config, self._extra.patience), floor, floor, {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxBytesPerTrigger``."""
        return ReadMaxBytes(self._config.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the stream end at the R that the Pumps have reached now; it fails if a Pump does not report how far its log goes."""
        self._available_now = self._finite = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing new."""
        before = from_json(start)
        self._require_delivery(before)
        if self._done(before):
            time.sleep(_WAIT_SECONDS / 4)
            return start
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = self._end_after(before, max_bytes)
        while end is before and self._finite and not self._done(before):
            end = self._end_after(before, max_bytes)
        if end is before:
            return start
        require_advance(before, end)
        self._advanced_at = time.monotonic()
        return end.to_json()

    def _end_after(self, before: BinlogOffset, max_bytes: int | None) -> BinlogOffset:
        """The end of the next batch; ``before`` itself while there is none."""
        try:
            tails = self._following(before)
            if self._available_now:
                self._fix_target(tails, before)
            end = self._next_offset(tails, before, max_bytes)
            if end is before and self._finite and not self._done(before):
                raise PumpUnavailable(f"the stream cannot reach ts {self._ceiling}: {_away(tails)}")
        except PumpUnavailable as error:
            self._endure(error, before)
            return before
        self._troubled_since = 0.0
        return end

    def _done(self, before: BinlogOffset) -> bool:
        """Whether the stream is complete. Trigger.AvailableNow takes an unchanged offset for the end, so it must not be returned before."""
        return self._stopping() or (self._ceiling is not None and before.resolved_ts >= self._ceiling)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The Pumps' positions, which Pump holds R back, the bytes not read and those waiting for R: shown in the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[BinlogPartition]:
        """One partition per Pump that ``end`` names and that has something to read."""
        before, after = from_json(start), from_json(end)
        if before.to_json() == after.to_json():
            return []
        self._require_delivery(after)
        require_advance(before, after)
        span_from = after.floor if before.initial else before.resolved_ts
        after_ts = max(span_from, after.gone_ts if before.initial else 0)
        discovery, patience = self._known_discovery(), self._extra.patience
        known = patiently(discovery.pumps, patience)
        missing = sorted(set(after.pumps) - set(known))
        if missing:
            raise ConfigError(
                f"the batch (ts {after_ts}, {after.resolved_ts}] reads Pump {', '.join(missing)}, which option pumps or the registry "
                "no longer names; name it again until the batch is done, or delete Spark's checkpoint directory"
            )
        owners = patiently(lambda: self._owners(discovery, after, after_ts), patience)
        endpoints = patiently(lambda: _endpoints(discovery, {pump: known[pump] for pump in owners}), patience)
        if after.delivery is Delivery.SORTED:
            made = [_seen(partition, before, after) for partition in _sorted_partitions(endpoints, after_ts, after.resolved_ts)]
        else:
            made = _raw_partitions(endpoints, before, after, after_ts, self._config.pairing_buckets)
        return [replace(partition, span_from=span_from) for partition in made]

    def _owners(self, discovery: PumpDiscovery, after: BinlogOffset, after_ts: int) -> list[str]:
        """The Pumps of ``after`` to read from, without those that went offline since: they hold nothing that is still needed."""
        wanted_from = max(after_ts, self._config.starting_commit_ts)
        there = discovery.pumps(wanted_from)
        return [pump for pump in after.pumps if pump in there] or list(after.pumps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one Pump."""
        return _read(partition, self._config, self._extra)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark has written the batch that ends at ``end`` to its commit log. Nothing is sent to the Pumps."""
        failpoints.point("after-spark-commit")

    def stop(self) -> None:
        """Stop the tails and close the discovery."""
        if self._tails is not None:
            self._tails.stop()
        if self._discovery is not None:
            self._discovery.close()

    def _stopping(self) -> bool:
        return bool(self._extra.stop_file) and os.path.exists(self._extra.stop_file)

    def _endure(self, error: PumpUnavailable, before: BinlogOffset) -> None:
        """Tolerate a registry or Pump that does not answer: R stands still, and the error is raised only when it lasts for ``patience``."""
        now = time.monotonic()
        self._troubled_since = self._troubled_since or now
        if now - self._troubled_since >= self._extra.patience:
            raise error
        _log.warning("no new batch: %s", error)
        self._reported = before.to_json() | {"registry": str(error)}
        time.sleep(_WAIT_SECONDS)

    def _known_discovery(self) -> PumpDiscovery:
        if self._discovery is None:
            self._discovery = discovery_of(self._config)
        return self._discovery

    def _require_delivery(self, offset: BinlogOffset) -> None:
        if self._config.delivery and self._config.delivery != offset.delivery:
            raise ConfigError(
                f"the checkpoint was made with delivery {offset.delivery}, option delivery says {self._config.delivery}: "
                f"set delivery={offset.delivery}, or delete Spark's checkpoint directory "
                "(the stream then resumes from the target's checkpoint)"
            )

    def _following(self, before: BinlogOffset) -> Tails:
        if self._tails is None:
            self._tails = Tails(self._config.fail_on_data_loss, self._config.max_bytes_per_trigger // 4)
            self._advanced_at = time.monotonic()
        discovery = self._known_discovery()
        self._tails.follow(_endpoints(discovery, discovery.pumps(before.resolved_ts)), before.resolved_ts, before)
        return self._tails

    def _next_offset(self, tails: Tails, before: BinlogOffset, max_bytes: int | None) -> BinlogOffset:
        """Wait for R to pass ``before``, then plan. The Pumps are listed again last, so that no new Pump is missed."""
        goes_on = tails.wait(lambda: self._worthwhile(tails, before, max_bytes), _WAIT_SECONDS)
        self._report(tails, before)
        if not goes_on:
            return before
        end = self._plan(tails, before, max_bytes)
        discovery = self._known_discovery()
        if end is before or set(discovery.pumps(before.resolved_ts)) <= set(end.pumps):
            return end
        return before

    def _plan(self, tails: Tails, before: BinlogOffset, max_bytes: int | None) -> BinlogOffset:
        with tails.changed:
            views = self._readable(tails, before)
        if views is None:
            return before
        start = self._beginning(tails, before)
        if before.delivery is Delivery.SORTED:
            end = plan_sorted(start, views, max_bytes, self._ceiling)
        else:
            ahead_ms = int(self._extra.orphan_ask_after * 1000) + _AHEAD_MS
            end = plan_raw(start, views, Limits(max_bytes, self._config.max_pending_bytes, ahead_ms), self._ceiling)
        if end is start:
            return before
        return end if start is before else replace(end, gone_ts=start.resolved_ts)

    def _beginning(self, tails: Tails, before: BinlogOffset) -> BinlogOffset:
        """Where a stream from 0 on starts: the ts from which every Pump has everything. Earlier Commits may lack a collected Prewrite."""
        gone_ts = tails.gc_ts() if before.initial and not before.floor else 0
        if self._ceiling is not None:
            gone_ts = min(gone_ts, self._ceiling)
        return replace(before, resolved_ts=gone_ts) if gone_ts else before

    def _worthwhile(self, tails: Tails, before: BinlogOffset, max_bytes: int | None) -> bool:
        views = self._readable(tails, before)
        if views is None:
            return False
        held_at = holder(views, before.delivery)
        if held_at.promise > before.resolved_ts:
            return True
        if before.delivery is Delivery.SORTED:
            return False
        if max_bytes is not None and unread_bytes(views) >= max_bytes and not self._full(views):
            return True
        orphan = bool(views[held_at.pump].steps)
        return orphan and time.monotonic() - self._advanced_at >= _HELD_SECONDS

    def _readable(self, tails: Tails, before: BinlogOffset) -> dict[str, TailView] | None:
        """The views to plan with: Trigger.AvailableNow needs all steps, otherwise Pumps that cannot be read now contribute none."""
        return tails.views(before) if self._finite else tails.readable(before)

    def _full(self, views: Mapping[str, TailView]) -> bool:
        """Whether the pairing state has reached ``maxPendingBytes``."""
        return pending_bytes(views) >= self._config.max_pending_bytes

    def _report(self, tails: Tails, before: BinlogOffset) -> None:
        with tails.changed:
            views = tails.views(before)
        unreachable = tails.unreachable()
        if not views:
            self._reported = before.to_json() | {"unreachable": unreachable}
            return
        raw, held_at = before.delivery is Delivery.RAW, holder(views, before.delivery)
        newest = {pump: _newest(view).to_json() for pump, view in views.items()}
        self._reported = {
            "pumps": newest,
            "resolved_ts": held_at.promise,
            "resolved": as_time(held_at.promise),
            "held_by": held_at.pump,
            "unread_bytes": unread_bytes(views),
            "pending_bytes": pending_bytes(views),
            "holding": "pending bytes" if raw and self._full(views) else "",
            "unreachable": unreachable,
        }

    def _fix_target(self, tails: Tails, before: BinlogOffset) -> None:
        """Trigger.AvailableNow: the stream ends at the R known once every Pump has reported its whole log."""
        begun = time.monotonic()
        while not self._told(tails, before, begun):
            if self._stopping():
                return
            time.sleep(_QUIET_SECONDS / 10)
        with tails.changed:
            views = tails.views(before)
        target = max(before.resolved_ts, holder(views, before.delivery).promise) if views else before.resolved_ts
        self._ceiling = target if self._ceiling is None else min(target, self._ceiling)
        self._available_now = False

    def _told(self, tails: Tails, before: BinlogOffset, begun: float) -> bool:
        """Whether the Pumps have reported their logs: no message for ``_QUIET_SECONDS``, or messages for ten times as long."""
        waited = time.monotonic() - begun
        with tails.changed:
            answered = tails.views(before) is not None
        if not answered and waited >= self._extra.patience:
            self._troubled_since = self._troubled_since or begun
            raise PumpUnavailable(
                f"Trigger.AvailableNow needs the end of every Pump's log, and within {waited:.0f} s not all reported it: {_away(tails)}"
            )
        if not answered:
            return False
        return tails.quiet_for() >= _QUIET_SECONDS or waited >= 10 * _QUIET_SECONDS


def resolve_delivery(config: SourceConfig, patience: float = 60.0) -> Delivery:
    """The delivery that ``config`` sets; if it sets none: raw if every Pump offers it, else sorted."""
    if config.delivery:
        return Delivery(config.delivery)
    with closing(discovery_of(config)) as discovery:
        endpoints = _endpoints(discovery, discovery.pumps())
    return Delivery.RAW if all(offers_raw(endpoint, patience) for endpoint in endpoints.values()) else Delivery.SORTED


def _away(tails: Tails) -> str:
    """The unreachable Pumps with their reasons, and what to do."""
    away = "; ".join(f"Pump {pump}: {why}" for pump, why in sorted(tails.unreachable().items()))
    return f"{away or 'a Pump has not reported its log up to the position of the stream'}; restart it, or set it offline in the registry"


def _newest(view: TailView) -> Position:
    return view.steps[-1].position if view.steps else view.origin


def _endpoints(discovery: PumpDiscovery, pumps: Mapping[str, str]) -> dict[str, Endpoint]:
    cluster_id = discovery.cluster_id()
    return {pump: Endpoint(pump, address, cluster_id) for pump, address in sorted(pumps.items())}


def _sorted_partitions(endpoints: Mapping[str, Endpoint], after_ts: int, upto_ts: int) -> list[BinlogPartition]:
    """One partition per Pump; the first one carries the only control row."""
    nowhere = Position(0, 0)
    return [
        BinlogPartition(endpoint, Delivery.SORTED, after_ts, upto_ts, nowhere, nowhere, 1 if place == 0 else 0)
        for place, endpoint in enumerate(endpoints.values())
    ]


def _seen(partition: BinlogPartition, before: BinlogOffset, after: BinlogOffset) -> BinlogPartition:
    """``partition`` with what the stream has read of its log; a second ``since`` for a Pump means that its log was replaced."""
    pump = partition.endpoint.pump
    return replace(partition, seen=seen_of(after, pump), anew=pump in before.pumps and after.pumps[pump].since is not None)


def _raw_partitions(
    endpoints: Mapping[str, Endpoint], before: BinlogOffset, after: BinlogOffset, after_ts: int, buckets: int
) -> list[BinlogPartition]:
    """One partition per Pump whose position moved, at least one, for the control rows; the first one advances the watermark."""
    made = []
    for pump in endpoints:
        mark = after.pumps[pump]
        earlier = before.pumps.get(pump)
        begin = mark.since or (earlier.position if earlier is not None else mark.position)
        partition = BinlogPartition(endpoints[pump], Delivery.RAW, after_ts, after.resolved_ts, begin, mark.position, buckets)
        made.append(_seen(partition, before, after))
    moved = [partition for partition in made if partition.begin < partition.end or partition.anew] or made[:1]
    moved[0] = replace(moved[0], clock_ts=after.clock)
    return moved


def _read(partition: InputPartition, config: SourceConfig, extra: StreamOptions) -> Iterator[pa.RecordBatch]:
    """A partition's rows, then its control rows, as ``stages.RAW`` or ``stages.PACKED``."""
    assert isinstance(partition, BinlogPartition)
    rows = _rows(partition, config, extra)
    if not extra.packed:
        return rows
    clock = [clock_row(partition.clock_ts)] if partition.clock_ts else []
    return chain(packed_rows(rows), clock)


def _rows(part: BinlogPartition, config: SourceConfig, extra: StreamOptions) -> Iterator[pa.RecordBatch]:
    """A partition's rows, then its control rows."""
    pump, lost = part.endpoint.pump, []

    def on_purged(gc_ts: int) -> None:
        text = purge_text(pump, gc_ts, part.after_ts)
        if config.fail_on_data_loss:
            raise BinlogPurged(text + "; load a fresh snapshot of the upstream, or set failOnDataLoss=false to go on with a gap")
        _log.warning("%s; going on with a gap because failOnDataLoss=false", text)
        lost.append(loss(pump, part.after_ts, gc_ts, text))

    def on_damage(damage: Damage, text: str) -> None:
        if config.fail_on_data_loss:
            refuse_damage(damage, text)
        _log.warning("%s; going on without it because failOnDataLoss=false", text)
        lost.append(loss(pump, damage.after_ts, damage.upto_ts or part.upto_ts, text))

    def on_replaced(text: str) -> None:
        if config.fail_on_data_loss:
            refuse_replaced(text)
        _log.warning("%s; going on with what it has because failOnDataLoss=false", text)
        lost.append(loss(pump, part.after_ts, part.upto_ts, text))

    if part.anew:
        lost.append(loss(pump, part.after_ts, part.upto_ts, anew_text(pump, part.after_ts)))

    def find(endpoint: Endpoint) -> Endpoint:
        try:
            with closing(discovery_of(config)) as discovery:
                return replace(endpoint, address=discovery.pumps().get(pump, endpoint.address))
        except PumpUnavailable as error:
            _log.warning("Pump %s: the last known address is used, because the registry does not answer: %s", pump, error)
            return endpoint

    with noted(extra.stop_file, pump) as note:
        told = on_purged, find, on_damage, part.seen, on_replaced, note
        if part.delivery is Delivery.RAW:
            runs = read_raw(part.endpoint, part.begin, part.end, part.after_ts, extra.read_patience, *told)
        else:
            runs = read_sorted(part.endpoint, part.after_ts, part.upto_ts, extra.read_patience, *told)
        for records in _gathered(runs):
            failpoints.point("source-read")
            for run in in_pieces(records):
                yield raw_rows(run, pump, config.pairing_buckets) if part.delivery is Delivery.RAW else sorted_rows(run, pump)
    yield from lost
    if part.buckets:
        span_from = part.after_ts if part.span_from is None else part.span_from
        left_out = part.after_ts if part.delivery is Delivery.RAW and part.after_ts > span_from else 0
        yield punctuation(pump, span_from, part.upto_ts, range(part.buckets), part.clock_ts, left_out)


def _gathered(runs: Iterator[Records]) -> Iterator[Records]:
    """Runs joined into batches of ``_FLUSH_ROWS`` rows or ``_FLUSH_BYTES`` bytes."""
    waiting: list[Records] = []
    rows = size = 0
    for run in runs:
        waiting.append(run)
        rows, size = rows + len(run), size + run.size
        if rows >= _FLUSH_ROWS or size >= _FLUSH_BYTES:
            yield joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield joined(waiting)
