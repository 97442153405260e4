"""The Delta table ``checkpoint``: one row per batch, appended in the background. [spark]

Promises: ``record`` never waits for Spark, Delta or the disk. A background thread writes several batches per commit, each batch once:
``txnAppId`` is the query's id and ``txnVersion`` the newest batch id of the commit. Batches that the table already holds are left out,
because Delta would otherwise silently skip the whole commit. Rows that cannot be written are kept, retried and reported. If the answer to a commit was
lost, the thread first reads from the table what it holds. The table is a record for operators, and says where to resume when Spark's checkpoint
directory is lost. The target's row stays authoritative.
"""

import datetime
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.events import moment_of
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.engine.spark_jvm import is_delta_table

_log = logging.getLogger(__name__)

COMMIT_SECONDS = 20.0
"""Interval between two commits; each one writes the batches recorded in the interval."""
PUT_OFF_SECONDS = 30.0
"""How long after the interval a commit waits at most for a stream that has little to do."""
_LOOK_SECONDS = 0.1
MOST_ROWS = 4096
"""Rows that wait one by one while the table cannot be written; more are joined two by two, so that memory does not grow with the batches."""
_ROWS, _FINDINGS = "rows", "findings"
"""The two tables."""
_JOINED = "several batches: the table could not be written meanwhile"
FILLED_UP = -1
"""``batch_id`` of a row that was copied from the target's checkpoint at start."""

SCHEMA = pa.schema(
    [
        pa.field("app_id", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("from_ts", pa.int64()),
        pa.field("resolved_ts", pa.int64()),
        pa.field("resolved_at", pa.timestamp("us", tz="UTC")),
        pa.field("schema_version", pa.int64()),
        pa.field("consistent", pa.bool_()),
        pa.field("rows", pa.int64()),
        pa.field("transactions", pa.int64()),
        pa.field("ddls", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("timings", pa.map_(pa.string(), pa.float64())),
        pa.field("notes", pa.list_(pa.string())),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
        pa.field("target", pa.string()),
    ]
)
"""The table's columns."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One batch, as a row of the table."""

    batch_id: int
    from_ts: int
    """Exclusive."""
    resolved_ts: int
    """Inclusive: everything up to here is in the target."""
    schema_version: int = 0
    consistent: bool = True
    rows: int = 0
    """Row events."""
    transactions: int = 0
    ddls: int = 0
    bytes: int = 0
    """Size of the row images."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage."""
    notes: Sequence[str] = ()
    """Origin of the row, if it is not a batch."""
    findings: Sequence[Finding] = ()
    """Written to a separate table (``sinks.delta.findings_table``)."""
    recorded_at: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))

    @property
    def resolved_at(self) -> datetime.datetime:
        """The time of ``resolved_ts``, in UTC."""
        return moment_of(self.resolved_ts)


@dataclass(frozen=True, slots=True)
class Newest:
    """What the table already holds."""

    batch_id: int = -1
    """Newest batch of this query."""
    resolved_ts: int = 0
    """``resolved_ts`` of the newest row of this target, of any query; lower than in earlier rows if the target was restored."""
    recorded_at: datetime.datetime | None = None
    """When that row was recorded; None = no such row."""


class CheckpointTable(Protocol):
    """The table that rows are written to; tests use one without Spark."""

    def newest(self) -> Newest:
        """What the table already holds."""

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add rows in one commit."""


class FindingsTable(Protocol):
    """The table that findings are written to."""

    def lacking(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
        """Those of ``rows`` whose findings the table lacks."""

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add the findings of ``rows`` in one commit."""


class Maintenance(Protocol):
    """Maintenance of the tables between two commits (``sinks.delta.maintenance``)."""

    def look(self) -> None:
        """Called after a commit when no other one is requested."""

    def end(self) -> None:
        """Stop immediately; may be called from any thread."""


