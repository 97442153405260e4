"""The DDL history in a process that turns binlogs into changes: read once, and again when something is not in it. IO through the feed.

Promises: one ``KnownHistory`` per process and place, kept between batches. Whoever asks waits, for ``historyTimeout`` seconds while the
status port does not answer, as long as it answers for the job of a DDL binlog, and for ``historyLag`` seconds, once per schema version, for rows of a version
beyond the history: it may be an intermediate state of a DDL that is under way. Where that DDL has changed what the rows hold, they wait for its end.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable

from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions
from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.binlog_source.source.mid_history import committed_before
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable, SchemaMismatch
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_POLL = steady(0.1)
_log = logging.getLogger(__name__)


class KnownHistory:
    """The history of one cluster."""

    def __init__(self, feed: HistoryFeed) -> None:
        """Nothing is read yet."""
        self._feed = feed
        self._waited_for: set[int] = set()
        self._checked: dict[int, int] = {}
        self._lock = threading.RLock()

    def fresh(self, timeout: float) -> SchemaHistory:
        """The history as it is now.

        Raises:
            HistoryUnavailable: it could not be read for ``timeout`` seconds.
        """
        with self._lock:
            found = self._poll(lambda history: True, timeout, 0.0)
            assert found
            return self._feed.snapshot()

    def job(self, job_id: int, timeout: float) -> Job:
        """The job of a DDL binlog.

        Raises:
            HistoryUnavailable: no status port answered for ``timeout`` seconds.
        """
        with self._lock:
            return self._feed.snapshot().job(job_id) or self._feed.wait_for_job(job_id, timeout)

    def version_at(self, source: SourceConfig, ts: int, timeout: float) -> int:
        """The version of the newest DDL whose binlog has a commit_ts up to ``ts``: read from the Pumps where FinishedTS does not tell."""
        history = self.fresh(timeout)
        before = committed_before(source, history, ts)
        return max([int(history.version_at(ts)), *(int(history.jobs[job_id].version) for job_id in before)])

    def covering(self, versions: Iterable[int], table_ids: Iterable[int], options: ChangeOptions) -> SchemaHistory:
        """The history with these schema versions, as far as they are those of finished jobs, and with these tables.

        Raises:
            HistoryUnavailable: it could not be read for ``historyTimeout`` seconds.
            SchemaMismatch: it has no such table.
        """
        with self._lock:
            versions = set(versions)
            ahead = {v for v in versions if v > self._feed.snapshot().newest_version} - self._waited_for
            if ahead:
                self._poll(lambda history: history.newest_version >= max(ahead), options.history_timeout, options.history_lag)
                self._waited_for |= ahead
            wanted = set(table_ids)
            unknown = wanted - set(self._feed.snapshot().tracks)
            if unknown and not self._poll(lambda h: wanted <= set(h.tracks), options.history_timeout, options.history_lag):
                raise SchemaMismatch(
                    f"there are changes of table id {min(unknown)}, but the DDL history has no such table after {options.history_lag:g} s; check "
                    "that ddlHistory is the history of the cluster whose Pumps are read, and that it reaches back to the table's CREATE TABLE"
                )
            newest = max(versions, default=0)
            self._feed.wait_for_unfinished(dict.fromkeys(wanted, newest), self._checked, options.history_timeout)
            return self._feed.snapshot()

    def _poll(self, enough: Callable[[SchemaHistory], bool], timeout: float, lag: float) -> bool:
        """Refresh until ``enough`` holds; False when it does not after ``lag`` seconds in which the status port answers."""
        unanswered, answered = Retries(_POLL, timeout), Retries(_POLL, lag)
        while True:
            try:
                if enough(self._feed.refresh()):
                    return True
                if self._feed.is_recorded or answered.over:
                    return False
            except HistoryUnavailable as error:
                if self._feed.is_recorded or unanswered.over:
                    raise
                _log.warning("waiting for the DDL history: %s", error)
                answered.restart()
            answered.pause()


_known: dict[tuple[object, ...], KnownHistory] = {}
_guard = threading.Lock()


def known_history(source: SourceConfig, named: str) -> KnownHistory:
    """That of this process for the cluster of ``source``; ``named``: option ddlHistory.

    Raises:
        ConfigError: neither ``named`` nor PD says where it is.
    """
    key = source.pumps, named, source.security
    with _guard:
        if key not in _known:
            tls = TlsSettings.of(source.security)
            # what is opened for it lives as long as the process
            where = history_at(named, source, tls, contextlib.ExitStack(), "option ddlHistory")
            _known[key] = KnownHistory(HistoryFeed(where, None, tls))
        return _known[key]
