"""The readers of ``format("tidb_binlog")`` with option ``format`` = ``protocol``: a stream, and a batch of a span of timestamps. Spark
shell.

Rows are ``stages.RAW``, or with option ``packed`` ``stages.PACKED``. Offsets are ``offset.BinlogOffset``. ``start`` and ``end`` determine
the content of a batch (start, end], however often it is read: executors pull it from the Pumps again and cache only channels.

    partition.py      a Pump's share of a batch         partition_rows.py   reads it on an executor
    batch_planner.py  where the next batch ends         stream_end.py       where the stream ends; Trigger.AvailableNow
    stream_report.py  what the progress shows           outage.py           a Pump or registry that does not answer
    waker.py          wakes idle Pumps, over wake.py    departed.py         which Pumps the stream continues without

To stop: while ``stopFile`` exists, ``latestOffset`` returns ``start``. No further batch begins, and the query can be stopped while it is
idle. ``query.stop()`` during a batch may end in an error of Spark itself.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery, discovery_of, names_registry, patiently
from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import require_pump
from pyspark_tidb_binlog.binlog_source.source.admission import TailView
from pyspark_tidb_binlog.binlog_source.source.batch_planner import BatchPlanner, future_text, in_the_future
from pyspark_tidb_binlog.binlog_source.source.delivery import endpoints_of, resolve_delivery
from pyspark_tidb_binlog.binlog_source.source.departed import DepartedPumps, Membership
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, from_json, require_advance
from pyspark_tidb_binlog.binlog_source.source.options import source_of, stream_options_of
from pyspark_tidb_binlog.binlog_source.source.outage import Outage
from pyspark_tidb_binlog.binlog_source.source.partition import BinlogPartition, sorted_partitions, span_of, stream_partitions
from pyspark_tidb_binlog.binlog_source.source.partition_rows import rows_of
from pyspark_tidb_binlog.binlog_source.source.stream_end import StreamEnd, away_text
from pyspark_tidb_binlog.binlog_source.source.stream_report import ReceivedSteps, outage_report, report
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.source.waker import PumpWaker, waker_of
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, tso

_WAIT_SECONDS = 0.2
"""How long ``latestOffset`` waits for new steps; bounds how late a stop is noticed."""


class BinlogReader(DataSourceReader):
    """Batch ``read``: sorted delivery of (startingCommitTs, endingCommitTs]."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._config, self._extra = source_of(options), stream_options_of(options)

    def partitions(self) -> list[BinlogPartition]:
        """One partition per Pump."""
        after_ts, upto_ts = self._config.starting_commit_ts, self._config.ending_commit_ts
        if after_ts < 0 or upto_ts <= 0:
            raise ConfigError("a batch read lacks startingCommitTs or endingCommitTs: set both; startingCommitTs = 0 is the beginning")
        if upto_ts < after_ts:
            raise ConfigError(f"endingCommitTs {upto_ts} is below startingCommitTs {after_ts}: raise endingCommitTs")
        with closing(discovery_of(self._config)) as discovery:
            members = self._members(discovery, BinlogOffset(Delivery.SORTED, after_ts, after_ts, {}))
            if members.left_out and not members.pumps:
                raise PumpUnavailable(f"no Pump is left to read above ts {after_ts}: {', '.join(members.left_out)} are gone")
            made = sorted_partitions(endpoints_of(self._config, discovery, members.pumps), after_ts, upto_ts)
            made[:1] = [replace(partition, left=tuple(sorted(members.left_out.items()))) for partition in made[:1]]
            return made

    def _members(self, discovery: PumpDiscovery, before: BinlogOffset) -> Membership:
        """The Pumps to read, as a stream decides: those that are registered as offline are asked whether they are still there."""
        listed, offline = discovery.pumps(before.resolved_ts), discovery.offline()

        def silence(pump: str) -> str:
            try:
                patiently(lambda: require_pump(pump, listed[pump], discovery.tls), self._extra.patience)
            except PumpUnavailable as error:
                return str(error)
            return ""

        left = sorted(set(listed) & set(offline))
        silent = {pump: "it is named in spark.gone-pumps" for pump in left if pump in self._config.gone}
        asked = [pump for pump in left if pump not in silent and not offline[pump].successor]
        with ThreadPoolExecutor(len(asked) + 1) as at_once:
            silent |= {pump: why for pump, why in zip(asked, at_once.map(silence, asked), strict=True) if why}
        return DepartedPumps(self._config, 0.0).membership(before, listed, offline, silent)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one Pump."""
        assert isinstance(partition, BinlogPartition)
        return rows_of(partition, self._config, self._extra)


class BinlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``readStream``. Spark creates it in several processes; only the one in the driver-side worker ever gets tails."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._config, self._extra = source_of(options), stream_options_of(options)
        self._discovery: PumpDiscovery | None = None
        self._tails: Tails | None = None
        self._waker: PumpWaker | None = None
        self._outage = Outage(self._extra.patience)
        self._departed = DepartedPumps(self._config, self._extra.patience)
        self._members = Membership({})
        self._end = StreamEnd(self._config.ending_commit_ts, self._extra.stop_file, self._outage)
        self._planner = BatchPlanner(self._config.max_pending_bytes)
        self._received = ReceivedSteps()
        self._reported: dict[str, Any] | None = None
        self._advanced_at = 0.0
        self._present_ts = 0
        self._fresh = False
        """Whether the stream is a new one that was not asked for a batch yet."""

    def initialOffset(self) -> dict[str, Any]:
        """The stream's floor: startingCommitTs, or the current time."""
        self._fresh = True
        floor = self._config.starting_commit_ts
        if floor < 0:
            floor = patiently(self._known_discovery().now, self._extra.patience)
        return BinlogOffset(resolve_delivery(self._config, self._extra.patience), floor, floor, {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxBytesPerTrigger``."""
        return ReadMaxBytes(self._config.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the stream end at the R that the Pumps have reached now; it fails if a Pump does not report how far its log goes."""
        self._end.available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing new."""
        before = self._offset(start)
        self._require_delivery(before)
        self._end.note_asking()
        end = self._end_of_batch(before, limit)
        if end is not before or self._fresh:
            # Spark runs a new stream's first batch even if there is nothing in it.
            self._end.note_given()
        self._fresh = False
        return start if end is before else end.to_json()

    def _end_of_batch(self, before: BinlogOffset, limit: ReadLimit) -> BinlogOffset:
        """The end of the next batch; ``before`` itself when there is nothing new."""
        if self._end.reached(before):
            time.sleep(_WAIT_SECONDS / 4)
            return before
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = self._end_after(before, max_bytes)
        while end is before and self._end.finite and not self._end.reached(before):
            end = self._end_after(before, max_bytes)
        if self._end.stopping():
            # planning takes as long as the registry takes to answer: who made the file meanwhile takes the stream for idle
            return before
        if end is not before:
            self._require_advance(before, end)
            self._advanced_at = time.monotonic()
        return end

    def _end_after(self, before: BinlogOffset, max_bytes: int | None) -> BinlogOffset:
        """The end of the next batch; ``before`` itself while there is none."""
        try:
            tails = self._following(before)
            self._end.fix(tails, before)
            end = self._next_offset(tails, before, max_bytes)
            if end is before and self._end.finite and not self._end.reached(before):
                raise PumpUnavailable(f"the stream cannot reach ts {self._end.ceiling}: {away_text(tails)}")
        except PumpUnavailable as error:
            # R stands still, and the error is raised only when it lasts
            self._outage.endure(error)
            self._reported = outage_report(before, str(error))
            time.sleep(_WAIT_SECONDS)
            return before
        self._outage.over()
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The Pumps' positions, which Pump holds R back, the bytes not read and those waiting for R: shown in the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[BinlogPartition]:
        """One partition per Pump that ``end`` names and that has something to read."""
        before, after = self._offset(start), self._offset(end)
        if before.to_json() == after.to_json():
            return []
        self._require_delivery(after)
        self._require_advance(before, after)
        _, after_ts = span_of(before, after)
        discovery, patience = self._known_discovery(), self._extra.patience
        known = patiently(lambda: self._named(discovery, after, after_ts), patience)
        owners = patiently(lambda: self._owners(discovery, after, after_ts, known), patience)
        endpoints = patiently(lambda: endpoints_of(self._config, discovery, {pump: known[pump] for pump in owners}), patience)
        made = stream_partitions(endpoints, before, after, self._extra.bucket_ids, set(after.pumps) - set(known))
        newest_ts = self._tails.newest_ts(after.delivery) if self._tails is not None else 0
        return [replace(partition, newest_ts=newest_ts) for partition in made]

    def _named(self, discovery: PumpDiscovery, after: BinlogOffset, after_ts: int) -> Mapping[str, str]:
        """The named Pumps, without those that the settings give up.

        Raises:
            PumpUnavailable: a Pump of ``after`` is not in the registry.
            ConfigError: a Pump of ``after`` is not in the list, or all are given up.
        """
        known = discovery.pumps()
        given_up = {pump for pump in self._config.gone if pump not in known or pump in discovery.offline()}
        missing = sorted(set(after.pumps) - set(known) - set(discovery.offline()) - given_up)
        if missing or (after.pumps and set(after.pumps) <= given_up):
            kind = PumpUnavailable if missing and names_registry(self._config) else ConfigError
            raise kind(
                f"the batch (ts {after_ts}, {after.resolved_ts}] reads Pump {', '.join(missing or after.pumps)}, but neither option pumps nor "
                "the registry names this Pump: name it until the batch is done. If the Pump is gone for ever, name it in spark.gone-pumps, or "
                + self._anew(after_ts)
            )
        return {pump: address for pump, address in known.items() if pump not in given_up}

    def _owners(self, discovery: PumpDiscovery, after: BinlogOffset, after_ts: int, known: Mapping[str, str]) -> list[str]:
        """The Pumps of ``after`` to read from. Pumps that have left since are omitted: they hold nothing that is still needed."""
        needed_after = self._needed_after(after_ts)
        there = set(discovery.pumps(needed_after))
        if needed_after < after.resolved_ts:
            # the batch was planned with what they had then
            there |= {pump for pump, gone in discovery.offline().items() if not gone.left}
        named = [pump for pump in after.pumps if pump in known]
        return [pump for pump in named if pump in there] or named

    def _needed_after(self, after_ts: int) -> int:
        """The ts above which a batch's rows are still needed: a target that asks for a later start has everything up to there."""
        return max(after_ts, self._config.starting_commit_ts)

    def _anew(self, resolved_ts: int | None) -> str:
        """How to begin again if the checkpoint cannot be used. ``resolved_ts``: its ts; None: the checkpoint cannot be read."""
        return "delete Spark's checkpoint directory (the stream then resumes from the target's checkpoint)"

    def _offset(self, value: dict[str, Any]) -> BinlogOffset:
        try:
            return from_json(value)
        except ConfigError as error:
            reached = value.get("resolved_ts") if isinstance(value, dict) else None
            raise ConfigError(f"{error}; {self._anew(reached if isinstance(reached, int) else None)}") from error

    def _require_advance(self, before: BinlogOffset, after: BinlogOffset) -> None:
        try:
            require_advance(before, after)
        except ConfigError as error:
            raise ConfigError(f"{error}; {self._anew(before.resolved_ts)}") from error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one Pump."""
        assert isinstance(partition, BinlogPartition)
        return rows_of(partition, self._config, self._extra)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark has written the batch that ends at ``end`` to its commit log. Nothing is sent to the Pumps."""
        failpoints.point("after-spark-commit")

    def stop(self) -> None:
        """Stop the tails and close the discovery."""
        if self._waker is not None:
            self._waker.stop()
        if self._tails is not None:
            self._tails.stop()
        if self._discovery is not None:
            self._discovery.close()

    def _known_discovery(self) -> PumpDiscovery:
        if self._discovery is None:
            self._discovery = discovery_of(self._config)
        return self._discovery

    def _require_delivery(self, offset: BinlogOffset) -> None:
        if self._config.delivery and self._config.delivery != offset.delivery:
            raise ConfigError(
                f"the checkpoint was made with delivery {offset.delivery}, but option delivery is {self._config.delivery}: "
                f"set delivery={offset.delivery}, or {self._anew(offset.resolved_ts)}"
            )

    def _following(self, before: BinlogOffset) -> Tails:
        if self._tails is None:
            self._tails = Tails(self._config.fail_on_data_loss, self._config.max_bytes_per_trigger // 4, self._extra.stop_file)
            # Trigger.AvailableNow ends at what the Pumps have promised already
            self._waker = None if self._end.finite else waker_of(self._config, self._known_discovery().online, self._tails)
            self._advanced_at = time.monotonic()
        discovery = self._known_discovery()
        listed = discovery.pumps(before.resolved_ts)
        self._members = self._departed.membership(before, listed, discovery.offline(), self._tails.unreachable())
        self._tails.follow(endpoints_of(self._config, discovery, self._members.pumps), before.resolved_ts, before)
        return self._tails

    def _next_offset(self, tails: Tails, before: BinlogOffset, max_bytes: int | None) -> BinlogOffset:
        """Wait for R to pass ``before``, then plan. The Pumps are listed again last, so that no new Pump is missed."""
        with self._waker.asked(before.delivery) if self._waker is not None else nullcontext():
            goes_on = tails.wait(lambda: self._is_worthwhile(tails, before, max_bytes), _WAIT_SECONDS)
        with tails.changed:
            known = tails.views(before)
            views = self._readable(tails, before) if goes_on else None
        self._report(tails, known, before)
        if known:
            self._require_present(known, before)
        if not goes_on:
            return before
        end = before if views is None else self._planner.plan(views, before, max_bytes, self._end.ceiling, tails.gc_ts())
        discovery = self._known_discovery()
        if end is before:
            return end
        left = self._members.noted(end)
        listed = discovery.pumps(before.resolved_ts)
        back = {pump for pump in left if pump in listed and pump not in discovery.offline()}
        complete = not back and set(listed) - set(left) <= set(end.pumps)
        return replace(end, left=left) if complete else before

    def _require_present(self, views: Mapping[str, TailView], before: BinlogOffset) -> None:
        """Refuse a promise far ahead of the upstream's time. The time is asked only if this machine's clock and the last answer are behind it."""
        if not in_the_future(views, before.delivery, max(self._present_ts, tso(time.time_ns() // 1_000_000))):
            return
        self._present_ts = max(self._present_ts, self._known_discovery().now())
        if ahead := in_the_future(views, before.delivery, self._present_ts):
            raise ProtocolViolation(future_text(ahead, self._present_ts))

    def _is_worthwhile(self, tails: Tails, before: BinlogOffset, max_bytes: int | None) -> bool:
        views = self._readable(tails, before)
        return views is not None and self._planner.is_worthwhile(views, before, max_bytes, time.monotonic() - self._advanced_at)

    def _readable(self, tails: Tails, before: BinlogOffset) -> dict[str, TailView] | None:
        """The views to plan with: Trigger.AvailableNow needs all steps, otherwise Pumps that cannot be read now contribute none."""
        return tails.views(before) if self._end.finite else tails.readable(before)

    def _report(self, tails: Tails, views: Mapping[str, TailView] | None, before: BinlogOffset) -> None:
        self._received.note(views or {})
        woken = self._waker.counts() if self._waker is not None else {}
        full = bool(views) and self._planner.is_full(views or {})
        reported = report(before, views, tails.unreachable(), woken, self._received.totals(), full=full)
        self._reported = reported | {"states": self._known_discovery().states()}
