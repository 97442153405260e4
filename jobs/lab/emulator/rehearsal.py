"""Replays recorded cases: complete Commits are split into the Prewrite and Commit that TiDB wrote, and sent through WriteBinlog.

    schedule  RecordedCase -> one log per Pump, in the order to write; pure
    feed      logs -> Pumps, at once or at the recorded pace

Promises: each Pump gets its own recording in its own order, and ends past ``end_ts``: if the recording stops earlier, a fake is appended.
The Pumps' own fake binlogs must be off until ``feed`` has ended: their current ts would promise that no recorded binlog follows.
"""

import heapq
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump_client.writer import Pending, PumpWriter
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase
from pyspark_tidb_binlog.schemas.events import physical_ms
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_BATCH_BYTES = 1 << 20
_BATCH_RECORDS = 2000
_TICK = 0.005


class Scheduled(NamedTuple):
    """One record to write, due when the recorded clock reaches ``ts``."""

    ts: int
    payload: bytes


Log = tuple[Scheduled, ...]


class FeedProgress(NamedTuple):
    """The progress of ``feed``."""

    written: int
    total: int
    ts: int
    """Everything recorded up to this ts has been written."""


def split(payload: bytes) -> tuple[bytes, ...]:
    """A complete Commit as Prewrite and Commit, as TiDB wrote them; a fake unchanged."""
    complete = _parse(payload)
    if complete.tp != binlog_pb2.Commit:
        return (payload,)
    prewrite = binlog_pb2.Binlog()
    prewrite.CopyFrom(complete)
    prewrite.tp = binlog_pb2.Prewrite
    prewrite.commit_ts = 0
    complete.ClearField("prewrite_value")
    return prewrite.SerializeToString(), complete.SerializeToString()


def schedule(case: RecordedCase, pumps: int | None = None, move_back_seed: int | None = None, move_back_most: int = 200) -> tuple[Log, ...]:
    """The log of each of ``pumps`` Pumps (default: as many as were recorded).

    A Prewrite comes just before its Commit, or, with a seed, up to ``move_back_most`` records earlier.
    """
    count = pumps or len(case.pumps)
    logs: list[Log] = []
    for number in range(count):
        recordings = [_timed(case.pumps[i]) for i in range(number, len(case.pumps), count)]
        complete = list(heapq.merge(*recordings, key=lambda item: item.ts))
        if not complete or complete[-1].ts <= case.end_ts:
            complete.append(Scheduled(case.end_ts + 1, fake(case.end_ts + 1).payload))
        log = [Scheduled(item.ts, part) for item in complete for part in split(item.payload)]
        logs.append(tuple(log if move_back_seed is None else moved_back(log, random.Random(f"{move_back_seed}/{number}"), move_back_most)))
    return tuple(logs)


def moved_back(log: Sequence[Scheduled], chance: random.Random, most: int) -> list[Scheduled]:
    """``log`` with each Prewrite up to ``most`` records earlier; everything else keeps its order."""
    keyed: list[tuple[float, int, Scheduled]] = []
    for position, item in enumerate(log):
        is_prewrite = item.payload[:2] == b"\x08\x00"
        keyed.append((position - (chance.randint(0, most) + 0.5 if is_prewrite else 0), position, item))
    ordered = [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]
    # a moved record is due no later than the records after it
    due = list(accumulate((item.ts for item in reversed(ordered)), min))[::-1]
    return [Scheduled(ts, item.payload) for ts, item in zip(due, ordered, strict=True)]


def feed(
    case: RecordedCase,
    pump_addresses: Sequence[str],
    pace: float = 0,
    *,
    logs: Sequence[Log] | None = None,
    tls: TlsSettings | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[FeedProgress]:
    """Write the case to the Pumps; yields after each round of writes.

    ``pace`` 0: all at once. Otherwise the recorded time between two records takes ``pace`` times as long (1 = as recorded). ``tls``: how the Pumps are called.
    """
    logs = schedule(case, len(pump_addresses)) if logs is None else logs
    writers = [PumpWriter(address, case.cluster_id, tls=tls) for address in pump_addresses]
    try:
        feeds = [_PumpFeed(writer, log) for writer, log in zip(writers, logs, strict=True)]
        total = sum(map(len, logs))
        begun = clock()
        first_ts = min((log[0].ts for log in logs if log), default=case.end_ts)
        while any(pump_feed.busy for pump_feed in feeds):
            upto = None if pace == 0 else physical_ms(first_ts) + (clock() - begun) * 1000 / pace
            moved = sum(pump_feed.advance(upto) for pump_feed in feeds)
            if moved:
                yield FeedProgress(sum(pump_feed.done for pump_feed in feeds), total, min(pump_feed.ts for pump_feed in feeds))
            elif pace:
                sleep(_TICK)
    finally:
        for writer in writers:
            writer.close()


class _PumpFeed:
    """Writes one Pump's log: at most one batch is in flight, so that the order is kept."""

    def __init__(self, writer: PumpWriter, log: Log) -> None:
        self._writer = writer
        self._log = log
        self._at = 0
        self._under_way: Pending | None = None
        self.done = 0

    @property
    def busy(self) -> bool:
        """Whether anything is still to be written or acknowledged."""
        return self.done < len(self._log)

    @property
    def ts(self) -> int:
        """Everything up to this ts is written."""
        return self._log[self.done].ts - 1 if self.busy else self._log[-1].ts

    def advance(self, upto_ms: float | None) -> int:
        """Finish the batch in flight and start the next one that is due; the number of records acknowledged."""
        before = self.done
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
            self.done = self._at
        batch = self._due(upto_ms)
        if batch:
            self._under_way = self._writer.start_many(batch)
            self._at += len(batch)
        return self.done - before

    def _due(self, upto_ms: float | None) -> list[bytes]:
        window = self._log[self._at : self._at + _BATCH_RECORDS]
        due = takewhile(lambda item: upto_ms is None or physical_ms(item.ts) <= upto_ms, window)
        batch: list[bytes] = []
        size = 0
        for item in due:
            batch.append(item.payload)
            size += len(item.payload)
            if size >= _BATCH_BYTES:
                break
        return batch


def _timed(payloads: Sequence[bytes]) -> list[Scheduled]:
    return [Scheduled(_parse(payload).commit_ts, payload) for payload in payloads]


def _parse(payload: bytes) -> binlog_pb2.Binlog:
    return binlog_pb2.Binlog.FromString(payload)
