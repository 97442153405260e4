"""The key index: where each timestamp's record lies, the checkpoints, and how far the log is indexed; in RocksDB (docs/adr/0005).

    "ts:" ts u64 BE                    -> pointer (12 bytes) | length u32 LE | kind u8
    "cp:" file u32 BE, offset u64 BE   -> checkpoint at that position
    "ct:" max_ts u64 BE, position BE   -> the same checkpoint
    "!binlog!headPointer"              -> pointer just after the last indexed record | largest ts of that file so far i64 LE
    "!binlog!gcts"                     -> i64 LE

Promises: ``apply`` is atomic and survives ``kill -9``; after a power failure the index is as it was some moments ago, never torn, and the log
is scanned from there. One writer, any number of readers.
"""

import logging
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from binlog_source.pump.storage.pointer import BEGINNING, Pointer
from binlog_source.pump.storage.record import Kind
from binlog_source.pump.storage.sorter import NOTHING, Checkpoint
from schemas.errors import Corruption

_log = logging.getLogger(__name__)

_VALUE = struct.Struct("<IqIB")
_TS = struct.Struct(">Q")
_POSITION = struct.Struct(">IQ")
_SIGNED = struct.Struct("<q")
_TS_PREFIX, _CP_PREFIX, _CT_PREFIX = b"ts:", b"cp:", b"ct:"
_HEAD, _GC_TS = b"!binlog!headPointer", b"!binlog!gcts"
_KINDS = tuple(Kind)
_LARGEST = (1 << 64) - 1

_WRITE_BUFFER = 16 << 20
_BLOCK_CACHE = 16 << 20
_BLOOM_BITS = 10
_LOG_FILE_BYTES = 1 << 20


class Entry(NamedTuple):
    """One record that is found by its ts."""

    ts: int
    kind: Kind
    at: Pointer
    length: int
    """Bytes of the record, header included."""


class Head(NamedTuple):
    """How far the log is indexed."""

    at: Pointer
    """Just after the last indexed record."""
    file_max_ts: int
    """Largest ts in that file up to there."""


class Span(NamedTuple):
    """Some of the index by ts."""

    delivered: Sequence[Entry]
    """Commits and fakes, ascending."""
    prewrites: dict[int, Entry]
    """The Prewrites met between them, by start_ts."""