class DeltaCheckpoint:
    """The background writer."""

    def __init__(
        self,
        spark: SparkSession | None,
        path: str,
        app_id: str,
        target: str,
        *,
        interval: float = COMMIT_SECONDS,
        retry_after: float = 5.0,
        table: CheckpointTable | None = None,
        findings: FindingsTable | None = None,
        maintenance: Maintenance | None = None,
        is_quiet: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start the thread.

        Args:
            spark: the session whose JVM writes.
            path: directory or URI of the table; created by the first commit.
            app_id: the streaming query's id.
            target: identity of the target that the rows describe.
            interval: seconds between two commits.
            retry_after: seconds after which a failed commit is retried.
            table: replaces the Delta table in tests.
            findings: receives each batch's findings before its row is written.
            maintenance: called after a commit when no other one is requested; may take long.
            is_quiet: whether the stream has little to do; a commit is put off until it has, by ``PUT_OFF_SECONDS`` at most.
        """
        self._path = path
        self._table = table
        self._findings = findings
        self._maintenance = maintenance
        self._is_quiet = is_quiet
        self._spark = spark
        self._app_id = app_id
        self._target = target
        self._interval = interval
        self._retry_after = retry_after
        self._news = threading.Condition()
        self._rows: list[CheckpointRow] = []
        self._hurry = False
        self._closing = False
        self._attempts = 0
        self._left: Sequence[CheckpointRow] = ()
        """The rows of an attempt that are still to be written, as far as the tables show."""
        self._unsure: dict[str, int] = {}
        """Table -> ``batch_id`` of the last row of a commit that may be in it or not."""
        self._newest: Newest | None = None
        self._failure: ReplicationError | None = None
        self._thread = threading.Thread(target=self._run, name="delta-checkpoint", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> ReplicationError | None:
        """Why the last commit failed; None when it did not."""
        return self._failure

    @property
    def pending(self) -> int:
        """Rows not yet in the table."""
        with self._news:
            return len(self._rows)

    def record(self, row: CheckpointRow) -> None:
        """Queue a batch for writing; returns immediately."""
        with self._news:
            self._rows.append(row)
            self._news.notify_all()

    def fill_up(self, commit_ts: int, schema_version: int, consistent: bool = True) -> None:
        """Record the target's checkpoint at start; it becomes a row if it differs from the table's newest row for this target."""
        note = "taken from the target's checkpoint: the batches up to here were applied but not recorded"
        self.record(CheckpointRow(FILLED_UP, 0, commit_ts, schema_version, consistent, notes=(note,)))

    def hurry(self) -> None:
        """Write the queued rows now instead of at the end of the interval."""
        with self._news:
            self._hurry = True
            self._news.notify_all()

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until everything recorded so far is in the table.

        Raises:
            ReplicationError: a commit failed meanwhile, or the rows are not written within ``timeout`` seconds.
        """
        with self._news:
            before = self._attempts
            self._hurry = True
            self._news.notify_all()
            done = self._news.wait_for(
                lambda: not self._rows or (self._attempts > before and self._failure) or not self._thread.is_alive(), timeout
            )
            if self._rows:
                left = f"{len(self._rows)} rows are not in the Delta table {self._path}"
                raise self._failure if done and self._failure else ReplicationError(f"{left} after {timeout:.0f} s")

    def close(self, timeout: float = 60.0) -> None:
        """Flush and end the thread; safe to call twice.

        Raises:
            ReplicationError: rows could not be written. The next start adds a row from the target's checkpoint instead.
        """
        if self._maintenance is not None:
            self._maintenance.end()
        try:
            self.flush(timeout)
        finally:
            with self._news:
                self._closing = True
                self._news.notify_all()
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._rows or self._closing)
                if self._closing:
                    return
                # Every commit waits for the interval first, including the first one of a run: batches come in groups.
                self._news.wait_for(lambda: self._hurry or self._closing, self._retry_after if self._failure else self._interval)
                self._put_off()
                self._hurry = False
                if len(self._rows) > MOST_ROWS:
                    self._rows[:] = joined(self._rows, frozenset(self._unsure.values()))
                rows = tuple(self._rows)
            failure = self._tried(rows)
            with self._news:
                self._attempts += 1
                self._failure = failure
                self._rows[: len(rows)] = self._left if failure is not None else ()
                self._news.notify_all()
                idle = failure is None and not self._hurry and not self._closing
            if idle and self._maintenance is not None:
                self._look(self._maintenance)

    def _put_off(self) -> None:
        """A first commit takes seconds of CPU, which the first big batches need more. Call with the condition held."""
        latest = time.monotonic() + PUT_OFF_SECONDS
        while not (self._hurry or self._closing or self._is_quiet()) and time.monotonic() < latest:
            self._news.wait(_LOOK_SECONDS)

    def _tried(self, rows: Sequence[CheckpointRow]) -> ReplicationError | None:
        """Write ``rows``, or why that failed."""
        self._left = rows
        try:
            return self._write(rows)
        except Exception as error:  # the last resort of the thread: whatever it is must be seen, and rows that nobody writes would pile up
            self._newest = None
            text = f"cannot write {len(rows)} rows to the Delta table {self._path}: {reason_of(error)}; they are kept and retried"
            _log.exception(text)
            return ReplicationError(text)

    def _look(self, maintenance: Maintenance) -> None:
        try:
            maintenance.look()
        except Exception:  # as above: a table that is not compacted is better than one that is not written
            _log.exception("the Delta table %s could not be compacted or vacuumed; this is retried after a later commit", self._path)

    def _write(self, rows: Sequence[CheckpointRow]) -> ReplicationError | None:
        try:
            if self._findings is not None and any(r.findings for r in rows):
                self._write_findings(self._findings)
            if self._table is None:
                self._table = DeltaTable(self._spark, self._path, self._app_id, self._target)
            if self._newest is None:
                self._newest = self._table.newest()
                self._unsure.pop(_ROWS, None)
            self._left = new = missing_rows(self._left, self._newest)
            if new:
                failpoints.point("before-delta")
                self._unsure[_ROWS] = max(r.batch_id for r in new)
                self._table.append(new)
                del self._unsure[_ROWS]
                failpoints.point("after-delta")
                batch_id = max(self._newest.batch_id, *(r.batch_id for r in new))
                self._newest = Newest(batch_id, new[-1].resolved_ts, new[-1].recorded_at)
        except (PySparkException, Py4JError, OSError) as error:
            # The commit may have succeeded, or another writer may have written: read the table again before the next attempt.
            self._newest = None
            text = f"cannot write {len(rows)} rows to the Delta table {self._path}: {reason_of(error)}; they are kept and retried"
            _log.warning(text)
            return ReplicationError(text)
        return None

    def _write_findings(self, table: FindingsTable) -> None:
        new = table.lacking(self._left)
        self._unsure.pop(_FINDINGS, None)
        lacking = {r.batch_id for r in new}
        self._left = [r if r.batch_id in lacking else replace(r, findings=()) for r in self._left]
        if new:
            self._unsure[_FINDINGS] = max(r.batch_id for r in new)
            table.append(new)
            del self._unsure[_FINDINGS]
            self._left = [replace(r, findings=()) for r in self._left]


