"""A stream whose lives copy tables first, as ``jobs.stream.replication`` has them do: the mirror is copied from, the binlogs are applied. Imports pyspark."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.drainer_options import NO_BOOTSTRAP, BootstrapRequest
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.table_loader import StreamStand, TableLoader
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.jobs.stream.upstream_cluster import StreamServers
from pyspark_tidb_binlog.sinks.apply import BatchApplier
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from pyspark_tidb_binlog.sinks.mysql.lease import lease_of
from pyspark_tidb_binlog.sinks.sink import Sink, TargetProgress
from tests.support.bootstrap_life import Life
from tests.support.emulated_stream import EmulatedStream, ToldHistory
from tests.support.mirrored_upstream import MirroredUpstream


def begun_stream(
    spark: SparkSession,
    config: DrainerConfig,
    history: Any,
    request: BootstrapRequest,
    reader: SnapshotSource,
    after_ts: int,
    stop: threading.Event,
    report: Callable[[BatchReport], None] = lambda report: None,
    replay: Callable[[BatchApplier, TargetProgress], None] = lambda applier, found: None,
    servers: StreamServers = dict,
) -> tuple[Sink, BatchApplier]:
    """A target that was opened, and everything copied that was to be; closed again if that fails."""
    loader = TableLoader(spark, config, request, stop, reader, servers)
    sink = sink_of(config, config.source.cluster_id, stop.wait, None, spark, loader)  # type: ignore[arg-type]
    applier = BatchApplier(spark, config, sink, history, report)

    def start(target: str, commit_ts: int | None) -> int:
        loaded = loader.first_load(lambda: lease_of(sink), commit_ts, lambda ts, again: history.snapshot())
        return next(ts for ts in (commit_ts, loaded, after_ts) if ts is not None)

    try:
        found = applier.open(start)
        replay(applier, found)
        stand = StreamStand(sink.commit_ts, applier.version, history.snapshot(), applier.frozen)
        if config.apply.db_type == "lake":
            sink.load(loader.requested(stand), absent=request.everything)
        else:
            loader.of_stream(lease_of(sink), stand)
    except BaseException:
        sink.close()
        raise
    return sink, applier


class BootstrappedStream(EmulatedStream):
    """Like ``EmulatedStream``; ``request`` is what the next lives are asked to copy."""

    def __init__(self, spark: SparkSession, config: DrainerConfig, source: PrivateMariaDB) -> None:
        super().__init__(spark, config)
        self._config = replace(config, source=replace(config.source, cluster_id=self.upstream.cluster_id))
        self.mirror = MirroredUpstream(self.upstream, source)
        self.request = NO_BOOTSTRAP
        self.servers: dict[str, str] = {"the-mirror": "10.0.0.1:4000"}
        """What the stream's side knows of its TiDB servers."""
        self.stop = threading.Event()

    def begin(self, request: BootstrapRequest = NO_BOOTSTRAP, **settings: Any) -> int:
        """A new life, which copies what is asked for; where its stream begins. ``settings``: of ``ApplyConfig``."""
        self.restart(replace(self._config, apply=replace(self._config.apply, **settings)))
        self.request = request
        return self.sink.commit_ts

    def beside(self, request: BootstrapRequest) -> None:
        """Another life while this one runs."""
        reader = self.mirror.reader(self._spark.sparkContext.broadcast)
        begun_stream(self._spark, self._config, ToldHistory(self.upstream), request, reader, self.after_ts, self.stop)[0].close()

    def change(self, work: Any) -> int:
        """One transaction, in both."""
        return self.mirror.change(work)

    def life(self, history: Path) -> Life:
        """The same in another process; ``history``: a file to be written."""
        history.write_text(json.dumps(self.upstream.jobs()))
        return Life(self._config, self.mirror.account, history, self.after_ts, self.request)

    def _living(self) -> tuple[Sink, BatchApplier]:
        if self._life is None:

            def replay(applier: BatchApplier, found: TargetProgress) -> None:
                if found.unfinished is not None:
                    self._replay(applier, found.unfinished)

            reader = self.mirror.reader(self._spark.sparkContext.broadcast)
            history = ToldHistory(self.upstream)
            self._life = begun_stream(
                *(self._spark, self._config, history, self.request, reader, self.after_ts, self.stop, self.reports.append, replay),
                lambda: self.servers,
            )
        return self._life


def by_value(table: Table, rows: Counter[tuple[bytes | None, ...]]) -> list[tuple[Any, ...]]:
    """The rows of ``table`` by their id, with numbers and documents as what they are: servers write them differently."""
    reads: dict[str, Callable[[bytes], Any]] = {"float": float, "double": float, "json": json.loads}
    kinds = [column.kind for column in table.columns]
    read = (
        tuple(cell if cell is None else reads.get(kind, bytes)(cell) for kind, cell in zip(kinds, row, strict=True))
        for row in rows.elements()
    )
    return sorted(read, key=lambda row: int(row[0]))