class KeyIndex:
    """The index below one directory."""

    def __init__(self, directory: Path) -> None:
        """Open it, made when absent; one that cannot be opened is thrown away, for the log holds all it says.

        The caller holds the data directory's lock.
        """
        self._directory = directory
        try:
            self._db = Rdict(str(directory), _options())
        except Exception as error:  # rocksdict raises bare Exceptions
            _log.error("index %s cannot be opened (%s): it is thrown away and made anew from the value log", directory, error)
            shutil.rmtree(directory)
            self._db = Rdict(str(directory), _options())

    def apply(self, entries: Iterable[Entry], checkpoints: Iterable[Checkpoint], head: Head) -> None:
        """Enter records, later ones with the same ts replacing earlier ones; all or nothing."""
        batch = WriteBatch(raw_mode=True)
        put, pack, pack_ts = batch.put, _VALUE.pack, _TS.pack
        for ts, kind, at, length in entries:
            put(_TS_PREFIX + pack_ts(ts), pack(at.file_id, at.offset, length, kind))
        for checkpoint in checkpoints:
            position, value = _POSITION.pack(*checkpoint.at), checkpoint.pack()
            put(_CP_PREFIX + position, value)
            put(_CT_PREFIX + pack_ts(checkpoint.max_ts) + position, value)
        put(_HEAD, head.at.pack() + _SIGNED.pack(head.file_max_ts))
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise OSError(f"index {self._directory}: {error}") from error

    @property
    def head(self) -> Head:
        """How far the log is indexed."""
        value = self._db.get(_HEAD)
        return Head(Pointer.unpack(value[:12]), _SIGNED.unpack(value[12:])[0]) if value is not None else Head(BEGINNING, 0)

    @property
    def gc_ts(self) -> int:
        """Binlogs up to this ts may be collected already."""
        value = self._db.get(_GC_TS)
        return int(_SIGNED.unpack(value)[0]) if value is not None else 0

    def set_gc_ts(self, ts: int) -> None:
        """Remember that binlogs up to ``ts`` may be collected."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_GC_TS, _SIGNED.pack(ts))
        self._write(batch)

    def get(self, ts: int) -> Entry | None:
        """The record with this ts."""
        value = self._db.get(_TS_PREFIX + _TS.pack(ts))
        return _entry(ts, value) if value is not None else None

    def span(self, after: int, upto: int, limit: int) -> Span:
        """At most ``limit`` Commits and fakes with ``after < ts <= upto``, and the Prewrites between them."""
        delivered: list[Entry] = []
        prewrites: dict[int, Entry] = {}
        for key, value in self._items(_TS_PREFIX + _TS.pack(after + 1), _TS_PREFIX + _TS.pack(upto)):
            entry = _entry(_TS.unpack_from(key, 3)[0], value)
            if entry.kind is Kind.PREWRITE:
                prewrites[entry.ts] = entry
                continue
            delivered.append(entry)
            if len(delivered) == limit:
                break
        return Span(delivered, prewrites)

    def _items(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from ``first`` to ``last``, both included."""
        iterator = self._db.iter()
        iterator.seek(first)
        while iterator.valid():
            key = iterator.key()
            if key > last:
                return
            yield key, iterator.value()
            iterator.next()
        iterator.status()

    def newest_checkpoint(self, upto: Pointer) -> Checkpoint:
        """The last checkpoint at or before ``upto``."""
        return self._before(_CP_PREFIX, _POSITION.pack(*upto))

    def base(self, ts: int) -> Checkpoint:
        """The last checkpoint that no Commit above ``ts`` precedes."""
        return self._before(_CT_PREFIX, _TS.pack(ts) + b"\xff" * _POSITION.size)

    def _before(self, prefix: bytes, key: bytes) -> Checkpoint:
        iterator = self._db.iter()
        iterator.seek_for_prev(prefix + key)
        if not iterator.valid() or not iterator.key().startswith(prefix):
            return NOTHING
        return Checkpoint.unpack(iterator.value())

    def checkpoints(self, after: Pointer, limit: int) -> list[Checkpoint]:
        """At most ``limit`` checkpoints past ``after``, ascending."""
        first, last = _POSITION.pack(after.file_id, after.offset + 1), b"\xff" * _POSITION.size
        found = []
        for _, value in self._items(_CP_PREFIX + first, _CP_PREFIX + last):
            found.append(Checkpoint.unpack(value))
            if len(found) == limit:
                break
        return found

    def drop_oldest(self, upto: int, limit: int) -> int:
        """Forget at most ``limit`` of the oldest records with ``ts <= upto``; how many."""
        count, last = 0, b""
        for key, _ in self._items(_TS_PREFIX, _TS_PREFIX + _TS.pack(upto)):
            count, last = count + 1, key
            if count == limit:
                break
        if count:
            self._drop(_TS_PREFIX, last + b"\x00")
        return count

    def drop_checkpoints(self, before: Pointer) -> None:
        """Forget the checkpoints before a position, but for the last one there."""
        kept = self.newest_checkpoint(before)
        self._drop(_CP_PREFIX, _CP_PREFIX + _POSITION.pack(*kept.at))
        self._drop(_CT_PREFIX, _CT_PREFIX + _TS.pack(kept.max_ts) + _POSITION.pack(*kept.at))

    def _drop(self, first: bytes, end: bytes) -> None:
        try:
            self._db.delete_range(first, end)
        except Exception as error:  # rocksdict raises bare Exceptions
            raise OSError(f"index {self._directory}: {error}") from error

    def clear(self) -> None:
        """Forget everything but ``gc_ts``."""
        gc_ts = self.gc_ts
        self._drop(b"", b"\xff")
        self.set_gc_ts(gc_ts)

    def close(self) -> None:
        """Close it; no call may be under way."""
        self._db.close()


def dump(directory: Path) -> Iterator[tuple[int, Kind, Pointer, int]]:
    """Every record that an index knows, by ts, without opening it for writing."""
    db = Rdict(str(directory), _options(), access_type=AccessType.read_only())
    iterator = db.iter()
    iterator.seek(_TS_PREFIX)
    while iterator.valid() and iterator.key().startswith(_TS_PREFIX):
        yield _entry(_TS.unpack_from(iterator.key(), 3)[0], iterator.value())
        iterator.next()
    db.close()


def _entry(ts: int, value: bytes) -> Entry:
    if len(value) != _VALUE.size:
        raise Corruption(f"index: {len(value)} bytes at ts {ts}; stop the Pump, remove its index directory and start it again")
    file_id, offset, length, kind = _VALUE.unpack(value)
    return Entry(ts, _KINDS[kind], Pointer(file_id, offset), length)


def _options() -> Options:
    """Small and steady in memory: two write buffers and one block cache; one background thread."""
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
