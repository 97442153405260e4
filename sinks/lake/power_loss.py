"""Takes a lake on a local disk back to what is whole, where a loss of power has broken its newest commits.

    changes     the stream goes on at the newest version before the broken one: Pumps have what comes behind it
    snapshots   likewise, and at a moment that the ledger still reaches
    mirrors     versions that were not published, from the broken one on. What is published was forced before

Promises: where nothing is broken, nothing is changed, also beside another writer.
"""

import logging
import time
from collections.abc import Iterable

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog, is_local
from pyspark_tidb_binlog.sinks.lake.lake_table import APP
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState
from pyspark_tidb_binlog.sinks.lake.moments import MirrorState, Moment

_log = logging.getLogger(__name__)

_LOOKS, _PAUSE = 3, 0.2
"""Of which each finds the same, before something counts as broken. Seconds between two looks."""


def put_back(lake: str) -> None:
    """Take ledger and moments back to what is whole.

    Raises:
        ApplyError: none of the newest versions is whole.
    """
    if not is_local(lake):
        return
    changes, snapshots = CommitLog(f"{lake}/changes"), CommitLog(f"{lake}/snapshots")
    cut, cut_moments = _broken(changes), _broken(snapshots)
    if cut_moments is not None:
        _record(snapshots, cut_moments - 1)
    if cut is not None:
        record = _record(changes, cut - 1)
        state = LakeState.from_json(record) if record is not None else None
        versions = snapshots.versions()
        moment = (cut_moments if cut_moments is not None else versions[-1] + 1) - 1 if versions else -1
        while moment >= 0 and not _reaches(state, _record(snapshots, moment)):
            cut_moments, moment = moment, moment - 1
        _log.warning("the newest commits of %s were broken, as by a loss of power: it goes on at %s", lake, _in_words(state))
    # The ledger last: a start that ends before it does all of this again.
    for log, begin in ((snapshots, cut_moments), (changes, cut)):
        if begin is not None or log.broken_checkpoints():
            log.cut(begin)


def put_back_mirrors(lake: str, tables: Iterable[MirrorState]) -> None:
    """Remove what is broken of versions that were not published.

    Raises:
        ApplyError: an entry of a log cannot be removed.
    """
    for table in tables:
        if is_local(lake) and table.path and table.version is not None:
            log = CommitLog(f"{lake}/{table.path}")
            if (begin := log.broken(table.version)) is not None or log.broken_checkpoints():
                log.cut(begin)


def reaches(state: LakeState | None, moment: Moment) -> bool:
    """Whether a ledger of this state has all that mirrors of this moment have followed, and what they are to follow: parts of different backups do not."""
    if state is None or moment.epoch > state.epoch:
        return False
    return not moment.resolved_ts or state.commit_ts is None or state.begin_ts <= moment.resolved_ts <= state.commit_ts


def _broken(log: CommitLog) -> int | None:
    """``CommitLog.broken``, as several looks find it: another writer may be shortening the log."""
    found = log.broken()
    for _ in range(_LOOKS - 1):
        if found is None:
            return None
        time.sleep(_PAUSE)
        found = found if log.broken() == found else None
    return found


def _reaches(state: LakeState | None, record: str | None) -> bool:
    return record is not None and reaches(state, Moment.from_json(record))


def _record(log: CommitLog, version: int) -> str | None:
    """The newest record of ours up to a version; None: there is no version up to it, as before the first commit.

    Raises:
        ApplyError: there were versions, and they are broken.
    """
    versions = log.versions()
    for number in reversed([number for number in versions if number <= version]):
        if (record := log.record(number, APP)) is not None:
            return record
    if version >= 0 or len(versions) > 1:
        raise ApplyError(f"{log} is damaged: none of its versions up to {version + 1} is whole. Restore the lake from a backup")
    return None


def _in_words(state: LakeState | None) -> str:
    return f"{as_time(state.commit_ts)} ({state.commit_ts})" if state is not None and state.commit_ts else "its begin"
