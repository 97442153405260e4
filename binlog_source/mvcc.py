"""What became of a transaction: ``GET /mvcc/hex/{key}`` (rows.md 9.3) of TiDB's status port or of the embedded upstream. HTTP shell around a pure verdict.

A write record of the transaction is final, be it a commit or a rollback. A lock means that it lives. Nothing at all proves nothing: write
records are collected after ten minutes, so absence may settle a Prewrite only after long.
"""

import enum
import http.client
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from schemas.errors import ConfigError, PumpUnavailable

A = TypeVar("A")

_ROLLBACK_OP = 3
"""``MvccWrite.type`` of a rollback."""
_TIMEOUT = 5.0


class Finding(enum.Enum):
    """What the upstream says of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ALIVE = "still locked"
    ABSENT = "no trace"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding; ``commit_ts`` is 0 unless committed."""

    finding: Finding
    commit_ts: int = 0


def verdict_of(answer: Any, start_ts: int) -> Verdict:
    """The verdict in the JSON that ``/mvcc/hex`` answered.

    Raises:
        ValueError: it is no such JSON.
    """
    try:
        info = (answer.get("value") or {}).get("info") or {}
        for entry in info.get("writes") or ():
            if int(entry.get("start_ts", 0)) == start_ts:
                if int(entry.get("type", 0)) == _ROLLBACK_OP:
                    return Verdict(Finding.ROLLED_BACK)
                if int(entry["commit_ts"]) > start_ts:
                    return Verdict(Finding.COMMITTED, int(entry["commit_ts"]))
        lock = info.get("lock")
        if lock and int(lock.get("start_ts", 0)) == start_ts:
            return Verdict(Finding.ALIVE)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no MVCC information: {answer!r}") from error
    return Verdict(Finding.ABSENT)


def status_ports(urls: str) -> tuple[str, ...]:
    """``http://host:port,http://host:port`` as ``host:port`` each.

    Raises:
        ConfigError: one of them is no such URL.
    """
    found = []
    for url in filter(None, (part.strip() for part in urls.split(","))):
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"status port {url!r} is not of the form http://host:port")
        found.append(f"{parts.hostname}:{parts.port or 80}")
    return tuple(found)


class StatusPorts:
    """The status ports of one cluster; each question goes to the first that answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """``addresses``: ``host:port`` each, at least one."""
        self._addresses = tuple(addresses)

    def ask(self, start_ts: int, key: bytes) -> Verdict:
        """What became of the transaction ``start_ts`` with primary key ``key``.

        Raises:
            PumpUnavailable: no port gave an answer; that is no verdict.
        """
        return self._first(lambda address: verdict_of(_get(address, key), start_ts), f"about start_ts {start_ts}")

    def look_up(self, key: bytes) -> Any:
        """All that is known of a key, as JSON; ``PumpUnavailable`` when no port gave an answer."""
        return self._first(lambda address: _get(address, key), f"about key {key.hex()}")

    def _first(self, question: Callable[[str], A], about: str) -> A:
        failures = []
        for address in self._addresses:
            try:
                return question(address)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failures.append(f"{address}: {error}")
        raise PumpUnavailable(f"no status port answers {about} ({'; '.join(failures) or 'none is known'})")


def _get(address: str, key: bytes) -> Any:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT)
    try:
        connection.request("GET", f"/mvcc/hex/{key.hex()}")
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise ValueError(f"HTTP {response.status} {body[:200].decode(errors='replace')}")
        return json.loads(body)
    finally:
        connection.close()
