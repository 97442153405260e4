"""A stream that begins at ``initial-commit-ts``, in the middle of the DDL history: which jobs the target already has. [spark]

The target was filled from a snapshot at that ts: it has every DDL whose binlog has a lower or equal commit_ts. The history shows only a
job's FinishedTS. That is some milliseconds after its binlog, and up to ``SYNC_SECONDS`` while a TiDB server does not acknowledge a schema
version. By FinishedTS alone such a DDL would be executed a second time: a TRUNCATE would delete the rows of the snapshot. So the binlogs of
that time are read from the Pumps.

Promises: nothing is read unless a job finished within ``SYNC_SECONDS`` after the ts. If the Pumps no longer have those binlogs, a warning
names the jobs, and they are executed.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import DELETE_ONLY, Job, JobType
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, DamagedLog
from pyspark_tidb_binlog.schemas.events import physical_ms, tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

SYNC_SECONDS = 120
"""TiDB waits at most two leases of 45 s for its servers to load a new schema version before it finishes a job."""
_MOST_BYTES = 1 << 20
"""A DDL binlog holds a statement, not rows."""
_log = logging.getLogger(__name__)


def jobs_in_doubt(history: SchemaHistory, ts: int) -> tuple[Job, ...]:
    """The jobs whose binlog may lie on either side of ``ts``. Pure."""
    latest = tso(physical_ms(ts) + SYNC_SECONDS * 1000)
    return tuple(job for job in history.ordered if ts < job.finished_ts <= latest and job.start_ts <= ts)


def committed_before(source: SourceConfig, history: SchemaHistory, ts: int) -> dict[int, int]:
    """The jobs in doubt whose binlog has a commit_ts up to ``ts``, and that commit_ts, by job id.

    Raises:
        PumpUnavailable: a Pump does not answer.
    """
    doubtful = {job.id: job for job in jobs_in_doubt(history, ts)}
    if not doubtful:
        return {}
    earliest = tso(physical_ms(ts) - SYNC_SECONDS * 1000)
    begin = max(earliest, min(job.start_ts for job in doubtful.values()) - 1)
    try:
        found = {
            binlog.ddl_job_id: commit_ts
            for commit_ts, binlog in _ddls_between(source, begin, ts)
            if (job := doubtful.get(binlog.ddl_job_id)) is not None
            and not (job.type == JobType.DROP_COLUMN and binlog.ddl_schema_state == DELETE_ONLY)
        }
    except (BinlogPurged, DamagedLog) as error:
        _log.warning("DDL jobs %s are executed as if they came after initial-commit-ts %d, because the binlogs near that ts cannot be read: %s",
                     sorted(doubtful), ts, error)  # fmt: skip
        return {}
    _log.info(
        "DDL jobs %s finished just after initial-commit-ts %d: the target already has %s of them", sorted(doubtful), ts, sorted(found)
    )
    return found


def _ddls_between(source: SourceConfig, after_ts: int, upto_ts: int) -> Iterator[tuple[int, binlog_pb2.Binlog]]:
    """The commit_ts and binlog of each DDL in (after_ts, upto_ts]."""
    span = replace(source, delivery="sorted", starting_commit_ts=after_ts, ending_commit_ts=upto_ts)
    reader = BinlogReader(options_of(span, StreamOptions()))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("control", "commit_ts", "first_seq", "payload"))
            for control, commit_ts, first_seq, payload in zip(*columns, strict=True):
                if control is None and not first_seq and payload and len(payload) < _MOST_BYTES:
                    binlog = binlog_pb2.Binlog.FromString(payload)
                    if binlog.ddl_job_id:
                        yield commit_ts, binlog
