"""The key index in RocksDB (docs/adr/0005): the position of each timestamp's record, the checkpoints, and how far the log is indexed.

    "ts:" ts u64 BE                    -> pointer (12 bytes) | length u32 LE | kind u8
    "cp:" file u32 BE, offset u64 BE   -> checkpoint at that position
    "ct:" max_ts u64 BE, position BE   -> the same checkpoint
    "dm:" position BE                  -> a damaged place of the log: pointer just after it | sorted promise before it u64 LE
    "!binlog!headPointer"              -> pointer just after the last indexed record | largest ts of that file so far i64 LE
    "!binlog!gcts"                     -> i64 LE
    "!binlog!kept"                     -> id of the oldest file that the last collection keeps, u32 LE

Promises: ``apply`` is atomic and survives ``kill -9``. After a power failure the index is in an earlier consistent state, not older than
the last ``note_gc``, ``note_hole`` or ``clear``; the log is scanned from there. One writer, any number of readers. RocksDB's errors are
raised as ``OSError``.
"""

import logging
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import NOTHING, SorterCheckpoint
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog import ValueLog
from pyspark_tidb_binlog.schemas.errors import Corruption

_log = logging.getLogger(__name__)

_VALUE = struct.Struct("<IqIB")
_TS = struct.Struct(">Q")
_POSITION = struct.Struct(">IQ")
_SIGNED = struct.Struct("<q")
_FILE_ID = struct.Struct("<I")
_TS_PREFIX, _CP_PREFIX, _CT_PREFIX, _DM_PREFIX = b"ts:", b"cp:", b"ct:", b"dm:"
_HEAD, _GC_TS, _KEPT = b"!binlog!headPointer", b"!binlog!gcts", b"!binlog!kept"
_KINDS = tuple(RecordKind)
_POINTER_SIZE = len(BEGINNING.pack())
_CHECKPOINT_SIZE = len(NOTHING.pack())
_MEND = "stop the Pump, remove its index directory, and start the Pump again"
_LARGEST = (1 << 64) - 1
_FILE_END = (1 << 63) - 1

_WRITE_BUFFER = 16 << 20
_BLOCK_CACHE = 16 << 20
_BLOOM_BITS = 10
_LOG_FILE_BYTES = 1 << 20


class Entry(NamedTuple):
    """The position of one record, found by its ts."""

    ts: int
    kind: RecordKind
    at: Pointer
    length: int
    """Bytes of the record, header included."""


class Head(NamedTuple):
    """How far the log is indexed."""

    at: Pointer
    """Just after the last indexed record."""
    file_max_ts: int
    """Largest ts in that file up to there."""


class Hole(NamedTuple):
    """A damaged place of the log: found while indexing, or where files end early or are missing."""

    begin: Pointer
    end: Pointer
    """In a later file where the log lacks what was between the two: no bytes show the damage."""
    after_ts: int
    """The sorted promise before it: what is lost there has a commit_ts above it."""

    @property
    def lacks(self) -> bool:
        """Whether the log lacks the bytes between the two, rather than having others there."""
        return self.begin == self.end or self.begin.file_id != self.end.file_id


class IndexRange(NamedTuple):
    """A range of the index by ts."""

    delivered: Sequence[Entry]
    """Commits and fakes, ascending."""
    prewrites: dict[int, Entry]
    """The Prewrites found between them, by start_ts."""


