"""The outcome of a transaction if no Pump has it: derived from the answer of ``GET /mvcc/hex/{key}`` (rows.md 9.3). Pure except for reading
the clock.

A write record of the transaction, commit or rollback, is final. A lock means that the transaction is still running. No trace proves a
rollback (``decide``) only under three conditions: the upstream has reported it for long enough, at every question; MVCC GC has not passed
start_ts; and no later transaction wrote the primary key. Otherwise the outcome can no longer be determined, and an operator must settle it:
``undecided_text`` has the command. Pump and Drainer both decide with this function, and record the outcome with ``outcome_payload``.

How long "no trace" was reported is never a difference of two clocks. A start_ts comes from PD's clock. If PD's or this machine's clock is
wrong, a transaction that has just begun looks old. But nobody can have observed the transaction for longer than it exists. So the time
counts from the first answer without a trace, in readings of this machine's monotonic clock. Counting starts again

* after a restart of the machine, or on another machine,
* after any other answer of the upstream,
* after an outage of the upstream: a write that was under way may still arrive when the upstream is back.
"""

import enum
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.entry import COMMAND
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = "/proc/self/ns/time"
_ROLLBACK_OP = 3
"""``MvccWrite.type`` of a rollback."""
ASK_AFTER = 1.0
"""Seconds that a Prewrite may wait for its outcome before the upstream is asked."""
ORPHAN_TIMEOUT = 600.0
"""Seconds for which the upstream, each time it is asked, must have no trace of a Prewrite before that settles it as rolled back. TiDB sends a
Prewrite to its Pump and to TiKV at the same time and tries TiKV again for 40 s and more: for that long a transaction that commits has no trace. Not shorter than ``LEAST_GC_LIFE_MS``: what has waited for so long may be collected."""
LEAST_GC_LIFE_MS = 600_000
"""TiDB's minimum of ``tidb_gc_life_time`` is ten minutes: what is younger is not collected."""
ASKED_AT_ONCE = 256
"""About how many Prewrites the upstream is asked in a row, the oldest first, before anything else is done."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of a monotonic clock: its name, and milliseconds since some moment. Readings with the same name may be subtracted."""

    clock: str
    ms: int


@dataclass(frozen=True, slots=True)
class WaitingTimes:
    """Since when each start_ts has been absent each time that the upstream was asked, by ``clock``."""

    clock: str = ""
    since_ms: Mapping[int, int] = field(default_factory=dict)

    def seen(self, absent: Iterable[int], now: Reading) -> "WaitingTimes":
        """The same after the upstream answered that exactly ``absent`` are absent now."""
        known = self.since_ms if self.clock == now.clock else {}
        return WaitingTimes(now.clock, {ts: known.get(ts, now.ms) for ts in absent})

    def waited_ms(self, start_ts: int, now: Reading) -> int:
        """How long ``start_ts`` has been absent, in milliseconds."""
        return now.ms - self.since_ms.get(start_ts, now.ms) if self.clock == now.clock else 0


def running_time() -> Reading:
    """A reading of this machine's monotonic clock, which all its processes share."""
    return Reading(_clock(), time.monotonic_ns() // 1_000_000)


@lru_cache(maxsize=1)
def _clock() -> str:
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink(_NAMESPACE)}"
    except OSError:
        # the machine's boot cannot be identified here: the name is valid in this process only
        return uuid.uuid4().hex


class TransactionState(enum.Enum):
    """What the upstream reports about a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ALIVE = "still locked"
    ABSENT = "no trace"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A ``TransactionState``; ``commit_ts`` is 0 unless committed."""

    finding: TransactionState
    commit_ts: int = 0
    overwritten: bool = False
    """No trace, but later writes: there may have been one before."""


class Decision(enum.Enum):
    """What becomes of a Prewrite without outcome."""

    WAIT = enum.auto()
    COMMIT = enum.auto()
    ROLL_BACK = enum.auto()
    UNDECIDED = enum.auto()
    """It waits until it is settled manually."""


