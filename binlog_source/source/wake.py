"""Which idle Pumps are woken, and when. A woken Pump gets a fake binlog with a fresh TSO, as it writes itself every few seconds. Pure.

R is the minimum of the Pumps' promises. So a transaction on one Pump is released only when the others have promised more than its
commit_ts. A busy Pump does so with its next Commit, an idle Pump with its next fake.

``choose`` names the Pumps that are behind a transaction that could otherwise be released, are reachable, and have neither moved nor been
woken within the interval. A Pump whose promise is still below its last fake gets no other fake: a Prewrite under way holds the promise
back. If no Pump has a transaction above R, nothing is chosen, however long they are idle. ``is_of_now`` refuses a timestamp far beyond the
transaction: it is old, or the registry's clock is not the upstream's, whose fakes would promise falsely.

Why a fake from outside promises nothing false: docs/adr/0009.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_NEAR = tso(60_000)
"""An older transaction has waited for something else than an idle Pump's fake, which takes seconds."""
RECORD_HEADER = 16
"""Bytes before each payload in a Pump's log (pump.md 4.1)."""


def fake_payload(ts: int) -> bytes:
    """The fake binlog at ``ts``, byte for byte as a Pump writes it."""
    return binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=ts, commit_ts=ts, ddl_job_id=0, ddl_schema_state=0).SerializeToString()


@dataclass(frozen=True, slots=True)
class PumpHead:
    """The newest that is known of one Pump."""

    promise: int
    """Its T, in the delivery of the stream."""
    newest_commit: int
    """The largest commit_ts received of a transaction; 0: none."""
    rose_at: float
    """When ``promise`` rose last; seconds of the monotonic clock."""
    reachable: bool


@dataclass(frozen=True, slots=True)
class LastWake:
    """The last fake that was sent to a Pump."""

    ts: int
    """Its timestamp; 0: the Pump did not get one."""
    not_before: float
    """When it may be sent the next one; seconds of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class WakeChoice:
    """The Pumps to wake now, and after how many seconds to choose again although nothing changed; None: not before a change."""

    pumps: tuple[str, ...]
    again_in: float | None
    wanted: int = 0
    """The commit_ts that they are to promise."""


def choose(heads: Mapping[str, PumpHead], woken: Mapping[str, LastWake], now: float, interval: float) -> WakeChoice:
    """The Pumps to wake at ``now`` (monotonic clock); ``interval``: seconds that a Pump must have been idle."""
    wanted = max((min(head.promise, head.newest_commit) for head in heads.values()), default=0)
    wait = {pump: _due_at(head, woken.get(pump), interval) - now for pump, head in heads.items() if _helps(head, woken.get(pump), wanted)}
    later = [seconds for seconds in wait.values() if seconds > 0]
    return WakeChoice(tuple(sorted(pump for pump, seconds in wait.items() if seconds <= 0)), min(later, default=None), wanted)


def is_of_now(ts: int, wanted: int) -> bool:
    """Whether ``ts``, fresh from the registry, is close enough to the commit_ts ``wanted`` to be sent."""
    return ts - wanted <= _NEAR


def _helps(head: PumpHead, last: LastWake | None, wanted: int) -> bool:
    return head.reachable and head.promise < wanted and (last is None or head.promise >= last.ts)


def _due_at(head: PumpHead, last: LastWake | None, interval: float) -> float:
    return max(head.rose_at + interval, last.not_before if last is not None else head.rose_at)
