"""The Pump's metrics under a real Pump's names (pump.md 9), for ``GET /metrics``.

Promises: timestamps are in physical milliseconds, as a real Pump's.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserCounts
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import GroupWritten
from pyspark_tidb_binlog.binlog_source.wire.prometheus_text import Exposition, Family, LabelledHistogram, count, gauge, gauges
from pyspark_tidb_binlog.schemas.events import physical_ms


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


class PumpMetrics:
    """All metrics of one Pump."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rpc = LabelledHistogram(
            "binlog_pump_rpc_duration_seconds", "Bucketed histogram of RPC durations.", ("method", "label"), 5e-5, 18
        )
        self._size = LabelledHistogram("binlog_pump_storage_write_binlog_size", "Bucketed histogram of binlog sizes.", ("type",), 16, 25)
        self._time = LabelledHistogram(
            "binlog_pump_storage_write_binlog_duration_time", "Bucketed histogram of write times.", ("type",), 5e-5, 20
        )
        self._lost = 0
        self._asked = 0
        self._behind: dict[str, int] = {}
        self._figures: Callable[[], StoreFigures] | None = None
        self._exposition = Exposition(self._collect)

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
        """Count a Drainer whose checkpoint is near what GC may remove, or behind it."""
        self._behind[drainer] = self._behind.get(drainer, 0) + 1

    def text(self) -> bytes:
        """The Prometheus text."""
        return self._exposition.text()

    def _collect(self) -> Iterator[Family]:
        with self._lock:
            families = [self._rpc.family(), self._size.family(), self._time.family()]
        yield from families
        yield count("binlog_pump_loss_binlog_count", "Commits without a Prewrite.", "", (("", self._lost),))
        yield count("binlog_pump_storage_query_tikv_count", "Questions about orphan Prewrites.", "", (("", self._asked),))
        behind = tuple(sorted(self._behind.items()))
        yield count("binlog_pump_detected_drainer_binlog_purge_count", "Drainers behind what GC removes.", "id", behind)
        if self._figures is not None:
            yield from _of_store(self._figures())


def _of_store(now: StoreFigures) -> Iterator[Family]:
    for name, ts in (("gc_ts", now.gc_ts), ("done_gc_ts", now.gc_done_ts), ("max_commit_ts", now.max_commit_ts)):
        yield gauge(f"binlog_pump_storage_{name}", f"{name}, physical milliseconds.", physical_ms(ts))
    yield count("binlog_pump_storage_deleted_kv_total", "Index keys removed by GC.", "", (("", now.deleted_keys),))
    sizes = (("capacity", now.capacity), ("available", now.available))
    yield gauges("binlog_pump_storage_storage_size_bytes", "Disk of the data directory.", "type", sizes)
    errors = (("index_write", now.index_errors), ("damaged_bytes", now.damaged_bytes))
    yield count("binlog_pump_storage_error_count", "Errors of the storage.", "type", errors)
    yield count("binlog_pump_storage_slow_chaser_count", "What the slow chaser did.", "type", now.chaser.items())
    yield gauge("binlog_drainer_slow_chaser_catchup_time_seconds", "Seconds of the chaser's last pass.", now.last_catch_up)
