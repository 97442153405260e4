"""Pairing: bare Prewrites, Commits and Rollbacks become complete transactions. Pure, columnar.

One call of ``step`` is one micro-batch of one bucket. start_ts identifies a transaction. Records (``KEPT``) are kept between batches
(``pairing.state``). Every transaction is judged by the records that exist:

    P  a Prewrite (one copy per Pump that delivered it)     C  a Commit, at commit_ts c     R  a Rollback

``TRANSITIONS`` gives the transaction's fate, by these records and the position of c relative to the batch's span (after, upto]:

- RELEASE  complete and due: it is emitted; its payload is the Prewrite's with the Commit merged in.
- WAIT     a record is missing, or c is not due yet: kept. An old lone Prewrite is an orphan to be resolved (``look_after``).
- FORGET   finished: released before, rolled back, or committed before the stream began.
- MISSING  the Commit is due without its Prewrite: settled as rolled back before (``late_commits``), or a Pump broke its promise.

A Prewrite that two Pumps deliver (a retry) is emitted once. The Pump without the outcome would hold its promise T below start_ts forever, so
``look_after`` lists (Pump, start_ts, commit_ts or 0): the outcome is written to that Pump, and the transaction is kept until then.
Promises: neither the order of records, their division into batches nor duplicates change which span releases a transaction.

A transaction with a Prewrite payload and an outcome that no Pump lacks is *closed*: it is not needed before R reaches its ``due``, so it may be
stored elsewhere until then.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.events import TSO_LOGICAL_BITS, BinlogType, as_time, physical_ms
from pyspark_tidb_binlog.schemas.stages import TRANSACTION

RECORD = pa.schema(
    [
        pa.field("pump", pa.string(), nullable=False),
        pa.field("tp", pa.int32(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary()),
    ]
)
"""One record of the log. ``payload`` is null if another copy of the Prewrite has it, or it is no longer needed."""

KEPT = RECORD.append(pa.field("due", pa.int64(), nullable=False)).append(pa.field("stash", pa.int64(), nullable=False))
"""A record kept between two batches. ``due``: the R at which a closed transaction is needed again, 0 = not closed.
``stash``: 0, or the number of the chunk that holds the payload; then ``payload`` is the Prewrite without its rows (``pairing.state``)."""

RELEASED = TRANSACTION.set(TRANSACTION.get_field_index("payload"), pa.field("payload", pa.large_binary()))
"""``stages.TRANSACTION`` with payloads of any size."""


_AGAIN_MS = 1000
_ANY_AGE_MS = 1 << 50
"""A watermark behind which every Prewrite is old."""


class PairFate(enum.IntEnum):
    """What becomes of a transaction in one step."""

    WAIT = 0
    RELEASE = 1
    FORGET = 2
    MISSING = 3


class When(enum.IntEnum):
    """The position of an outcome: a Commit's c relative to the span (after, upto], a Rollback's start_ts relative to upto (never DUE)."""

    NONE = 0
    PAST = 1
    DUE = 2
    AHEAD = 3


TRANSITIONS: Mapping[tuple[bool, When, When], PairFate] = {
    # (has a Prewrite, where the Commit lies, where the Rollback lies) -> fate
    (True, When.NONE, When.NONE): PairFate.WAIT,
    (True, When.NONE, When.PAST): PairFate.FORGET,
    (True, When.NONE, When.AHEAD): PairFate.WAIT,
    (True, When.PAST, When.NONE): PairFate.FORGET,
    (True, When.PAST, When.PAST): PairFate.FORGET,
    (True, When.PAST, When.AHEAD): PairFate.FORGET,
    (True, When.DUE, When.NONE): PairFate.RELEASE,
    (True, When.DUE, When.PAST): PairFate.RELEASE,
    (True, When.DUE, When.AHEAD): PairFate.RELEASE,
    (True, When.AHEAD, When.NONE): PairFate.WAIT,
    (True, When.AHEAD, When.PAST): PairFate.WAIT,
    (True, When.AHEAD, When.AHEAD): PairFate.WAIT,
    (False, When.NONE, When.PAST): PairFate.FORGET,
    (False, When.NONE, When.AHEAD): PairFate.WAIT,
    (False, When.PAST, When.NONE): PairFate.FORGET,
    (False, When.PAST, When.PAST): PairFate.FORGET,
    (False, When.PAST, When.AHEAD): PairFate.FORGET,
    (False, When.DUE, When.NONE): PairFate.MISSING,
    (False, When.DUE, When.PAST): PairFate.MISSING,
    (False, When.DUE, When.AHEAD): PairFate.MISSING,
    (False, When.AHEAD, When.NONE): PairFate.WAIT,
    (False, When.AHEAD, When.PAST): PairFate.WAIT,
    (False, When.AHEAD, When.AHEAD): PairFate.WAIT,
}
"""A Commit wins over a Rollback, as in a real Pump. A Rollback is kept until R has passed its start_ts, for copies that arrive later."""


def _fate_table() -> NDArray[np.int8]:
    fates = np.full((2, len(When), len(When)), -1, np.int8)
    for (prewrite, commit, rollback), fate in TRANSITIONS.items():
        fates[int(prewrite), commit, rollback] = fate
    return fates


_FATES = _fate_table()


@dataclass(frozen=True, slots=True)
class ResolvedSpan:
    """The punctuation of a batch: commit_ts in (after_ts, upto_ts] are due."""

    after_ts: int
    upto_ts: int


@dataclass(frozen=True, slots=True)
class MissingOutcome:
    """An outcome that a Pump lacks: it must be written to its log. ``commit_ts`` 0 = rolled back."""

    pump: str
    start_ts: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """A Prewrite without outcome that is old enough to be resolved. ``age_ms`` is by the watermark."""

    pump: str
    start_ts: int
    payload: bytes
    age_ms: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step: the records to keep, due transactions by commit_ts, and what is left to resolve."""

    kept: pa.Table
    """Schema ``KEPT``."""
    released: pa.Table
    """Schema ``RELEASED``; no punctuation in it."""
    missing: tuple[tuple[int, int], ...] = ()
    """(start_ts, commit_ts) of due Commits without a Prewrite."""
    oldest_alone: int = 0
    """The lowest start_ts of a Prewrite without any outcome; 0 = there is none."""
    unsettled: bool = False
    """Whether a Pump lacks an outcome that is known here."""


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Outcomes to write, orphans to resolve, and when to look again (ms of the watermark, 0 = not needed)."""

    settles: tuple[MissingOutcome, ...]
    orphans: tuple[Orphan, ...]
    again_ms: int


def step(known: pa.Table, records: pa.Table, span: ResolvedSpan) -> StepResult:
    """One batch of one bucket: ``records`` (schema ``RECORD``, any order) are added to ``known`` (``KEPT``), and ``span`` is due.

    Raises:
        ProtocolViolation: one start_ts has two different commit_ts.
    """
    table = pa.concat_tables([known, fresh(records)]).combine_chunks()
    if table.num_rows == 0:
        return StepResult(table, RELEASED.empty_table())
    view = _Judged(table, span)
    alone = view.groups[view.waiting_alone]
    return StepResult(view.kept(), view.released(), view.missing(), int(alone.min()) if len(alone) else 0, bool(view.unsettled_rows.any()))


def without_outcome(known: pa.Table, pumps: Collection[str]) -> tuple[tuple[MissingOutcome, ...], tuple[Orphan, ...]]:
    """Of the transactions in ``known`` (``KEPT``): the outcomes that ``pumps`` lack, and the Prewrites without any outcome that only ``pumps`` have."""
    view = _Judged(known.combine_chunks(), ResolvedSpan(0, 0))
    orphans = view.orphans(_ANY_AGE_MS, 0)
    elsewhere = {orphan.start_ts for orphan in orphans if orphan.pump not in pumps}
    return (
        tuple(settle for settle in view.settles() if settle.pump in pumps),
        tuple(orphan for orphan in orphans if orphan.start_ts not in elsewhere),
    )


def outcome_records(settles: Iterable[MissingOutcome]) -> pa.Table:
    """``settles`` as records (``RECORD``) that their Pumps' logs do not have."""
    rows = [
        {"pump": s.pump, "tp": BinlogType.COMMIT if s.commit_ts else BinlogType.ROLLBACK, "start_ts": s.start_ts, "commit_ts": s.commit_ts}
        for s in settles
    ]
    return pa.Table.from_pylist(rows, schema=RECORD)


