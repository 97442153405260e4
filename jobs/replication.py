"""The whole stream as one object: source -> pair -> apply -> checkpoint, started, watched and stopped. [spark]

Promises: ``start`` first brings the target to a clean point (an unfinished span is replayed exactly), then decides where to
resume: Spark's checkpoint directory knows; without it the target's own checkpoint row; where that is gone too, Delta's newest row.
Whatever is read twice on the way is passed over, because the target's row is the truth.
"""

import dataclasses
import json
import logging
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from binlog_source.cistern import Cistern
from binlog_source.options import StreamOptions
from binlog_source.roster import roster_of
from binlog_source.stream import resolve_delivery, transactions, transactions_between
from binlog_source.upstream.registries import open_registry
from conf.model import DrainerConfig
from jobs.cli import replication_error_in
from jobs.report import Progress, held_by
from schemas.errors import ConfigError, ReplicationError
from schemas.events import Delivery, physical_ms
from schemas.findings import in_words
from sinks.apply import BatchApplier, BatchReport
from sinks.delta_checkpoint import CheckpointRow, DeltaCheckpoint, latest
from sinks.delta_findings import DeltaFindings
from sinks.history_cache import HistoryCache
from sinks.history_feed import HistoryFeed

_log = logging.getLogger(__name__)

_KEPT = "tidb-binlog.json"
"""File beside Spark's checkpoint that keeps what a query must not change: its delivery and its buckets."""
_KEPT_VERSION = 2
_RATE_SECONDS = 5.0
_SHOWN_FINDINGS = 20
"""Of them progress and summary show the last; the Delta table has all."""
_LOOK_SECONDS = 0.25
"""How often Spark is asked whether the query still runs: each question wakes the JVM."""


def findings_dir(config: DrainerConfig) -> str:
    """Where the Delta table ``findings`` lives: beside ``checkpoint``, whose directory nothing else may lie in."""
    return config.delta_dir.rstrip("/") + "-findings"