def decide(verdict: Verdict, start_ts: int, waited_ms: float, safe_point: int | None) -> Decision:
    """What the verdict on the transaction means for its Prewrite.

    Args:
        verdict: the upstream's.
        start_ts: the transaction's.
        waited_ms: how long the upstream has reported no trace of the transaction (``WaitingTimes``).
        safe_point: MVCC data up to this ts may be collected; None: unknown, so all data may be. It must have been read after the verdict.
    """
    if verdict.finding is TransactionState.COMMITTED:
        return Decision.COMMIT
    if verdict.finding is TransactionState.ROLLED_BACK:
        return Decision.ROLL_BACK
    if verdict.finding is TransactionState.ALIVE or waited_ms <= ORPHAN_TIMEOUT * 1000:
        return Decision.WAIT
    collected = safe_point is None or start_ts <= safe_point
    return Decision.UNDECIDED if verdict.overwritten or collected else Decision.ROLL_BACK


def outcome_payload(start_ts: int, commit_ts: int) -> bytes:
    """The binlog that records the outcome: a Commit, or with ``commit_ts`` 0 a Rollback. No prewrite_key, no ddl: the Prewrite has them."""
    tp = binlog_pb2.Commit if commit_ts else binlog_pb2.Rollback
    return binlog_pb2.Binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts).SerializeToString()


def require_past(start_ts: int, commit_ts: int, present_ts: int) -> None:
    """Refuse a ``commit_ts`` that an operator states, if it is above ``present_ts``, the upstream's time.

    Raises:
        ConfigError: it is.
    """
    if commit_ts > present_ts:
        raise ConfigError(
            f"start_ts {start_ts} cannot have committed at {commit_ts} ({as_time(commit_ts)}): the upstream's time is only "
            f"{present_ts} ({as_time(present_ts)}). Look for a mistyped digit"
        )


def undecided_text(start_ts: int, key: bytes, verdict: Verdict, pump: str, address: str, tls: TlsSettings | None = None) -> str:
    """The message about a Prewrite whose outcome can no longer be determined; ``tls``: the cluster's."""
    why = "a later transaction wrote its primary key" if verdict.overwritten else "MVCC GC may have collected the trace"
    secured = f"-ssl-ca {tls.ca} -ssl-cert {tls.cert} -ssl-key {tls.key} " if tls else ""
    command = f"{COMMAND} pump settle {secured}{'https' if tls else 'http'}://{address} {start_ts}"
    return (
        f"the outcome of start_ts {start_ts} ({as_time(start_ts)}), primary key {key.hex()}, on Pump {pump} can no longer be determined: "
        f"the upstream has no trace of the transaction, and {why}. All Drainers wait. Find out whether its rows were written. Then settle the transaction: "
        f"{command} commit COMMIT_TS, or {command} rollback"
    )


def mvcc_info(answer: Any) -> Any:
    """The key's part of an answer of ``/mvcc/hex``; ``{}`` if TiKV holds nothing of the key.

    A TiDB up to v5 also passes TiKV's errors on with HTTP 200, for example that a region has moved. Such an answer has no ``info``.

    Raises:
        ValueError: the answer says nothing about the key.
    """
    value = answer.get("value") if isinstance(answer, dict) else None
    if not isinstance(value, dict) or value.get("region_error") or value.get("error") or not isinstance(value.get("info"), dict):
        raise ValueError(f"no MVCC information: {str(answer)[:300]}")
    return value["info"]


def verdict_of(answer: Any, start_ts: int) -> Verdict:
    """The verdict in the JSON that ``/mvcc/hex`` answered.

    Raises:
        ValueError: it is no answer about the key, or the JSON has another form.
    """
    info = mvcc_info(answer)
    try:
        overwritten = False
        for entry in info.get("writes") or ():
            begun, ended = int(entry.get("start_ts", 0)), int(entry.get("commit_ts", 0))
            overwritten = overwritten or max(begun, ended) > start_ts
            if ended == start_ts != begun and entry.get("has_overlapped_rollback"):
                return Verdict(TransactionState.ROLLED_BACK)
            if begun == start_ts:
                if int(entry.get("type", 0)) == _ROLLBACK_OP:
                    return Verdict(TransactionState.ROLLED_BACK)
                if int(entry["commit_ts"]) > start_ts:
                    return Verdict(TransactionState.COMMITTED, int(entry["commit_ts"]))
        lock = info.get("lock")
        if lock and int(lock.get("start_ts", 0)) == start_ts:
            return Verdict(TransactionState.ALIVE)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no MVCC information: {answer!r}") from error
    return Verdict(TransactionState.ABSENT, overwritten=overwritten)
