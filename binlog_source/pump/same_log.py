"""Checks that this Pump's log contains what a reader has seen (``binlog_source.wire.fingerprint``). Reads at most a few megabytes of the
log.

Promises: the answer is True wherever the log cannot decide, at collected or damaged places. The reader learns of these by other means.
"""

from pyspark_tidb_binlog.binlog_source.pump.storage.pointer import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, read
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import ANYWHERE, LogFingerprint
from pyspark_tidb_binlog.schemas.errors import BinlogPurged

_NOT_IN_IT = -1


def holds(store: Store, seen: LogFingerprint) -> bool:
    """Whether ``seen`` was read from this log."""
    if seen.position == ANYWHERE:
        return not seen.ts or _holds_ts(store, seen.ts)
    at = Pointer(seen.position.suffix, seen.position.offset)
    if at > store.state.at:
        return False
    try:
        largest = _largest_before(store, at)
    except BinlogPurged:
        return True
    return largest is None or (largest == seen.ts if seen.ts else largest != _NOT_IN_IT)


def _holds_ts(store: Store, ts: int) -> bool:
    entry = store.entry(ts)
    if entry is not None and entry.kind is not RecordKind.PREWRITE or ts <= store.gc_ts:
        return True
    return any(damage.after_ts < ts for damage in store.damages())


def _largest_before(store: Store, at: Pointer) -> int | None:
    """The largest ts of a fake or Commit before ``at``; None when it is unknown, ``_NOT_IN_IT`` when no record ends at ``at``."""
    known, end = store.checkpoint(at), store.state.at
    if known.at <= store.beginning and store.beginning > BEGINNING:
        return None
    largest, reached = known.max_ts, known.at
    for piece in store.scan(known.at, end):
        if reached == at:
            break
        first_hole = min((Pointer(piece.file_id, begin) for begin, _ in piece.holes), default=end)
        for place, payload in enumerate(piece.payloads):
            after = Pointer(piece.file_id, piece.end_of(place))
            if after > at:
                return None if first_hole < at else _NOT_IN_IT
            if first_hole < after:
                return None
            largest, reached = max(largest, read(payload).commit_ts), after
            if reached == at:
                return largest
        if first_hole < at:
            return None
    return largest if reached == at else _NOT_IN_IT
