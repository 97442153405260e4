"""The outcome of a transaction: ``GET /mvcc/hex/{key}`` (rows.md 9.3) of TiDB's status port or of the embedded upstream. HTTP shell
around a pure verdict.

A write record of the transaction, commit or rollback, is final. A lock means that it is still running. Absence proves a rollback only
(``decide``) if the Prewrite was observed waiting for long enough, MVCC GC has not passed start_ts, and the primary key was not written
since. Otherwise the outcome can no longer be determined and must be settled manually: ``undecided_text`` has the command. The Pump and the
Drainer both decide with this function.
"""

import enum
import http.client
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from schemas.errors import ConfigError, PumpUnavailable
from schemas.events import as_time

A = TypeVar("A")

_ROLLBACK_OP = 3
"""``MvccWrite.type`` of a rollback."""
_TIMEOUT = 5.0
LEAST_GC_LIFE_MS = 600_000
"""TiDB's minimum of ``tidb_gc_life_time`` is ten minutes: what is younger is not collected."""


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


def decide(verdict: Verdict, start_ts: int, age_ms: float, waited_ms: float, timeout_ms: float, safe_point: int | None) -> Decision:
    """What the verdict on transaction ``start_ts`` means for its Prewrite.

    ``safe_point``: MVCC data up to this ts may be collected, None = unknown; it must have been read after the verdict. ``timeout_ms``:
    after this time no Prewrite in TiKV can still be in progress; ``waited_ms``, for which the Prewrite was observed waiting
    (``waits.py``), must be above it. ``age_ms`` is by the clocks, which may be wrong.
    """
    if verdict.finding is TransactionState.COMMITTED:
        return Decision.COMMIT
    if verdict.finding is TransactionState.ROLLED_BACK:
        return Decision.ROLL_BACK
    if verdict.finding is TransactionState.ALIVE or waited_ms <= timeout_ms:
        return Decision.WAIT
    collected = max(age_ms, waited_ms) >= LEAST_GC_LIFE_MS if safe_point is None else start_ts <= safe_point
    return Decision.UNDECIDED if verdict.overwritten or collected else Decision.ROLL_BACK


def undecided_text(start_ts: int, key: bytes, verdict: Verdict, pump: str, address: str) -> str:
    """The message about a Prewrite whose outcome can no longer be determined."""
    why = "its primary key has been written again since" if verdict.overwritten else "MVCC GC may have collected it"
    command = f"./spark-submit.sh pump settle http://{address} {start_ts}"
    return (
        f"the outcome of start_ts {start_ts} ({as_time(start_ts)}), primary key {key.hex()}, on Pump {pump} can no longer be determined: "
        f"the upstream has no trace of it, and {why}. All Drainers wait. Find out whether its rows were written, then settle it: "
        f"{command} commit COMMIT_TS, or {command} rollback"
    )


def verdict_of(answer: Any, start_ts: int) -> Verdict:
    """The verdict in the JSON that ``/mvcc/hex`` answered.

    Raises:
        ValueError: the JSON has another form.
    """
    try:
        info = (answer.get("value") or {}).get("info") or {}
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


def status_ports(urls: str) -> tuple[str, ...]:
    """``http://host:port,http://host:port`` as ``host:port`` each.

    Raises:
        ConfigError: one of them is not such a URL.
    """
    found = []
    for url in filter(None, (part.strip() for part in urls.split(","))):
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"status port {url!r} is not of the form http://host:port")
        found.append(f"{parts.hostname}:{parts.port or 80}")
    return tuple(found)


class StatusPorts:
    """The status ports of one cluster; each request goes to the first that answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """``addresses``: ``host:port`` each, at least one."""
        self._addresses = tuple(addresses)

    def ask(self, start_ts: int, key: bytes) -> Verdict:
        """The outcome of the transaction ``start_ts`` with primary key ``key``.

        Raises:
            PumpUnavailable: no port answered, so there is no verdict.
        """
        return self._first(lambda address: verdict_of(_get(address, key), start_ts), f"about start_ts {start_ts}")

    def gc_safe_point(self) -> int | None:
        """The MVCC GC safe point, if the port reports it: the embedded upstream's does, TiDB's does not (PD does)."""
        try:
            return int(self._first(lambda address: _json(address, "/gc_safe_point"), "for the GC safe point")["gc_safe_point"])
        except PumpUnavailable:
            return None

    def look_up(self, key: bytes) -> Any:
        """The MVCC data of a key, as JSON; ``PumpUnavailable`` if no port answered."""
        return self._first(lambda address: _get(address, key), f"about key {key.hex()}")

    def _first(self, question: Callable[[str], A], about: str) -> A:
        failures = []
        for address in self._addresses:
            try:
                return question(address)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failures.append(f"{address}: {error}")
        raise PumpUnavailable(f"no status port answers the request {about} ({'; '.join(failures) or 'none is known'})")


def _get(address: str, key: bytes) -> Any:
    return _json(address, f"/mvcc/hex/{key.hex()}")


def _json(address: str, path: str) -> Any:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise ValueError(f"HTTP {response.status} {body[:200].decode(errors='replace')}")
        return json.loads(body)
    finally:
        connection.close()