class Replication:
    """One Drainer's stream."""

    def __init__(self, spark: SparkSession, config: DrainerConfig) -> None:
        """Nothing is touched before ``start``."""
        self._spark = spark
        self._roster = roster_of(config.source)
        cluster_id = config.source.cluster_id or self._roster.cluster_id()
        source = dataclasses.replace(config.source, cluster_id=cluster_id, delivery=str(self._delivery(config)))
        self._config = dataclasses.replace(config, source=source)
        if not config.ddl_history:
            raise ConfigError("ddl-history is not set: name TiDB's status port (http://host:10080) or a recorded history file")
        self._feed = HistoryFeed(config.ddl_history, _history_cache(config.checkpoint_dir, cluster_id))
        self._applier = BatchApplier(spark, self._config, cluster_id, self._feed, self._take_report)
        self._query: StreamingQuery | None = None
        self._delta: DeltaCheckpoint | None = None
        self._cistern: Cistern | None = None
        self._stop_file = Path(config.checkpoint_dir + ".stop")
        self._waiting: deque[BatchReport] = deque()
        self._totals = Progress()
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._ended = False
        self.started_at = 0.0
        """``time.monotonic`` just before the query was started."""
        self.reports: deque[BatchReport] = deque(maxlen=1000)
        """The newest batches."""

    @property
    def query(self) -> StreamingQuery:
        """The running query."""
        if self._query is None:
            raise ConfigError("the stream is not started: call start() first")
        return self._query

    @property
    def commit_ts(self) -> int:
        """Everything up to here is in the target."""
        return self._applier.commit_ts

    @property
    def delivery(self) -> Delivery:
        """How this query reads the Pumps."""
        return Delivery(self._config.source.delivery)

    def start(self) -> Self:
        """Clean up after a crash, decide where to resume, start the query."""
        config = self._config
        found = self._applier.open(self._initial_ts)
        if found.unfinished is not None:
            span = found.unfinished
            self._applier.replay(span, transactions_between(self._spark, config.source, span.from_ts, span.to_ts))
        self._stop_file.unlink(missing_ok=True)
        self._keep()
        self._join_cluster()
        source = dataclasses.replace(config.source, starting_commit_ts=self._applier.commit_ts)
        frame = transactions(self._spark, source, config.pair, self.delivery, StreamOptions(stop_file=str(self._stop_file)))
        self.started_at = time.monotonic()
        self._query = (
            frame.writeStream.queryName("tidb_binlog")
            .option("checkpointLocation", config.checkpoint_dir)
            .trigger(processingTime="0 seconds")
            .foreachBatch(self._applier)
            .start()
        )
        app_id = str(self._query.id)
        self._delta = DeltaCheckpoint(
            self._spark, config.delta_dir, app_id, findings=DeltaFindings(self._spark, findings_dir(config), app_id)
        )
        self._delta.fill_up(found.commit_ts, found.schema_version, found.consistent)
        while self._waiting:
            self._record(self._waiting.popleft())
        return self

    def reached(self, commit_ts: int) -> bool:
        """Whether the target holds everything up to ``commit_ts``. Raises what ended the stream, noticed within ``_LOOK_SECONDS``; made to be polled."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self.check()
            self._ended = not self.query.isActive
            self._looked_at = now
        return self.commit_ts >= commit_ts

    def check(self) -> None:
        """Raise the error that ended the stream, as itself; also that another Drainer has taken the lease, which an idle stream would not meet."""
        if self._applier.lost is not None:
            raise self._applier.lost
        if self._applier.failure is not None:
            raise self._applier.failure
        failure = self.query.exception()
        if failure is not None:
            raise self._unwrapped(failure)

    def wait(self, stop: threading.Event, until_ts: int = 0) -> bool:
        """Block until ``stop`` is set (False) or everything up to ``until_ts`` (0 = never) is in the target (True)."""
        while not stop.wait(0.05):
            if self.reached(until_ts) and until_ts:
                return True
            if self._ended:
                self.check()
                return False
        return False

    def close(self) -> None:
        """End between two batches; the query must not be stopped in the middle of one."""
        if self._query is not None and self._query.isActive:
            self._stop_file.touch()
            self._settle(self._query)
            self._query.stop()
        self._applier.close()
        self._stop_file.unlink(missing_ok=True)
        if self._delta is not None:
            self._delta.close()
        if self._cistern is not None:
            self._cistern.stop()
            self._cistern = None

    def progress(self) -> Progress:
        """Where the stream stands; quick, called from the reporter's thread."""
        with self._lock:
            totals, recent = self._totals, list(self._recent)
        now = time.monotonic()
        rows = sum(n for at, n in recent if now - at <= _RATE_SECONDS)
        resolved = self.commit_ts
        return dataclasses.replace(
            totals,
            resolved_ts=resolved,
            lag_seconds=max(0.0, time.time() - physical_ms(resolved) / 1000) if resolved else 0.0,
            rows_per_second=rows / _RATE_SECONDS,
            holding=self._holding(),
        )

    def __enter__(self) -> Self:
        """The stream, started; or, where that fails, nothing left of it."""
        try:
            return self.start()
        except BaseException:
            self._applier.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it; what already went wrong is not hidden by what goes wrong then."""
        try:
            self.close()
        except ReplicationError:
            if error is None:
                raise
            _log.exception("the stream that failed could not be closed in order")

    def _join_cluster(self) -> None:
        """Register, where there is a registry: Pumps notify this Drainer, and do not close before it has read them."""
        config = self._config
        if "://" in config.source.pumps:
            registry = open_registry(config.source.pumps)
            self._cistern = Cistern(registry, config.apply.drainer, config.addr, config.advertise_addr, lambda: self.commit_ts).start()

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until no batch is running: the source gives none any more once it sees the stop file."""
        quiet = 0
        while query.isActive and quiet < 3:
            status = query.status
            asking = status["message"].startswith("Getting offsets")
            # "start": no batch has come yet, and none may come any more.
            busy = self._applier.stage not in ("start", "wait") or (status["isTriggerActive"] and not asking)
            quiet = 0 if busy else quiet + 1
            time.sleep(0.1)

    def _holding(self) -> str:
        stage = self._applier.stage
        if stage not in ("wait", "start"):
            return stage
        last = self._query.lastProgress if self._query is not None else None
        newest = last["sources"][0]["latestOffset"] if last and last["sources"] else None
        reported = json.loads(newest) if isinstance(newest, str) else None  # "null" before the source has anything to report
        held = held_by(reported) if isinstance(reported, dict) else ""
        return held or (stage if stage == "start" else "")

    def _take_report(self, report: BatchReport) -> None:
        words = tuple(in_words(f, self._config.apply.log_row_data) for f in report.findings[-_SHOWN_FINDINGS:])
        with self._lock:
            self._totals = dataclasses.replace(
                self._totals,
                batches=self._totals.batches + 1,
                transactions=self._totals.transactions + report.transactions,
                row_events=self._totals.row_events + report.row_events,
                ddls=self._totals.ddls + report.ddls,
                findings=self._totals.findings + len(report.findings),
                newest_findings=(self._totals.newest_findings + words)[-_SHOWN_FINDINGS:],
            )
            self._recent.append((time.monotonic(), report.row_events))
        self.reports.append(report)
        if self._delta is None:
            self._waiting.append(report)
        else:
            self._record(report)

    def _record(self, report: BatchReport) -> None:
        assert self._delta is not None
        if report.batch_id >= 0 or report.findings:
            self._delta.record(
                CheckpointRow(
                    batch_id=report.batch_id,
                    from_ts=report.from_ts,
                    resolved_ts=report.to_ts,
                    schema_version=report.schema_version,
                    consistent=True,
                    rows=report.row_events,
                    transactions=report.transactions,
                    ddls=report.ddls,
                    timings=dict(report.seconds),
                    findings=report.findings,
                    notes=() if report.batch_id >= 0 else ("an unfinished span, finished at start",),
                )
            )

    def _initial_ts(self, target: str) -> int:
        """Where a stream begins whose target knows nothing of it: where Delta says it was, or where the settings say."""
        recorded = latest(self._spark, self._config.delta_dir)
        if recorded is not None:
            return recorded.resolved_ts
        starting = self._config.source.starting_commit_ts
        return starting if starting >= 0 else self._roster.now()

    def _delivery(self, config: DrainerConfig) -> Delivery:
        """The delivery that the checkpoint keeps, else the one asked for or possible."""
        kept = Path(config.checkpoint_dir) / _KEPT
        if not kept.exists():
            return resolve_delivery(config.source)
        made_with = json.loads(kept.read_text())
        if made_with["version"] != _KEPT_VERSION and made_with["delivery"] == Delivery.RAW:
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} was made by a version that kept the pairing state in another form: "
                "delete the directory (the target knows where to resume)"
            )
        if config.source.delivery not in ("", made_with["delivery"]):
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} was made with delivery {made_with['delivery']}, the setting source.delivery says "
                f"{config.source.delivery}: keep the former, or delete the directory (the target knows where to resume)"
            )
        if config.source.pairing_buckets != made_with["pairing_buckets"]:
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} was made with source.pairing-buckets = {made_with['pairing_buckets']}: "
                "keep it, or delete the directory (the target knows where to resume)"
            )
        return Delivery(made_with["delivery"])

    def _keep(self) -> None:
        """Write down what must not change; at once or not at all, because a start may be killed too."""
        directory = Path(self._config.checkpoint_dir)
        directory.mkdir(parents=True, exist_ok=True)
        fresh = directory / (_KEPT + ".new")
        fresh.write_text(json.dumps(self._kept()))
        fresh.replace(directory / _KEPT)

    def _kept(self) -> dict[str, object]:
        return {"version": _KEPT_VERSION, "delivery": self._config.source.delivery, "pairing_buckets": self._config.source.pairing_buckets}

    @staticmethod
    def _unwrapped(failure: StreamingQueryException) -> Exception:
        text = replication_error_in(str(failure))
        return ReplicationError(text) if text else failure


def _history_cache(checkpoint_dir: str, cluster_id: int) -> HistoryCache | None:
    """Beside the checkpoint, where that is a local directory."""
    local = checkpoint_dir.removeprefix("file://")
    return None if "://" in local else HistoryCache(Path(local + ".history"), cluster_id)
