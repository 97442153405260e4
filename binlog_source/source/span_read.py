"""Reads a bounded part of a Pump's log, whatever happens to the Pump meanwhile: ``read_raw`` and ``read_sorted``. gRPC shell.

A damaged place of a Pump's log (``damage.py``), a span that the Pump has collected, and a log that was replaced since the batch was planned
(``fingerprint.py``) are passed to ``lost``. It raises, or it returns and reading continues after the place. After a replaced log, a raw read ends,
because its positions are meaningless in the new log.

Promises: for one (start, end) the reads yield the same records each time. After a broken connection they continue where they were, at the
address that ``find`` then returns. They fail with ``PumpUnavailable`` when nothing has arrived for ``patience`` seconds. Records out of
order are a ``ProtocolViolation``. Each error names Pump and ts.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import grpc
import numpy as np

from pyspark_tidb_binlog.binlog_source.cluster.channels import reason
from pyspark_tidb_binlog.binlog_source.source.framing import Records, parse
from pyspark_tidb_binlog.binlog_source.source.loss import Loss
from pyspark_tidb_binlog.binlog_source.source.pull import (
    BARE_ENDS,
    Endpoint,
    Pull,
    PullMetadata,
    damage_of,
    kept_by_real,
    purge_text,
    purged,
    renew,
    silent_damage,
    stays,
)
from pyspark_tidb_binlog.binlog_source.source.read_notes import ReadNote
from pyspark_tidb_binlog.binlog_source.source.watched_pull import SILENT_SECONDS, WatchedPull, longer
from pyspark_tidb_binlog.binlog_source.wire.damage import Damage
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import LogFingerprint, replaced_text
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import COLLECTED, NO, Position
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RECORDED, payloads_in
from pyspark_tidb_binlog.schemas.backoff import Backoff, Retries
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, as_time
from pyspark_tidb_binlog.schemas.proto import pump_pb2

_BACKOFF = Backoff(0.05, 1.0)
_NOTED_SECONDS = 3.0
"""A read that waits longer than this is reported."""
_OLDEST = Position(0, 0)
_AT_ONCE = 1000
"""Binlogs of a recording that are parsed together."""
Find: TypeAlias = Callable[[Endpoint], Endpoint]
"""Returns where a Pump is now: it may have restarted at another address."""


@dataclass(frozen=True, slots=True)
class ReadTerms:
    """How a bounded read waits for its Pump, and what it does about binlogs that are not there."""

    patience: float
    """Seconds without a record after which it fails."""
    lost: Callable[[Loss, int, int, str], object]
    """``LossPolicy.lost``, which raises, or returns to read what there is. An ``upto_ts`` of 0: up to the end of the read."""
    find: Find = stays
    seen: LogFingerprint | None = None
    """What the log must contain; otherwise it was replaced."""
    note: ReadNote | None = None
    """Tells operators that the read waits."""
    newest_ts: int = 0
    """The newest ts of the upstream that is known; 0 = none."""


def read_raw(endpoint: Endpoint, begin: Position, end: Position, after_ts: int, terms: ReadTerms) -> Iterator[Records]:
    """The records of the log from ``begin`` (inclusive) to ``end``, in log order, in runs.

    ``after_ts``: only binlogs above it are needed. If some may be gone, reading begins at the oldest record kept.
    """
    reached, lost, half = begin, False, _PartialBinlog()
    known: set[str] = set()

    def go_on(damage: Damage, text: str) -> None:
        nonlocal reached
        terms.lost(Loss.DAMAGED, damage.after_ts, damage.upto_ts, text)
        known.add(damage.place)
        reached = max(reached, Position(damage.file_id, damage.end))

    def attempt(endpoint: Endpoint, silence: float) -> Iterator[Records]:
        nonlocal reached, lost
        again = half.had
        with _opened(endpoint, Delivery.RAW, reached, silence, known, terms.seen) as pull:
            metadata = pull.metadata()
            _require_raw(endpoint, metadata)
            if terms.seen is not None and metadata.seen == NO:
                terms.lost(Loss.REPLACED, after_ts, 0, replaced_text(endpoint.pump, terms.seen, metadata.end))
                reached = end
                return
            if reached == begin and not lost and purged(metadata.gc_ts, after_ts):
                terms.lost(Loss.PURGED, after_ts, metadata.gc_ts, purge_text(endpoint.pump, metadata.gc_ts, after_ts))
                reached, lost = _OLDEST, True
                return
            try:
                for data in pull:
                    records, again = _without(parse(data, endpoint.pump), again)
                    count, last = _until(records, reached, end, endpoint, after_ts)
                    if count:
                        reached = last
                        half.note(records, count)
                        yield records.cut(0, count)
                    if count < len(records) and (lost or known):
                        # what was there up to the end is damaged or collected
                        reached = end
                    if count < len(records) or reached >= end:
                        return
            except grpc.RpcError as error:
                if not isinstance(error, grpc.Call) or COLLECTED not in (error.details() or ""):
                    raise
                # GC has overtaken the read since it began
                if not lost and purged(metadata.gc_ts, after_ts):
                    terms.lost(Loss.PURGED, after_ts, metadata.gc_ts, purge_text(endpoint.pump, metadata.gc_ts, after_ts))
                reached, lost = _OLDEST, True

    if begin < end:
        yield from _patiently(attempt, endpoint, lambda: (reached, half.had), after_ts, lambda: reached >= end, go_on, terms)


def read_sorted(endpoint: Endpoint, after_ts: int, upto_ts: int, terms: ReadTerms) -> Iterator[Records]:
    """The messages with ``commit_ts`` in (after_ts, upto_ts], ascending, in runs, including fakes."""
    if after_ts < upto_ts:
        read = _SortedRead(after_ts, upto_ts, terms)
        yield from _patiently(read.attempt, endpoint, read.mark, after_ts, lambda: read.done, read.go_on, terms)


def read_recorded(endpoint: Endpoint, after_ts: int, upto_ts: int) -> Iterator[Records]:
    """What ``read_sorted`` gives of a Pump, from its file in a recorded case."""
    payloads = payloads_in(Path(endpoint.address.removeprefix(RECORDED)))
    while some := [pump_pb2.Entity(payload=payload) for payload in islice(payloads, _AT_ONCE)]:
        records = parse(pump_pb2.PullBinlogBatch(entity=some).SerializeToString(), endpoint.pump)
        begin, end = np.searchsorted(records.commit_ts, [after_ts, upto_ts], side="right").tolist()
        if begin < end:
            yield records.cut(begin, end)


def refusal(endpoint: Endpoint, seconds: float, after_ts: int) -> str:
    """Why a real Pump refuses a pull, for example as of another cluster. Empty: it takes the pull, and sends something or nothing for ``seconds``.

    ``after_ts``: where the pull begins. If the Pump has nothing above it yet, it logs a WARN every second.
    """
    try:
        with _opened(endpoint, Delivery.SORTED, Position(0, after_ts), seconds, (), None) as pull:
            next(iter(pull), None)
    except _Silent:
        return ""
    except grpc.RpcError as error:
        return reason(error)
    return ""


class _SortedRead:
    """The progress of a read of (after_ts, upto_ts] across connections."""

    def __init__(self, after_ts: int, upto_ts: int, terms: ReadTerms) -> None:
        self._after_ts, self._upto_ts = after_ts, upto_ts
        self._terms = terms
        self._seen = terms.seen
        self._reached = after_ts
        self._half = _PartialBinlog()
        self._known: set[str] = set()
        self._bare_ends = 0
        self._told = False
        self.done = False
        """Whether everything was delivered."""

    def mark(self) -> tuple[object, object]:
        """What changes with every message."""
        return self._reached, self._half.had

    def go_on(self, damage: Damage, text: str) -> None:
        """Continue after a damaged place."""
        self._terms.lost(Loss.DAMAGED, damage.after_ts, damage.upto_ts, text)
        self._known.add(damage.place)
        if damage.exact:
            self._reached = max(self._reached, damage.upto_ts)
            self.done = self._reached >= self._upto_ts

    def attempt(self, endpoint: Endpoint, silence: float) -> Iterator[Records]:
        """The records that one connection delivers."""
        again = self._half.had
        with _opened(endpoint, Delivery.SORTED, Position(0, self._reached), silence, self._known, self._seen) as pull:
            self._require_same(endpoint, pull)
            metadata: PullMetadata | None = None
            for data in pull:
                if metadata is None:
                    # not earlier: a real Pump sends its metadata with its first message
                    metadata = pull.metadata()
                    if metadata.delivery or self._reached == self._after_ts:
                        self._require_kept(endpoint, metadata)
                    self._bare_ends = 0
                records = parse(data, endpoint.pump)
                if not len(records):
                    continue
                _require_ascending(records, self._reached, endpoint)
                records, again = _without(records, again)
                if not len(records):
                    continue
                whole = records.commit_ts[~records.more]
                count = int(np.searchsorted(records.commit_ts, self._upto_ts, side="right"))
                self._reached = min(int(whole[-1]), self._upto_ts) if len(whole) else self._reached
                if count:
                    self._half.note(records, count)
                    yield records.cut(0, count)
                if self._reached >= self._upto_ts or count < len(records):
                    if not metadata.delivery:
                        # GC may have overtaken the read
                        self._require_kept(endpoint, metadata)
                    self.done = True
                    return
            if metadata is None and not pull.metadata().delivery:
                self._ended_bare(endpoint)

    def _require_same(self, endpoint: Endpoint, pull: WatchedPull) -> None:
        """Report once that the log was replaced; a Pump that supports this says so before its first message."""
        if self._seen is None:
            return
        metadata = pull.metadata()
        if metadata.seen == NO:
            self._terms.lost(Loss.REPLACED, self._after_ts, 0, replaced_text(endpoint.pump, self._seen, metadata.end))
            self._seen = None

    def _require_kept(self, endpoint: Endpoint, metadata: PullMetadata) -> None:
        """Report once that needed binlogs may be gone. Our Pump sends its gc ts and ends a pull that GC overtakes; a real one is asked."""
        if self._told:
            return
        if metadata.delivery:
            gc_ts, after_ts = metadata.gc_ts, self._reached
        else:
            gc_ts, after_ts = kept_by_real(endpoint, self._after_ts, self._terms.newest_ts), self._after_ts
        if purged(gc_ts, after_ts):
            self._terms.lost(Loss.PURGED, self._after_ts, gc_ts, purge_text(endpoint.pump, gc_ts, self._after_ts))
            self._told = True

    def _ended_bare(self, endpoint: Endpoint) -> None:
        self._bare_ends += 1
        if self._bare_ends >= BARE_ENDS:
            self._bare_ends = 0
            self.go_on(*silent_damage(endpoint, self._reached, self._upto_ts))


def _patiently(
    attempt: Callable[[Endpoint, float], Iterator[Records]],
    endpoint: Endpoint,
    mark: Callable[[], tuple[object, object]],
    after_ts: int,
    finished: Callable[[], bool],
    on_damage: Callable[[Damage, str], None],
    terms: ReadTerms,
) -> Iterator[Records]:
    """Repeat ``attempt``, wherever the Pump is, until ``finished``; the patience starts again whenever ``mark`` has changed."""
    retries, before, silence = Retries(_BACKOFF, terms.patience), mark(), SILENT_SECONDS
    while True:
        failure = "the Pump ended the stream"
        try:
            for records in attempt(endpoint, silence):
                if terms.note is not None:
                    terms.note.over()
                yield records
        except grpc.RpcError as error:
            failure = reason(error)
            damage = damage_of(error, endpoint)
            if damage is not None:
                on_damage(damage, damage.text(endpoint.pump))
                if not finished():
                    continue
        except PumpUnavailable as error:
            failure = str(error)
            silence = longer(silence) if isinstance(error, _Silent) else silence
        if finished():
            return
        if mark() != before:
            retries.restart()
            before, silence = mark(), SILENT_SECONDS
        if retries.over:
            raise PumpUnavailable(
                f"Pump {endpoint.pump} at {endpoint.address} gave nothing for {terms.patience:.0f} s while reading from {mark()[0]} "
                f"(wanted: above ts {after_ts}, {as_time(after_ts)}): {failure}. Restart this Pump: the stream then continues from there"
            )
        if terms.note is not None and retries.elapsed >= _NOTED_SECONDS:
            terms.note.waits(failure)
        retries.pause()
        endpoint = terms.find(endpoint)


class _Silent(PumpUnavailable):
    """Nothing has come for too long."""


@contextlib.contextmanager
def _opened(
    endpoint: Endpoint, delivery: Delivery, start: Position, silence: float, known: Collection[str], seen: LogFingerprint | None
) -> Iterator[WatchedPull]:
    """A pull of any duration that may not be silent for ``silence`` seconds. After a silence the next pull uses a new connection.

    Raises:
        _Silent: the pull was silent for too long.
    """
    pull = WatchedPull(Pull(endpoint, delivery, start, known=known, seen=seen), silence)
    try:
        yield pull
    except grpc.RpcError as error:
        if not pull.silent:
            raise
        renew(endpoint.address)
        raise _Silent(f"no message for {silence:g} s") from error
    finally:
        pull.close()


class _PartialBinlog:
    """How much of a huge binlog was passed on when the stream broke: the Pump then delivers it again from its first piece."""

    def __init__(self) -> None:
        self.had: tuple[int, int] | None = None
        """(start_ts, first_seq) of the last piece, while more pieces of its binlog are to come."""

    def note(self, records: Records, count: int) -> None:
        """Note that the first ``count`` of ``records`` are passed on."""
        last = count - 1
        self.had = (int(records.start_ts[last]), int(records.first_seqs[last])) if records.more[last] else None


def _without(records: Records, had: tuple[int, int] | None) -> tuple[Records, tuple[int, int] | None]:
    """``records`` without the leading pieces up to ``had``, and what is still to be skipped in those that follow."""
    if had is None or not len(records):
        return records, had
    known = records.more & (records.start_ts == had[0]) & (records.first_seqs <= had[1])
    count = len(records) if known.all() else int(np.argmin(known))
    return records.cut(count, len(records)), had if count == len(records) else None


def _until(records: Records, reached: Position, end: Position, endpoint: Endpoint, after_ts: int) -> tuple[int, Position]:
    """How many of ``records`` end at or before ``end``, and the position after them; their positions must ascend from ``reached``."""
    if not len(records):
        return 0, reached
    # A piece that others follow gets the position at which the record before its binlog ended.
    ends = np.maximum.accumulate(np.where(records.more, 0, np.arange(1, len(records) + 1)))
    suffixes = np.concatenate(([reached.suffix], records.suffixes))[ends]
    offsets = np.concatenate(([reached.offset], records.offsets))[ends]
    before_s = np.concatenate(([reached.suffix], suffixes[:-1]))
    before_o = np.concatenate(([reached.offset], offsets[:-1]))
    backwards = (suffixes < before_s) | ((suffixes == before_s) & (offsets < before_o))
    if backwards.any():
        place = int(np.argmax(backwards))
        raise ProtocolViolation(
            f"Pump {endpoint.pump} goes backwards in its log: from {int(before_s[place])}/{int(before_o[place])} to "
            f"{int(suffixes[place])}/{int(offsets[place])}, in a read above ts {after_ts}. If the Pump's data directory was replaced, "
            "delete Spark's checkpoint directory"
        )
    inside = (suffixes < end.suffix) | ((suffixes == end.suffix) & (offsets <= np.where(records.more, end.offset - 1, end.offset)))
    count = len(records) if inside.all() else int(np.argmin(inside))
    return count, Position(int(suffixes[count - 1]), int(offsets[count - 1])) if count else reached


def _require_ascending(records: Records, reached: int, endpoint: Endpoint) -> None:
    before = np.concatenate(([reached], records.commit_ts[:-1]))
    goes_on = np.concatenate(([False], records.more[:-1] & (records.first_seqs[1:] > records.first_seqs[:-1])))
    wrong = (records.commit_ts < before) | ((records.commit_ts == before) & ~goes_on)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ProtocolViolation(
            f"Pump {endpoint.pump} goes backwards: commit_ts {int(records.commit_ts[place])} after {int(before[place])}; "
            "sorted delivery promises strictly ascending commit_ts"
        )


def _require_raw(endpoint: Endpoint, metadata: PullMetadata) -> None:
    if metadata.delivery != Delivery.RAW:
        raise ConfigError(
            f"Pump {endpoint.pump} at {endpoint.address} offers no raw delivery, but this checkpoint was made with delivery=raw: "
            "use Pumps of this project, or delete Spark's checkpoint directory and set delivery=sorted"
        )