class KeyIndex:
    """The index below one directory."""

    def __init__(self, directory: Path) -> None:
        """Open it, created when absent; a damaged one is discarded, because it can be rebuilt from the log.

        The caller holds the data directory's lock.
        """
        self._directory = directory
        try:
            self._open()
        except (OSError, Corruption) as error:
            if "/LOCK" in str(error):
                # not damaged: readers in this process still have it open
                raise
            _log.error("index %s cannot be opened (%s): the index is discarded and rebuilt from the value log", directory, error)
            _remove(directory)
            self._open()

    def _open(self) -> None:
        try:
            self._db = Rdict(str(self._directory), _options())
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error
        try:
            # what recovery needs must be readable
            self.newest_checkpoint(self.head.at)
            _ = self.gc_ts
        except (OSError, Corruption):
            self._db.close()
            raise

    def _told(self, error: Exception) -> OSError:
        return OSError(f"index {self._directory}: {error}")

    def apply(self, entries: Iterable[Entry], checkpoints: Iterable[SorterCheckpoint], head: Head) -> None:
        """Store entries, later ones with the same ts replacing earlier ones, checkpoints and head; all or nothing."""
        batch = WriteBatch(raw_mode=True)
        put, pack, pack_ts = batch.put, _VALUE.pack, _TS.pack
        for ts, kind, at, length in entries:
            put(_TS_PREFIX + pack_ts(ts & _LARGEST), pack(at.file_id, at.offset, length, kind))
        for checkpoint in checkpoints:
            _put_checkpoint(batch, checkpoint)
        put(_HEAD, head.at.pack() + _SIGNED.pack(head.file_max_ts))
        self._write(batch)

    def _write(self, batch: WriteBatch, sync: bool = False) -> None:
        how = WriteOptions()
        how.sync = sync
        try:
            self._db.write(batch, how)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error

    def _get(self, key: bytes, size: int) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error
        if value is not None and len(value) != size:
            raise Corruption(f"index: {len(value)} bytes at {key!r}; {_MEND}")
        return value

    @property
    def head(self) -> Head:
        """How far the log is indexed."""
        value = self._get(_HEAD, _POINTER_SIZE + _SIGNED.size)
        if value is None:
            return Head(BEGINNING, 0)
        return Head(Pointer.unpack(value[:_POINTER_SIZE]), _SIGNED.unpack(value[_POINTER_SIZE:])[0])

    @property
    def gc_ts(self) -> int:
        """Binlogs up to this ts may be collected already."""
        value = self._get(_GC_TS, _SIGNED.size)
        return int(_SIGNED.unpack(value)[0]) if value is not None else 0

    @property
    def kept(self) -> int | None:
        """The oldest file that the last collection keeps: what is missing from it on was not collected. None: it is not known."""
        value = self._get(_KEPT, _FILE_ID.size)
        return int(_FILE_ID.unpack(value)[0]) if value is not None else None

    def note_gc(self, ts: int, now: SorterCheckpoint, kept: int) -> None:
        """Store, safe against power failure, that binlogs up to ``ts`` may be collected, and ``now``, from which recovery can start.

        ``kept``: the oldest file that is kept.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(_GC_TS, _SIGNED.pack(ts))
        batch.put(_KEPT, _FILE_ID.pack(kept))
        _put_checkpoint(batch, now)
        self._write(batch, sync=True)

    def get(self, ts: int) -> Entry | None:
        """The record with this ts."""
        value = self._get(_TS_PREFIX + _TS.pack(ts & _LARGEST), _VALUE.size)
        return _entry(ts, value) if value is not None else None

    def span(self, after: int, upto: int, limit: int) -> IndexRange:
        """At most ``limit`` Commits and fakes with ``after < ts <= upto``, and the Prewrites between them."""
        delivered: list[Entry] = []
        prewrites: dict[int, Entry] = {}
        for key, value in self._items(_TS_PREFIX + _TS.pack(after + 1), _TS_PREFIX + _TS.pack(upto)):
            entry = _entry(_TS.unpack_from(key, 3)[0], value)
            if entry.kind is RecordKind.PREWRITE:
                prewrites[entry.ts] = entry
                continue
            delivered.append(entry)
            if len(delivered) == limit:
                break
        return IndexRange(delivered, prewrites)

    def _items(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from ``first`` to ``last``, both included."""
        try:
            iterator = self._db.iter()
            iterator.seek(first)
            while iterator.valid():
                key = iterator.key()
                if key > last:
                    return
                yield key, iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error

    def newest_checkpoint(self, upto: Pointer) -> SorterCheckpoint:
        """The last checkpoint at or before ``upto``."""
        return self._before(_CP_PREFIX, _POSITION.pack(*upto))

    def base(self, ts: int) -> SorterCheckpoint:
        """The last checkpoint before which no Commit has a ts above ``ts``."""
        return self._before(_CT_PREFIX, _TS.pack(ts) + b"\xff" * _POSITION.size)

    def _before(self, prefix: bytes, key: bytes) -> SorterCheckpoint:
        try:
            iterator = self._db.iter()
            iterator.seek_for_prev(prefix + key)
            iterator.status()
            found = iterator.value() if iterator.valid() and iterator.key().startswith(prefix) else None
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error
        return _checkpoint(found) if found is not None else NOTHING

    def checkpoints(self, after: Pointer, limit: int) -> list[SorterCheckpoint]:
        """At most ``limit`` checkpoints past ``after``, ascending."""
        first, last = _POSITION.pack(after.file_id, after.offset + 1), b"\xff" * _POSITION.size
        found = []
        for _, value in self._items(_CP_PREFIX + first, _CP_PREFIX + last):
            found.append(_checkpoint(value))
            if len(found) == limit:
                break
        return found

    def note_hole(self, hole: Hole) -> None:
        """Store a damaged place, safe against power failure: its records are not in the index."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_DM_PREFIX + _POSITION.pack(*hole.begin), hole.end.pack() + _TS.pack(hole.after_ts))
        self._write(batch, sync=True)

    def holes(self) -> list[Hole]:
        """The damaged places, in log order."""
        found = []
        for key, value in self._items(_DM_PREFIX, _DM_PREFIX + b"\xff" * _POSITION.size):
            begin = Pointer(*_POSITION.unpack_from(key, len(_DM_PREFIX)))
            found.append(Hole(begin, Pointer.unpack(value[:_POINTER_SIZE]), _TS.unpack_from(value, _POINTER_SIZE)[0]))
        return found

    def drop_oldest(self, upto: int, kept: Pointer, limit: int) -> Iterator[int]:
        """Delete the records with ``ts <= upto``, in batches of at most ``limit``; yields the number deleted by each.

        A Prewrite that the log still holds, from ``kept`` on, stays: its Commit may be missing yet, or far above ``upto``.
        """
        first, last = _TS_PREFIX, _TS_PREFIX + _TS.pack(max(0, upto))
        while found := list(islice(self._items(first, last), limit)):
            batch, count = WriteBatch(raw_mode=True), 0
            for key, value in found:
                entry = _entry(_TS.unpack_from(key, len(_TS_PREFIX))[0], value)
                if entry.kind is not RecordKind.PREWRITE or entry.at < kept:
                    batch.delete(key)
                    count += 1
            self._write(batch)
            yield count
            first = found[-1][0] + b"\x00"

    def drop_checkpoints(self, before: Pointer) -> None:
        """Delete the damaged places before a position, and the checkpoints but for the last one there."""
        for hole in self.holes():
            if hole.end < before:
                key = _DM_PREFIX + _POSITION.pack(*hole.begin)
                self._drop(key, key + b"\x00")
        kept = self.newest_checkpoint(before)
        self._drop(_CP_PREFIX, _CP_PREFIX + _POSITION.pack(*kept.at))
        self._drop(_CT_PREFIX, _CT_PREFIX + _TS.pack(kept.max_ts) + _POSITION.pack(*kept.at))

    def _drop(self, first: bytes, end: bytes) -> None:
        try:
            self._db.delete_range(first, end)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise self._told(error) from error

    def clear(self) -> None:
        """Delete all but ``gc_ts`` and ``kept``, safe against power failure: entries of a truncated log would match it once it has grown again."""
        batch = WriteBatch(raw_mode=True)
        gc_ts, kept = self.gc_ts, self.kept
        batch.delete_range(b"", b"\xff")
        batch.put(_GC_TS, _SIGNED.pack(gc_ts))
        if kept is not None:
            batch.put(_KEPT, _FILE_ID.pack(kept))
        self._write(batch, sync=True)

    def close(self) -> None:
        """Close it; no call may be under way."""
        self._db.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_checkpoint(batch: WriteBatch, checkpoint: SorterCheckpoint) -> None:
    position, value = _POSITION.pack(*checkpoint.at), checkpoint.pack()
    batch.put(_CP_PREFIX + position, value)
    batch.put(_CT_PREFIX + _TS.pack(checkpoint.max_ts) + position, value)


def _checkpoint(value: bytes) -> SorterCheckpoint:
    if len(value) != _CHECKPOINT_SIZE:
        raise Corruption(f"index: a checkpoint of {len(value)} bytes; {_MEND}")
    return SorterCheckpoint.unpack(value)


def _entry(ts: int, value: bytes) -> Entry:
    if len(value) != _VALUE.size:
        raise Corruption(f"index: {len(value)} bytes at ts {ts}; {_MEND}")
    file_id, offset, length, kind = _VALUE.unpack(value)
    return Entry(ts, _KINDS[kind], Pointer(file_id, offset), length)


def _options() -> Options:
    """Little and bounded memory: two write buffers and one block cache; one background thread."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(1)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_LOG_FILE_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE))
    table.set_bloom_filter(_BLOOM_BITS, False)
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options


def missing_parts(index: KeyIndex, log: ValueLog) -> list[Hole]:
    """The parts of ``log`` before its newest file that were removed, emptied or cut, in log order; what the end lacks is not among them.

    Only two parts count as missing: a part that the index has a position of, and a part before the first file that the last collection left.
    What a collection removed is not missing, nor what a real Pump collected before this index existed.
    """
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
            following = next(i for i in log.ids if i > file_id)
            found.append(_hole(index, Pointer(file_id, length), Pointer(following, 0)))
    return found


def _hole(index: KeyIndex, begin: Pointer, end: Pointer) -> Hole:
    return Hole(begin, end, index.newest_checkpoint(begin).sorted_promise)
