"""The whole stream as one object: source -> pair -> apply -> checkpoint, started, watched and stopped. [spark]

Promises: ``start`` first brings the target to a clean point (an unfinished span is replayed exactly), then decides where to
resume (``jobs.resume``): the target's own checkpoint row is the truth, and Spark's checkpoint directory and Delta count only for the same target.
Whatever is read twice on the way is passed over, because the target's row is the truth.
"""

import contextlib
import dataclasses
import json
import logging
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from binlog_source.cluster.registries import open_registry
from binlog_source.cluster.roster import roster_of
from binlog_source.drainer.node import Cistern
from binlog_source.source.options import StreamOptions
from binlog_source.source.read_notes import waiting
from binlog_source.stream import resolve_delivery, transactions, transactions_between
from conf.model import DrainerConfig
from conf.units import days_or_duration
from jobs.cli import replication_error_in
from jobs.places import Place, local_path
from jobs.report import Progress, held_by
from jobs.resume import DeltaPlace, Places, check_no_gap, check_spark, committed_ts, first_ts
from schemas.errors import ConfigError, ReplicationError, Stopped
from schemas.events import Delivery, physical_ms
from schemas.findings import in_words
from sinks.apply import BatchApplier, BatchReport
from sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, places
from sinks.delta.findings_table import DeltaFindings
from sinks.delta.maintenance import Bounds, DeltaMaintenance
from sinks.engine.history_cache import HistoryCache
from sinks.engine.history_feed import HistoryFeed

_log = logging.getLogger(__name__)

_KEPT = "tidb-binlog.json"
"""File beside Spark's checkpoint that keeps what a query must not change: its delivery, its buckets, its target."""
_KEPT_VERSION = 2
_RATE_SECONDS = 5.0
_SHOWN_FINDINGS = 20
"""Of them progress and summary show the last; the Delta table has all."""
GRACE_SECONDS = 4.0
"""How long a batch may go on after the stream was asked to stop."""
DELTA_SECONDS = 8.0
"""How long the background writer may then take for what is left."""
_STOP = "stop"
"""The file by which the source, in a process of its own on this machine, is told to give no further batch."""
_LOOK_SECONDS = 0.25
"""How often Spark is asked whether the query still runs: each question wakes the JVM."""


def findings_dir(config: DrainerConfig) -> str:
    """Where the Delta table ``findings`` lives: beside ``checkpoint``, whose directory nothing else may lie in."""
    return config.delta_dir.rstrip("/") + "-findings"


