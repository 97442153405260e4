"""The Drainer's metrics: a real Drainer's under its names (drainer.md 13), so that its Grafana board and alert rules work, and ours.

Here a batch is the unit of work, not a binlog. So some metrics differ from a real Drainer's:

* ``event``: row events are counted together, under the type ``Row``.
* ``execute_duration_time``, ``query_duration_time``, ``checkpoint_delay_seconds``: one observation per batch.
* ``read_binlog_size``: one observation per step of a Pump's log (at most 1 MiB, or what was new), with the mean size of the steps since the
  last observation.
* ``binlog_reach_duration_time``: one observation per Pump and report, the age of what arrived last.
* ``queue_size{name="syncer_input"}``: the steps of the Pumps' logs that no batch has read yet.

Ours begin with ``binlog_drainer_spark_``.

Promises: timestamps are physical milliseconds. Thread-safe; ``applied`` and ``pumps`` take microseconds.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.binlog_source.wire.prometheus_text import Exposition, Family, LabelledHistogram, count, gauge, gauges
from pyspark_tidb_binlog.schemas.alarms import Verified
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport

_P = "binlog_drainer_"
_OURS = "binlog_drainer_spark_"


class DrainerMetrics:
    """All metrics of one Drainer."""

    def __init__(self, commit_ts: Callable[[], int], now: Callable[[], float] = time.time) -> None:
        """``commit_ts`` returns the ts up to which everything is in the target; ``now``: seconds since 1970."""
        self._commit_ts = commit_ts
        self._now = now
        self._lock = threading.Lock()
        self._execute = LabelledHistogram(f"{_P}execute_duration_time", "Seconds to apply a batch.", (), 5e-5, 18)
        self._query = LabelledHistogram(f"{_P}query_duration_time", "Seconds of a batch's statements.", ("type",), 5e-5, 18)
        self._delay = LabelledHistogram(f"{_P}checkpoint_delay_seconds", "How far the checkpoint lags behind.", (), 0.001, 22)
        self._reach = LabelledHistogram(f"{_P}binlog_reach_duration_time", "Seconds from commit to arrival.", ("nodeID",), 5e-5, 18)
        self._size = LabelledHistogram(f"{_P}read_binlog_size", "Bytes of a step of a Pump's log.", ("nodeID",), 16, 25)
        for single in (self._execute, self._delay):
            single.touch(())
        self._events = Counter({"DDL": 0, "savepoint": 0})
        self._transactions = 0
        self._stages: dict[str, float] = {}
        self._findings = Counter[str]()
        self._reported: Mapping[str, Any] = {}
        self._received: dict[str, tuple[int, int]] = {}
        """Steps and bytes of each Pump's log that were reported so far."""
        self._arrived: dict[str, int] = {}
        """The newest promise of each Pump whose age was observed."""
        self.state = NodeState.ONLINE
        """The state that is registered."""
        self.silent: Sequence[str] = ()
        """The addresses of TiDB servers that write no binlogs."""
        self.verified: Verified | None = None
        """What ``verify`` has found."""
        self._exposition = Exposition(self._collect)

    def applied(self, batch: BatchReport) -> None:
        """A batch is in the target."""
        with self._lock:
            self._events.update({"Row": batch.row_events, "DDL": batch.ddls, "savepoint": 1})
            self._transactions += batch.transactions
            for stage, seconds in batch.seconds.items():
                self._stages[stage] = self._stages.get(stage, 0.0) + seconds
            self._findings.update(str(finding.kind) for finding in batch.findings)
            self._execute.add((), sum(seconds for stage, seconds in batch.seconds.items() if stage != "read"))
            if (written := batch.seconds.get("write")) is not None:
                self._query.add(("exec",), written)
            self._delay.add((), max(0.0, self._now() - physical_ms(batch.upto_ts) / 1000))

    def pumps(self, reported: Mapping[str, Any]) -> None:
        """What the source has reported of its Pumps (``source.stream_report``); the same report again changes nothing."""
        with self._lock:
            self._reported = reported
            for pump, (steps, size) in (reported.get("received") or {}).items():
                before = self._received.get(pump, (0, 0))
                if steps < before[0]:
                    before = (0, 0)  # the source was started anew
                if steps > before[0]:
                    self._size.add((pump,), (size - before[1]) / (steps - before[0]), steps - before[0])
                self._received[pump] = (steps, size)
            for pump, seconds in (reported.get("reached") or {}).items():
                promise = (reported.get("promises") or {}).get(pump, 0)
                if promise > self._arrived.get(pump, 0):
                    self._arrived[pump] = promise
                    self._reach.add((pump,), seconds)

    def text(self) -> bytes:
        """The Prometheus text."""
        return self._exposition.text()

    def _collect(self) -> Iterator[Family]:
        commit_ts = self._commit_ts()
        with self._lock:
            families = [each.family() for each in (self._execute, self._query, self._delay, self._reach, self._size)]
            families += [*self._as_a_real_one(commit_ts), *self._own(commit_ts)]
        yield from families

    def _as_a_real_one(self, commit_ts: int) -> Iterator[Family]:
        reported = self._reported
        promises = sorted((reported.get("promises") or {}).items())
        yield gauge(f"{_P}checkpoint_tso", "Checkpoint, physical milliseconds.", physical_ms(commit_ts))
        yield gauges(
            f"{_P}pump_position", "Newest ts from each Pump, physical milliseconds.", "nodeID", ((p, physical_ms(t)) for p, t in promises)
        )
        yield count(f"{_P}ddl_jobs_total", "DDL jobs executed.", "", (("", self._events["DDL"]),))
        yield count(f"{_P}event", "Row events and DDLs applied.", "type", sorted(self._events.items()))
        yield count(f"{_P}error_count", "Errors by type.", "type", (("unmarshal_binlog", 0),))
        yield gauges(f"{_P}queue_size", "What waits to be applied.", "name", (("syncer_input", reported.get("unread_steps", 0)),))

    def _own(self, commit_ts: int) -> Iterator[Family]:
        reported = self._reported
        lag = max(0.0, self._now() - physical_ms(commit_ts) / 1000) if commit_ts else 0.0
        yield gauge(f"{_OURS}lag_seconds", "Age of the checkpoint.", lag)
        yield gauges(f"{_OURS}state", "1 for the registered state.", "state", ((s.value, float(s is self.state)) for s in NodeState))
        yield count(f"{_OURS}batches_total", "Batches applied.", "", (("", self._events["savepoint"]),))
        yield count(f"{_OURS}transactions_total", "Transactions applied.", "", (("", self._transactions),))
        yield count(f"{_OURS}stage_seconds_total", "Seconds of the batches by stage.", "stage", sorted(self._stages.items()))
        yield count(f"{_OURS}findings_total", "Findings by kind.", "kind", sorted(self._findings.items()))
        found = [self.verified] if self.verified is not None else []
        yield gauges(f"{_OURS}verified_differing_rows", "Rows that differ, as verify has found.", "", (("", one.rows) for one in found))
        yield gauges(
            f"{_OURS}verified_differing_tables", "Tables that differ, as verify has found.", "", (("", len(one.differing)) for one in found)
        )
        yield gauges(
            f"{_OURS}verified_age_seconds",
            "Age of the oldest comparison of a table.",
            "",
            (("", self._now() - one.oldest) for one in found),
        )
        yield gauge(f"{_OURS}unread_bytes", "Bytes of the Pumps' logs that no batch has read.", reported.get("unread_bytes", 0))
        yield gauge(f"{_OURS}pending_bytes", "Bytes that are read and wait for a Pump.", reported.get("pending_bytes", 0))
        yield count(f"{_OURS}fakes_sent_total", "Fake binlogs sent to idle Pumps.", "nodeID", sorted((reported.get("woken") or {}).items()))
        away = sorted(reported.get("unreachable") or {})
        yield gauges(f"{_OURS}pump_unreachable", "1 for a Pump that cannot be reached.", "nodeID", ((pump, 1.0) for pump in away))
        yield gauges(
            f"{_OURS}tidb_without_binlog", "1 for a TiDB server that writes no binlogs.", "server", ((one, 1.0) for one in self.silent)
        )
