"""What became of an orphan Prewrite: ask the upstream, and tell the Pump that waits for it. Shell around the verdicts of ``mvcc``.

The outcome goes into the Pump's own log, as a Pump's own resolver would write it (pump.md 5): so it holds for every reader,
the Pump's promise moves on, and a replay sees the same. Nothing is released here. What absence means, ``mvcc.decide`` says, as for the Pump itself.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from google.protobuf.message import DecodeError

from binlog_source.cluster.mvcc import Decision, StatusPorts, Verdict, decide, status_ports, undecided_text
from binlog_source.cluster.registries import open_registry
from binlog_source.cluster.roster import roster_of
from binlog_source.pairing.transitions import Orphan, Settle
from binlog_source.source.pull import Endpoint, write
from conf.model import PairConfig, SourceConfig
from schemas.errors import PumpUnavailable
from schemas.events import as_time
from schemas.proto import binlog_pb2

_UNDECIDED_EVERY = 60.0
_log = logging.getLogger(__name__)
_told_at: dict[int, float] = {}
"""When it was last said, in this process, that only a person can settle a start_ts."""


def outcomes_of(orphans: Iterable[Orphan], waited_ms: Callable[[int], int], config: PairConfig, source: SourceConfig) -> tuple[Settle, ...]:
    """The orphans whose outcome is settled now: found upstream, or absent there where that proves something.

    ``waited_ms``: for how long a start_ts has been seen to wait (``waits.py``).
    """
    if not config.resolver:
        return ()
    ports = StatusPorts(status_ports(config.resolver))
    settled = []
    verdicts: dict[int, Verdict | None] = {}
    for orphan in orphans:
        if orphan.start_ts not in verdicts:
            verdicts[orphan.start_ts] = _asked(ports, orphan)
        verdict = verdicts[orphan.start_ts]
        if verdict is None:
            continue
        waited, safe_point = waited_ms(orphan.start_ts), _safe_point(source, ports)
        decision = decide(verdict, orphan.start_ts, orphan.age_ms, waited, config.orphan_timeout * 1000, safe_point)
        if decision is Decision.UNDECIDED:
            _tell_undecided(orphan, verdict, source)
        if decision not in (Decision.COMMIT, Decision.ROLL_BACK):
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


def _safe_point(source: SourceConfig, ports: StatusPorts) -> int | None:
    """How far MVCC data is collected, by the registry or the status port; None when neither says."""
    if "://" not in source.pumps:
        return ports.gc_safe_point()
    with closing(open_registry(source.pumps)) as registry:
        try:
            return registry.gc_safe_point()
        except PumpUnavailable:
            return None


def _tell_undecided(orphan: Orphan, verdict: Verdict, source: SourceConfig) -> None:
    """Say it at first and then once in a while."""
    now = time.monotonic()
    if now - _told_at.get(orphan.start_ts, float("-inf")) < _UNDECIDED_EVERY:
        return
    _told_at[orphan.start_ts] = now
    try:
        with closing(roster_of(source)) as roster:
            address = roster.pumps().get(orphan.pump, orphan.pump)
    except PumpUnavailable:
        address = orphan.pump
    _log.error("%s", undecided_text(orphan.start_ts, prewrite_key_of(orphan.payload), verdict, orphan.pump, address))


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
