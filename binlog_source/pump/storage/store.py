"""The store: the value log, its index and the promises, behind one small interface.

    submit     records -> writer thread: groups -> one append, one fdatasync -> answered (durable)
    write_now  a request that comes alone -> the same on the caller's thread, without the two hand-overs
                       -> backlog -> indexer thread: index and sorter -> new state -> readers wake (visible)
    open       reads the log from the smaller of two pointers: the index's head, and the low position of its last checkpoint
    damage     a place that cannot be read is stored with the commit_ts it may have held (``damage``): no reader passes it unaware

Promises: the records of an answered request are on the disk. They become visible in log order a moment later. ``state`` is an immutable
snapshot of the end of what is indexed; everything before ``state.at`` can be read. A full index queue never blocks writers for longer than
the chaser's threshold. A failed append leaves nothing in the log. It fails the requests whose records are not all durable.

Points of ``conf.failpoints`` besides those of the log: store-answered, index-before-write, index-written, gc-noted, gc-keys.
"""

import bisect
import contextlib
import errno
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import Backlog, Chaser, ChaserSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.env import FileSystem, RealFileSystem
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, HEADER, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.index import Entry, Head, Hole, IndexRange, KeyIndex, missing_parts
from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record, RecordKind, read
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import CHECKPOINT_SPAN, LogRecord, Sorter, SorterCheckpoint
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog import NearbyReader, ValueLog
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import Admit, RecordRun
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_writer import SMALL_BYTES, GroupWritten, WriteRequest, group_of, refuse
from pyspark_tidb_binlog.binlog_source.wire.damage import Damage
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import COLLECTED
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, ConfigError, Corruption
from pyspark_tidb_binlog.schemas.events import tso

_log = logging.getLogger(__name__)

THREADS = ("indexer", "writer")
"""The names of a store's threads. If one of them has died, the Pump no longer writes or shows anything: its process must end."""
_INDEX_BATCH = 512
_INDEX_PAUSE = 0.005
"""Seconds between two writes of the index while the log is busy: it is indexed in groups, a quiet one at once."""
_BUSY = 16
"""So many writes of the index in a row, each less than four pauses after the one before, make a log busy."""
_INDEX_RETRY = 1.0
_QUICK = 0.002
"""Seconds that a group may take on a disk that ``write_now`` uses."""
_FORGET = 0.99
"""The factor by which each further group lowers the longest time: after a stall of a second the disk counts as quick again after 600 groups."""
_GC_BATCH = 1024
_FOREVER = 1e9
_RECENT = 256
"""Recent states that are kept: most readers are there."""
_ANY_TS = (1 << 63) - 1
_FAKE_AGE = tso(60_000)
"""A fake binlog is written soon after its ts was fetched, or not at all: a Drainer gives up a call of WriteBinlog after a second."""

_WRONG_DIRECTORY = frozenset(
    (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS)
)
"""Errors of opening the data directory that no further start mends: it is no directory, or may not be written to."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a store."""

    max_file_size: int = 500 << 20
    """Bytes of a value-log file above which the next is begun."""
    sync: bool = True
    """fdatasync each group."""
    span: int = CHECKPOINT_SPAN
    """Bytes of log between two checkpoints."""
    backlog: int = 1 << 16
    """Records that may wait for the index (a real Pump's ``kv_chan_cap``)."""
    chaser: ChaserSettings = field(default_factory=ChaserSettings)


