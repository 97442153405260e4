"""Waits until the DDL history holds what a batch needs: the jobs of its DDLs, and the tables and versions of its rows. IO through the feed.

An unavailable status port is retried for at most ``HistoryFeed.timeout``.

Promises: returns when every job and every table is in the history. For rows of a schema version newer than any job it waits at most
``HistoryFeed.lag`` seconds, once per version, because that version may be an intermediate state of a running job. For rows newer than the
history of their table it asks TiDB, once per version, for the table's present definition. It waits as long as a DDL that is not yet in the history
has changed what these rows hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.sinks.engine.segments import TableActivity


@dataclass(slots=True)
class WaitedFor:
    """What of the upstream's schema is known to be in the history, in one life of a stream."""

    versions: set[int] = field(default_factory=set)
    """Schema versions beyond the history that were waited for."""
    checked: dict[int, int] = field(default_factory=dict)
    """By table id, up to which schema version no unfinished DDL has changed what its rows hold."""


def complete_history(
    feed: HistoryFeed,
    job_ids: Sequence[int],
    tables: Sequence[TableActivity],
    waited_for: WaitedFor,
    keeps: Callable[[TableAt], bool],
) -> None:
    """Poll the feed until it holds what is needed.

    Args:
        feed: grows.
        job_ids: the jobs of the batch's DDLs.
        tables: the tables of its rows.
        waited_for: collects what need not be waited for again.
        keeps: whether rows of a table are replicated: a running DDL of any other table is not waited for.

    Raises:
        HistoryUnavailable: the history could not be read for ``HistoryFeed.timeout``.
        SchemaMismatch: a table did not appear within ``HistoryFeed.lag``.
    """
    for job_id in job_ids:
        if feed.snapshot().job(job_id) is None:
            feed.wait_for_job(job_id)
    ahead = {t.schema_version for t in tables if t.schema_version > feed.snapshot().newest_version} - waited_for.versions
    if ahead:
        feed.poll(lambda h: h.newest_version >= max(ahead), feed.lag)
        waited_for.versions |= ahead
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
    feed.wait_for_unfinished(newest, waited_for.checked, keeps)
