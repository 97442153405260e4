"""The whole stream as one object to start, monitor and stop: source -> pair -> apply -> checkpoint. [spark]

Promises: ``start`` first makes the target consistent (it replays an unfinished span exactly), then decides where to resume (``jobs.stream.resume``).
The target's own checkpoint row is authoritative; Spark's checkpoint directory and Delta count only if they belong to the same target. Binlogs that
are read again are skipped up to the commitTS of the target's row.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of, patiently
from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask, push_regularly
from pyspark_tidb_binlog.binlog_source.cluster.schema_reader import SchemaReader
from pyspark_tidb_binlog.binlog_source.cluster.status_port import mvcc_safe_point
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.drainer.pages import ServedStream
from pyspark_tidb_binlog.binlog_source.source.mid_history import committed_before
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions
from pyspark_tidb_binlog.binlog_source.stream import look_up, transactions, transactions_between
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from pyspark_tidb_binlog.jobs.entry import documents
from pyspark_tidb_binlog.jobs.entry.cli import replication_error_in
from pyspark_tidb_binlog.jobs.entry.drainer_options import NO_BOOTSTRAP, BootstrapRequest
from pyspark_tidb_binlog.jobs.entry.local_paths import history_cache
from pyspark_tidb_binlog.jobs.spark.jvm_heap import HeapAfterBigBatches
from pyspark_tidb_binlog.jobs.spark.spark_session import require_session
from pyspark_tidb_binlog.jobs.stream.batch_gate import BatchGate
from pyspark_tidb_binlog.jobs.stream.live_page import LivePage, PageFacts
from pyspark_tidb_binlog.jobs.stream.report import Progress, as_json
from pyspark_tidb_binlog.jobs.stream.resume import NothingApplied, ResumeState, check_no_gap, check_spark, first_ts, start_ignored
from pyspark_tidb_binlog.jobs.stream.snapshot_taker import SnapshotTaker
from pyspark_tidb_binlog.jobs.stream.spark_checkpoint import SparkCheckpoint
from pyspark_tidb_binlog.jobs.stream.start_wait import StartWait
from pyspark_tidb_binlog.jobs.stream.stream_progress import StreamProgress
from pyspark_tidb_binlog.jobs.stream.table_loader import StreamStand, TableLoader
from pyspark_tidb_binlog.jobs.stream.targets import resume_state, sink_of, words_for
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import LOOK_SECONDS, BinlogWatch, ports_at
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError, NotUsableYet, ReplicationError, Stopped
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.apply import ATOMIC_BYTES, BatchApplier
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, DeltaFindings, DeltaRows, places
from pyspark_tidb_binlog.sinks.engine import keyed
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport, DdlNote
from pyspark_tidb_binlog.sinks.mysql.lease import lease_of
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import with_collations
from pyspark_tidb_binlog.sinks.verify.verification_table import verified_at

_log = logging.getLogger(__name__)

GRACE_SECONDS = 4.0
"""How long a batch may continue after the stream was asked to stop."""
DELTA_SECONDS = 8.0
"""How long the background writer of Delta may then take for the remaining rows."""
_VERIFIED_SECONDS = 30.0
"""How often the Drainer looks what ``verify`` has found."""
_LOOK_SECONDS = 0.25
"""Interval between checks whether the query still runs: each check wakes the JVM."""


class Replication:
    """One Drainer's stream."""

    def __init__(
        self,
        spark: SparkSession,
        config: DrainerConfig,
        stop: threading.Event | None = None,
        bootstrap: BootstrapRequest = NO_BOOTSTRAP,
        upstream: SnapshotSource | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Nothing is written before ``start``. Setting ``stop`` ends every wait, and finally a batch longer than ``GRACE_SECONDS``.

        ``bootstrap``: the tables to copy before the stream begins; ``upstream``: their source, None: ``[spark.upstream]``. ``say`` prints what a start
        waits for, and where the stream resumes if the settings name another position.

        Raises:
            PumpUnavailable: PD or the registry, or at the first start a Pump, did not answer for ``upstream_timeout`` seconds.
            Stopped: ``stop`` was set meanwhile.
        """
        require_session(spark, delta=config.apply.db_type == "lake")
        self._spark = spark
        self._bootstrap = bootstrap
        self._say = say
        self._stop = stop or threading.Event()
        self._tls = TlsSettings.of(config.source.security)
        """TLS of all connections inside the cluster; None: no TLS."""
        if self._tls is not None:
            self._tls.check(listens=True)
        waiting = StartWait(config.upstream_timeout, self._stop, say)
        self._checkpoint = SparkCheckpoint(spark, config, waiting)
        self._discovery = discovery_of(config.source)
        cluster_id = config.source.cluster_id or patiently(self._discovery.cluster_id, config.upstream_timeout, waiting)
        source = dataclasses.replace(config.source, cluster_id=cluster_id, delivery=str(self._checkpoint.delivery))
        self._config = dataclasses.replace(config, source=source)
        self._closing = contextlib.ExitStack()
        """The resources that ``close`` closes last."""
        self._closing.callback(self._discovery.close)
        self._status_ports = history_at(config.source, self._tls)
        self._feed = HistoryFeed(self._status_ports, history_cache(config.checkpoint_dir, cluster_id), self._tls, self._pause)
        self._config = with_collations(self._config)
        ports = partial(ports_at, self._status_ports, self._tls)
        self._loader = TableLoader(
            spark, self._config, bootstrap, self._stop, upstream, lambda: ports().servers(), self._join_cluster, self._discovery.registry
        )
        self._now = partial(patiently, self._discovery.now, config.upstream_timeout, waiting)
        """The upstream's timestamp of now."""
        self._sink = sink_of(self._config, cluster_id, self._pause, self._now, spark, self._loader)
        self._sink.defer(lambda at, upto_ts: self._checkpoint.note_nothing_applied(NothingApplied(self._sink.target, at, upto_ts)))
        self._applier = BatchApplier(spark, self._config, self._sink, self._feed, self._take_report, self._note_ddl)
        self._heap = HeapAfterBigBatches.of(spark, ATOMIC_BYTES)
        _warm_up(spark, self._config)
        apply, binlogs = config.apply, BinlogWatch(self._status_ports, self._tls)
        self._counts = StreamProgress(self._sink, self._applier.clock, apply.log_row_data, binlogs)
        seen = PageFacts(apply.drainer, words_for(self._config).where, apply.db_type, self.delivery, apply.log_row_data)
        self._page = LivePage(seen, self.progress, self._sink.kept)
        self._query: StreamingQuery | None = None
        self._delta: DeltaCheckpoint | None = None
        self._node: DrainerNode | None = None
        self._gate: BatchGate | None = None
        self._waiting: deque[BatchReport] = deque()
        self._looked_at = 0.0
        self._ended = False
        self._reported_ts = 0
        self.started_at = 0.0
        """``time.monotonic`` just before the query was started."""

    @property
    def query(self) -> StreamingQuery:
        """The running query."""
        if self._query is None:
            raise ConfigError("the stream is not started: call start() first")
        return self._query

    @property
    def reports(self) -> Sequence[BatchReport]:
        """The newest batches."""
        return self._counts.reports

    @property
    def commit_ts(self) -> int:
        """Everything up to here is in the target."""
        return self._sink.commit_ts

    @property
    def page_url(self) -> str:
        """Where a browser sees this stream; empty before ``start``."""
        return f"{'https' if self._tls else 'http'}://{self._node.address}/" if self._node is not None else ""

    @property
    def delivery(self) -> Delivery:
        """How this query reads the Pumps."""
        return Delivery(self._config.source.delivery)

    def start(self) -> Self:
        """Clean up after a crash, decide where to resume, start the query. On failure, close what was opened."""
        try:
            self._start()
        except BaseException as error:
            self._close_after_error()
            told = self._checkpoint.disks.failure_in(str(error)) if isinstance(error, (PySparkException, Py4JError, OSError)) else None
            if told is not None:
                raise told from error
            raise
        return self

    def _start(self) -> None:
        config = self._config
        self._raise_if_stopped()
        begin = config.source.starting_commit_ts
        if begin > 0 and self._checkpoint.kept_for is None and not config.apply.load_schema_snapshot:
            self._look_for_ddls_before(begin)
        found = self._applier.open(self._begin_at)
        if found.unfinished is not None:
            span = found.unfinished
            self._applier.replay(span, transactions_between(self._spark, config.source, span.after_ts, span.upto_ts))
        self._raise_if_stopped()
        if config.apply.db_type in ("mysql", "tidb"):
            self._loader.of_stream(lease_of(self._sink), self._stand())
        elif config.apply.db_type == "lake":
            self._sink.load(self._loader.requested(self._stand()), absent=self._bootstrap.everything)
        self._checkpoint.clear_half_written()
        # In this order: a name is kept only once it is registered.
        gate = self._join_cluster()
        self._checkpoint.keep(self._sink.target)
        source = dataclasses.replace(config.source, starting_commit_ts=self._sink.commit_ts)
        options = StreamOptions(stop_file=str(gate.file), patience=config.upstream_timeout, bucket_ids=self._checkpoint.bucket_ids)
        frame = transactions(self._spark, source, self.delivery, options)
        every = config.apply.lake_interval if config.apply.db_type == "lake" else 0.0
        self.started_at = time.monotonic()
        self._query = (
            frame.writeStream.queryName("tidb_binlog")
            .option("checkpointLocation", config.checkpoint_dir)
            .trigger(processingTime=f"{every} seconds")
            .foreachBatch(self._applier)
            .start()
        )
        app_id, retention = str(self._query.id), days_or_duration(config.delta_retention)
        self._delta = DeltaCheckpoint(
            DeltaRows(config.delta_dir, app_id, self._sink.target, retention), DeltaFindings(config.findings_dir, app_id, retention)
        )
        self._delta.fill_up(found.commit_ts, found.schema_version, found.consistent)
        self._reported_ts = max(self._reported_ts, found.commit_ts)
        while self._waiting:
            self._record(self._waiting.popleft())

    def reached(self, commit_ts: int) -> bool:
        """Whether the target holds everything up to ``commit_ts`` and ``progress`` counts the batch that applied it. Cheap to poll.

        Raises the error that ended the stream, at most ``_LOOK_SECONDS`` after it occurred.
        """
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self.check()
            self._ended = not self.query.isActive
            self._looked_at = now
        return self._reported_ts >= commit_ts

    def check(self) -> None:
        """Raise the error that ended the stream, unwrapped; also when another Drainer took the lease, which an idle stream misses."""
        if self._sink.lost is not None:
            raise self._sink.lost
        if self._applier.failure is not None:
            raise self._applier.failure
        failure = self.query.exception()
        if failure is not None:
            text = replication_error_in(str(failure))
            raise ReplicationError(text) if text else self._checkpoint.disks.failure_in(str(failure)) or failure

    def wait(self, stop: threading.Event, until_ts: int = 0) -> bool:
        """Block until ``stop`` is set or the node is closed (False), or everything up to ``until_ts`` (0 = never) is in the target (True)."""
        while not (stop.wait(0.05) or self._stop.is_set()):
            if self.reached(until_ts) and until_ts:
                return True
            if self._ended:
                self.check()
                return False
        return False

    def close(self) -> None:
        """Stop between two batches; safe to call twice.

        Once ``stop`` is set, or after an error, a batch that takes longer than ``GRACE_SECONDS`` is left unfinished; the next start finishes it.
        """
        with self._closing.pop_all() as then:
            if self._node is not None:
                then.callback(self._node.stop)
                self._node = None
            gate, self._gate = self._gate, None
            if gate is not None:
                then.callback(gate.remove)
            then.callback(self._sink.close)
            if self._delta is not None:
                self._delta.hurry()
                then.callback(self._close_delta, self._delta)
            if self._query is not None and gate is not None and self._settle(self._query, gate):
                # Stopping the query takes time; Delta is written meanwhile.
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
            _log.warning("stopped before all rows were written to Delta; the next start writes the rest from the target: %s", error)

    def _end(self, query: StreamingQuery) -> None:
        try:
            query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            _log.warning("the query could not be stopped cleanly: %s", error)

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped before the stream was started")

    def _pause(self, seconds: float) -> None:
        """Wait between two attempts of a statement, or of a look at the DDL history."""
        if self._stop.wait(seconds):
            raise Stopped("stopped while waiting for the target or the DDL history; the next start resumes from its checkpoint")

    def progress(self) -> Progress:
        """The current progress; quick, called from the reporter's thread."""
        failure = self._delta.failure if self._delta is not None else None
        shown = self._counts.progress(self._query, self._gate)
        waiting_for = self._feed.waiting_for
        return dataclasses.replace(
            shown,
            holding=waiting_for or shown.holding,
            stalled=waiting_for or shown.stalled,
            bootstrap=self._loader.words,
            copied=self._loader.copied,
            unrecorded=str(failure) if failure is not None else "",
        )

    def __enter__(self) -> Self:
        """Start the stream."""
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the stream; an error while closing does not hide an earlier one."""
        if error is None:
            self.close()
        else:
            if isinstance(error, ReplicationError) and not isinstance(error, Stopped):
                self._page.ends(str(error))
            self._close_after_error()

    def _close_after_error(self) -> None:
        # What failed may be what the running batch waits for.
        self._stop.set()
        try:
            self.close()
        except ReplicationError:
            _log.exception("the failed stream could not be closed cleanly")

    def _join_cluster(self) -> BatchGate:
        """Serve the node's pages and, if there is a registry, register: Pumps then notify this Drainer, and wait for it before they close.

        Called once, while the lease is held: before tables are copied, else before the query starts.
        """
        config, counts = self._config, self._counts
        if self._gate is not None:
            return self._gate
        gate = self._gate = BatchGate()
        stream = ServedStream(
            commit_ts=lambda: self.commit_ts,
            pump_positions=counts.pump_positions,
            applied_at=lambda: counts.applied_at,
            progress=lambda: as_json(self.progress()),
            metrics=counts.metrics.text,
            page=self._page.state,
            document=documents.document_text,
            pause=gate.shut,
            resume=gate.open,
            rest=gate.rest,
            keep=gate.keep,
            resting=partial(self._rests, gate),
            end=self._stop.set,
            reload=lambda names: self._sink.load(self._loader.named(names, self._stand())),
        )
        self._page.start()
        self._closing.callback(self._page.close)
        self._closing.callback(PeriodicTask("binlog status", LOOK_SECONDS, counts.binlogs.look, at_once=True).stop)
        self._closing.callback(PeriodicTask("verification", _VERIFIED_SECONDS, self._look_at_verification, at_once=True).stop)
        self._node = DrainerNode(
            self._discovery.registry,
            config.apply.drainer,
            config.addr,
            config.advertise_addr,
            stream,
            synced_check_seconds=60.0 * config.synced_check_time,
            told=partial(setattr, counts.metrics, "state"),
            tls=self._tls,
        ).start()
        pushing = push_regularly(config.metrics_addr, config.metrics_interval, config.apply.drainer, stream.metrics)
        if pushing is not None:
            self._closing.callback(pushing.stop)
        _log.info("Drainer %s serves gRPC and HTTP at %s", config.apply.drainer, self._node.address)
        return gate

    def _look_at_verification(self) -> None:
        with contextlib.suppress(NotUsableYet):  # it shows what it has seen last
            self._counts.metrics.verified = verified_at(self._config.verification_dir)

    def _rests(self, gate: BatchGate) -> bool:
        """Whether the gate is shut and no batch is under way, nor one that the source was about to return."""
        query = self._query
        try:
            busy = query is None or self._busy(query, gate)
        except (PySparkException, Py4JError, OSError) as error:
            _log.warning("cannot tell whether a batch is under way: %s", error)
            busy = True
        return gate.rested(busy=busy)

    def _settle(self, query: StreamingQuery, gate: BatchGate) -> bool:
        """Wait until no batch is running; the source returns none once the stop file exists. False: one is unfinished, or Spark is gone."""
        gate.shut_for_good()
        quiet, asked_at = 0, 0.0
        try:
            while query.isActive and quiet < 3:
                if self._stop.is_set():
                    asked_at = asked_at or time.monotonic()
                if asked_at and time.monotonic() - asked_at > GRACE_SECONDS:
                    _log.warning(
                        "the running batch takes longer than %.0f s and is left unfinished: the next start finishes it", GRACE_SECONDS
                    )
                    self._spark.sparkContext.cancelAllJobs()
                    return False
                quiet = 0 if self._busy(query, gate) else quiet + 1
                time.sleep(0.1)
        except (PySparkException, Py4JError, OSError) as error:
            _log.warning("cannot tell whether the query still runs: %s", error)
            return False
        return True

    def _busy(self, query: StreamingQuery, gate: BatchGate) -> bool:
        # Without a batch, the stage stays the one before the first batch; Spark's trigger is not active while it initialises.
        return not self._applier.clock.between_batches or (query.status["isTriggerActive"] and not gate.asked)

    def _take_report(self, report: BatchReport) -> None:
        report = dataclasses.replace(report, findings=(*report.findings, *self._counts.binlogs.findings()))
        self._counts.take(report)
        self._page.take(report)
        self._reported_ts = report.upto_ts
        if self._delta is None:
            self._waiting.append(report)
        else:
            self._record(report)
        self._heap.note(report)

    def _note_ddl(self, note: DdlNote) -> None:
        self._counts.note_ddl(note)
        self._page.note_ddl(note)

    def _record(self, report: BatchReport) -> None:
        assert self._delta is not None
        if report.batch_id >= 0 or report.findings:
            self._delta.record(
                CheckpointRow(
                    batch_id=report.batch_id,
                    from_ts=report.after_ts,
                    resolved_ts=report.upto_ts,
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

    def _look_for_ddls_before(self, commit_ts: int) -> None:
        """Correct the feed, if FinishedTS does not determine which DDLs a target has that begins in the middle of the history."""
        found = committed_before(self._config.source, self._feed.snapshot(), commit_ts)
        if found:
            self._feed.note_committed(found)

    def _begin_at(self, target: str, commit_ts: int | None) -> int:
        """Where the stream begins, given the target's identity and its checkpoint row; raises an error if the operator must decide."""
        config = self._config
        known = resume_state(config)
        check_spark(known, self._checkpoint.kept_for, target, commit_ts)
        loaded = self._loader.first_load(lambda: lease_of(self._sink), commit_ts, self._history_reaching)
        if commit_ts is not None:
            starting = self._recorded_start(known, target, commit_ts)
        elif loaded is not None:
            return loaded
        else:
            starting = first_ts(known, *places(config.delta_dir, target))
            starting = starting if starting >= 0 else self._now()
        if config.apply.load_schema_snapshot and starting > 0:
            self._load_schemas(starting, again=commit_ts is not None)
        if commit_ts is not None:
            self._warn(start_ignored(known, commit_ts))
        elif words := self._loader.unfilled(starting, self._feed.snapshot):
            if known.starting_commit_ts < 0:
                # Before a checkpoint is recorded, which would count for the next start.
                raise BootstrapRefused(words)
            self._warn(words)
        return starting

    def _warn(self, words: str) -> None:
        if words:
            _log.warning("%s", words)
            self._say(words)

    def _history_reaching(self, ts: int, again: bool) -> SchemaHistory:
        """A DDL history that determines the schema at ``ts`` exactly; ``again``: an earlier start has begun there."""
        if self._config.apply.load_schema_snapshot:
            self._load_schemas(ts, again=again)
        else:
            self._feed.refresh()
            self._look_for_ddls_before(ts)
        return self._feed.snapshot()

    def _stand(self) -> StreamStand:
        """Where the stream is now."""
        return StreamStand(self._sink.commit_ts, self._applier.version, self._feed.snapshot(), self._applier.frozen)

    def _recorded_start(self, known: ResumeState, target: str, commit_ts: int) -> int:
        """Where the stream begins on a target whose checkpoint row is ``commit_ts``."""
        spark_ts, noted = self._checkpoint.committed_ts, self._checkpoint.nothing_applied
        if noted is not None and noted.covers(target, commit_ts, spark_ts):
            return spark_ts
        check_no_gap(known, spark_ts, commit_ts)
        moved = self._checkpoint.kept_for is None or spark_ts < commit_ts
        if commit_ts > 0 and moved and not self._config.apply.load_schema_snapshot:
            # Another Drainer may have brought the target there, whose row does not say exactly which DDLs it has executed.
            self._look_for_ddls_before(commit_ts)
        return commit_ts

    def _load_schemas(self, ts: int, *, again: bool) -> None:
        """Begin the schema history with a snapshot at ``ts``, and keep GC behind the checkpoint from now on."""
        config, where, registry = self._config, self._status_ports, self._discovery.registry
        if self._feed.is_recorded:
            raise ConfigError(
                "syncer.load-schema-snapshot reads the schema from TiDB's status ports: spark.tidb-status must not name a file"
            )
        self._closing.enter_context(self._loader.gc_held(ts, lambda: self._sink.commit_ts))
        ports = partial(ports_at, where, self._tls)
        kept = history_cache(config.checkpoint_dir, config.source.cluster_id, "snapshot")
        patience = self._feed.timeout
        taker = SnapshotTaker(
            SchemaReader(ports, patience, self._pause), self._feed, kept, lambda: mvcc_safe_point(registry, ports()), patience, self._pause
        )
        self._feed.begin_with(taker.at(ts, again=again))


_warm: set[str] = set()
"""The Spark applications that are warmed up."""


def _warm_up(spark: SparkSession, config: DrainerConfig) -> None:
    """Run the slow parts of a first batch once in the background, while the start asks registry, target and history."""
    application = spark.sparkContext.applicationId
    if application in _warm:
        return
    _warm.add(application)

    def run(act: Callable[[], None]) -> None:
        try:
            act()
        except (PySparkException, Py4JError, OSError, AttributeError, AssertionError) as error:  # the last two: the session was stopped
            _log.info("Spark was not warmed up: %s", error)

    for act in (partial(keyed.warm_up, spark, config.apply.parts), partial(look_up, spark, config.source)):
        threading.Thread(target=run, args=[act], name="warm-up", daemon=True).start()
