"""The Pump's service: WriteBinlog and the three deliveries of PullBinlogs, independent of gRPC.

Promises: a ``pull_*`` is an endless iterator of *groups*. A group is a list of serialized PullBinlogResp messages to be sent at once. A
large binlog is a group of its own: its memory is reserved (``Reservation``) before the read, and released when the next group is requested. A
pull ends within ``_WAIT`` seconds after ``stop()`` is true. It ends with ``DamagedLog`` before the first record behind a damaged place that
is not in the reader's ``known``. ``binlog_source.wire.pump_protocol`` has the contract of the deliveries.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState
from pyspark_tidb_binlog.binlog_source.pump import messages
from pyspark_tidb_binlog.binlog_source.pump.metrics import PumpMetrics
from pyspark_tidb_binlog.binlog_source.pump.storage.env import Space
from pyspark_tidb_binlog.binlog_source.pump.storage.format import BEGINNING, Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.index import Entry
from pyspark_tidb_binlog.binlog_source.pump.storage.record import Record, RecordKind, canonical, completed, head_varints, read, start_ts_of
from pyspark_tidb_binlog.binlog_source.pump.storage.sorter import SorterCheckpoint
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog import NearbyReader
from pyspark_tidb_binlog.binlog_source.pump.storage.vlog_files import RecordRun
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from pyspark_tidb_binlog.binlog_source.wire.damage import Damage
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import ANYWHERE, LogFingerprint
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import COLLECTED
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, Corruption, DamagedLog, ProtocolViolation, PumpUnavailable

_log = logging.getLogger(__name__)


MessageGroup = list[bytes]
Stop = Callable[[], bool]

GROUP_BYTES = 1 << 20
_SCAN_LIMIT = 512
_WAIT = 1.0
"""Seconds after which a waiting pull checks for news and ``stop`` without being woken."""
_CALM = 0.02
"""Seconds between two groups of new records: a busy log is delivered in groups, a quiet one at once."""
LARGE = 1 << 20
"""Bytes of a binlog above which a pull takes memory before it reads the binlog."""
CAPACITY = 64 << 20
"""Bytes of large binlogs that all pulls of a Pump hold together."""
STALL = 30.0
"""Seconds after which what a pull holds no longer counts: its client does not read."""
_NOT_IN_IT = -1
_LOOK = 1.0
"""Seconds between two checks of a pull that waits for memory."""


class Reservation:
    """One pull's memory for large binlogs. For one thread."""

    def __init__(self, memory: BoundedMemory) -> None:
        """``memory``: shared with the other pulls."""
        self._memory = memory

    def take(self, size: int, stop: Stop) -> bool:
        """Wait for ``size`` bytes in place of what it holds; does nothing if ``size`` is not large. False: stopped."""
        if size <= LARGE:
            return True
        self.give()
        admitted = threading.Event()
        self._memory.ask(self, size, admitted.set)
        while not admitted.wait(_LOOK):
            if stop():
                self.give()
                return False
            self._memory.serve()
        return True

    def give(self) -> None:
        """Release the memory: what was read is sent."""
        self._memory.forget(self)

    @property
    def holds(self) -> bool:
        """Whether it holds memory."""
        return self._memory.holds(self)


