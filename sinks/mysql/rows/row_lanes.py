"""The lanes of row operations: connections that each apply their operations in order, in transactions of several operations. [db]

    operations and their keys -> ``LanePlan``: lanes and rounds, recognised again after a crash -> ``Lanes``

Promises: each transaction first checks the lease. The same transaction then moves its lane's number of done operations, so that none is applied twice
after a lost answer or a crash. A round ends when all its transactions are committed. When a lane fails, the others begin no further transaction, and its
error is raised.

TiDB has no shared row locks, so transactions of several lanes conflict on the lease row and are retried: one lane is best there.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.engine.causality import Conflict, OpKeys, Schedule, schedule
from pyspark_tidb_binlog.sinks.engine.row_ops import RowBatch
from pyspark_tidb_binlog.sinks.mysql.checked import CheckedWriter
from pyspark_tidb_binlog.sinks.mysql.lease_guard import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.retry_policy import TransientError
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenLanes, StateTable
from pyspark_tidb_binlog.sinks.mysql.statements import Statement


@dataclass(frozen=True, slots=True, eq=False)
class LanePlan:
    """Which lane applies which operations, and when."""

    schedule: Schedule
    lanes: int
    text: str
    """How it was made, and a fingerprint of the operations and of their lanes and rounds."""

    @classmethod
    def of(cls, batch: RowBatch, keys: OpKeys, lanes: int, conflict: Conflict, run: int) -> "LanePlan":
        """The plan of a span that begins now; ``run`` as for ``schedule``."""
        made = schedule(keys, lanes, conflict, run)
        return cls(made, lanes, f"{conflict}-{run}-{_fingerprint(batch, made)}")

    @classmethod
    def again(cls, batch: RowBatch, keys: OpKeys, left: OpenLanes) -> "LanePlan | None":
        """The plan of a span that was begun; None if these are not its operations."""
        conflict, _, rest = left.plan.partition("-")
        run = rest.partition("-")[0]
        if conflict not in set(Conflict) or not run.isdigit():
            return None
        plan = cls.of(batch, keys, len(left.done), Conflict(conflict), int(run))
        return plan if plan.text == left.plan else None

    def ends(self) -> tuple[int, ...]:
        """How many operations each lane has done in the end."""
        return tuple(np.bincount(self.schedule.lanes, minlength=self.lanes).tolist())

    def rounds(self) -> list[dict[int, list[int]]]:
        """The operations of each lane in each round, in order."""
        found: list[dict[int, list[int]]] = []
        numbers, lanes = self.schedule.rounds, self.schedule.lanes
        ends = [*self.schedule.flushed_before, len(numbers)]
        begin = 0
        for end in ends:
            here = lanes[begin:end]
            found.append({int(lane): (np.flatnonzero(here == lane) + begin).tolist() for lane in np.unique(here)})
            begin = end
        return found


def _fingerprint(batch: RowBatch, made: Schedule) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for numbers in (batch.commit_ts, made.lanes, made.rounds):
        digest.update(np.ascontiguousarray(numbers, dtype="<i8").tobytes())
    for piece in batch.pieces:
        digest.update(f"{piece.table.schema}.{piece.table.name} {int(piece.op)}".encode())
        digest.update(np.ascontiguousarray(piece.places, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What the lanes of an open span do."""

    plan: OpPlan
    span: OpenLanes
    """As its lanes begin."""
    record: StateTable
    findings: list[Finding]
    """Those of the transactions that are committed are added to it."""


class Lanes:
    """Connections and threads of the lanes; opened when they are needed."""

    def __init__(self, leased: LeasedTarget, settings: ApplyConfig, connect: Callable[[], Session]) -> None:
        self._leased = leased
        self._settings = settings
        self._open = partial(KeptSessions, connect, settings.lease_timeout)
        self._most = settings.txn_batch
        self._seconds = settings.txn_batch_time or math.inf
        """A transaction has fewer operations while the last transaction of its lane took longer than this."""
        self._sessions: list[KeptSessions] = []
        self._waiting: dict[int, TransientError | None] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._failed = threading.Event()
        self._closed = threading.Event()

    @property
    def waiting_for(self) -> TransientError | None:
        """A transient error that a lane is retrying."""
        return next((error for error in list(self._waiting.values()) if error is not None), None)

    def run(self, work: LaneWork, rounds: Sequence[Mapping[int, Sequence[int]]]) -> None:
        """Apply the operations of each round by lane, except for those that the lanes have done."""
        left, position = list(work.span.done), [0] * len(work.span.done)
        while len(self._sessions) < len(left):
            self._sessions.append(self._open())
        for number, round_ in enumerate(rounds):
            jobs = {}
            behind = tuple(position) if number else ()
            for lane, places in round_.items():
                skipped = min(left[lane], len(places))
                left[lane] -= skipped
                begin = position[lane] + skipped
                position[lane] += len(places)
                if skipped < len(places):
                    jobs[lane] = partial(self._lane, lane, work, places[skipped:], begin, behind)
            self._together(jobs)

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._closed.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for sessions in self._sessions:
            sessions.close()

    def _together(self, jobs: Mapping[int, Callable[[], None]]) -> None:
        if len(jobs) <= 1:
            for job in jobs.values():
                job()
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1024, thread_name_prefix="row-lane")
        futures = [self._threads.submit(job) for job in jobs.values()]
        failed = [f for f in wait(futures, return_when=FIRST_EXCEPTION).done if f.exception() is not None]
        if failed:
            self._failed.set()
            wait(futures)
            self._failed.clear()
        for future in failed:
            future.result()

    def _lane(self, lane: int, work: LaneWork, places: Sequence[int], begin: int, behind: Sequence[int]) -> None:
        """One lane's operations of a round, the first of which is its number ``begin``; ``behind``: how many each lane did in earlier rounds."""
        at, count = 0, self._most
        while at < len(places):
            if self._closed.is_set() or self._failed.is_set():
                raise ApplyError(f"lane {lane} stops before operation {begin + at}: another lane has failed, or the stream is being closed")
            here = places[at : at + count]
            begun = time.monotonic()
            # Later ones of the lane cannot be there without the first.
            before, ends = begin + at, () if at else behind
            move = partial(work.record.advance, lanes=work.span, lane=lane, before=before, after=before + len(here), ends=ends)
            work.findings.extend(self._write(lane, move, work.plan.statements(here)))
            at += len(here)
            count = self._next_count(len(here), time.monotonic() - begun)

    def _write(self, lane: int, move: Callable[[Session], bool], statements: Sequence[Statement]) -> Sequence[Finding]:
        """Write operations of a lane in one transaction that also moves the lane; nothing, if it has been moved. Returns the findings."""
        policy = replace(self._leased.retry_policy, tell=partial(self._tell, lane))
        writer = CheckedWriter(self._leased.lease, self._settings, self._sessions[lane].use, policy)
        phases = ("before-row-operations", statements), ("before-rows-commit", ())
        findings = writer.write(move, phases, savepoints=False)
        failpoints.point("after-rows-commit")
        return findings

    def _next_count(self, count: int, seconds: float) -> int:
        if seconds > self._seconds:
            return max(1, int(count * self._seconds / seconds))
        return min(self._most, count * 2)

    def _tell(self, lane: int, error: TransientError | None) -> None:
        self._waiting[lane] = error