class Store:
    """The binlogs of one Pump, on disk below ``data_dir``."""

    def __init__(
        self,
        data_dir: Path,
        settings: StoreSettings,
        *,
        files: FileSystem | None = None,
        open_index: Callable[[Path], KeyIndex] = KeyIndex,
        observe: Callable[[GroupWritten], None] = lambda written: None,
    ) -> None:
        """Open the log below ``data_dir``, created when absent, and bring index and sorter up to its end.

        Raises:
            ConfigError: ``data_dir`` is no directory, may not be written to, or is another Pump's.
            OSError: the disk fails or is full; a later start may succeed.
        """
        self.settings = settings
        self._fs = files or RealFileSystem()
        self._observe = observe
        try:
            self._fs.make_dir(data_dir)
            self._lock_fd = self._fs.lock(data_dir / ".lock")
        except BlockingIOError as error:
            raise ConfigError(f"data directory {data_dir}: another Pump uses it. Stop the other Pump, or set another data-dir") from error
        except OSError as error:
            if error.errno in _WRONG_DIRECTORY:
                raise ConfigError(f"data directory {data_dir} cannot be used: {error.strerror}") from error
            # a failing or full disk is no wrong setting: the next start may succeed
            error.filename = error.filename or str(data_dir)
            raise
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._file_max = (0, 0)
        self._holes: dict[Pointer, Hole] = {}
        self._upto: dict[Pointer, int] = {}
        self._recent: deque[SorterCheckpoint] = deque(maxlen=_RECENT)
        self.index_errors = 0
        """Failed writes of the index so far."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._fs.unlock, self._lock_fd)
            self._log = ValueLog(data_dir / "value", self._fs, settings.max_file_size, settings.sync)
            self._index = open_index(data_dir / "index")
            undo.callback(self._index.close)
            self._recover()
            undo.pop_all()
        self.state = self._sorter.now()
        """The end of what is visible and the promises there."""
        self._gc_ts = self._index.gc_ts
        self.written_max_ts = self.state.max_ts
        """Largest ts of a fake or Commit in the log, indexed or not."""
        self._backlog = Backlog(settings.backlog)
        self._written_at = self.state.at
        self._write_lock = threading.Lock()
        self._settle_lock = threading.Lock()
        self._longest = 0.0  # seconds that a group took, the longest one of late
        self._queue: queue.SimpleQueue[Sequence[WriteRequest] | None] = queue.SimpleQueue()
        self._gc_lock = threading.Lock()
        self.deleted_keys = 0
        """Index keys that GC removed so far."""
        self.gc_done_ts = 0
        """The ts up to which the last GC removed."""
        self.chaser = Chaser(settings.chaser, self._pass_on, self._write_lock)
        self._indexer = threading.Thread(target=self._index_loop, name=THREADS[0], daemon=True)
        self._writer = threading.Thread(target=self._write_loop, name=THREADS[1], daemon=True)
        self._indexer.start()
        self._writer.start()

    # opening

    def _recover(self) -> None:
        head, beginning, span = self._index.head, self._log.beginning, self.settings.span
        # an index without gc_ts is older than the collection that removed the log's first files
        lost = head.at < beginning or beginning.file_id > 0 and not self._index.gc_ts
        shortened = False
        missing = missing_parts(self._index, self._log)
        if lost or head.at > self._log.end:
            _log.error(
                "the index ends at position %s, but the log holds %s to %s: the Pump rebuilds the index", head.at, beginning, self._log.end
            )
            # a scan finds damaged bytes again, but not what the log lacks
            missing += [hole for hole in self._index.holes() if hole.lacks]
            self._index.clear()
            shortened, head = head.at > self._log.end, self._index.head
        self._holes = {hole.begin: hole for hole in self._index.holes()}
        for hole in missing:
            self._note_hole(*hole)
        checkpoint = self._index.newest_checkpoint(head.at)
        if checkpoint.at < beginning:
            self._sorter = Sorter(span, beginning)
            start = beginning
        else:
            before = self._before(checkpoint)
            self._sorter = Sorter.resume(checkpoint, (step for piece in before for step in _steps(piece)), span)
            start = checkpoint.at
        self._note_max_ts(start, head)
        for piece in self._log.recover(start, head.at):
            self._recovered(piece)
        if shortened:
            self._note_hole(self._log.end, self._log.end, self._sorter.now().sorted_promise)
        self._file_max = (self._log.end.file_id, self._log.max_ts(self._log.end.file_id))
        if lost:
            self._guess_gc_ts()

    def _guess_gc_ts(self) -> None:
        """Estimate gc_ts: the index that stored it is lost, but readers must learn what was collected."""
        oldest = self._index.span(0, _ANY_TS, 1).delivered
        if oldest and oldest[0].ts - 1 > self._index.gc_ts:
            _log.error(
                "the index was lost, and with it the gc ts: the Pump reports binlogs below %d, its oldest, as collected", oldest[0].ts
            )
            self._index.note_gc(oldest[0].ts - 1, self._sorter.now(), self._log.beginning.file_id)

    def _note_max_ts(self, start: Pointer, head: Head) -> None:
        """Note the largest ts of files without footer where the scan from ``start`` on will not find it."""
        for file_id in self._log.unfinished():
            if file_id == head.at.file_id and start.file_id == file_id:
                self._log.note_ts(file_id, head.file_max_ts)
            elif file_id < start.file_id or file_id == start.file_id and start.offset:
                for piece in self._log.scan(Pointer(file_id, 0), Pointer(file_id + 1, 0)):
                    self._log.note_ts(file_id, max((step.commit_ts or step.start_ts for step in _steps(piece)), default=0))

    def _before(self, checkpoint: SorterCheckpoint) -> Iterator[RecordRun]:
        """The records from a checkpoint's ``low`` up to it. A record that can no longer be read may have been a waiting Prewrite."""
        for piece in self._log.scan(checkpoint.low, checkpoint.at):
            for begin, end in piece.holes:
                self._note_hole(Pointer(piece.file_id, begin), Pointer(piece.file_id, end), checkpoint.sorted_promise)
            yield piece

    def _recovered(self, piece: RecordRun) -> None:
        steps = list(_steps(piece))
        for step in steps:
            self._log.note_ts(piece.file_id, max(step.start_ts, step.commit_ts))
        for begin, end in piece.holes:
            ahead = bisect.bisect_left(steps, begin, key=lambda step: step.at.offset)
            self._put_recovered(piece.file_id, steps[:ahead])
            self._note_hole(Pointer(piece.file_id, begin), Pointer(piece.file_id, end), self._sorter.now().sorted_promise)
            self._sorter.pass_over(Pointer(piece.file_id, end))
            steps = steps[ahead:]
        self._put_recovered(piece.file_id, steps)

    def _put_recovered(self, file_id: int, steps: Sequence[LogRecord]) -> None:
        if steps:
            self._put(steps, self._log.max_ts(file_id))

    def _note_hole(self, begin: Pointer, end: Pointer, after_ts: int) -> None:
        if begin in self._holes:
            return
        _log.error(
            "value log: the records from %s to %s, with commit_ts above %d, are lost: Drainers that have not read these records fail with an error",
            begin,
            end,
            after_ts,
        )
        hole = Hole(begin, end, after_ts)
        self._index.note_hole(hole)
        self._holes = {**self._holes, begin: hole}

    # writing

    def submit(self, requests: Sequence[WriteRequest]) -> None:
        """Queue requests; ``done`` of each is called once its records are durable, or have failed to become so."""
        self._queue.put(requests)

    def write_now(self, request: WriteRequest, done: Callable[[list[WriteRequest]], None]) -> bool:
        """Write a request on this thread and call ``done`` in place of its own; False: not done, because this might take long.

        It does not wait for another writer, for the index, or for a disk that was slow of late. ``done`` is called as by ``submit``.
        """
        if request.size > SMALL_BYTES or self._longest > _QUICK or not self._queue.empty():
            return False
        if not self._write_lock.acquire(blocking=False):
            return False
        try:
            if not self._backlog.has_room(len(request.records)):
                return False
            request.done = done
            self._write_group([request])
        finally:
            self._write_lock.release()
        return True

    def write(self, records: Sequence[Record]) -> None:
        """Make records durable and wait for it. ``OSError`` when nothing was written."""
        written = threading.Event()
        request = WriteRequest(records, lambda requests: written.set())
        self.submit([request])
        written.wait()
        if request.error is not None:
            raise OSError(f"the binlog was not written: {request.error}") from request.error

    def _write_loop(self) -> None:
        waiting: list[WriteRequest] = []
        while True:
            if not waiting:
                got = self._queue.get()
                if got is None:
                    return
                waiting.extend(got)
            while not self._queue.empty():
                got = self._queue.get()
                if got is None:
                    self._queue.put(None)
                    break
                waiting.extend(got)
            count = group_of(waiting)
            group, waiting = waiting[:count], waiting[count:]
            with self._write_lock:
                self._write_group(group)

    def _write_group(self, group: list[WriteRequest]) -> None:
        records = [record for request in group for record in request.records]
        begun, synced, rotations = time.perf_counter(), self._log.writer.sync_seconds, self._log.writer.rotations
        places: list[Pointer] = []
        try:
            while len(places) < len(records):
                places += self._log.append(records[len(places) :])
        except OSError as error:
            refuse(group, len(places), error)
        took = time.perf_counter() - begun
        self._longest = max(took, self._longest * _FORGET)
        steps = [
            LogRecord(r.kind, r.start_ts, r.commit_ts, at, HEADER.size + len(r.payload)) for r, at in zip(records, places, strict=False)
        ]
        if steps:
            self.written_max_ts = max(self.written_max_ts, max(step.commit_ts for step in steps))
            self._written_at = steps[-1].end
        try:
            for done, requests in itertools.groupby(group, key=attrgetter("done")):
                done(list(requests))
            failpoints.point("store-answered")
        finally:
            # what is in the log must become visible, answered or not
            self._push(steps)
        size = sum(request.size for request in group)
        self._observe(GroupWritten(group, size, took, self._log.writer.sync_seconds - synced, self._log.writer.rotations > rotations))

    def _push(self, steps: list[LogRecord]) -> None:
        if not steps or self.chaser.on:
            return
        if not self._backlog.put(steps, self.settings.chaser.threshold):
            _log.warning("the index does not keep up with the log: from position %s on the slow chaser feeds the index", steps[0].at)
            self.chaser.turn_on(steps[0].at)

    def _pass_on(self, start: Pointer, deadline: float | None) -> tuple[Pointer, bool]:
        """Push the log's records from ``start`` on to the index; the position reached, and whether that is the end."""
        end, reached = self._log.end, start
        try:
            for piece in self._log.scan(start, end):
                steps = list(_steps(piece))
                for hole_begin, hole_end in piece.holes:
                    self._note_hole(Pointer(piece.file_id, hole_begin), Pointer(piece.file_id, hole_end), self.state.sorted_promise)
                left = _FOREVER if deadline is None else deadline - time.monotonic()
                if self._closing.is_set() or left < 0 or steps and not self._backlog.put(steps, left):
                    return reached, False
                if steps:
                    reached = steps[-1].end
        except (OSError, Corruption) as error:
            _log.error("the slow chaser cannot read the log from %s on, and tries again: %s", reached, error)
            return reached, False
        return end, True

    # indexing

    def _index_loop(self) -> None:
        in_a_row, last = 0, 0.0
        while True:
            steps = self._backlog.take(_INDEX_BATCH)
            if not steps:
                return
            file_id, largest = self._file_max
            for step in steps:
                if step.at.file_id != file_id:
                    file_id, largest = step.at.file_id, 0
                largest = max(largest, step.start_ts, step.commit_ts)
            self._file_max = (file_id, largest)
            if not self._put(steps, largest):
                return
            now = time.monotonic()
            in_a_row, last = in_a_row + 1 if now - last < 4 * _INDEX_PAUSE else 0, now
            if in_a_row > _BUSY and len(steps) < _INDEX_BATCH:
                self._closing.wait(_INDEX_PAUSE)

    def _put(self, steps: Sequence[LogRecord], file_max_ts: int) -> bool:
        """Index steps in log order; retried until the store closes, because the log has them already. Whether it succeeded."""
        entries = [
            Entry(s.start_ts if s.kind is RecordKind.PREWRITE else s.commit_ts, s.kind, s.at, s.length)
            for s in steps
            if s.kind is not RecordKind.ROLLBACK
        ]
        with self._news:
            checkpoints = [due for due in map(self._sorter.push, steps) if due is not None]
            now = self._sorter.now()
        while True:
            try:
                failpoints.point("index-before-write")
                self._index.apply(entries, checkpoints, Head(now.at, file_max_ts))
                failpoints.point("index-written")
                break
            except OSError as error:
                self.index_errors += 1
                _log.error("%s; trying again", error)
                if self._closing.wait(_INDEX_RETRY):
                    return False
        with self._news:
            self.state = now
            self._recent.append(now)
            self._news.notify_all()
        return True

    # reading

    @property
    def beginning(self) -> Pointer:
        """The position of the oldest record that is still kept."""
        return self._log.beginning

    @property
    def damaged_bytes(self) -> int:
        """Bytes of the log skipped because they are not records, over all scans so far."""
        return self._log.damaged_bytes

    @property
    def gc_ts(self) -> int:
        """Binlogs up to this ts may be collected already."""
        return self._gc_ts

    def damages(self) -> list[Damage]:
        """The damaged places that were found while the log was indexed, in log order."""
        beginning = self._log.beginning
        return [self._damage(hole) for hole in sorted(self._holes.values()) if hole.end >= beginning]

    def damage_at(self, begin: Pointer, end: Pointer) -> Damage:
        """What may be lost between two positions of the log."""
        known = self._holes.get(begin)
        return self._damage(known or Hole(begin, end, self._index.newest_checkpoint(begin).sorted_promise))

    def _damage(self, hole: Hole) -> Damage:
        upto = self._upto.get(hole.begin) or self._commits_above(hole)
        if upto:
            self._upto[hole.begin] = upto
        end = hole.begin if hole.lacks else hole.end
        return Damage(hole.begin.file_id, hole.begin.offset, end.offset, hole.after_ts, upto)

    def lacking(self, at: Pointer) -> Damage | None:
        """The place, without bytes that show it, where the record at ``at`` was; None if the log does not lack it."""
        holes = (hole for hole in self._holes.values() if hole.lacks and hole.begin <= at < hole.end)
        return next(map(self._damage, holes), None)

    def _commits_above(self, hole: Hole) -> int:
        """The largest commit_ts that may be lost in ``hole``; 0: not known yet.

        Two records behind the hole bound it, and the result is one less than their ts:

        * the commit_ts of a transaction whose Prewrite is behind the hole: TiDB requests a commit_ts after the Prewrite was acknowledged;
        * the ts of a fake binlog that was fetched after another fake behind the hole had been written. Drainers send fakes besides the Pump's
          own, so their order in the log proves nothing. But no fake is written later than ``_FAKE_AGE`` after its ts was fetched.
        """
        last, first_fake = hole.after_ts, 0
        while True:
            delivered = self._index.span(last, _ANY_TS, _INDEX_BATCH).delivered
            for entry in delivered:
                if entry.at < hole.end:
                    continue
                if entry.kind is RecordKind.FAKE:
                    first_fake = first_fake or entry.ts
                    if entry.ts >= first_fake + _FAKE_AGE:
                        return entry.ts - 1
                elif self._began_behind(entry, hole.end):
                    return entry.ts - 1
            if len(delivered) < _INDEX_BATCH:
                return 0
            last = delivered[-1].ts

    def _began_behind(self, commit: Entry, position: Pointer) -> bool:
        try:
            prewrite = self.prewrite(read(self.payload(commit)).start_ts)
        except (Corruption, BinlogPurged):
            return False
        return prewrite is not None and prewrite.at >= position

    def wait_past(self, seen: SorterCheckpoint, timeout: float) -> SorterCheckpoint:
        """The state as soon as it has grown past ``seen``, ``wake`` was called or ``timeout`` seconds have passed."""
        with self._news:
            if self.state.at == seen.at:
                self._news.wait(timeout)
            return self.state

    def catch_up(self, timeout: float = 30.0) -> SorterCheckpoint:
        """The state once everything that was answered before the call is visible."""
        written = self._written_at
        with self._news:
            if not self._news.wait_for(lambda: self.state.at >= written, timeout):
                raise TimeoutError(f"after {timeout:g} s the index is at {self.state.at}, but the log ends at {written}")
            return self.state

    def wake(self) -> None:
        """Wake every waiting reader, to check whether its call was cancelled or the Pump stops."""
        with self._news:
            self._news.notify_all()

    def span(self, after: int, upto: int, limit: int) -> IndexRange:
        """At most ``limit`` Commits and fakes with ``after < ts <= upto``, ascending, and the Prewrites between them."""
        return self._index.span(after, upto, limit)

    def entry(self, ts: int) -> Entry | None:
        """The record at key ``ts``."""
        return self._index.get(ts)

    def prewrite(self, start_ts: int) -> Entry | None:
        """The Prewrite of a transaction."""
        entry = self._index.get(start_ts)
        return entry if entry is not None and entry.kind is RecordKind.PREWRITE else None

    def payload(self, entry: Entry) -> bytes:
        """The payload of a record."""
        return self._log.read(entry.at, entry.length)

    def nearby(self) -> NearbyReader:
        """Reads the payloads of records that lie near each other. For one thread, for a short time."""
        return self._log.nearby()

    def scan(self, start: Pointer, upto: Pointer, admit: Admit = lambda size: True) -> Iterator[RecordRun]:
        """The records in ``[start, upto)``, in log order; from ``BEGINNING``: from the oldest that is kept.

        ``admit`` is called with the bytes of a large record before it is read; where it returns False, the scan ends.

        Raises:
            BinlogPurged: ``start`` has been collected.
        """
        pieces, beginning = self._log.scan(start, upto, admit=admit), self._log.beginning
        if BEGINNING < start < beginning:
            raise BinlogPurged(f"position {start} {COLLECTED} {beginning}")
        return pieces

    def base(self, ts: int) -> SorterCheckpoint:
        """The checkpoint from whose ``low`` on a reader finds every transaction with commit_ts > ``ts``, or where it is lost."""
        found, beginning = self._index.base(max(0, ts)), self._log.beginning
        for damage in self.damages():
            if damage.concerns(ts, ()):
                found = found._replace(low=min(found.low, Pointer(damage.file_id, damage.begin)))
        return found if found.low >= beginning else found._replace(low=beginning)

    def checkpoint(self, upto: Pointer) -> SorterCheckpoint:
        """The newest checkpoint at or before ``upto``; a recent state instead if it is newer."""
        with self._news:
            near = [state for state in self._recent if state.at <= upto]
        return max([self._index.newest_checkpoint(upto), *near], key=attrgetter("at"))

    def steps_past(self, after: Pointer, limit: int) -> list[SorterCheckpoint]:
        """At most ``limit`` checkpoints past ``after``, ascending; the end of the log is the last one if they reach it."""
        state = self.state
        found = [c for c in self._index.checkpoints(after, limit) if c.at <= state.at]
        if len(found) < limit and after < state.at and (not found or found[-1].at < state.at):
            found.append(state)
        return found

    def orphans(self, older_than: int) -> list[Entry]:
        """The Prewrites that wait for their outcome and began before ``older_than``."""
        with self._news:
            starts = [start_ts for start_ts in self._sorter.waiting if start_ts < older_than]
        return [entry for entry in map(self.prewrite, starts) if entry is not None]

    @contextlib.contextmanager
    def settling(self, start_ts: int) -> Iterator[bool]:
        """Whether a Prewrite still waits for its outcome; nobody else who asks so settles one meanwhile.

        Raises:
            TimeoutError: the index is too far behind the log to tell.
        """
        with self._settle_lock:
            self.catch_up()
            with self._news:
                waits = start_ts in self._sorter.waiting
            yield waits

    # collecting

    def collect(self, gc_ts: int, slack: int) -> bool:
        """Remove binlogs up to ``gc_ts`` - ``slack``; False when there is nothing to do, or another collection is running.

        ``gc_ts`` is stored first, so that readers behind it get an error. The files from the first Prewrite on are kept that waits, or has a
        Commit above ``gc_ts``.
        """
        if gc_ts <= self._gc_ts or self.state.sorted_promise <= gc_ts or not self._gc_lock.acquire(blocking=False):
            return False
        try:
            upto, state = gc_ts - slack, self.state
            needed = self._index.base(gc_ts).low
            # at the end of a file nothing of it is needed
            first_needed = needed.file_id + (needed.offset >= self._log.length(needed.file_id))
            kept = self._log.kept(upto, min(state.low.file_id, first_needed))
            self._index.note_gc(gc_ts, state, kept)
            self._gc_ts = gc_ts
            failpoints.point("gc-noted")
            self._remove(upto, kept)
        finally:
            self._gc_lock.release()
        return True

    def _remove(self, upto: int, kept: int) -> None:
        gone = self._log.drop(kept)
        beginning = self._log.beginning
        self._holes = {begin: hole for begin, hole in self._holes.items() if hole.end >= beginning}
        for count in self._index.drop_oldest(upto, beginning, _GC_BATCH):
            self.deleted_keys += count
            failpoints.point("gc-keys")
            if self._closing.is_set():
                return
        self._index.drop_checkpoints(beginning)
        if gone:
            _log.info("gc: removed value-log files %s and the keys up to %d", gone, upto)
        self.gc_done_ts = upto

    # closing

    def close(self) -> None:
        """Write what was submitted, index what the index accepts, finish the log. Nothing may be submitted afterwards."""
        if self._closing.is_set():
            return
        self._queue.put(None)
        self._writer.join()
        self._closing.set()
        self._backlog.close()
        self.chaser.stop()
        self._indexer.join()
        # wait for a running collection, and allow no further one
        self._gc_lock.acquire()
        self._log.close()
        self._index.close()
        self._fs.unlock(self._lock_fd)


def _steps(piece: RecordRun) -> Iterable[LogRecord]:
    for offset, payload in zip(piece.offsets, piece.payloads, strict=True):
        record = read(payload)
        if record.start_ts or record.commit_ts:
            yield LogRecord(record.kind, record.start_ts, record.commit_ts, Pointer(piece.file_id, offset), HEADER.size + len(payload))
