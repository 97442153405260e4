"""A stream whose lives copy tables first, as ``jobs.replication`` has them do: the mirror is copied from, the binlogs are applied. Imports pyspark."""

import threading
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.bootstrap import NOTHING, BootstrapRequest, StreamStand, TableLoader
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.sinks.apply import BatchApplier
from pyspark_tidb_binlog.sinks.mysql.lease import lease_of
from pyspark_tidb_binlog.sinks.sink import Sink
from tests.support.emulated_stream import EmulatedStream, ToldHistory
from tests.support.mirrored_upstream import MirroredUpstream


class BootstrappedStream(EmulatedStream):
    """Like ``EmulatedStream``; ``request`` is what the next lives are asked to copy."""

    def __init__(self, spark: SparkSession, config: DrainerConfig, source: PrivateMariaDB) -> None:
        super().__init__(spark, config)
        self._config = replace(config, source=replace(config.source, cluster_id=self.upstream.cluster_id))
        self.mirror = MirroredUpstream(self.upstream, source)
        self.request = NOTHING
        self.stop = threading.Event()

    def begin(self, request: BootstrapRequest = NOTHING, **settings: Any) -> int:
        """A new life, which copies what is asked for; where its stream begins. ``settings``: of ``ApplyConfig``."""
        self.restart(replace(self._config, apply=replace(self._config.apply, **settings)))
        self.request = request
        return self.sink.commit_ts

    def change(self, work: Any) -> int:
        """One transaction, in both."""
        return self.mirror.change(work)

    def _living(self) -> tuple[Sink, BatchApplier]:
        if self._life is None:
            sink = self.unopened()
            history = ToldHistory(self.upstream)
            applier = BatchApplier(self._spark, self._config, sink, history, self.reports.append)  # type: ignore[arg-type]
            self._life = sink, applier
            loader = TableLoader(self._spark, self._config, self.request, self.stop, self.mirror.reader(self._spark.sparkContext.broadcast))

            def start(target: str, commit_ts: int | None) -> int:
                loaded = loader.first_load(lambda: lease_of(sink), commit_ts, lambda ts, again: history.snapshot())
                return next(ts for ts in (commit_ts, loaded, self.after_ts) if ts is not None)

            try:
                found = applier.open(start)
                if found.unfinished is not None:
                    self._replay(applier, found.unfinished)
                loader.of_stream(lease_of(sink), StreamStand(sink.commit_ts, found.schema_version, history.snapshot(), applier.refused))
            except BaseException:
                self.restart()
                raise
        return self._life