def joined(rows: Sequence[CheckpointRow], ends: frozenset[int] = frozenset()) -> list[CheckpointRow]:
    """The batches of ``rows``, each two as one row. A row copied from the target is not joined, nor a row that follows one of ``ends``. Pure."""
    found: list[CheckpointRow] = []
    pairs = 0
    for row in rows:
        last = found[-1] if found else None
        if (
            last is None
            or pairs == len(found)
            or last.batch_id in ends | {FILLED_UP}
            or row.batch_id == FILLED_UP
            or last.resolved_ts > row.resolved_ts
        ):
            found.append(row)
            continue
        found[-1], pairs = _both(last, row), len(found)
    return found


def _both(first: CheckpointRow, second: CheckpointRow) -> CheckpointRow:
    timings = {stage: first.timings.get(stage, 0.0) + second.timings.get(stage, 0.0) for stage in {**first.timings, **second.timings}}
    return replace(
        second,
        from_ts=first.from_ts,
        rows=first.rows + second.rows,
        transactions=first.transactions + second.transactions,
        ddls=first.ddls + second.ddls,
        bytes=first.bytes + second.bytes,
        timings=timings,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes, _JOINED))),
        findings=(*first.findings, *second.findings),
    )


def missing_rows(rows: Sequence[CheckpointRow], newest: Newest) -> list[CheckpointRow]:
    """The rows that the table lacks, each batch once, in order. Pure."""
    found: list[CheckpointRow] = []
    batch_id, resolved_ts = newest.batch_id, newest.resolved_ts
    for row in rows:
        if _says_more(row, resolved_ts, newest) if row.batch_id == FILLED_UP else row.batch_id > batch_id:
            found.append(row)
            batch_id, resolved_ts = max(batch_id, row.batch_id), row.resolved_ts
    return found


def _says_more(filled_up: CheckpointRow, resolved_ts: int, newest: Newest) -> bool:
    """Whether the target's checkpoint differs from the newest row (ahead, or behind after a restore) and is not the row of an append
    whose answer was lost.
    """
    return filled_up.resolved_ts != resolved_ts and (newest.recorded_at is None or filled_up.recorded_at > newest.recorded_at)


