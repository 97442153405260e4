"""Takes a lake on a local disk back to its newest whole moment, where a loss of power has broken its newest commits. [deltalake]

    changes     its newest whole version is where the stream goes on: Pumps have what comes behind it
    snapshots   its newest whole version whose moment the ledger reaches, and whose mirrors are whole

Promises: where nothing is broken, nothing is changed, also beside another writer.
"""

import logging
import time

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog, is_local
from pyspark_tidb_binlog.sinks.lake.lake_table import APP
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState
from pyspark_tidb_binlog.sinks.lake.moments import Moment, Snapshots

_log = logging.getLogger(__name__)

_LOOKS, _PAUSE = 3, 0.2
"""Before a table counts as broken: another writer may be shortening its log. Seconds between two looks."""
_MOMENTS = 10
"""The newest ones, whose mirrors are looked at."""


def put_back(lake: str) -> None:
    """Take back what is not whole.

    Raises:
        ApplyError: the ledger, or the table of moments, has no whole version.
    """
    changes, snapshots = CommitLog(f"{lake}/changes"), CommitLog(f"{lake}/snapshots")
    if not is_local(lake):
        return
    broken = _is_broken(changes) or _is_broken(snapshots)
    version, moment = changes.newest(), snapshots.newest()
    record = _record(changes, version)
    state = LakeState.from_json(record) if record is not None else None
    if not broken and (moment is None or _has_whole_mirrors(lake)):
        return
    while moment is not None and not _fits(lake, snapshots, moment, state):
        moment = snapshots.newest(before=moment)
    if version is not None:
        changes.cut(version)
    _log.warning(
        "the newest commits of %s were not whole, as after a loss of power: it goes on at %s",
        lake,
        f"{as_time(state.commit_ts)} ({state.commit_ts})" if state is not None and state.commit_ts else "its begin",
    )


def reaches(state: LakeState | None, moment: Moment) -> bool:
    """Whether a ledger of this state has all that mirrors of this moment have followed, and what they are to follow: parts of different backups do not."""
    if state is None or moment.epoch > state.epoch:
        return False
    return not moment.resolved_ts or state.commit_ts is None or state.begin_ts <= moment.resolved_ts <= state.commit_ts


def _is_broken(log: CommitLog) -> bool:
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE)
        if log.is_whole():
            return False
    return True


def _fits(lake: str, snapshots: CommitLog, version: int, state: LakeState | None) -> bool:
    """Whether the ledger reaches the moment of a version, and its mirrors are whole. Versions behind it go."""
    record = _record(snapshots, version)
    if record is None or not reaches(state, Moment.from_json(record)):
        return False
    snapshots.cut(version)
    return _has_whole_mirrors(lake)


def _has_whole_mirrors(lake: str) -> bool:
    """Whether the mirrors that were published last have their versions. A mirror whose directory is gone is loaded again."""
    snapshots = Snapshots(lake)
    snapshots.load()
    rows = snapshots.rows(["path", "version", "resolved_ts"])
    moments = sorted(set(rows["resolved_ts"].to_pylist()))[-_MOMENTS:]
    newest = {
        row["path"]: row["version"] for row in rows.sort_by("resolved_ts").to_pylist() if row["path"] and row["resolved_ts"] in moments
    }
    return all(_has(CommitLog(f"{lake}/{path}"), version) for path, version in newest.items())


def _has(mirror: CommitLog, version: int) -> bool:
    try:
        newest = mirror.newest(before=version + 1)
    except ApplyError as error:
        _log.warning("%s", error)
        return False
    return newest in (None, version)


def _record(log: CommitLog, version: int | None) -> str | None:
    """The newest record of ours up to a version."""
    while version is not None and version >= 0:
        if (record := log.record(version, APP)) is not None:
            return record
        version -= 1
    return None
