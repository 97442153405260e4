"""The state that transactions and DDLs of one embedded upstream share: clock, tables, outcomes, DDL history, and the client of its Pumps.

Promises: ``store`` and ``history`` are read and changed under ``lock``; the rest is safe for many threads.
"""

import threading
import time
from collections.abc import Sequence

from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.jobs.lab.emulator.meta import MetaChange
from pyspark_tidb_binlog.jobs.lab.emulator.mvcc import Mvcc
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Json
from pyspark_tidb_binlog.jobs.lab.emulator.tablestore import TableStore
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle


class History:
    """The jobs that ``/ddl/history`` shows."""

    def __init__(self) -> None:
        self.lag = 0.0
        """Seconds until a job is visible."""
        self._jobs: list[tuple[float, Json]] = []

    def add(self, job: Json) -> None:
        """Add a finished job; it becomes visible after the lag."""
        self._jobs.append((time.monotonic() + self.lag, job))

    def cut(self, job_id: int) -> None:
        """Lose the jobs with lower ids."""
        self._jobs = [(since, job) for since, job in self._jobs if job["id"] >= job_id]

    def visible(self) -> list[Json]:
        """The jobs that are visible now."""
        now = time.monotonic()
        return [job for since, job in self._jobs if since <= now]


class UpstreamState:
    """The shared state of one cluster with binlog enabled."""

    def __init__(self, client: PumpClient, oracle: Oracle | None) -> None:
        self.cluster_id = client.cluster_id
        self.oracle = oracle or Oracle()
        self.lock = threading.RLock()
        self.store = TableStore()
        self.mvcc = Mvcc()
        self.history = History()
        self.pumps = client

    def write_schema(self, changes: Sequence[MetaChange], start_ts: int, commit_ts: int) -> None:
        """Commit the schema's keys of a DDL's transaction."""
        for change in changes:
            for key, value in change.writes().items():
                self.mvcc.put(key, value, start_ts, commit_ts)
