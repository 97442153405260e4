"""TiDB's ``binlog.ignore-error = true``: rather no binlog than no transaction (pump_client.md 7).

Promises: ``prewrite`` never fails. The first failure begins *skipping*: nothing is written any more, and every record that is not is counted, until
``recover``. Whatever was committed meanwhile is missing downstream for good. Safe for many threads.
"""

import logging
import threading

from binlog_source.pump_client.protocol import BinlogClient, Sent, unheard
from schemas.errors import PumpUnavailable

_log = logging.getLogger(__name__)


class LenientClient:
    """A Pump client whose failures do not stop its TiDB."""

    def __init__(self, client: BinlogClient) -> None:
        """Takes ``client`` over: ``close`` closes it."""
        self._client = client
        self._lock = threading.Lock()
        self._unwritten: set[int] = set()
        self.skipping = False
        """Whether binlogs are not written at present."""
        self.skipped = 0
        """Records that were not written; TiDB's ``tidb_server_critical_error_total``."""

    @property
    def cluster_id(self) -> int:
        """The cluster's id."""
        return self._client.cluster_id

    def recover(self) -> None:
        """Write again, beginning with the next Prewrite."""
        self.skipping = False

    def prewrite(self, start_ts: int, payload: bytes, sent: Sent = unheard) -> None:
        """Write a Prewrite, or skip it."""
        if self.skipping:
            self._skip(start_ts)
            return
        try:
            self._client.prewrite(start_ts, payload, sent)
        except PumpUnavailable as error:
            _log.error("binlogs are skipped from start_ts %d on, until recovery: %s", start_ts, error)
            self.skipping = True
            self._skip(start_ts)

    def outcome(self, start_ts: int, payload: bytes) -> None:
        """Write a Commit or Rollback, unless binlogs are skipped now or its Prewrite was."""
        with self._lock:
            follows_nothing = start_ts in self._unwritten
            self._unwritten.discard(start_ts)
        if self.skipping or follows_nothing:
            self.forget(start_ts)
            self._count()
        else:
            self._client.outcome(start_ts, payload)

    def duplicate(self, start_ts: int, payload: bytes) -> bool:
        """See ``BinlogClient``; nothing while binlogs are skipped."""
        return not self.skipping and self._client.duplicate(start_ts, payload)

    def forget(self, start_ts: int) -> None:
        """No outcome of this transaction will follow."""
        with self._lock:
            self._unwritten.discard(start_ts)
        self._client.forget(start_ts)

    def flush(self, timeout: float = 30.0) -> None:
        """See ``BinlogClient``."""
        self._client.flush(timeout)

    def close(self) -> None:
        """Stop writing."""
        self._client.close()

    def _skip(self, start_ts: int) -> None:
        with self._lock:
            self._unwritten.add(start_ts)
        self._count()

    def _count(self) -> None:
        with self._lock:
            self.skipped += 1
