"""The lanes of row operations: connections that each apply their operations in order, in transactions of several operations. [db]

Promises: each transaction first checks the lease. With a record the same transaction then moves its lane's number of done
operations, so that none is applied twice after a lost answer or a crash. A round ends when all its transactions are committed. When
a lane fails, the others begin no further transaction, and its error is raised.

TiDB has no shared row locks, so transactions of several lanes conflict on the lease row and are retried: one lane is best there.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.findings import Finding
from pyspark_tidb_binlog.sinks.mysql import lease
from pyspark_tidb_binlog.sinks.mysql.checked import checked
from pyspark_tidb_binlog.sinks.mysql.lease import Lease
from pyspark_tidb_binlog.sinks.mysql.retry_policy import RetryPolicy, TransientError, retrying
from pyspark_tidb_binlog.sinks.mysql.rows.op_plan import OpPlan
from pyspark_tidb_binlog.sinks.mysql.session import KeptSessions, Session, Sessions, transaction
from pyspark_tidb_binlog.sinks.mysql.state_table import OpenLanes, StateTable


@dataclass(frozen=True, slots=True)
class LaneWriter:
    """Writes operations of an open span: what they are, and where it is recorded which of them are done."""

    plan: OpPlan
    record: StateTable
    lanes: OpenLanes
    """As they begin."""
    settings: ApplyConfig
    lease: Lease

    def write(
        self, places: Sequence[int], sessions: Sessions, policy: RetryPolicy, *, lane: int = 0, before: int = 0, ends: Sequence[int] = ()
    ) -> Sequence[Finding]:
        """Write operations of ``lane`` in one transaction that also moves the lane; nothing, if it has been moved. Returns the findings.

        ``before``: how many operations of the lane come before; ``ends``: how many each lane must have done.
        """
        statements = self.plan.statements(places)
        for attempt in retrying(policy):
            with attempt, transaction(sessions, attempt) as session:
                for effects in checked(session, self.settings, savepoints=False):
                    lease.check(session, self.lease)
                    if ends:
                        self.record.require_done(session, self.lanes, ends)
                    if not self.record.advance(session, self.lanes, lane, before, before + len(places)):
                        break
                    effects.run(statements)
                    failpoints.point("before-rows-commit")
        failpoints.point("after-rows-commit")
        return effects.findings


class Lanes:
    """Connections and threads of the lanes; opened when they are needed."""

    def __init__(self, connect: Callable[[], Session], settings: ApplyConfig, retry_policy: RetryPolicy) -> None:
        self._open = partial(KeptSessions, connect, settings.lease_timeout)
        self._retry_policy = retry_policy
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

    def run(self, writer: LaneWriter, rounds: Sequence[Mapping[int, Sequence[int]]], done: Sequence[int]) -> tuple[Finding, ...]:
        """Apply the operations of each round by lane, except for the first ``done`` ones of each lane; returns the findings."""
        left, position = list(done), [0] * len(done)
        findings: list[Finding] = []
        self._grow(len(done))
        for number, round_ in enumerate(rounds):
            jobs = {}
            behind = tuple(position) if number else ()
            for lane, places in round_.items():
                skipped = min(left[lane], len(places))
                left[lane] -= skipped
                begin = position[lane] + skipped
                position[lane] += len(places)
                if skipped < len(places):
                    jobs[lane] = partial(self._lane, lane, writer, places[skipped:], begin, behind)
            for found in self._together(jobs):
                findings += found
        return tuple(findings)

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._closed.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for sessions in self._sessions:
            sessions.close()

    def _grow(self, lanes: int) -> None:
        while len(self._sessions) < lanes:
            self._sessions.append(self._open())

    def _together(self, jobs: Mapping[int, Callable[[], list[Finding]]]) -> Iterator[list[Finding]]:
        if len(jobs) <= 1:
            for job in jobs.values():
                yield job()
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1024, thread_name_prefix="row-lane")
        futures = [self._threads.submit(job) for job in jobs.values()]
        failed = [f for f in wait(futures, return_when=FIRST_EXCEPTION).done if f.exception() is not None]
        if failed:
            self._failed.set()
            wait(futures)
            self._failed.clear()
        for future in failed or futures:
            yield future.result()

    def _lane(self, lane: int, writer: LaneWriter, places: Sequence[int], begin: int, behind: Sequence[int]) -> list[Finding]:
        """One lane's operations of a round, the first of which is its number ``begin``; ``behind``: how many each lane did in earlier rounds."""
        retry_policy = replace(self._retry_policy, tell=partial(self._tell, lane))
        findings: list[Finding] = []
        at, count = 0, self._most
        while at < len(places):
            if self._closed.is_set() or self._failed.is_set():
                raise ApplyError(f"lane {lane} stops before operation {begin + at}: another lane has failed, or the stream is being closed")
            here = places[at : at + count]
            begun = time.monotonic()
            # Later ones of the lane cannot be there without the first.
            sessions, ends = self._sessions[lane].use, () if at else behind
            findings += writer.write(here, sessions, retry_policy, lane=lane, before=begin + at, ends=ends)
            at += len(here)
            count = self._next_count(len(here), time.monotonic() - begun)
        return findings

    def _next_count(self, count: int, seconds: float) -> int:
        if seconds > self._seconds:
            return max(1, int(count * self._seconds / seconds))
        return min(self._most, count * 2)

    def _tell(self, lane: int, error: TransientError | None) -> None:
        self._waiting[lane] = error
