"""The position of a running stream, its counts so far, what holds it back, and its metrics. [spark]

Promises: ``progress`` is quick and may be called from any thread; ``take`` is called by the batch's thread.
"""

import dataclasses
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.binlog_source.source.read_notes import away, waiting
from pyspark_tidb_binlog.jobs.stream.batch_gate import BatchGate
from pyspark_tidb_binlog.jobs.stream.drainer_metrics import DrainerMetrics
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, age_of, held_by, one_ddl, pumps_of, unanswered
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import BinlogWatch
from pyspark_tidb_binlog.schemas.findings import in_words
from pyspark_tidb_binlog.sinks.engine.batch_report import BETWEEN_BATCHES, REFUSED, BatchReport, DdlNote, Stage, StageClock
from pyspark_tidb_binlog.sinks.sink import Sink

HELD_SECONDS, SILENT_SECONDS = 3.0, 10.0
"""After how long a holder is named. An idle Pump promises something every 3 seconds: the second one is for a Pump of which nothing else is known."""
_RATE_SECONDS = 5.0
_DOING = {
    Stage.READ: "binlogs are read",
    Stage.HISTORY: "the DDL history is waited for",
    Stage.PLAN: "rows are planned",
    Stage.APPLY: "rows are written",
    Stage.DDL: "a DDL is executed",
}
_STARTING = {"Getting offsets": "the start asks the Pumps what they have", "Processing": "Spark plans the first batch"}
"""By how the state of Spark's query begins, before the first batch."""
_SHOWN_FINDINGS = 20
"""How many of the newest findings progress and summary show; the Delta table has all."""


