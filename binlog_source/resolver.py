"""What became of an orphan Prewrite: ask the upstream, and tell the Pump that waits for it. Shell around the verdicts of ``mvcc``.

The outcome goes into the Pump's own log, as a Pump's own resolver would write it (pump.md 5): so it holds for every reader,
the Pump's promise moves on, and a replay sees the same. Nothing is released here. Absence settles a Prewrite only after ``orphan-timeout``.
"""

import logging
from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from binlog_source.client import Endpoint, write
from binlog_source.mvcc import Finding, StatusPorts, Verdict, status_ports
from binlog_source.pairing import Orphan, Settle
from conf.model import PairConfig
from schemas.errors import PumpUnavailable
from schemas.events import as_time
from schemas.proto import binlog_pb2

_log = logging.getLogger(__name__)


def outcomes_of(orphans: Iterable[Orphan], config: PairConfig) -> tuple[Settle, ...]:
    """The orphans whose outcome is settled now: found upstream, or absent there for longer than ``orphan-timeout``."""
    if not config.resolver:
        return ()
    ports = StatusPorts(status_ports(config.resolver))
    settled = []
    verdicts: dict[int, Verdict | None] = {}
    for orphan in orphans:
        if orphan.start_ts not in verdicts:
            verdicts[orphan.start_ts] = _asked(ports, orphan)
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


def _asked(ports: StatusPorts, orphan: Orphan) -> Verdict | None:
    try:
        return ports.ask(orphan.start_ts, prewrite_key_of(orphan.payload))
    except PumpUnavailable as error:
        _log.warning("Prewrite of start_ts %d on Pump %s goes on waiting: %s", orphan.start_ts, orphan.pump, error)
        return None


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
