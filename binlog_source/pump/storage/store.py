"""The store: the value log, the index over it and the promises it can give, behind one small interface.

    write    records -> (one group of writers: one append, one fdatasync) -> index -> sorter -> new state -> readers wake
    open     the whole log is read once; index, sorter and checkpoints come out as they were

Promises: ``write`` returns when its records are durable and visible. ``state`` is an immutable picture of the end of the log; everything
before ``state.at`` can be read. A store has one writer at a time and any number of readers.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from binlog_source.pump.storage.env import FileSystem, RealFileSystem
from binlog_source.pump.storage.format import HEADER
from binlog_source.pump.storage.index import Entry, Index, MemoryIndex
from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import Kind, Record, read
from binlog_source.pump.storage.sorter import CHECKPOINT_SPAN, Checkpoint, Sorter
from binlog_source.pump.storage.vlog import Piece, ValueLog
from schemas.errors import ConfigError


class _Request:
    """One caller of ``write`` in the queue."""

    __slots__ = ("done", "error", "records")

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.done = False
        self.error: OSError | None = None


class Store:
    """The binlogs of one Pump, on disk below ``data_dir``."""

    def __init__(
        self, data_dir: Path, *, max_file_size: int, sync: bool = True, files: FileSystem | None = None, span: int = CHECKPOINT_SPAN
    ) -> None:
        """Open the log below ``data_dir``, made when absent; ``span``: bytes between two checkpoints."""
        self._fs = files or RealFileSystem()
        self._fs.make_dir(data_dir)
        try:
            self._lock_fd = self._fs.lock(data_dir / ".lock")
        except BlockingIOError as error:
            raise ConfigError(f"data directory {data_dir}: another Pump works on it; stop it or name another data-dir") from error
        self._log = ValueLog(data_dir / "value", self._fs, max_file_size, sync)
        self._index: Index = MemoryIndex()
        self._sorter = Sorter(span)
        self._queue: list[_Request] = []
        self._queue_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._news = threading.Condition()
        self.gc_ts = 0
        """Binlogs up to this ts may be collected already."""
        for piece in self._log.recover():
            self._take(piece)
        self._state = self._sorter.now()

    @property
    def state(self) -> Checkpoint:
        """The end of the log and what may be promised there."""
        return self._state

    @property
    def beginning(self) -> Pointer:
        """Where the oldest record that is still kept lies."""
        return self._log.beginning

    @property
    def size(self) -> int:
        """Bytes of log."""
        return self._log.size

    def write(self, records: Sequence[Record]) -> None:
        """Make records durable. Callers that wait at the same time share one append and one fdatasync."""
        request = _Request(records)
        with self._queue_lock:
            self._queue.append(request)
        with self._write_lock:
            # whoever had the lock before may have written this request along with its own
            if not request.done:
                with self._queue_lock:
                    group, self._queue = self._queue, []
                self._write_group(group)
        if not request.done:
            raise OSError("the binlog was not written: the writer of its group failed")
        if request.error is not None:
            raise OSError(f"the binlog was not written: {request.error}") from request.error

    def _write_group(self, group: list[_Request]) -> None:
        records = [record for request in group for record in request.records]
        try:
            places = self._log.append(records)
        except OSError as error:
            for request in group:
                request.error = error
        else:
            self._register(records, places)
        for request in group:
            request.done = True

    def _register(self, records: Sequence[Record], places: Sequence[Pointer]) -> None:
        entries = []
        with self._news:
            for record, at in zip(records, places, strict=True):
                length = HEADER.size + len(record.payload)
                if record.kind is not Kind.ROLLBACK:
                    entries.append(Entry(record.ts, record.kind, at, length))
                self._sorter.push(record.kind, record.start_ts, record.commit_ts, at, Pointer(at.file_id, at.offset + length), length)
            self._index.put(entries)
            self._state = self._sorter.now()
            self._news.notify_all()

    def _take(self, piece: Piece) -> None:
        records = [read(payload) for payload in piece.payloads]
        for record in records:
            self._log.note_ts(piece.file_id, record.ts)
        self._register(records, [Pointer(piece.file_id, offset) for offset in piece.offsets])

    def wait_past(self, seen: Checkpoint, timeout: float) -> Checkpoint:
        """The state as soon as the log has grown past ``seen``, ``wake`` was called or ``timeout`` seconds have gone."""
        with self._news:
            if self._state.at == seen.at:
                self._news.wait(timeout)
            return self._state

    def wake(self) -> None:
        """Let every waiting reader look around (its call was cancelled, or the Pump stops)."""
        with self._news:
            self._news.notify_all()

    def delivered(self, after: int, upto: int, limit: int) -> Sequence[Entry]:
        """At most ``limit`` Commits and fakes with ``after < ts <= upto``, ascending."""
        return self._index.delivered(after, upto, limit)

    def prewrite(self, start_ts: int) -> Entry | None:
        """The Prewrite of a transaction."""
        entry = self._index.get(start_ts)
        return entry if entry is not None and entry.kind is Kind.PREWRITE else None

    def payload(self, entry: Entry) -> bytes:
        """The payload of a record."""
        return self._log.read(entry.at, entry.length)

    def scan(self, start: Pointer, upto: Pointer) -> Iterator[Piece]:
        """The records in ``[start, upto)``, in log order."""
        return self._log.scan(start, upto)

    def base(self, ts: int) -> Checkpoint:
        """The checkpoint from whose ``low`` on a reader sees every transaction with commit_ts > ``ts``."""
        with self._news:
            return self._sorter.base(ts)

    def next_checkpoint(self, after: Pointer) -> Checkpoint:
        """The first checkpoint past ``after``, or the end of the log."""
        with self._news:
            return self._sorter.next_checkpoint(after)

    def orphans(self, older_than: int) -> list[Entry]:
        """The Prewrites that wait for their outcome and began before ``older_than``."""
        with self._news:
            starts = [start_ts for start_ts in self._sorter.waiting if start_ts < older_than]
        return [entry for entry in map(self.prewrite, starts) if entry is not None]

    def close(self) -> None:
        """Finish the log. No call may be under way."""
        with self._write_lock:
            self._log.close()
            self._fs.unlock(self._lock_fd)