def latest(spark: SparkSession, path: str) -> CheckpointRow | None:
    """The most recently recorded row; None when there is no table or no row."""
    if not is_table(spark, path):
        return None
    found = _rows(spark, path).orderBy(F.desc("recorded_at"), F.desc("resolved_ts")).limit(1).toArrow().to_pylist()
    if not found:
        return None
    row: dict[str, Any] = found[0]
    for name in ("app_id", "resolved_at", "target"):
        del row[name]
    return CheckpointRow(**row | {"timings": dict(row["timings"] or ()), "notes": tuple(row["notes"] or ())})


def places(spark: SparkSession, path: str, target: str) -> tuple[int | None, int | None]:
    """The resolved_ts of the newest row of ``target``, and that of the newest row of another target; None = no such row."""
    if not is_table(spark, path):
        return None, None
    mine = F.col("target") == target
    row = _rows(spark, path).agg(_last_resolved(mine), _last_resolved(~mine)).toArrow().to_pylist()[0]
    of_target, of_others = row.values()
    return of_target, of_others


def _rows(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path)


def _last_resolved(which: Column) -> Column:
    return F.max_by(F.when(which, F.col("resolved_ts")), F.when(which, F.struct("recorded_at", "resolved_ts")))


class DeltaTable:
    """``CheckpointTable`` in Delta."""

    def __init__(self, spark: SparkSession | None, path: str, app_id: str, target: str) -> None:
        """Opens a separate Spark session, so that its settings do not affect other queries."""
        if spark is None:
            raise ReplicationError("a Delta checkpoint needs a Spark session")
        self._spark = spark.newSession()
        self._path = path
        self._app_id = app_id
        self._target = target
        for name, value in SETTINGS.items():
            self._spark.conf.set(name, value)

    def newest(self) -> Newest:
        """Read by one Spark job over the table."""
        if not is_table(self._spark, self._path):
            return Newest()
        mine = F.when(F.col("app_id") == self._app_id, F.col("batch_id"))
        of_target = F.col("target") == self._target
        last_at = F.max(F.when(of_target, F.col("recorded_at")))
        row = _rows(self._spark, self._path).agg(F.max(mine), _last_resolved(of_target), last_at).toArrow().to_pylist()[0]
        batch_id, resolved_ts, recorded_at = row.values()
        return Newest(-1 if batch_id is None else batch_id, resolved_ts or 0, recorded_at)

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add rows in one commit of one file."""
        version = max(r.batch_id for r in rows)
        writer = self._spark.createDataFrame(as_table(rows, self._app_id, self._target)).coalesce(1).write.format("delta").mode("append")
        if version >= 0:
            writer = writer.option("txnAppId", self._app_id).option("txnVersion", str(version))
        writer.save(self._path)


def as_table(rows: Sequence[CheckpointRow], app_id: str, target: str) -> pa.Table:
    """Rows as Arrow, in ``SCHEMA``."""
    return pa.Table.from_pylist(
        [
            {
                "app_id": app_id,
                "batch_id": r.batch_id,
                "from_ts": r.from_ts,
                "resolved_ts": r.resolved_ts,
                "resolved_at": r.resolved_at,
                "schema_version": r.schema_version,
                "consistent": r.consistent,
                "rows": r.rows,
                "transactions": r.transactions,
                "ddls": r.ddls,
                "bytes": r.bytes,
                "timings": list(r.timings.items()),
                "notes": list(r.notes),
                "recorded_at": r.recorded_at,
                "target": target,
            }
            for r in rows
        ],
        schema=SCHEMA,
    )


SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.stats.collect": "false",
    # Two files fewer per commit; with so few files the table can be read quickly without them.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # These make a commit of a few rows about a quarter cheaper; it competes with the batches for the same cores.
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.databricks.delta.history.metricsEnabled": "false",
    # The plans of a commit touch a few rows once: making, compiling and loading code for them costs more than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


_NEW_LINE = "\n"
_CAUSE = re.compile(r"^(?:Caused by)?: (.+)$", re.MULTILINE)
"""In the text of an error of the JVM: what it is, and what caused it."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether a Delta table is there."""
    if not _URI.match(path):
        # Avoids a call into the JVM, because this delays every start.
        return any((Path(path) / "_delta_log").glob("*.json"))
    return is_delta_table(spark, path)


def reason_of(error: Exception) -> str:
    """Why a write failed, in a line: of an error of the JVM the innermost cause, since its own first line only names a call. Pure."""
    text = str(error).strip()
    causes = _CAUSE.findall(text)
    return causes[-1].strip() if causes else f"{type(error).__name__}: {text.partition(_NEW_LINE)[0]}"
