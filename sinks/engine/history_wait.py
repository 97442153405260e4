"""Waits until the DDL history holds what a batch needs: the jobs of its DDLs, and the tables and versions of its rows. IO through the feed.

An unavailable status port is retried for at most ``HistoryFeed.timeout``.

Promises: returns when every job and every table is in the history. For rows of a schema version newer than any job it waits at most
``HistoryFeed.lag`` seconds, once per version, because that version may be an intermediate state of a running job. For rows newer than the
history of their table it asks TiDB, once per version, for the table's present definition. It waits as long as a DDL that is not yet in the history
has changed what these rows hold.
"""

import logging
from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable, SchemaMismatch
from pyspark_tidb_binlog.schemas.history import GRACE, SchemaHistory, TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.sinks.engine.segments import TableActivity

_LOOK_AGAIN = GRACE // 2
_log = logging.getLogger(__name__)


class HistoryWait:
    """Waits for the history in one life of a stream, and remembers what is known to be in it."""

    def __init__(self, feed: HistoryFeed, keeps: Callable[[TableAt], bool]) -> None:
        """``keeps``: whether rows of a table are replicated. A running DDL of any other table is not waited for."""
        self._feed = feed
        self._keeps = keeps
        self._versions: set[int] = set()
        """Schema versions beyond the history that were waited for."""
        self._checked: dict[int, int] = {}
        """By table id, up to which schema version no unfinished DDL has changed what its rows hold."""
        self.known_ts = 0
        """The history was read when everything up to this commit_ts was known, so it has every job that ended before; 0 = not in this life."""
        self._asked_ts = 0
        """When that was last tried."""

    def ready(self, job_ids: Sequence[int], tables: Sequence[TableActivity], upto_ts: int = 0) -> SchemaHistory:
        """Poll the feed until it holds what is needed, and return the history.

        Args:
            job_ids: the jobs of the batch's DDLs.
            tables: the tables of its rows.
            upto_ts: the end of the batch. Every ``_LOOK_AGAIN``, and with a new job, the history is read for jobs whose binlogs may be lost.

        Raises:
            HistoryUnavailable: the history could not be read for ``HistoryFeed.timeout``.
            SchemaMismatch: a table did not appear within ``HistoryFeed.lag``.
        """
        feed = self._feed
        new = [job_id for job_id in job_ids if feed.snapshot().job(job_id) is None]
        for job_id in new:
            feed.wait_for_job(job_id)
        if new or upto_ts - self._asked_ts > _LOOK_AGAIN:
            self._look(upto_ts)
        ahead = {t.schema_version for t in tables if t.schema_version > feed.snapshot().newest_version} - self._versions
        if ahead:
            feed.poll(lambda h: h.newest_version >= max(ahead), feed.lag)
            self._versions |= ahead
        unknown = [t for t in tables if t.table_id not in feed.snapshot().tracks]
        if unknown and not feed.poll(lambda h: all(t.table_id in h.tracks for t in unknown), feed.lag):
            first = next(t for t in unknown if t.table_id not in feed.snapshot().tracks)
            raise SchemaMismatch(
                f"table id {first.table_id}: {first.events} row events from commit_ts {first.first_commit_ts} on (schema version "
                f"{first.schema_version}), but the DDL history has no such table after {feed.lag:g} s. Check that spark.tidb-status is the "
                "history of this cluster. If it does not reach back to the table's CREATE TABLE, set syncer.load-schema-snapshot = true"
            )
        newest: dict[int, int] = {}
        for table in tables:
            newest[table.table_id] = max(table.schema_version, newest.get(table.table_id, 0))
        feed.wait_for_unfinished(newest, self._checked, self._keeps)
        return feed.snapshot()

    def _look(self, upto_ts: int) -> None:
        self._asked_ts = max(upto_ts, self._asked_ts)
        try:
            self._feed.refresh(overtaken=True)
            self.known_ts = self._asked_ts
        except HistoryUnavailable as error:
            _log.warning("DDLs whose binlogs were lost are not looked for now: %s", error)
