"""Finds missing parts of a value log when a store is opened: files that were removed, emptied or cut, as the index shows.

Promises: only two parts count as missing: a part that the index has a position of, and a part before the first file that the last
collection left. What a collection removed is not missing, nor what a real Pump collected before this index existed.
"""

from pyspark_tidb_binlog.binlog_source.pump.storage.index import Hole, KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.pointer import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog import ValueLog

_FILE_END = (1 << 63) - 1


def missing_parts(index: KeyIndex, log: ValueLog) -> list[Hole]:
    """The missing parts of ``log`` before its newest file, in log order; what the end lacks is not among them."""
    found, head, beginning = [], index.head.at, log.beginning
    kept = index.kept
    if kept is not None and kept < beginning.file_id:
        found.append(_hole(index, Pointer(kept, 0), beginning))
    for file_id in range(beginning.file_id, min(head.file_id + 1, log.end.file_id)):
        length = log.length(file_id)
        indexed = index.newest_checkpoint(Pointer(file_id, _FILE_END)).at
        indexed = max(indexed, head) if file_id == head.file_id else indexed
        # without a position of its own it may be a file that a real Pump collected between others
        if indexed.file_id == file_id and length < indexed.offset:
            following = next(i for i in log.file_ids if i > file_id)
            found.append(_hole(index, Pointer(file_id, length), Pointer(following, 0)))
    return found


def _hole(index: KeyIndex, begin: Pointer, end: Pointer) -> Hole:
    return Hole(begin, end, index.newest_checkpoint(begin).sorted_promise)
