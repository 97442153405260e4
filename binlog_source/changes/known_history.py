"""The DDL history in a process that turns binlogs into changes: read once, and again when a job, version or table is missing. IO through the feed.

Promises: one ``KnownHistory`` per process and place, kept between batches. How long a caller waits:

  the status port does not answer      ``historyTimeout`` seconds
  the job of a DDL binlog is missing   as long as the status port answers
  rows have a version beyond           ``historyLag`` seconds, once per version: it may be an intermediate state of a running DDL; if that DDL has changed
                                       what the rows hold, until it ends

A table that no job made (a restore of KV data makes such tables) is left out only if the query certainly does not ask for it: every job up to the version
of its rows is in the history, and each name asked for belongs to another table.
"""

import logging
import threading
from collections.abc import Iterable, Mapping

from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions
from pyspark_tidb_binlog.binlog_source.cluster.history_place import history_at
from pyspark_tidb_binlog.binlog_source.source.mid_history import SYNC_SECONDS, committed_before
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_log = logging.getLogger(__name__)


class KnownHistory:
    """The history of one cluster."""

    def __init__(self, feed: HistoryFeed) -> None:
        """Nothing is read yet."""
        self._feed = feed
        self._waited_for: set[int] = set()
        self._checked: dict[int, int] = {}
        self._strangers: dict[int, int] = {}
        """Tables that no job made and nobody asks for, and the schema version up to which that is known."""
        self._lock = threading.RLock()

    def fresh(self) -> SchemaHistory:
        """The history as it is now.

        Raises:
            HistoryUnavailable: it could not be read for ``historyTimeout`` seconds.
        """
        with self._lock:
            found = self._feed.poll(lambda history: True, 0.0)
            assert found
            return self._feed.snapshot()

    def job(self, job_id: int) -> Job:
        """The job of a DDL binlog.

        Raises:
            HistoryUnavailable: no status port answered for ``historyTimeout`` seconds.
        """
        with self._lock:
            return self._feed.snapshot().job(job_id) or self._feed.wait_for_job(job_id)

    def version_at(self, source: SourceConfig, ts: int) -> int:
        """The version of the newest DDL whose binlog has a commit_ts up to ``ts``: read from the Pumps where FinishedTS does not tell."""
        history = self.fresh()
        before = committed_before(source, history, ts)
        return max([int(history.version_at(ts)), *(int(history.jobs[job_id].version) for job_id in before)])

    def covering(self, versions: Iterable[int], tables: Mapping[int, int], options: ChangeOptions) -> SchemaHistory:
        """The history with these schema versions, if their jobs have finished, and with these ``tables``, except those not asked for.

        Args:
            versions: of the rows.
            tables: the newest schema version of the rows of each table, by its id.
            options: which tables are asked for.

        Raises:
            HistoryUnavailable: it could not be read for ``historyTimeout`` seconds.
            SchemaMismatch: it lacks a table that may be asked for.
        """
        with self._lock:
            versions = set(versions)
            ahead = {v for v in versions if v > self._feed.snapshot().newest_version} - self._waited_for
            if ahead:
                self._feed.poll(lambda history: history.newest_version >= max(ahead), self._feed.lag)
                self._waited_for |= ahead
            wanted = {table_id: version for table_id, version in tables.items() if version > self._strangers.get(table_id, -1)}
            unknown = set(wanted) - set(self._feed.snapshot().tracks)
            if unknown and not self._feed.poll(lambda h: set(wanted) <= set(h.tracks), self._feed.lag):
                self._leave_out(wanted, options)
            known = {table_id: version for table_id, version in wanted.items() if table_id not in self._strangers}
            self._feed.wait_for_unfinished(known, self._checked)
            return self._feed.snapshot()

    def _leave_out(self, tables: Mapping[int, int], options: ChangeOptions) -> None:
        """Note those of ``tables`` that the history lacks, if none can be asked for."""
        names, newest = options.names(), max(tables.values())
        if names and not self._feed.is_recorded and settled_version(self._feed.snapshot()) < newest:
            _log.warning("waiting for up to %g s: the DDL history lacks a table that the query may ask for", SYNC_SECONDS)
            self._feed.poll(lambda h: set(tables) <= set(h.tracks) or settled_version(h) >= newest, SYNC_SECONDS)
        history = self._feed.snapshot()
        complete = settled_version(history) if self._feed.is_recorded else int(history.newest_version)
        for table_id in sorted(set(tables) - set(history.tracks)):
            version = tables[table_id]
            if not names or version > complete or any(history.find(n.database, n.table, version) is None for n in names):
                raise SchemaMismatch(
                    f"there are changes of table id {table_id}, of schema version {version}, but the DDL history has no table with this id after "
                    f"{self._feed.lag:g} s; check that tidbStatus is the history of the cluster whose Pumps are read, and that it reaches back to the "
                    "table's CREATE TABLE. A table that no DDL made (a restore of KV data) does not matter to a query that names its tables without wildcards"
                )
            _log.warning(
                "changes of table id %d are left out: no job of the DDL history made this table, and each name asked for belongs to another table",
                table_id,
            )
            self._strangers[table_id] = version


def settled_version(history: SchemaHistory) -> int:
    """The schema version up to which no job can be missing. A job is in the history ``SYNC_SECONDS`` after a job with a later version. Pure."""
    newest_ms = max((physical_ms(job.finished_ts) for job in history.ordered), default=0)
    return max((int(job.version) for job in history.ordered if physical_ms(job.finished_ts) + SYNC_SECONDS * 1000 <= newest_ms), default=0)


_known: dict[tuple[object, ...], KnownHistory] = {}
_guard = threading.Lock()


def known_history(source: SourceConfig, options: ChangeOptions) -> KnownHistory:
    """That of this process for the cluster of ``source``; ``options``: how long it is waited for.

    Raises:
        ConfigError: neither option tidbStatus nor PD says where it is.
    """
    key = source.pumps, source.tidb_status, source.security, options.history_timeout, options.history_lag
    with _guard:
        if key not in _known:
            tls = TlsSettings.of(source.security)
            feed = HistoryFeed(history_at(source, tls, "option tidbStatus"), None, tls)
            feed.timeout, feed.lag = options.history_timeout, options.history_lag
            _known[key] = KnownHistory(feed)
        return _known[key]
