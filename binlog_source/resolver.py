"""What became of an orphan Prewrite: ask the upstream, and tell the Pump that waits for it. HTTP shell around pure verdicts.

``MvccResolver`` asks ``GET /mvcc/hex/{prewrite_key}`` (rows.md 9.3) of TiDB's status port or of the embedded upstream.
A write record of the transaction is final, be it a commit or a rollback. A lock means that it lives. Nothing at all proves
nothing: write records are collected after ten minutes, so absence settles a Prewrite only after ``orphan-timeout``.

The outcome goes into the Pump's own log, as a Pump's own resolver would write it (pump.md 5): so it holds for every reader,
the Pump's promise moves on, and a replay sees the same. Nothing is released here.
"""

import enum
import http.client
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from binlog_source.client import Endpoint, write
from binlog_source.pairing import Orphan, Settle
from conf.model import PairConfig
from schemas.errors import ConfigError, PumpUnavailable
from schemas.events import as_time
from schemas.proto import binlog_pb2

_ROLLBACK_OP = 3
"""``MvccWrite.type`` of a rollback."""
_TIMEOUT = 5.0

_log = logging.getLogger(__name__)


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


class MvccResolver:
    """Asks a status port about a key. An answer that does not come is no verdict (None)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"pair.resolver {url!r} is not of the form http://host:port")
        self._url, self._host, self._port = url, parts.hostname, parts.port or 80

    def ask(self, start_ts: int, key: bytes) -> Verdict | None:
        """What became of the transaction ``start_ts`` with primary key ``key``."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT)
        try:
            connection.request("GET", f"/mvcc/hex/{key.hex()}")
            response = connection.getresponse()
            body = response.read()
            if response.status != http.client.OK:
                _log.warning("resolver %s answered %d to a question about start_ts %d", self._url, response.status, start_ts)
                return None
            return verdict_of(json.loads(body), start_ts)
        except (OSError, http.client.HTTPException, ValueError) as error:
            _log.warning("resolver %s does not answer about start_ts %d: %s", self._url, start_ts, error)
            return None
        finally:
            connection.close()


def outcomes_of(orphans: Iterable[Orphan], config: PairConfig) -> tuple[Settle, ...]:
    """The orphans whose outcome is settled now: found upstream, or absent there for longer than ``orphan-timeout``."""
    if not config.resolver:
        return ()
    resolver = MvccResolver(config.resolver)
    settled = []
    verdicts: dict[int, Verdict | None] = {}
    for orphan in orphans:
        if orphan.start_ts not in verdicts:
            verdicts[orphan.start_ts] = resolver.ask(orphan.start_ts, prewrite_key_of(orphan.payload))
        verdict = verdicts[orphan.start_ts]
        if verdict is None or verdict.finding is Finding.ALIVE:
            continue
        if verdict.finding is Finding.ABSENT and orphan.age_ms < config.orphan_timeout * 1000:
            continue
        _log.warning(
            "Prewrite of start_ts %d (%s) on Pump %s had no outcome for %d ms: %s", orphan.start_ts, as_time(orphan.start_ts), orphan.pump,
            orphan.age_ms, verdict.finding.value,
        )  # fmt: skip
        settled.append(Settle(orphan.pump, orphan.start_ts, verdict.commit_ts))
    return tuple(settled)


def prewrite_key_of(payload: bytes) -> bytes:
    """The transaction's primary key, empty when the payload holds none."""
    try:
        return binlog_pb2.Binlog.FromString(payload).prewrite_key
    except DecodeError:
        return b""


def record_of(settle: Settle) -> bytes:
    """The Commit or Rollback binlog that tells a Pump the outcome."""
    tp = binlog_pb2.Commit if settle.commit_ts else binlog_pb2.Rollback
    return binlog_pb2.Binlog(tp=tp, start_ts=settle.start_ts, commit_ts=settle.commit_ts).SerializeToString()


def tell(settles: Iterable[Settle], endpoints: Mapping[str, Endpoint]) -> None:
    """Write the outcomes to the Pumps' logs; what does not get there is tried again with a later batch."""
    for settle in settles:
        endpoint = endpoints.get(settle.pump)
        if endpoint is None:
            _log.warning("Pump %s is gone; the outcome of start_ts %d cannot be told to it", settle.pump, settle.start_ts)
            continue
        try:
            write(endpoint, record_of(settle))
        except PumpUnavailable as error:
            _log.warning("the outcome of start_ts %d waits: %s", settle.start_ts, error)