class PumpService:
    """The Pump's service over one store."""

    def __init__(self, store: Store, cluster_id: int, node_id: str, metrics: PumpMetrics | None = None, space: Space | None = None) -> None:
        """Without ``space``, the free space of the disk is not checked."""
        self.store = store
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.metrics = metrics or PumpMetrics()
        self._space = space
        self.state = NodeState.ONLINE
        """Prewrites are accepted only while it is online."""
        self.writes = 0
        """WriteBinlog calls of any kind so far, for ``FakeBinlogs``."""

    def check_cluster(self, given: int) -> None:
        """Refuse a peer of another cluster."""
        if given != self.cluster_id:
            raise ProtocolViolation(f"cluster ID are mismatch, {given} vs {self.cluster_id}")

    def accept(self, cluster_id: int, payloads: Sequence[bytes]) -> list[Record]:
        """The records of a WriteBinlog that are to be stored; none for a probe, a binlog without timestamps.

        Raises:
            ReplicationError: the call is refused; the text is a real Pump's.
        """
        self.check_cluster(cluster_id)
        self.writes += 1
        records = [record for record in map(canonical, payloads) if record.start_ts or record.commit_ts]
        if self.state is not NodeState.ONLINE and any(record.kind is RecordKind.PREWRITE for record in records):
            raise PumpUnavailable(f"no online: {self.state.value}")
        if self._space is not None and any(record.kind is not RecordKind.FAKE for record in records):
            self._space.require()
        return records

    def pull_sorted(self, last: int, stop: Stop, reservation: Reservation, known: Collection[str] = ()) -> Iterator[MessageGroup]:
        """Complete Commits and fakes with ts > ``last``, ascending, up to the sorted promise; then new ones as it rises.

        ``known``: the damaged places (``Damage.place``) that the reader knows of.

        Raises:
            DamagedLog: the next binlog is damaged, or may be missing.
            BinlogPurged: GC has overtaken the reader.
        """
        if last < self.store.gc_ts:
            _log.error(
                "Pump %s: a reader asks for binlogs above %d, but binlogs up to %d may be collected", self.node_id, last, self.store.gc_ts
            )
            last = self.store.gc_ts
        begun = last
        while not stop():
            state = self.store.state
            damage = self._next_damage(last, known)
            upto = state.sorted_promise if damage is None else min(state.sorted_promise, max(last, damage.after_ts))
            found = self.store.span(last, upto, _SCAN_LIMIT)
            if begun <= last < self.store.gc_ts and state.sorted_promise > last:
                raise BinlogPurged(
                    f"Pump {self.node_id}: GC has overtaken a reader at {last}: binlogs up to {self.store.gc_ts} may be collected"
                )
            if found.delivered:
                yield from self._sorted_groups(found.delivered, found.prewrites, known, reservation, stop)
                last = found.delivered[-1].ts
                if len(found.delivered) == _SCAN_LIMIT:
                    continue
            if damage is not None:
                raise self._damaged(damage)
            self._await_news(state, stop, calm=bool(found.delivered))

    def _next_damage(self, last: int, known: Collection[str]) -> Damage | None:
        """The first damaged place where a reader that has everything up to ``last`` may miss something."""
        return min((d for d in self.store.damages() if d.concerns(last, known)), key=lambda d: d.after_ts, default=None)

    def _sorted_groups(
        self, entries: Sequence[Entry], near: dict[int, Entry], known: Collection[str], reservation: Reservation, stop: Stop
    ) -> Iterator[MessageGroup]:
        group: MessageGroup = []
        size = 0
        reader = self.store.nearby()
        for entry in entries:
            large = entry.length > LARGE
            try:
                if large and not (yield from _admitted(entry.length, group, reservation, stop)):
                    return
                payload = self._payload(reader, entry, entry.ts, known)
                if payload is None:
                    continue
                prewrite = self._prewrite_of(payload, entry, near) if entry.kind is RecordKind.COMMIT else None
                if prewrite is not None and entry.length + prewrite.length > LARGE:
                    large = True
                    if not (yield from _admitted(entry.length + prewrite.length, group, reservation, stop)):
                        return
                found = self._complete(reader, payload, entry, prewrite)
            except (DamagedLog, BinlogPurged):
                if group:
                    yield group
                raise
            if found is None:
                self.metrics.lost()
                _log.warning("Pump %s: the Commit at %d has no Prewrite here and is skipped", self.node_id, entry.ts)
                reservation.give()
                continue
            group.append(found)
            size = size + len(found) if len(group) > 1 else len(found)
            if large or size >= GROUP_BYTES:
                yield group
                group = []
                reservation.give()
        if group:
            yield group

    def _prewrite_of(self, commit: bytes, entry: Entry, near: dict[int, Entry]) -> Entry | None:
        begun = start_ts_of(commit)
        prewrite = near.get(begun) or self.store.prewrite(begun)
        if prewrite is None:
            self._require_whole_before(entry)
        return prewrite

    def _complete(self, reader: NearbyReader, payload: bytes, entry: Entry, prewrite: Entry | None) -> bytes | None:
        """The message of a fake, or of a Commit completed from its Prewrite; None when the Prewrite is on another Pump."""
        start_ts, commit_ts = head_varints(payload)
        if entry.kind is RecordKind.COMMIT:
            if prewrite is None:
                return None
            begun = self._payload(reader, prewrite, entry.ts)
            assert begun is not None
            payload = completed(payload, begun)
        return messages.message(payload, start_ts, commit_ts)

    def _payload(self, reader: NearbyReader, entry: Entry, commit_ts: int, known: Collection[str] = ()) -> bytes | None:
        """The payload of a record that is part of the binlog of ``commit_ts``; None if it was where a ``known`` part of the log is missing."""
        try:
            return reader.read(entry.at, entry.length)
        except (Corruption, BinlogPurged) as error:
            at = entry.at
            missing = self.store.lacking(at)
            if missing is not None and missing.place in known:
                self.metrics.lost()
                return None
            if missing is None and isinstance(error, BinlogPurged):
                raise
            raise self._damaged(Damage(at.file_id, at.offset, at.offset + entry.length, commit_ts - 1, commit_ts)) from error

    def _require_whole_before(self, commit: Entry) -> None:
        """Raise unless the missing Prewrite of ``commit`` must be on another Pump: it may have been where the log is damaged."""
        for damage in self.store.damages():
            if damage.after_ts < commit.ts and Pointer(damage.file_id, damage.begin) < commit.at:
                raise self._damaged(Damage(damage.file_id, damage.begin, damage.end, commit.ts - 1, commit.ts))

    def _damaged(self, damage: Damage) -> DamagedLog:
        self.metrics.lost()
        text = damage.text(self.node_id)
        _log.error("%s", text)
        return DamagedLog(text)

    def pull_raw(self, start: Pointer, stop: Stop, memory: Reservation, known: Collection[str] = ()) -> Iterator[MessageGroup]:
        """Records in log order from ``start`` on, and the raw promise whenever the end of the log is reached.

        ``known``: the damaged places (``Damage.place``) that the reader knows of.

        Raises:
            DamagedLog: what follows is damaged; a reader may continue behind it.
        """
        if start > self.store.state.at:
            raise ProtocolViolation(
                f"Pump {self.node_id}: position {start} is beyond the end of its log at {self.store.state.at}: "
                "the log was lost, or another Pump answers at this address. Start from a timestamp again"
            )
        beginning = self.store.beginning
        if start < beginning and start != Pointer(0, 0):
            raise BinlogPurged(f"Pump {self.node_id}: position {start} {COLLECTED} {beginning}")
        at, promised = start, False
        while not stop():
            state = self.store.state
            news = state.at != at
            short = self._shortened(at, known)
            last_piece: MessageGroup = []
            upto = state.at if short is None else Pointer(short.file_id, short.begin)
            for piece in self.store.scan(at, upto, lambda size: memory.take(size, stop)):
                if last_piece:
                    yield last_piece
                    if stop():
                        return
                last_piece = _raw_messages(piece)
                damage = self._first_hole(piece, known)
                if damage is not None:
                    yield [message for message, offset in zip(last_piece, piece.offsets, strict=True) if offset < damage.begin]
                    raise self._damaged(damage)
                if memory.holds:
                    piece.payloads.clear()
                    yield last_piece
                    last_piece = []
                    memory.give()
            memory.give()
            if stop():
                return
            if short is not None:
                yield last_piece
                raise self._damaged(short)
            if news or not promised:
                yield [*last_piece, messages.promise(state.raw_promise, state.at)]
                at, promised = state.at, True
            self._await_news(state, stop, calm=news)

    def _first_hole(self, piece: RecordRun, known: Collection[str]) -> Damage | None:
        for begin, end in piece.holes:
            damage = self.store.damage_at(Pointer(piece.file_id, begin), Pointer(piece.file_id, end))
            if damage.place not in known:
                return damage
        return None

    def _shortened(self, at: Pointer, known: Collection[str]) -> Damage | None:
        """The first place from ``at`` on where the log was longer once: records are lost there, but no damaged bytes show it."""
        places = (d for d in self.store.damages() if d.begin == d.end and d.place not in known)
        return next((d for d in places if Pointer(d.file_id, d.begin) >= at), None)

    def pull_tip(self, ts: int, stop: Stop, known: Collection[str] = ()) -> Iterator[MessageGroup]:
        """The positions and promises of the log without its content: the base for ``ts``, then step by step.

        Raises:
            DamagedLog: binlogs above ``ts`` may be lost. Damage since indexing is found only by pulls that read the content.
        """
        damage = self._next_damage(ts, known)
        if damage is not None:
            raise self._damaged(damage)
        base = self.store.base(ts)
        at = base.low
        yield [messages.tip(at, min(base.raw_promise, ts), min(ts, self.store.state.sorted_promise))]
        while not stop():
            state = self.store.state
            steps: MessageGroup = []
            news = False
            while at < state.at and not stop():
                for step in self.store.steps_past(at, _SCAN_LIMIT):
                    steps.append(messages.tip(step.at, step.raw_promise, step.sorted_promise, step.max_ts))
                    at = step.at
                yield steps
                news, steps = True, []
            self._await_news(state, stop, calm=news)

    def _await_news(self, seen: SorterCheckpoint, stop: Stop, *, calm: bool) -> None:
        """Wait until the log has grown past ``seen``; ``calm``: right after a group, let some new records gather first."""
        if calm:
            time.sleep(_CALM)
        if not stop() and self.store.state.at == seen.at:
            self.store.wait_past(seen, _WAIT)


def _admitted(size: int, group: MessageGroup, reservation: Reservation, stop: Stop) -> Generator[MessageGroup, None, bool]:
    """Yield what was gathered, then reserve memory for a large binlog; False: stopped."""
    if group:
        yield group.copy()
        group.clear()
    return reservation.take(size, stop)


def _raw_messages(piece: RecordRun) -> MessageGroup:
    build, pos_field = messages.message, messages.pos_field
    group: MessageGroup = []
    for position, payload in enumerate(piece.payloads):
        start_ts, commit_ts = head_varints(payload)
        group.append(build(payload, start_ts, commit_ts, pos_field(Pointer(piece.file_id, piece.end_of(position)))))
    return group


def holds(store: Store, seen: LogFingerprint) -> bool:
    """Whether a reader has seen ``seen`` in this log. Reads at most a few megabytes of the log.

    True also where the log cannot decide, at collected or damaged places: the reader learns of these by other means.
    """
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
