"""What a Pump answers: WriteBinlog and the three deliveries of PullBinlogs, without a word of gRPC.

Promises: a ``pull_*`` is an endless iterator of *flushes*; a flush is a list of finished PullBinlogResp messages that should leave at once.
What is large is a flush of its own, for which room is asked (``reading``) before it is read, and given back when the next one is asked for.
It ends when ``stop()`` says so, within the time of one wake-up, or with ``DamagedLog`` before the first thing behind a damaged place of the
log that the reader does not know of. Contract of the deliveries: docs/architecture.md.
"""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

from binlog_source.cluster.registry import NodeState
from binlog_source.pump import messages
from binlog_source.pump.metrics import PumpMetrics
from binlog_source.pump.reading import LARGE, Seat, seat_of_its_own
from binlog_source.pump.space import Space
from binlog_source.pump.storage.index import Entry
from binlog_source.pump.storage.pointer import Pointer
from binlog_source.pump.storage.record import Kind, Record, canonical, completed, head_varints, read
from binlog_source.pump.storage.sorter import Checkpoint
from binlog_source.pump.storage.store import Store
from binlog_source.pump.storage.vlog import Piece
from binlog_source.wire.damage import Damage
from schemas.errors import BinlogPurged, Corruption, DamagedLog, ProtocolViolation, PumpUnavailable

Flush = list[bytes]
Stop = Callable[[], bool]

FLUSH_BYTES = 1 << 20
_SCAN_LIMIT = 512
_WAIT = 1.0
"""Seconds after which a waiting pull looks around although nobody woke it."""
_CALM = 0.02
"""Seconds between two flushes of news: a busy log is handed out in groups, a quiet one at once."""
_log = logging.getLogger(__name__)


