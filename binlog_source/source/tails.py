"""What the driver knows about each Pump's log without reading payloads: one background ``tip`` stream per Pump.

``Tails`` lives in the driver-side worker. Threads fill it; ``latestOffset`` waits on its condition and reads ``views``. A real Pump
answers sorted: its tail uses commit_ts and length only, and has no positions.

Promises:

* A Pump that cannot be reached is retried forever and holds R back (``unreachable`` lists it). A Pump that sends nothing for
  ``SILENT_SECONDS`` is asked again over a new connection, because its host may have crashed. That one may be silent for twice as long: one message
  of a real Pump may take that time.
* A Pump that breaks the protocol, or whose log was replaced (``fingerprint.py``), leaves a ``fault`` that ``views`` raises. With
  ``fail_on_data_loss`` off the tail of a replaced log starts again at R, and its view says so (``TailView.anew``).
* Memory is some hundred bytes per step. Small unused steps are joined, ever more coarsely while a Pump has thousands of them, so memory and
  planning time do not grow with the log. A joined step ends where its last part ends, with the promises there, and has the bytes of all.
* Steps that were read are kept until R has passed what they hold. After a restart the tip starts at R and delivers them again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import grpc
import numpy as np

from pyspark_tidb_binlog.binlog_source.cluster.channels import reason
from pyspark_tidb_binlog.binlog_source.source.admission import LogStep, TailView
from pyspark_tidb_binlog.binlog_source.source.framing import Records, parse
from pyspark_tidb_binlog.binlog_source.source.gc_bound import newest_ts_of
from pyspark_tidb_binlog.binlog_source.source.loss import Loss, LossPolicy
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark, seen_of
from pyspark_tidb_binlog.binlog_source.source.pull import (
    BARE_ENDS,
    Endpoint,
    Pull,
    damage_of,
    kept_by_real,
    purge_text,
    purged,
    renew,
    silent_damage,
)
from pyspark_tidb_binlog.binlog_source.source.read_notes import note_away
from pyspark_tidb_binlog.binlog_source.source.wake import RECORD_HEADER, PumpHead
from pyspark_tidb_binlog.binlog_source.source.watched_pull import SILENT_SECONDS, longer
from pyspark_tidb_binlog.binlog_source.wire.fingerprint import ANYWHERE, LogFingerprint, replaced_text
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import NO, TIP, Position
from pyspark_tidb_binlog.schemas.backoff import Backoff
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_JOIN_BELOW = 64 * 1024
_MOST_STEPS = 4096
"""From this many steps on they are joined more coarsely, up to the size at which batches can still be cut well."""
_MOST_AT_ALL = 16 * _MOST_STEPS
"""From this many on they are joined regardless of their size."""
_BACKOFF = Backoff(0.1, 2.0)
_NOWHERE = Position(0, 0)
_MUTE_ENDS = 2

_log = logging.getLogger(__name__)


class Tail:
    """One Pump's tail: a thread, and the steps it has received past what the stream has read."""

    def __init__(
        self,
        endpoint: Endpoint,
        from_ts: int,
        changed: threading.Condition,
        fail_on_data_loss: bool,
        join_below: int,
        seen: LogFingerprint | None = None,
        stop_file: str = "",
    ) -> None:
        """``stop_file``: beside it is noted that the Pump is not reachable; ``from_ts``: R; ``join_below``: steps may be joined up to this size, in bytes; ``seen``: what the stream has read of the log."""
        self.endpoint = endpoint
        self.fault: ReplicationError | None = None
        self.trouble = "not reached yet"
        self._stop_file = stop_file
        self.gc_ts = 0
        self.last_news = time.monotonic()
        self._resolved = from_ts
        self._changed = changed
        self._losses = LossPolicy(fail_on_data_loss)
        """What its batches read records the losses in rows; here they are logged."""
        self._steps = _Steps(join_below)
        self._waiting = _Steps(join_below)
        self._base: Position | None = None
        self._end = _NOWHERE
        self._promised = self._raw_promised = from_ts
        self._newest_commit = self._max_ts = 0
        self._rose_at = time.monotonic()
        self._taken = LogStep(_NOWHERE, 0, from_ts, 0)
        self._stopped = False
        self._pull: Pull | None = None
        self._listens_since = time.monotonic()
        self._silent, self._may_be_silent = False, SILENT_SECONDS
        self._heard_at = 0.0
        self._knows_tip = True
        self._bare_ends = self._mute = 0
        self._known: set[str] = set()
        self._seen = seen
        self._tells = False
        self._passed_ts = 0
        self._anew = False
        self._left: PumpMark | None = None
        self._thread = threading.Thread(target=self._run, name=f"tail {endpoint.pump}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end soon; does not wait for it."""
        self._stopped = True
        pull = self._pull
        if pull is not None:
            pull.cancel()

    def watch(self) -> None:
        """Cancel a stream that has been silent for too long. To be called often."""
        pull = self._pull
        if pull is not None and not self._silent and time.monotonic() - self._listens_since >= self._may_be_silent:
            self._silent = True
            pull.cancel()

    def silence(self) -> str:
        """Why the stream does not work, and the time of the last message; empty: it works."""
        if not self.trouble or not self._heard_at:
            return self.trouble
        return f"{self.trouble}; last message at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self._heard_at))} UTC"

    def head(self, delivery: Delivery) -> PumpHead | None:
        """The newest that is known of the Pump; None while it has not reported its log. Call with the condition held."""
        if self._base is None:
            return None
        promise = self._raw_promised if delivery is Delivery.RAW else self._promised
        return PumpHead(promise, self._newest_commit, self._rose_at, not self.trouble)

    def view(self, start: BinlogOffset) -> TailView | None:
        """The steps past ``start``; None while the Pump has not reported its log up to there. Call with the condition held."""
        mark = start.pumps.get(self.endpoint.pump)
        self._resolved = start.resolved_ts
        self._leave(mark)
        if self._base is None:
            return None
        anew, seen_ts = self._anew, 0 if mark is None or self._anew else mark.seen_ts
        raw = start.delivery is Delivery.RAW
        if raw and not self._knows_tip:
            raise ConfigError(
                f"Pump {self.endpoint.pump} at {self.endpoint.address} offers no raw delivery, but this stream reads with delivery=raw: "
                "use Pumps of this project, or set delivery=sorted with a new checkpoint directory"
            )
        if not raw:
            self._pass_over(start.resolved_ts)
            promise, seen_ts = max(self._taken.sorted_promise, start.resolved_ts), max(seen_ts, self._passed_ts)
            return TailView(self._base, promise, tuple(self._steps), mark is None, anew=anew, seen_ts=seen_ts, tells=self._tells)
        origin = self._base if mark is None or anew else mark.position
        if self._end < origin:
            # A new tail receives the log from R on: the pending bytes are known once it has reached the position of the stream.
            return None
        self._take(origin)
        self._release(start.resolved_ts)
        taken = self._taken
        promise = max(taken.raw_promise, start.resolved_ts)
        return TailView(origin, promise, tuple(self._steps), mark is None, taken.max_ts, tuple(self._waiting), anew, seen_ts, self._tells)

    def _leave(self, mark: PumpMark | None) -> None:
        """Treat the log as replaced until the stream's mark is no longer that of the former log."""
        if not self._anew or mark is None:
            return
        self._left = self._left or mark
        self._anew = mark == self._left

    def _pass_over(self, resolved_ts: int) -> None:
        """Sorted: drop the steps up to R."""
        while self._steps and self._steps[0].sorted_promise <= resolved_ts:
            self._taken = self._steps.popleft()
            self._passed_ts = self._taken.sorted_promise if self._tells else 0

    def _take(self, origin: Position) -> None:
        """Raw: move the steps up to ``origin``, which are read, to those that wait."""
        while self._steps and self._steps[0].position <= origin:
            step = self._steps.popleft()
            self._taken = replace(step, raw_promise=max(step.raw_promise, self._taken.raw_promise), size=0)
            self._waiting.add(step)
        if self._steps and self._taken.position < origin:
            # A restarted tip cuts the log elsewhere: part of the step that the stream stopped in is read.
            first = self._steps.popleft()
            size = min(_between(self._taken.position, origin), first.size)
            self._waiting.add(replace(first, position=origin, size=size))
            self._steps.appendleft(replace(first, size=first.size - size))
            self._taken = replace(self._taken, position=origin)

    def _release(self, resolved_ts: int) -> None:
        """Raw: drop what was read and holds nothing above R and no Prewrite without an outcome (by the sorted promise)."""
        waiting = self._waiting
        while waiting and waiting[0].max_ts <= resolved_ts and waiting[0].max_ts < self._taken.sorted_promise:
            waiting.popleft()

    def _run(self) -> None:
        try:
            self._retry()
        finally:
            note_away(self._stop_file, self.endpoint.pump, "")

    def _retry(self) -> None:
        failures = 0
        while not self._stopped:
            try:
                self.trouble = self._follow()
            except PumpUnavailable as error:
                self.trouble = str(error)
            except ReplicationError as error:
                return self._fail(error)
            except Exception as error:
                _log.exception("the stream of positions from Pump %s fails", self.endpoint.pump)
                return self._fail(
                    ProtocolViolation(f"Pump {self.endpoint.pump} at {self.endpoint.address} sent a message that cannot be read: {error!r}")
                )
            note_away(self._stop_file, self.endpoint.pump, self.trouble)
            failures = 0 if time.monotonic() - self.last_news < _BACKOFF.longest else failures + 1
            if not self._stopped:
                time.sleep(_BACKOFF.pause(failures))

    def _fail(self, error: ReplicationError) -> None:
        """Leave ``error`` to the driver, which waits for this thread's news."""
        with self._changed:
            self.fault = error
            self._changed.notify_all()

    def _follow(self) -> str:
        """One connection: from the newest promise on, until it breaks. Returns why it broke."""
        from_ts, seen = self._promised, self._seen
        # A real Pump is asked for its last delivered binlog again: if that comes first, the log is the same.
        # If twice in a row nothing comes, that record may be the one that it cannot read, and the pull starts after it.
        believed, again = self._knows_tip, seen is not None and not self._knows_tip and self._mute < _MUTE_ENDS
        self._listens_since, self._silent = time.monotonic(), False
        self._pull = pull = Pull(self.endpoint, TIP, Position(0, seen.ts - 1 if seen and again else from_ts), known=self._known, seen=seen)
        try:
            if self._stopped:
                # ``stop`` may have looked for a pull before there was one
                return "stopped"
            tip: bool | None = None
            news = False
            catching_up = again
            for data in pull:
                self._listens_since, self._heard_at = time.monotonic(), time.time()
                self._may_be_silent = SILENT_SECONDS
                records = parse(data, self.endpoint.pump)
                if tip is None:
                    tip = self._learn_metadata(pull, from_ts, int(records.commit_ts.max()) if len(records) else 0)
                    self._mute = 0
                    if seen is not None and pull.metadata().seen == NO:
                        return self._replaced(seen, pull.metadata().end)
                    if seen is not None and not tip and believed:
                        return "it is a real Pump; connecting again"
                    if seen is not None and again and not tip and len(records):
                        first_ts = int(records.commit_ts[0])
                        if first_ts != seen.ts and kept_by_real(self.endpoint, seen.ts) < seen.ts:
                            return self._replaced(seen, None)
                        records = records.cut(int(first_ts == seen.ts), len(records))
                if catching_up and not tip:
                    # what lies between the record that was asked for again and R is known
                    known = int(np.argmin(np.append(records.commit_ts <= from_ts, False)))
                    records = records.cut(known, len(records))
                    catching_up = not len(records)
                news = news or tip or len(records) > 0
                self._bare_ends = 0 if news else self._bare_ends
                with self._changed:
                    before = self._promised, self._raw_promised
                    if tip:
                        self._learn_tip(records)
                    else:
                        self._learn_sorted(records)
                    if (self._promised, self._raw_promised) != before:
                        self._rose_at = time.monotonic()
                    back, self.trouble = bool(self.trouble), ""
                    self.last_news = time.monotonic()
                    self._changed.notify_all()
                if back:
                    note_away(self._stop_file, self.endpoint.pump, "")
            if not news and not pull.metadata().delivery:
                self._mute += again and tip is None
                self._ended_bare(from_ts)
        except grpc.RpcError as error:
            if self._silent:
                renew(self.endpoint.address)
                waited, self._may_be_silent = self._may_be_silent, longer(self._may_be_silent)
                return f"no message for {waited:.0f} s; connecting again"
            return self._broken(error)
        finally:
            self._pull = None
            pull.close()
        return "the Pump ended the stream"

    def _replaced(self, seen: LogFingerprint, end: Position | None) -> str:
        """The log was replaced: raise, or read it from R on, like that of a Pump that has just joined."""
        text = replaced_text(self.endpoint.pump, seen, end)
        self._losses.lost(Loss.REPLACED, self._resolved, 0, text)
        with self._changed:
            self._base, self._end, self._promised, self._raw_promised = None, _NOWHERE, self._resolved, self._resolved
            self._newest_commit = self._max_ts = 0
            self._taken = LogStep(_NOWHERE, 0, self._resolved, 0)
            self._waiting.clear()
            self._steps.clear()
            self._seen, self._anew, self._left, self._passed_ts = None, True, None, 0
            self.last_news = time.monotonic()
            self._changed.notify_all()
        return text

    def _broken(self, error: grpc.RpcError) -> str:
        """Why the stream ended with an error. Most errors are transient; a damaged log raises, or is recorded."""
        damage = damage_of(error, self.endpoint)
        if damage is None:
            return reason(error)
        text = damage.text(self.endpoint.pump)
        self._losses.lost(Loss.DAMAGED, damage.after_ts, damage.upto_ts, text)
        self._known.add(damage.place)
        return text

    def _ended_bare(self, after_ts: int) -> None:
        """A real Pump ended the pull without a message. If it always does, its next record is damaged: the batch's readers report it."""
        self._bare_ends += 1
        if self._bare_ends < BARE_ENDS:
            return
        self._bare_ends = 0
        # A pull from above the Pump's newest ts would put a warning into its log.
        pump = self.endpoint
        newest_ts = newest_ts_of(pump.pump, pump.address, pump.tls, by_address=pump.by_address)
        damage, text = silent_damage(pump, after_ts, newest_ts)
        self._losses.lost(Loss.DAMAGED, damage.after_ts, damage.upto_ts, text)
        with self._changed:
            self._base = self._base or _NOWHERE
            self._promised = damage.upto_ts
            # a pull that starts before the damage would end there again
            self._seen = None
            self._steps.add(LogStep(_NOWHERE, 0, damage.upto_ts, 0))
            self._changed.notify_all()

    def _learn_metadata(self, pull: Pull, from_ts: int, newest_ts: int) -> bool:
        metadata = pull.metadata()
        first = self._base is None
        gc_ts = metadata.gc_ts if metadata.delivery or not first else kept_by_real(self.endpoint, from_ts, newest_ts)
        if first:
            self.gc_ts = metadata.gc_ts
        if purged(gc_ts, from_ts) and first:
            self._losses.lost(Loss.PURGED, from_ts, gc_ts, purge_text(self.endpoint.pump, gc_ts, from_ts))
        self._knows_tip = metadata.delivery == TIP
        self._tells = metadata.end is not None or not self._knows_tip
        return self._knows_tip

    def _learn_tip(self, records: Records) -> None:
        for i in range(len(records)):
            position = Position(int(records.suffixes[i]), int(records.offsets[i]))
            raw_promise, sorted_promise = int(records.start_ts[i]), int(records.commit_ts[i])
            max_ts = _max_ts(bytes(records.payloads[i])) or max(raw_promise, sorted_promise)
            if self._base is None:
                self._base = self._end = position
                self._taken = replace(self._taken, position=position)
            elif position > self._end:
                size = _between(self._end, position)
                self._end = position
                if max_ts > self._max_ts and size != RECORD_HEADER + len(records.payloads[i]):
                    # Not only a fake, which the payload of the message equals.
                    self._newest_commit = max_ts
                self._steps.add(LogStep(position, raw_promise, sorted_promise, size, max_ts))
                self._note_seen(LogFingerprint(position, max_ts if self._tells else 0))
            elif position == self._end and not self._steps:
                # The log has nothing after the base; only the promises there are new.
                self._taken = LogStep(position, max(raw_promise, self._taken.raw_promise), sorted_promise, 0, max_ts)
            self._promised, self._raw_promised = max(self._promised, sorted_promise), max(self._raw_promised, raw_promise)
            self._max_ts = max(self._max_ts, max_ts)

    def _learn_sorted(self, records: Records) -> None:
        if self._base is None:
            self._base = _NOWHERE
        for start_ts, commit_ts, payload in zip(records.start_ts.tolist(), records.commit_ts.tolist(), records.payloads, strict=True):
            if commit_ts <= self._promised:
                raise ProtocolViolation(
                    f"Pump {self.endpoint.pump} goes backwards: commit_ts {commit_ts} after {self._promised}; "
                    "sorted delivery promises strictly ascending commit_ts"
                )
            self._promised = commit_ts
            self._newest_commit = self._newest_commit if start_ts == commit_ts else commit_ts
            self._note_seen(LogFingerprint(ANYWHERE, commit_ts))
            self._steps.add(LogStep(_NOWHERE, 0, commit_ts, len(payload)))

    def _note_seen(self, seen: LogFingerprint) -> None:
        """Keep the newest position and ts received: the log must contain them at the next connection. Steps received again are older."""
        if self._seen is None or (seen.position >= self._seen.position and seen.ts >= self._seen.ts):
            self._seen = seen


class _Steps(deque[LogStep]):
    """Steps in log order. Small neighbours are joined, because many may arrive per second while R stands still."""

    def __init__(self, coarsest: int) -> None:
        """``coarsest``: the size up to which they may be joined, unless there are more than ``_MOST_AT_ALL``."""
        super().__init__()
        self._coarsest = coarsest
        self._finest = self._below = min(coarsest, _JOIN_BELOW)

    def add(self, step: LogStep) -> None:
        """Append a step."""
        if not self:
            self._below = self._finest
        self._put(step)
        if len(self) > (_MOST_STEPS if self._below < self._coarsest else _MOST_AT_ALL):
            self._below *= 2
            steps = list(self)
            self.clear()
            for each in steps:
                self._put(each)

    def _put(self, step: LogStep) -> None:
        if self and self[-1].size + step.size < self._below:
            last = self.pop()
            step = replace(step, raw_promise=max(last.raw_promise, step.raw_promise), size=last.size + step.size)
        self.append(step)


def _between(begin: Position, end: Position) -> int:
    """Bytes of log from ``begin`` to ``end``; if ``end`` is in a newer file, without those at the end of the older one."""
    return end.offset - begin.offset if begin.suffix == end.suffix else end.offset


def _max_ts(payload: bytes) -> int:
    """The ts of the fake in a tip message; 0 if there is none."""
    return int(binlog_pb2.Binlog.FromString(payload).commit_ts) if payload else 0


class Tails:
    """The tails of all Pumps, under one condition that is notified of every change."""

    def __init__(self, fail_on_data_loss: bool, join_below: int = _JOIN_BELOW, stop_file: str = "") -> None:
        """``join_below``: steps may be joined up to this size, since batches are cut between steps; above 64 KiB only if many. ``stop_file``: of ``Tail``."""
        self.changed = threading.Condition()
        self._fail_on_data_loss = fail_on_data_loss
        self._join_below = join_below
        self._stop_file = stop_file
        self._tails: dict[str, Tail] = {}

    def follow(self, endpoints: Mapping[str, Endpoint], from_ts: int, start: BinlogOffset | None = None) -> None:
        """Have exactly the tails of ``endpoints``: new ones start at ``from_ts``, others are stopped. ``start``: the stream's offset."""
        for pump in [p for p, tail in self._tails.items() if endpoints.get(p) != tail.endpoint]:
            self._tails.pop(pump).stop()
        for pump, endpoint in endpoints.items():
            if pump not in self._tails:
                seen = seen_of(start, pump) if start is not None else None
                self._tails[pump] = Tail(endpoint, from_ts, self.changed, self._fail_on_data_loss, self._join_below, seen, self._stop_file)

    def views(self, start: BinlogOffset) -> dict[str, TailView] | None:
        """Every Pump's view beyond ``start``; None while a Pump has not answered. Call with the condition held.

        Raises:
            ReplicationError: a Pump broke the protocol, or has lost or collected what is needed.
        """
        for tail in self._tails.values():
            tail.watch()
            if tail.fault is not None:
                raise tail.fault
        views = {pump: tail.view(start) for pump, tail in self._tails.items()}
        known = {pump: view for pump, view in views.items() if view is not None}
        return known if len(known) == len(views) and known else None

    def heads(self, delivery: Delivery) -> dict[str, PumpHead]:
        """The newest that is known of the Pumps that have reported their logs. Call with the condition held."""
        heads = {pump: tail.head(delivery) for pump, tail in list(self._tails.items())}
        return {pump: head for pump, head in heads.items() if head is not None}

    def newest_ts(self, delivery: Delivery) -> int:
        """The highest promise of any Pump; 0 if none has reported its log."""
        with self.changed:
            return max((head.promise for head in self.heads(delivery).values()), default=0)

    def readable(self, start: BinlogOffset) -> dict[str, TailView] | None:
        """``views``, without the steps of Pumps that cannot be read now. A batch with such a Pump would wait, and hold up all other Pumps."""
        views = self.views(start)
        if views is None:
            return None
        return {pump: replace(view, steps=()) if self._tails[pump].trouble else view for pump, view in views.items()}

    def wait(self, accept: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``accept``, evaluated with the condition held at every change, or ``seconds`` have passed; whether it was true."""
        with self.changed:
            return self.changed.wait_for(accept, seconds)

    def gc_ts(self) -> int:
        """The highest ts up to which a Pump had collected when it was first reached. A real Pump does not report this and counts as 0."""
        return max((tail.gc_ts for tail in self._tails.values()), default=0)

    def quiet_for(self) -> float:
        """Seconds since the last message of any Pump."""
        return time.monotonic() - max((tail.last_news for tail in self._tails.values()), default=0.0)

    def unreachable(self) -> dict[str, str]:
        """Pumps without a working stream, and why."""
        return {pump: tail.silence() for pump, tail in self._tails.items() if tail.trouble}

    def stop(self) -> None:
        """Stop all tails."""
        for tail in self._tails.values():
            tail.stop()
        self._tails = {}
