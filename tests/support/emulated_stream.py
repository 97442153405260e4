"""The embedded upstream, applied to a target batch by batch as the stream does it: no Pumps, but Spark, the real applier and a real sink. Imports pyspark."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.schemas.ddl_jobs import Job, JobReader
from pyspark_tidb_binlog.schemas.events import ControlType
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.packed import packed
from pyspark_tidb_binlog.schemas.stages import TRANSACTION
from pyspark_tidb_binlog.sinks.apply import BatchApplier
from pyspark_tidb_binlog.sinks.engine.batch_report import BatchReport
from pyspark_tidb_binlog.sinks.sink import Sink, UnfinishedSpan
from tests.support.fakes.written import Written

MODES: dict[str, dict[str, Any]] = {
    "driver": {},
    "parts": {"atomic_rows": 1, "parts": 2},
    "rows": {"net_change": False, "worker_count": 2, "txn_batch": 2},
}
"""Settings with which few rows are applied in each of the ways."""


class ToldHistory:
    """Stands for the DDL history's feed: it always knows everything."""

    is_recorded = True
    timeout = lag = 0.0

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._read: tuple[int, SchemaHistory] = -1, SchemaHistory()

    def snapshot(self) -> SchemaHistory:
        """All jobs of the upstream; the same history as long as there is no new job."""
        jobs = self._upstream.jobs()
        if self._read[0] != len(jobs):
            self._read = len(jobs), SchemaHistory.of(JobReader().read(jobs))
        return self._read[1]

    def refresh(self, *, overtaken: bool = False) -> SchemaHistory:
        """Everything."""
        return self.snapshot()

    def wait_for_job(self, job_id: int) -> Job | None:
        """The job, at once."""
        return self.snapshot().job(job_id)

    def wait_for_unfinished(self, versions: Mapping[int, int], checked: dict[int, int], keeps: Callable[[TableAt], bool]) -> None:
        """Every DDL is in the history as soon as its columns are public."""


class EmulatedStream:
    """One upstream and its target, over any number of lives of the applier."""

    def __init__(self, spark: SparkSession, config: DrainerConfig) -> None:
        self._spark = spark
        self._written = Written()
        self.upstream = Upstream(self._written)
        self.after_ts = self.upstream.oracle.next()
        self.reports: list[BatchReport] = []
        self._config = config
        self._life: tuple[Sink, BatchApplier] | None = None

    def __enter__(self) -> "EmulatedStream":
        """Nothing is opened before the first batch."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restart()

    def restart(self, config: DrainerConfig | None = None) -> None:
        """The next batch is that of another life, with these settings from now on."""
        if self._life is not None:
            self._life[0].close()
        self._life, self._config = None, config or self._config

    def create(self, database: str, *tables: Table) -> None:
        """A database upstream, with its tables."""
        self.upstream.ddl.create_database(database)
        for table in tables:
            self.upstream.ddl.create_table(database, table)

    def change(self, work: Callable[[Any], object]) -> int:
        """One transaction; its commit_ts."""
        txn = self.upstream.begin()
        work(txn)
        return int(txn.commit())

    def apply(self, upto_ts: int = 0, meanwhile: AbstractContextManager[object] | None = None) -> BatchReport:
        """Everything since the last batch, as one; ``upto_ts`` 0: to now. ``meanwhile``: open while the batch is applied."""
        upto_ts = upto_ts or self.upstream.oracle.next()
        sink, applier = self._living()
        frame = self._frame(sink.commit_ts, upto_ts)
        with meanwhile or nullcontext():
            applier(frame, len(self.reports))
        return self.reports[-1]

    @property
    def payloads(self) -> list[bytes]:
        """Every binlog that was written, to be spoiled."""
        return self._written.payloads

    @property
    def sink(self) -> Sink:
        """The sink of this life, opened."""
        return self._living()[0]

    def unopened(self) -> Sink:
        """A sink of this stream, which the test opens itself."""
        return sink_of(self._config, self.upstream.cluster_id, lambda seconds: None, self.upstream.oracle.next)

    def history(self) -> SchemaHistory:
        """The DDL history."""
        return ToldHistory(self.upstream).snapshot()

    def _living(self) -> tuple[Sink, BatchApplier]:
        if self._life is None:
            sink = self.unopened()
            applier = BatchApplier(self._spark, self._config, sink, ToldHistory(self.upstream), self.reports.append)  # type: ignore[arg-type]
            self._life = sink, applier
            progress = applier.open(lambda target, commit_ts: self.after_ts if commit_ts is None else commit_ts)
            if progress.unfinished is not None:
                self._replay(applier, progress.unfinished)
        return self._life

    def _replay(self, applier: BatchApplier, span: UnfinishedSpan) -> None:
        applier.replay(span, self._frame(span.after_ts, span.upto_ts))

    def _frame(self, after_ts: int, upto_ts: int) -> Any:
        rows: list[dict[str, Any]] = [{"control": int(ControlType.RESOLVED), "start_ts": after_ts, "commit_ts": upto_ts}]
        rows += [
            {"start_ts": b.start_ts, "commit_ts": b.commit_ts, "payload": b.SerializeToString()}
            for b in self._written.commits()
            if after_ts < b.commit_ts <= upto_ts
        ]
        value = packed(pa.Table.from_pylist(rows, schema=TRANSACTION))
        return self._spark.createDataFrame(pa.table({"transactions": pa.array([value], pa.binary())}))
