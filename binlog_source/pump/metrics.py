"""The Pump's metrics under a real Pump's names (pump.md 9), for ``GET /metrics``.

Promises: an observation computes its bucket instead of searching it, so that the write path can make several for each binlog; the text is
made by ``prometheus_client`` on request. Timestamps are in physical milliseconds, as a real Pump's.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserCounts
from pyspark_tidb_binlog.binlog_source.pump.storage.store import GroupWritten
from pyspark_tidb_binlog.schemas.events import physical_ms


class PowerHistogram:
    """A histogram with the upper bounds base * 2^i. Not thread-safe: its owner locks."""

    def __init__(self, base: float, buckets: int) -> None:
        self._base = base
        self._bounds = [base * 2**i for i in range(buckets)]
        self._counts = [0] * (buckets + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._sum += value
        ratio = value / self._base
        if ratio <= 1.0:
            self._counts[0] += 1
            return
        mantissa, exponent = math.frexp(ratio)
        # upper bounds are inclusive
        place = exponent - 1 if mantissa == 0.5 else exponent
        self._counts[min(place, len(self._bounds))] += 1

    def family(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, and the sum."""
        total, rows = 0, []
        for bound, count in zip([*map(repr, map(float, self._bounds)), "+Inf"], self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows, self._sum


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The store's current values."""

    gc_ts: int
    gc_done_ts: int
    max_commit_ts: int
    deleted_keys: int
    capacity: int
    available: int
    index_errors: int
    damaged_bytes: int
    chaser: ChaserCounts
    last_catch_up: float


@dataclass(slots=True)
class _Labelled:
    """One histogram for each combination of label values."""

    name: str
    help: str
    labels: tuple[str, ...]
    base: float
    buckets: int
    of: dict[tuple[str, ...], PowerHistogram] = field(default_factory=dict)

    def add(self, labels: tuple[str, ...], value: float) -> None:
        found = self.of.get(labels)
        if found is None:
            found = self.of[labels] = PowerHistogram(self.base, self.buckets)
        found.add(value)

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in sorted(self.of.items()):
            rows, total = histogram.family()
            family.add_metric(labels, rows, total)
        return family


class PumpMetrics:
    """All metrics of one Pump."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rpc = _Labelled("binlog_pump_rpc_duration_seconds", "Bucketed histogram of RPC durations.", ("method", "label"), 5e-5, 18)
        self._size = _Labelled("binlog_pump_storage_write_binlog_size", "Bucketed histogram of binlog sizes.", ("type",), 16, 25)
        self._time = _Labelled("binlog_pump_storage_write_binlog_duration_time", "Bucketed histogram of write times.", ("type",), 5e-5, 20)
        self._lost = 0
        self._asked = 0
        self._behind: dict[str, int] = {}
        self._figures: Callable[[], StoreFigures] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self._registry)

    def watch(self, figures: Callable[[], StoreFigures]) -> None:
        """Set the source of the store's values."""
        self._figures = figures

    def rpc(self, method: str, label: str, durations: Iterable[float]) -> None:
        """Calls of a method ended; ``label`` is ``succ`` or ``fail``, ``durations`` are seconds."""
        with self._lock:
            for seconds in durations:
                self._rpc.add((method, label), seconds)

    def written(self, group: GroupWritten, ended: float) -> None:
        """A group of requests was written; ``ended``: when, by the clock of ``WriteRequest.begun``."""
        with self._lock:
            single_size, single_time = ("single",), ("single",)
            for request in group.requests:
                self._size.add(single_size, request.size)
                self._time.add(single_time, ended - request.begun)
            self._size.add(("batch",), group.size)
            self._time.add(("batch",), group.write)
            self._time.add(("to_disk",), group.write - group.fsync)
            self._time.add(("fsync",), group.fsync)
            if group.rotated:
                self._time.add(("rotate",), group.write)

    def lost(self) -> None:
        """A Commit was found without its Prewrite, or a pull met damage."""
        self._lost += 1

    def asked(self) -> None:
        """The upstream was asked about an orphan."""
        self._asked += 1

    def behind(self, drainer: str) -> None:
        """A Drainer was found near what GC may remove, or behind it."""
        self._behind[drainer] = self._behind.get(drainer, 0) + 1

    def text(self) -> bytes:
        """The Prometheus text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, for ``prometheus_client``."""
        with self._lock:
            families = [self._rpc.family(), self._size.family(), self._time.family()]
        yield from families
        yield _count("binlog_pump_loss_binlog_count", "Commits without a Prewrite.", "", (("", self._lost),))
        yield _count("binlog_pump_storage_query_tikv_count", "Questions about orphan Prewrites.", "", (("", self._asked),))
        behind = tuple(sorted(self._behind.items()))
        yield _count("binlog_pump_detected_drainer_binlog_purge_count", "Drainers behind what GC removes.", "id", behind)
        if self._figures is not None:
            yield from _of_store(self._figures())


def _of_store(now: StoreFigures) -> Iterator[Metric]:
    for name, ts in (("gc_ts", now.gc_ts), ("done_gc_ts", now.gc_done_ts), ("max_commit_ts", now.max_commit_ts)):
        yield GaugeMetricFamily(f"binlog_pump_storage_{name}", f"{name}, physical milliseconds.", value=physical_ms(ts))
    yield _count("binlog_pump_storage_deleted_kv_total", "Index keys removed by GC.", "", (("", now.deleted_keys),))
    size = GaugeMetricFamily("binlog_pump_storage_storage_size_bytes", "Disk of the data directory.", labels=("type",))
    size.add_metric(("capacity",), now.capacity)
    size.add_metric(("available",), now.available)
    yield size
    errors = (("index_write", now.index_errors), ("damaged_bytes", now.damaged_bytes))
    yield _count("binlog_pump_storage_error_count", "Errors of the storage.", "type", errors)
    yield _count("binlog_pump_storage_slow_chaser_count", "What the slow chaser did.", "type", now.chaser.items())
    yield GaugeMetricFamily(
        "binlog_drainer_slow_chaser_catchup_time_seconds", "Seconds of the chaser's last pass.", value=now.last_catch_up
    )


def _count(name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    """A counter under its exact name: the library's own counters get the suffix ``_total``, a real Pump's do not."""
    family = Metric(name, text, "unknown")
    for value, count in counts:
        family.add_sample(name, {label: value} if label else {}, count)
    return family