def fresh(records: pa.Table) -> pa.Table:
    """``records`` (``RECORD``) as ``KEPT``: not closed, with payloads."""
    nothing = pa.array(np.zeros(records.num_rows, np.int64))
    return records.append_column(KEPT.field("due"), nothing).append_column(KEPT.field("stash"), nothing)


def look_after(known: pa.Table, clock_ms: int, ask_after_ms: int) -> PendingWork:
    """What ``known`` (schema ``KEPT``) needs when the watermark is at ``clock_ms``.

    Each item is listed again every second until the Pump's log contains the outcome.
    """
    if known.num_rows == 0:
        return PendingWork((), (), 0)
    view = _Judged(known.combine_chunks(), ResolvedSpan(0, 0))
    settles, orphans = view.settles(), view.orphans(clock_ms, ask_after_ms)
    starts_ms = view.groups[view.waiting_alone] >> TSO_LOGICAL_BITS
    young = starts_ms[clock_ms - starts_ms < ask_after_ms]
    moments = [int(young.min()) + ask_after_ms] if len(young) else []
    if settles or orphans:
        moments.append(clock_ms + _AGAIN_MS)
    return PendingWork(settles, orphans, min(moments, default=0))


class _Judged:
    """The records of a step, grouped by start_ts, with the fate of each group."""

    def __init__(self, table: pa.Table, span: ResolvedSpan) -> None:
        self.table = table
        start_ts = _numbers(table, "start_ts")
        self.commit_ts = _numbers(table, "commit_ts")
        tp = _numbers(table, "tp")
        self.groups, self.of = np.unique(start_ts, return_inverse=True)
        count = len(self.groups)
        self.is_prewrite = tp == BinlogType.PREWRITE
        is_commit, is_rollback = tp == BinlogType.COMMIT, tp == BinlogType.ROLLBACK
        has_prewrite = self._any(self.is_prewrite)
        self.commits = self._commits(is_commit)
        has_rollback = self._any(is_rollback)
        when = np.zeros(count, np.int8)
        when[self.commits > 0] = When.AHEAD
        when[(self.commits > 0) & (self.commits <= span.upto_ts)] = When.DUE
        when[(self.commits > 0) & (self.commits <= span.after_ts)] = When.PAST
        undone = np.zeros(count, np.int8)
        undone[has_rollback] = When.PAST
        undone[has_rollback & (self.groups > span.upto_ts)] = When.AHEAD
        fates = _FATES[has_prewrite.astype(np.int8), when, undone]
        self.released_groups = fates == PairFate.RELEASE
        self.missing_groups = fates == PairFate.MISSING
        has_outcome = (self.commits > 0) | has_rollback
        self.waiting_alone = has_prewrite & ~has_outcome
        self.unsettled_rows = self._unsettled(is_commit | is_rollback) & has_outcome[self.of]
        unsettled_groups = self._any(self.unsettled_rows)
        self.kept_groups = (fates == PairFate.WAIT) | unsettled_groups
        self.payload_needed = fates == PairFate.WAIT
        closed = self.payload_needed & has_prewrite & has_outcome & ~unsettled_groups
        self.dues = np.where(closed, np.where(self.commits > 0, self.commits, self.groups), 0)

    def _any(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.zeros(len(self.groups), np.bool_)
        found[self.of[rows]] = True
        return found

    def _commits(self, is_commit: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Each group's commit_ts, 0 without a Commit."""
        rows = np.flatnonzero(is_commit)
        commits = np.zeros(len(self.groups), np.int64)
        commits[self.of[rows]] = self.commit_ts[rows]
        differing = commits[self.of[rows]] != self.commit_ts[rows]
        if differing.any():
            row = rows[int(np.argmax(differing))]
            start_ts = int(self.groups[self.of[row]])
            pumps = sorted(set(pc.filter(self.table.column("pump"), pa.array(self.of == self.of[row])).to_pylist()))
            raise ProtocolViolation(
                f"the transaction of start_ts {start_ts} ({as_time(start_ts)}) has two commit_ts, {int(self.commit_ts[row])} and "
                f"{int(commits[self.of[row]])}, in the logs of Pumps {', '.join(pumps)}: compare both with the upstream's MVCC data"
            )
        return commits

    def _unsettled(self, is_outcome: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows of Prewrites whose own Pump has no outcome for them."""
        pumps = pc.dictionary_encode(self.table.column("pump").combine_chunks())
        codes: NDArray[np.int64] = pumps.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        keys = self.of * len(pumps.dictionary) + codes
        settled = np.zeros(len(self.groups) * len(pumps.dictionary), np.bool_)
        settled[keys[is_outcome]] = True
        unsettled: NDArray[np.bool_] = self.is_prewrite & ~settled[keys]
        return unsettled

    def _first_prewrites(self, groups: NDArray[np.bool_]) -> NDArray[np.int64]:
        """For each group in ``groups`` with a Prewrite payload: the row of the first Prewrite that has it."""
        has_payload = self.table.column("payload").combine_chunks().is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(self.is_prewrite & has_payload & groups[self.of])
        first = np.full(len(self.groups), -1, np.int64)
        first[self.of[rows[::-1]]] = rows[::-1]
        return first[groups & (first >= 0)]

    def released(self) -> pa.Table:
        """The due transactions, by commit_ts."""
        rows = self._first_prewrites(self.released_groups)
        if not len(rows):
            return RELEASED.empty_table()
        commits = self.commits[self.of[rows]]
        order = np.lexsort((self.groups[self.of[rows]], commits))
        rows, commits = rows[order], commits[order]
        payload = self.table.column("payload").take(pa.array(rows))
        columns = {
            "control": pa.nulls(len(rows), pa.int8()),
            "start_ts": pa.array(self.groups[self.of[rows]]),
            "commit_ts": pa.array(commits),
            "first_seq": pa.nulls(len(rows), pa.int32()),
            "payload": merged_payloads(payload, commits),
        }
        return pa.table(columns, schema=RELEASED)

    def kept(self) -> pa.Table:
        """The records to keep: of waiting transactions, and of those whose outcome some Pump lacks."""
        if not self.kept_groups.any():
            return KEPT.empty_table()
        rows = np.flatnonzero(self.kept_groups[self.of])
        carriers = self._first_prewrites(self.kept_groups & self.payload_needed)
        carries = np.zeros(self.table.num_rows, np.bool_)
        carries[carriers] = True
        table = self.table.take(pa.array(rows))
        payload = pc.if_else(pa.array(carries[rows]), table.column("payload"), pa.scalar(None, pa.large_binary()))
        stash = np.where(carries[rows], _numbers(table, "stash"), 0)
        columns = {"payload": payload, "due": pa.array(self.dues[self.of[rows]]), "stash": pa.array(stash)}
        for name, values in columns.items():
            table = table.set_column(KEPT.get_field_index(name), KEPT.field(name), values)
        return _distinct(table)

    def settles(self) -> tuple[MissingOutcome, ...]:
        """Outcomes known here that a Pump with the Prewrite lacks."""
        rows = np.flatnonzero(self.unsettled_rows)
        pumps = self.table.column("pump").take(pa.array(rows)).to_pylist()
        found = {MissingOutcome(pump, int(self.groups[g]), int(self.commits[g])) for pump, g in zip(pumps, self.of[rows], strict=True)}
        return tuple(sorted(found, key=lambda s: (s.start_ts, s.pump)))

    def orphans(self, clock_ms: int, ask_after_ms: int) -> tuple[Orphan, ...]:
        """Prewrites without any outcome that are old enough, one entry per Pump that has a copy."""
        old = self.waiting_alone & (clock_ms - (self.groups >> TSO_LOGICAL_BITS) >= ask_after_ms)
        carriers = {int(self.of[row]): row for row in self._first_prewrites(old)}
        found = {}
        for row in np.flatnonzero(self.is_prewrite & old[self.of]).tolist():
            group = int(self.of[row])
            start_ts = int(self.groups[group])
            pump = self.table.column("pump")[row].as_py()
            payload = self.table.column("payload")[int(carriers[group])].as_py()
            found[start_ts, pump] = Orphan(pump, start_ts, payload, clock_ms - physical_ms(start_ts))
        return tuple(found[key] for key in sorted(found))

    def missing(self) -> tuple[tuple[int, int], ...]:
        """Due Commits without a Prewrite."""
        places = np.flatnonzero(self.missing_groups)
        return tuple((int(self.groups[i]), int(self.commits[i])) for i in places)


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    values: NDArray[Any] = table.column(name).to_numpy()
    return values


def _distinct(table: pa.Table) -> pa.Table:
    """One record per (start_ts, tp, pump): one with a payload, if there is any."""
    start_ts, tp = _numbers(table, "start_ts"), _numbers(table, "tp")
    pumps = pc.dictionary_encode(table.column("pump").combine_chunks()).indices.to_numpy(zero_copy_only=False)
    bare = table.column("payload").combine_chunks().is_null().to_numpy(zero_copy_only=False)
    order = np.lexsort((bare, pumps, tp, start_ts))
    same = np.ones(len(order), np.bool_)
    for column in (start_ts, tp, pumps):
        ordered = column[order]
        same[1:] &= ordered[1:] == ordered[:-1]
    same[0] = False
    return table.take(pa.array(order[~same])).combine_chunks()


_TAIL_HEAD = np.frombuffer(b"\x08\x01\x18", np.uint8)
"""``tp = Commit`` and the key of ``commit_ts``: protobuf merges concatenated messages, and the last value of a field wins."""


def merged_payloads(prewrites: pa.ChunkedArray, commit_ts: NDArray[np.int64]) -> pa.ChunkedArray:
    """Each Prewrite's payload with its Commit merged in: a complete Commit binlog."""
    count = len(commit_ts)
    shifts = np.arange(10, dtype=np.uint64) * np.uint64(7)
    groups = (commit_ts.astype(np.uint64)[:, None] >> np.minimum(shifts, np.uint64(63))[None, :]) & np.uint64(0x7F)
    groups[:, 9] = 0
    used = groups != 0
    lengths = np.maximum(10 - np.argmax(used[:, ::-1], axis=1), 1)
    place = np.arange(10)[None, :]
    tail = np.empty((count, 13), np.uint8)
    tail[:, :3] = _TAIL_HEAD
    tail[:, 3:] = groups | np.where(place < lengths[:, None] - 1, 0x80, 0).astype(np.uint64)
    flat = tail[np.arange(13)[None, :] < lengths[:, None] + 3]
    offsets = np.concatenate(([0], np.cumsum(lengths + 3))).astype(np.int64)
    tails = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])
    return pc.binary_join_element_wise(prewrites, tails, pa.scalar(b"", pa.large_binary()))
