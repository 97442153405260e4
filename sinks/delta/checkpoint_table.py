"""The Delta tables ``checkpoint``, one row per batch, and ``findings``, every deviation of the target or the Pumps from the binlogs. Appended in the background.

Promises: ``record`` never waits for the disk. A background thread writes several batches per commit, each batch once: the commit's transaction is the
query's id with its newest batch, and batches that the table already holds are left out. Rows that cannot be written are kept, retried and reported;
before each attempt the thread reads from the table what it holds, as the answer to a commit may have been lost. The table is a record for operators, and
says where to resume when Spark's checkpoint directory is lost. The target's row stays authoritative.

A batch's findings are written before its checkpoint row. Keys and words are stored in full regardless of ``log-row-data``: restrict access to the table
accordingly. A crash may lose the findings of a transaction that is committed on the target while its batch is not yet in Delta; the log has them.
"""

import datetime
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ApplyError, ReplicationError
from pyspark_tidb_binlog.schemas.events import moment_of
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.delta.appended_table import FAULTS, AppendedTable, found_at, reason_of

_log = logging.getLogger(__name__)

COMMIT_SECONDS = 20.0
"""Interval between two commits; each one writes the batches recorded in the interval."""
MOST_ROWS = 4096
"""Rows that wait one by one while the table cannot be written; more are joined two by two, so that memory does not grow with the batches."""
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
"""The columns of ``checkpoint``."""


FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("app_id", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("resolved_ts", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("table", pa.string()),
        pa.field("commit_ts", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.string()),
        pa.field("wanted", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("words", pa.string()),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of ``findings``. ``batch_id`` -1: of a span that was replayed at start. Unknown values are null."""


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
    """Written to the table ``findings``."""
    recorded_at: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))

    @property
    def resolved_at(self) -> datetime.datetime:
        """The time of ``resolved_ts``, in UTC."""
        return moment_of(self.resolved_ts)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest rows of the table."""

    batch_id: int = -1
    """Newest batch of this query."""
    resolved_ts: int = 0
    """``resolved_ts`` of the newest row of this target, of any query; lower than in earlier rows if the target was restored."""
    recorded_at: datetime.datetime | None = None
    """When that row was recorded; None = no such row."""


class DeltaCheckpoint:
    """The background writer."""

    def __init__(
        self, table: "DeltaRows", findings: "DeltaFindings | None" = None, *, interval: float = COMMIT_SECONDS, retry_after: float = 5.0
    ) -> None:
        """Start the thread.

        Args:
            table: receives a row per batch.
            findings: receives each batch's findings before its row is written.
            interval: seconds between two commits.
            retry_after: seconds after which a failed commit is retried.
        """
        self._table = table
        self._findings = findings
        self._interval = interval
        self._retry_after = retry_after
        self._news = threading.Condition()
        self._rows: list[CheckpointRow] = []
        self._batch: list[CheckpointRow] = []
        """The rows of an attempt until one succeeds: a table may have them already, so rows that come later are written after them."""
        self._hurry = False
        self._closing = False
        self._attempts = 0
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
            return len(self._batch) + len(self._rows)

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
                lambda: not self.pending or (self._attempts > before and self._failure) or not self._thread.is_alive(), timeout
            )
            if self.pending:
                left = f"{self.pending} rows are not in the Delta table {self._table.uri}"
                raise self._failure if done and self._failure else ReplicationError(f"{left} after {timeout:.0f} s")

    def close(self, timeout: float = 60.0) -> None:
        """Flush and end the thread; safe to call twice.

        Raises:
            ReplicationError: rows could not be written. The next start adds a row from the target's checkpoint instead.
        """
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
                self._news.wait_for(lambda: self.pending or self._closing)
                if self._closing:
                    return
                # Every commit waits for the interval first, including the first one of a run: batches come in groups.
                self._news.wait_for(lambda: self._hurry or self._closing, self._retry_after if self._failure else self._interval)
                hurried, self._hurry = self._hurry, False
                if len(self._rows) > MOST_ROWS:
                    self._rows = joined(self._rows)
                if not self._batch:
                    self._batch, self._rows = self._rows, []
            failure = self._tried()
            with self._news:
                self._attempts += 1
                self._failure = failure
                if failure is None:
                    self._batch = []
                    self._hurry |= hurried and bool(self._rows)
                self._news.notify_all()
                idle = failure is None and not self._hurry and not self._closing
            if idle:
                self._tidy()

    def _tried(self) -> ReplicationError | None:
        """Write the batch, or why that failed."""
        try:
            self._write()
        except BaseException as error:  # the last resort, also for a panic of delta-rs: it must be seen, and rows must not pile up
            text = (
                f"cannot write {len(self._batch)} rows to the Delta table {self._table.uri}: {reason_of(error)}; they are kept and retried"
            )
            _log.warning(text, exc_info=not isinstance(error, FAULTS))
            return ReplicationError(text)
        return None

    def _tidy(self) -> None:
        try:
            for table in (self._table, self._findings):
                if table is not None:
                    table.tidy()
        except BaseException as error:  # as above: a table that is not compacted is better than one that is not written
            text = f"the Delta table {self._table.uri}, or that of findings, could not be compacted or vacuumed; this is retried: {reason_of(error)}"
            _log.warning(text, exc_info=not isinstance(error, FAULTS))

    def _write(self) -> None:
        if self._findings is not None and any(r.findings for r in self._batch):
            if lacking := self._findings.lacking(self._batch):
                self._findings.append(lacking)
            self._batch = [replace(r, findings=()) for r in self._batch]
        self._batch = missing_rows(self._batch, self._table.newest(of_target=any(r.batch_id == FILLED_UP for r in self._batch)))
        if self._batch:
            failpoints.point("before-delta")
            self._table.append(self._batch)
            failpoints.point("after-delta")


def joined(rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """The batches of ``rows``, each two as one row. A row copied from the target is not joined. Pure."""
    found: list[CheckpointRow] = []
    pairs = 0
    for row in rows:
        last = found[-1] if found else None
        if last is None or pairs == len(found) or FILLED_UP in (last.batch_id, row.batch_id) or last.resolved_ts > row.resolved_ts:
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


def places(uri: str, target: str) -> tuple[int | None, int | None]:
    """The resolved_ts of the newest row of ``target``, and that of the newest row of another target; None = no such row.

    Raises:
        ApplyError: the table cannot be read.
    """
    try:
        last = _by_target(found_at(uri, _NEWEST_ROWS))
    except FAULTS as error:
        raise ApplyError(f"the Delta table {uri} cannot be read: {reason_of(error)}") from error
    mine = last.pop(target, None)
    others = max(last.values(), default=None)
    return mine[1] if mine else None, others[1] if others else None


_NEWEST_ROWS = "SELECT DISTINCT ON (target) target, recorded_at, resolved_ts FROM t ORDER BY target, recorded_at DESC, resolved_ts DESC"
"""The newest row of each target."""


def _by_target(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[datetime.datetime, int]]:
    return {row["target"]: (row["recorded_at"], row["resolved_ts"]) for row in rows}


class DeltaRows(AppendedTable):
    """The table ``checkpoint``."""

    def __init__(self, uri: str, app_id: str, target: str, retention: float) -> None:
        """``app_id``: the streaming query's id; ``target``: identity of the target that the rows describe."""
        super().__init__(uri, SCHEMA, app_id, retention)
        self._target = target

    def newest(self, *, of_target: bool) -> Newest:
        """The newest rows; ``of_target`` reads three columns of the table."""
        batch_id = self.newest_batch()
        found = _by_target(self.found(_NEWEST_ROWS)).get(self._target) if of_target else None
        return Newest(batch_id, found[1], found[0]) if found else Newest(batch_id)

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add rows in one commit."""
        self.commit(as_table(rows, self._app_id, self._target), max(r.batch_id for r in rows))


def as_table(rows: Sequence[CheckpointRow], app_id: str, target: str) -> pa.Table:
    """Rows as Arrow, in ``SCHEMA``."""
    common = {"app_id": app_id, "target": target}
    own = [name for name in SCHEMA.names if name not in common]
    found = [{name: getattr(r, name) for name in own} | common | {"timings": list(r.timings.items())} for r in rows]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def missing_findings(rows: Sequence[CheckpointRow], batch_id: int, replayed_ts: int) -> list[CheckpointRow]:
    """The batches whose findings the table lacks, in order. Pure.

    Args:
        rows: the batches.
        batch_id: the newest batch of this query in the table.
        replayed_ts: the end of the newest span that was replayed at start.
    """
    return [r for r in rows if r.findings and (r.resolved_ts > replayed_ts if r.batch_id == FILLED_UP else r.batch_id > batch_id)]


class DeltaFindings(AppendedTable):
    """The table ``findings``; made with the first finding."""

    def __init__(self, uri: str, app_id: str, retention: float) -> None:
        """Does not access the table before ``lacking``."""
        super().__init__(uri, FINDINGS_SCHEMA, app_id, retention)

    def lacking(self, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
        """The batches among ``rows`` whose findings the table lacks."""
        batch_id = self.newest_batch()
        (replayed,) = self.found(f"SELECT max(resolved_ts) AS ts FROM t WHERE batch_id = {FILLED_UP}")
        return missing_findings(rows, batch_id, replayed["ts"] or 0)

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        """Add the findings of ``rows`` in one commit."""
        self.commit(findings_as_table(rows, self._app_id), max(r.batch_id for r in rows))


def findings_as_table(rows: Sequence[CheckpointRow], app_id: str) -> pa.Table:
    """The findings of ``rows`` as Arrow, in ``FINDINGS_SCHEMA``."""
    return pa.Table.from_pylist([_values(row, f) | {"app_id": app_id} for row in rows for f in row.findings], schema=FINDINGS_SCHEMA)


def _values(row: CheckpointRow, finding: Finding) -> dict[str, object]:
    ts = finding.commit_ts
    return {
        "batch_id": row.batch_id,
        "resolved_ts": row.resolved_ts,
        "kind": str(finding.kind),
        "table": finding.table or None,
        "commit_ts": ts or None,
        "committed_at": moment_of(ts) if ts else None,
        "key": finding.key or None,
        "wanted": finding.wanted if finding.wanted >= 0 else None,
        "found": finding.found if finding.found >= 0 else None,
        "words": finding.words,
        "recorded_at": row.recorded_at,
    }