class Replication:
    """One Drainer's stream."""

    def __init__(self, spark: SparkSession, config: DrainerConfig, stop: threading.Event | None = None) -> None:
        """Nothing is touched before ``start``. ``stop``, once set, ends whatever this waits for, at last a batch that takes longer than ``GRACE_SECONDS``."""
        self._spark = spark
        self._stop = stop or threading.Event()
        self._place = Place(spark, config.checkpoint_dir)
        self._kept_for: str | None = None
        """Identity of the target that Spark's checkpoint was made with; empty = kept by a release that knew none, None = there is no checkpoint."""
        self._roster = roster_of(config.source)
        cluster_id = config.source.cluster_id or self._roster.cluster_id()
        source = dataclasses.replace(config.source, cluster_id=cluster_id, delivery=str(self._delivery(config)))
        self._config = dataclasses.replace(config, source=source)
        if not config.ddl_history:
            raise ConfigError("ddl-history is not set: name TiDB's status port (http://host:10080) or a recorded history file")
        self._feed = HistoryFeed(config.ddl_history, _history_cache(config.checkpoint_dir, cluster_id))
        self._applier = BatchApplier(spark, self._config, cluster_id, self._feed, self._take_report, self._pause)
        self._query: StreamingQuery | None = None
        self._delta: DeltaCheckpoint | None = None
        self._cistern: Cistern | None = None
        self._scratch: Path | None = None
        self._waiting: deque[BatchReport] = deque()
        self._totals = Progress()
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._ended = False
        self._reported_ts = 0
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
        """Clean up after a crash, decide where to resume, start the query. What was begun is ended again where that fails."""
        try:
            self._start()
        except BaseException:
            self._close_after_error()
            raise
        return self

    def _start(self) -> None:
        config = self._config
        self._heed()
        found = self._applier.open(self._begin_at)
        if found.unfinished is not None:
            span = found.unfinished
            self._applier.replay(span, transactions_between(self._spark, config.source, span.from_ts, span.to_ts))
        self._heed()
        self._keep()
        self._join_cluster()
        source = dataclasses.replace(config.source, starting_commit_ts=self._applier.commit_ts)
        self._scratch = Path(tempfile.mkdtemp(prefix="tbs-stop-"))
        frame = transactions(self._spark, source, config.pair, self.delivery, StreamOptions(stop_file=str(self._scratch / _STOP)))
        self.started_at = time.monotonic()
        self._query = (
            frame.writeStream.queryName("tidb_binlog")
            .option("checkpointLocation", config.checkpoint_dir)
            .trigger(processingTime="0 seconds")
            .foreachBatch(self._applier)
            .start()
        )
        app_id = str(self._query.id)
        beside = findings_dir(config)
        self._delta = DeltaCheckpoint(
            self._spark,
            config.delta_dir,
            app_id,
            self._applier.target,
            findings=DeltaFindings(self._spark, beside, app_id),
            maintenance=DeltaMaintenance(self._spark, (config.delta_dir, beside), Bounds(days_or_duration(config.delta_retention))),
        )
        self._delta.fill_up(found.commit_ts, found.schema_version, found.consistent)
        self._reported_ts = max(self._reported_ts, found.commit_ts)
        while self._waiting:
            self._record(self._waiting.popleft())

    def reached(self, commit_ts: int) -> bool:
        """Whether the target holds everything up to ``commit_ts``, and the batch that brought it is counted in ``progress``. Raises what ended the stream, noticed within ``_LOOK_SECONDS``; made to be polled."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self.check()
            self._ended = not self.query.isActive
            self._looked_at = now
        return self._reported_ts >= commit_ts

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
        """End between two batches; safe to call twice. Once ``stop`` is set, a batch that goes on for ``GRACE_SECONDS`` is left: the next start finishes it."""
        with contextlib.ExitStack() as then:
            if self._cistern is not None:
                then.callback(self._cistern.stop)
                self._cistern = None
            if self._scratch is not None:
                then.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            then.callback(self._applier.close)
            if self._delta is not None:
                self._delta.hurry()
                then.callback(self._close_delta, self._delta)
            if self._query is not None and self._settle(self._query):
                # Spark takes its time; Delta is written meanwhile.
                ending = threading.Thread(target=self._end, args=[self._query], name="ending the query", daemon=True)
                ending.start()
                then.callback(ending.join)

    def _close_delta(self, delta: DeltaCheckpoint) -> None:
        if not self._stop.is_set():
            delta.close()
            return
        try:
            delta.close(DELTA_SECONDS)
        except ReplicationError as error:
            _log.warning("stopped with rows missing in Delta; the next start fills it up from the target: %s", error)

    def _end(self, query: StreamingQuery) -> None:
        try:
            query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            _log.warning("the query could not be ended in order: %s", error)

    def _heed(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped before the stream was started")

    def _pause(self, seconds: float) -> None:
        """Between two tries of a statement."""
        if self._stop.wait(seconds):
            raise Stopped("stopped while the target was waited for; the next start goes on from its checkpoint")

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
        if error is None:
            self.close()
        else:
            self._close_after_error()

    def _close_after_error(self) -> None:
        try:
            self.close()
        except ReplicationError:
            _log.exception("the stream that failed could not be closed in order")

    def _join_cluster(self) -> None:
        """Register, where there is a registry: Pumps notify this Drainer, and do not close before it has read them."""
        config = self._config
        if "://" in config.source.pumps:
            registry = open_registry(config.source.pumps)
            self._cistern = Cistern(registry, config.apply.drainer, config.addr, config.advertise_addr, lambda: self.commit_ts).start()

    def _settle(self, query: StreamingQuery) -> bool:
        """Wait until no batch is running: the source gives none any more once it sees the stop file. False: one is left as it is, or Spark is gone."""
        if self._scratch is not None:
            (self._scratch / _STOP).touch()
        quiet, asked_at = 0, 0.0
        try:
            while query.isActive and quiet < 3:
                if self._stop.is_set():
                    asked_at = asked_at or time.monotonic()
                if asked_at and time.monotonic() - asked_at > GRACE_SECONDS:
                    _log.warning(
                        "the batch under way takes longer than %.0f s and is left as it is: the next start finishes it", GRACE_SECONDS
                    )
                    self._spark.sparkContext.cancelAllJobs()
                    return False
                quiet = 0 if self._busy(query) else quiet + 1
                time.sleep(0.1)
        except (PySparkException, Py4JError, OSError) as error:
            _log.warning("nobody knows whether the query still runs: %s", error)
            return False
        return True

    def _busy(self, query: StreamingQuery) -> bool:
        status = query.status
        asking = status["message"].startswith("Getting offsets")
        # "start": no batch has come yet, and none may come any more.
        return self._applier.stage not in ("start", "wait") or (status["isTriggerActive"] and not asking)

    def _holding(self) -> str:
        if self._applier.waited is not None:
            return str(self._applier.waited)
        stage = self._applier.stage
        if self._scratch is not None and stage in ("read", "wait", "start") and (away := waiting(self._scratch / _STOP)):
            return away
        if stage not in ("wait", "start"):
            return stage
        last = query.lastProgress if (query := self._query) is not None else None
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
        self._reported_ts = report.to_ts
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
                    bytes=report.row_bytes,
                    timings=dict(report.seconds),
                    findings=report.findings,
                    notes=() if report.batch_id >= 0 else ("an unfinished span, finished at start",),
                )
            )

    def _begin_at(self, target: str, commit_ts: int | None) -> int:
        """Where the stream begins, given the target's identity and what its row says; refused where a person must decide."""
        config = self._config
        known = Places(
            config.target.socket or f"{config.target.host}:{config.target.port}",
            config.source.cluster_id,
            config.apply.checkpoint_schema,
            config.checkpoint_dir,
            config.delta_dir,
            config.source.starting_commit_ts,
        )
        check_spark(known, self._kept_for, target, commit_ts)
        if commit_ts is not None:
            spark_ts = committed_ts(self._place.names("commits"), lambda number: self._place.read(f"offsets/{number}"))
            check_no_gap(known, spark_ts, commit_ts)
            return commit_ts
        starting = first_ts(known, DeltaPlace(*places(self._spark, config.delta_dir, target)))
        return starting if starting >= 0 else self._roster.now()

    def _delivery(self, config: DrainerConfig) -> Delivery:
        """The delivery that the checkpoint keeps, else the one asked for or possible."""
        kept = self._place.read(_KEPT)
        if kept is None:
            return resolve_delivery(config.source)
        made_with = json.loads(kept)
        if made_with["version"] != _KEPT_VERSION and made_with["delivery"] == Delivery.RAW:
            raise ConfigError(
                f"the checkpoint {config.checkpoint_dir} was made by a version that kept the pairing state in another form: "
                "delete the directory (the target knows where to resume)"
            )
        self._kept_for = made_with.get("target", "")
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
        self._place.write(_KEPT, json.dumps(self._kept()))

    def _kept(self) -> dict[str, object]:
        return {
            "version": _KEPT_VERSION,
            "delivery": self._config.source.delivery,
            "pairing_buckets": self._config.source.pairing_buckets,
            "target": self._applier.target,
        }

    @staticmethod
    def _unwrapped(failure: StreamingQueryException) -> Exception:
        text = replication_error_in(str(failure))
        return ReplicationError(text) if text else failure


def _history_cache(checkpoint_dir: str, cluster_id: int) -> HistoryCache | None:
    """Beside the checkpoint, where that is a local directory."""
    local = local_path(checkpoint_dir)
    return HistoryCache(local.with_name(local.name + ".history"), cluster_id) if local is not None else None