class StreamProgress:
    """The counts of one stream since its start."""

    def __init__(self, sink: Sink, clock: StageClock, show_row_data: bool, binlogs: BinlogWatch) -> None:
        """``show_row_data``: whether the text of findings may contain row values."""
        self._sink = sink
        self._clock = clock
        self._show_row_data = show_row_data
        self.binlogs = binlogs
        self._totals = Progress()
        self._fakes_sent = 0
        self._pumps: tuple[SeenPump, ...] = ()
        """As the source has reported them last: while the registry is away it reports none."""
        self._source: Mapping[str, Any] = {}
        """What the source has reported last."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._lock = threading.Lock()
        self.metrics = DrainerMetrics(lambda: sink.commit_ts)
        """The node's state and what ``verify`` has found are told here. What the source has reported is as old as in ``pump_positions``."""
        self.reports: deque[BatchReport] = deque(maxlen=1000)
        """The newest batches."""
        self.applied_at = time.monotonic()
        """``time.monotonic`` when a transaction or DDL was applied last, or the stream was made."""
        self._advanced_at = self.applied_at
        """The same of a batch, which may be empty, or of a step of it."""
        self._stood_at = 0
        self._place: tuple[object, ...] = ()
        self._placed_at = 0.0

    def take(self, report: BatchReport) -> None:
        """Count a batch that is in the target."""
        words = tuple(in_words(f, self._show_row_data) for f in report.findings[-_SHOWN_FINDINGS:])
        with self._lock:
            self._totals = dataclasses.replace(
                self._totals,
                batches=self._totals.batches + 1,
                transactions=self._totals.transactions + report.transactions,
                row_events=self._totals.row_events + report.row_events,
                findings=self._totals.findings + len(report.findings),
                newest_findings=(self._totals.newest_findings + words)[-_SHOWN_FINDINGS:],
            )
            self._recent.append((time.monotonic(), report.row_events))
        self._advanced_at = time.monotonic()
        if report.transactions or report.ddls:
            self.applied_at = self._advanced_at
        self.metrics.applied(report)
        self.reports.append(report)

    def note_ddl(self, note: DdlNote) -> None:
        """A DDL was applied, skipped or refused."""
        if note.fate != REFUSED:
            with self._lock:
                self._totals = dataclasses.replace(self._totals, ddls=self._totals.ddls + 1, last_ddl=one_ddl(note.query))

    def pump_positions(self) -> Mapping[str, int] | None:
        """The newest ts received from each Pump; None before they have answered. As ``progress`` has read them last: a JVM that hangs holds nobody up."""
        promises: Mapping[str, int] | None = self._source.get("promises")
        return promises

    def progress(self, query: StreamingQuery | None, gate: BatchGate | None) -> Progress:
        """The current progress. Next to the file of ``gate`` the source's reads note what they wait for."""
        with self._lock:
            totals, recent = self._totals, list(self._recent)
        now = time.monotonic()
        rows = sum(n for at, n in recent if now - at <= _RATE_SECONDS)
        resolved = self._sink.commit_ts
        if resolved != self._stood_at:
            # A batch of many steps moves the target long before it ends.
            self._stood_at, self._advanced_at = resolved, now
        reported = self._source = _reported(query)
        held, counts = self._held(reported, gate), self._clock.counts
        self._pumps = pumps_of(reported, time.time(), resolved) or self._pumps
        missing = away(gate.file) if gate is not None else {}
        self.metrics.pumps(reported)
        silent = self.binlogs.servers
        self.metrics.silent = [server.address for server in silent]
        self._fakes_sent = max(self._fakes_sent, sum((reported.get("woken") or {}).values()))
        return dataclasses.replace(
            totals,
            resolved_ts=resolved,
            verified=self.metrics.verified,
            lag_seconds=age_of(resolved, time.time()),
            rows_per_second=rows / _RATE_SECONDS,
            fakes_sent=self._fakes_sent,
            holding=held.words,
            held_seconds=self._held_seconds(held, resolved, now),
            doing=self._doing(query),
            batch_rows=0 if self._clock.between_batches else counts.row_events,
            batch_written=0 if self._clock.between_batches else counts.rows_written,
            held_stage=held.stage,
            held_pump=held.pump,
            state=self.metrics.state.value,
            pumps=tuple(p if p.trouble else dataclasses.replace(p, trouble=missing.get(p.name, "")) for p in self._pumps),
            stalled=held.stalled,
            silent=tuple(server.words for server in silent),
            still_seconds=now - self._advanced_at,
        )

    def _held_seconds(self, held: "_HeldAt", resolved: int, now: float) -> float:
        """Since when neither the place nor the target has moved; 0.0: not for long enough that the place is a holder."""
        if (place := (held.stage, held.pump, resolved)) != self._place:
            self._place, self._placed_at = place, now
        least = SILENT_SECONDS if held.pump and held.stage == "source" and not held.stalled else HELD_SECONDS
        return now - self._placed_at if held.words and now - self._placed_at >= least else 0.0

    def _doing(self, query: StreamingQuery | None) -> str:
        if (stage := self._clock.stage) is not Stage.START:
            return _DOING.get(stage, "")
        if query is None:
            return "the start opens the target and the DDL history"
        message = str(query.status["message"])
        return next((words for begin, words in _STARTING.items() if message.startswith(begin)), "Spark opens the stream")

    def _held(self, reported: Mapping[str, Any], gate: BatchGate | None) -> "_HeldAt":
        if (error := self._sink.waiting_for) is not None:
            return _HeldAt(str(error), Stage.APPLY, stalled=str(error))
        stage = self._clock.stage
        if gate is not None and (stage in BETWEEN_BATCHES or stage is Stage.READ) and (read := waiting(gate.file)):
            return _HeldAt(read.words, Stage.READ, read.pump, read.words)
        outside = unanswered(reported)
        if stage not in BETWEEN_BATCHES:
            return _HeldAt(stage.value, stage, stalled=outside)
        if (state := self.metrics.state) is not NodeState.ONLINE:
            return _HeldAt(f"an operator ({state.value})", "source", stalled=outside)
        words = held_by(reported)
        unreachable = sorted(reported.get("unreachable") or {})
        pump = reported.get("held_by") or (unreachable[0] if len(unreachable) == 1 else "")
        return _HeldAt(words, "" if not words else "pair" if reported.get("holding") else "source", pump, outside)


@dataclasses.dataclass(frozen=True, slots=True)
class _HeldAt:
    """What holds progress, and what outside does not answer."""

    words: str
    stage: str
    pump: str = ""
    stalled: str = ""


def _reported(query: StreamingQuery | None) -> dict[str, Any]:
    """What the source has reported of its Pumps; empty before it has anything to report."""
    last = query.lastProgress if query is not None else None
    newest = last["sources"][0]["latestOffset"] if last and last["sources"] else None
    reported = json.loads(newest) if isinstance(newest, str) else None
    return reported if isinstance(reported, dict) else {}