class PumpService:
    """The Pump's answers over one store."""

    def __init__(self, store: Store, cluster_id: int, node_id: str, metrics: PumpMetrics | None = None, space: Space | None = None) -> None:
        """Without ``space`` the disk is taken to be endless."""
        self.store = store
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.metrics = metrics or PumpMetrics()
        self._space = space
        self.state = NodeState.ONLINE
        """Prewrites are taken only while it is online."""
        self.writes = 0
        """WriteBinlog calls of any kind so far: what the fake binlogs watch."""

    def check_cluster(self, given: int) -> None:
        """Refuse a peer of another cluster."""
        if given != self.cluster_id:
            raise ProtocolViolation(f"cluster ID are mismatch, {given} vs {self.cluster_id}")

    def accept(self, cluster_id: int, payloads: Sequence[bytes]) -> list[Record]:
        """The records that a WriteBinlog asks to store; none for the probe, a binlog without timestamps.

        Raises:
            ReplicationError: they are refused; the text is a real Pump's.
        """
        self.check_cluster(cluster_id)
        self.writes += 1
        records = [record for record in map(canonical, payloads) if record.start_ts or record.commit_ts]
        if self.state is not NodeState.ONLINE and any(record.kind is Kind.PREWRITE for record in records):
            raise PumpUnavailable(f"no online: {self.state.value}")
        if records and self._space is not None:
            self._space.require()
        return records

    def pull_sorted(self, last: int, stop: Stop, known: Collection[str] = (), seat: Seat | None = None) -> Iterator[Flush]:
        """Complete Commits and fakes with ts > ``last``, ascending, as far as the sorted promise goes; then what comes.

        ``known``: the damaged places (``Damage.place``) that the reader knows of.

        Raises:
            DamagedLog: the next binlog is damaged, or may be missing.
            BinlogPurged: GC has overtaken the reader.
        """
        if last < self.store.gc_ts:
            _log.error("Pump %s: binlogs after %d are asked for, but up to %d they may be collected", self.node_id, last, self.store.gc_ts)
            last = self.store.gc_ts
        begun = last
        seat = seat or seat_of_its_own()
        while not stop():
            state = self.store.state
            damage = self._next_damage(last, known)
            upto = state.sorted_promise if damage is None else min(state.sorted_promise, max(last, damage.after_ts))
            found = self.store.span(last, upto, _SCAN_LIMIT)
            if begun <= last < self.store.gc_ts and state.sorted_promise > last:
                raise BinlogPurged(
                    f"Pump {self.node_id}: GC has overtaken a reader at {last}; binlogs up to {self.store.gc_ts} may be collected"
                )
            if found.delivered:
                yield from self._sorted_flushes(found.delivered, found.prewrites, seat, stop)
                last = found.delivered[-1].ts
                if len(found.delivered) == _SCAN_LIMIT:
                    continue
            if damage is not None:
                raise self._damaged(damage)
            self._await_news(state, stop, calm=bool(found.delivered))

    def _next_damage(self, last: int, known: Collection[str]) -> Damage | None:
        """The first place where a reader that has everything up to ``last`` may miss something."""
        return min((d for d in self.store.damages() if d.concerns(last, known)), key=lambda d: d.after_ts, default=None)

    def _sorted_flushes(self, entries: Sequence[Entry], near: dict[int, Entry], seat: Seat, stop: Stop) -> Iterator[Flush]:
        flush: Flush = []
        size = 0
        for entry in entries:
            large = entry.length > LARGE
            try:
                if large and not (yield from _admitted(entry.length, flush, seat, stop)):
                    return
                payload = self._payload(entry, entry.ts)
                prewrite = self._prewrite_of(payload, entry, near) if entry.kind is Kind.COMMIT else None
                if prewrite is not None and entry.length + prewrite.length > LARGE:
                    large = True
                    if not (yield from _admitted(entry.length + prewrite.length, flush, seat, stop)):
                        return
                found = self._complete(payload, entry, prewrite)
            except (DamagedLog, BinlogPurged):
                if flush:
                    yield flush
                raise
            if found is None:
                self.metrics.lost()
                _log.warning("Pump %s: the Commit at %d has no Prewrite here and is skipped", self.node_id, entry.ts)
                seat.give()
                continue
            flush.append(found)
            size = size + len(found) if len(flush) > 1 else len(found)
            if large or size >= FLUSH_BYTES:
                yield flush
                flush = []
                seat.give()
        if flush:
            yield flush

    def _prewrite_of(self, commit: bytes, entry: Entry, near: dict[int, Entry]) -> Entry | None:
        begun = read(commit).start_ts
        prewrite = near.get(begun) or self.store.prewrite(begun)
        if prewrite is None:
            self._require_whole_before(entry)
        return prewrite

    def _complete(self, payload: bytes, entry: Entry, prewrite: Entry | None) -> bytes | None:
        """The message of a fake, or of a Commit with what its Prewrite holds; None when that is on another Pump."""
        start_ts, commit_ts = head_varints(payload)
        if entry.kind is Kind.COMMIT:
            if prewrite is None:
                return None
            payload = completed(payload, self._payload(prewrite, entry.ts))
        return messages.message(payload, start_ts, commit_ts)

    def _payload(self, entry: Entry, commit_ts: int) -> bytes:
        """A record that the binlog of ``commit_ts`` is made of."""
        try:
            return self.store.payload(entry)
        except Corruption as error:
            at = entry.at
            raise self._damaged(Damage(at.file_id, at.offset, at.offset + entry.length, commit_ts - 1, commit_ts)) from error

    def _require_whole_before(self, commit: Entry) -> None:
        """A Commit without Prewrite is another Pump's matter, unless the Prewrite may have stood where the log is damaged."""
        for damage in self.store.damages():
            if damage.after_ts < commit.ts and Pointer(damage.file_id, damage.begin) < commit.at:
                raise self._damaged(Damage(damage.file_id, damage.begin, damage.end, commit.ts - 1, commit.ts))

    def _damaged(self, damage: Damage) -> DamagedLog:
        self.metrics.lost()
        text = damage.text(self.node_id)
        _log.error("%s", text)
        return DamagedLog(text)

    def pull_raw(self, start: Pointer, stop: Stop, known: Collection[str] = (), seat: Seat | None = None) -> Iterator[Flush]:
        """Records in log order from ``start`` on, and the promise whenever the end of the log is reached.

        ``known``: the damaged places (``Damage.place``) that the reader knows of.

        Raises:
            DamagedLog: what follows is damaged; a reader may go on behind it.
        """
        if start > self.store.state.at:
            raise ProtocolViolation(
                f"Pump {self.node_id}: position {start} is past the end of its log at {self.store.state.at}: "
                "the log was lost or another Pump answers at this address; start from a timestamp again"
            )
        beginning = self.store.beginning
        if start < beginning and start != Pointer(0, 0):
            raise BinlogPurged(f"Pump {self.node_id}: position {start} has been collected; the oldest one kept is {beginning}")
        at, promised = start, False
        place = seat or seat_of_its_own()
        while not stop():
            state = self.store.state
            news = state.at != at
            short = self._shortened(at, known)
            last_piece: Flush = []
            upto = state.at if short is None else Pointer(short.file_id, short.begin)
            for piece in self.store.scan(at, upto, lambda size: place.take(size, stop)):
                if last_piece:
                    yield last_piece
                    if stop():
                        return
                last_piece = _raw_messages(piece)
                damage = self._first_hole(piece, known)
                if damage is not None:
                    yield [message for message, offset in zip(last_piece, piece.offsets, strict=True) if offset < damage.begin]
                    raise self._damaged(damage)
                if place.holds:
                    piece.payloads.clear()
                    yield last_piece
                    last_piece = []
                    place.give()
            place.give()
            if stop():
                return
            if short is not None:
                yield last_piece
                raise self._damaged(short)
            if news or not promised:
                yield [*last_piece, messages.promise(state.raw_promise, state.at)]
                at, promised = state.at, True
            self._await_news(state, stop, calm=news)

    def _first_hole(self, piece: Piece, known: Collection[str]) -> Damage | None:
        for begin, end in piece.holes:
            damage = self.store.damage_at(Pointer(piece.file_id, begin), Pointer(piece.file_id, end))
            if damage.place not in known:
                return damage
        return None

    def _shortened(self, at: Pointer, known: Collection[str]) -> Damage | None:
        """The first place from ``at`` on where the log had been longer, so that nothing in it shows the loss."""
        places = (d for d in self.store.damages() if d.begin == d.end and d.place not in known)
        return next((d for d in places if Pointer(d.file_id, d.begin) >= at), None)

    def pull_tip(self, ts: int, stop: Stop, known: Collection[str] = ()) -> Iterator[Flush]:
        """How far the log goes, without its content: the base for ``ts``, then step by step.

        Raises:
            DamagedLog: binlogs above ``ts`` may be lost. What is damaged since it was indexed only its readers meet.
        """
        damage = self._next_damage(ts, known)
        if damage is not None:
            raise self._damaged(damage)
        base = self.store.base(ts)
        at = base.low
        yield [messages.tip(at, min(base.raw_promise, ts), min(ts, self.store.state.sorted_promise))]
        while not stop():
            state = self.store.state
            steps: Flush = []
            news = False
            while at < state.at and not stop():
                for step in self.store.steps_past(at, _SCAN_LIMIT):
                    steps.append(messages.tip(step.at, step.raw_promise, step.sorted_promise, step.max_ts))
                    at = step.at
                yield steps
                news, steps = True, []
            self._await_news(state, stop, calm=news)

    def _await_news(self, seen: Checkpoint, stop: Stop, *, calm: bool) -> None:
        """Sleep until the log has grown past ``seen``; right after a flush first let some news gather."""
        if calm:
            time.sleep(_CALM)
        if not stop() and self.store.state.at == seen.at:
            self.store.wait_past(seen, _WAIT)


def _admitted(size: int, flush: Flush, seat: Seat, stop: Stop) -> Generator[Flush, None, bool]:
    """Room for something large, once what was gathered has left; False: ``stop`` said so."""
    if flush:
        yield flush.copy()
        flush.clear()
    return seat.take(size, stop)


def _raw_messages(piece: Piece) -> Flush:
    build, pos_field = messages.message, messages.pos_field
    flush: Flush = []
    for position, payload in enumerate(piece.payloads):
        start_ts, commit_ts = head_varints(payload)
        flush.append(build(payload, start_ts, commit_ts, pos_field(Pointer(piece.file_id, piece.end_of(position)))))
    return flush
