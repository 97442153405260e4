"""Resolves orphans: looks up the outcome upstream and writes it to the Pump that waits for it. Shell around ``txn_outcome``.

The outcome goes into that Pump's log, as the Pump's own resolver would write it (pump.md 5). So every reader gets it, the Pump's promise
advances, and a replay gives the same result. Nothing is released here. ``txn_outcome.decide`` says what a missing transaction means, here
as in the Pump.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of, names_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry, status_ports_in
from pyspark_tidb_binlog.binlog_source.cluster.status_port import OwnCluster, StatusPorts, mvcc_safe_point, own_cluster, status_ports
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import (
    ASKED_AT_ONCE,
    Decision,
    TransactionState,
    Verdict,
    decide,
    outcome_payload,
    undecided_text,
)
from pyspark_tidb_binlog.binlog_source.pairing.transitions import MissingOutcome, Orphan
from pyspark_tidb_binlog.binlog_source.pump_client.writer import OUTCOME_CONNECT_SECONDS, OUTCOME_TIMEOUT, PumpWriter, WriteFailed
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, require_itself
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.history_feed import names_file
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_UNDECIDED_EVERY = 60.0
_log = logging.getLogger(__name__)
_told_at: dict[int, float] = {}
"""When this process last logged that a start_ts must be settled manually."""


@dataclass(frozen=True, slots=True)
class UpstreamAnswers:
    """What the upstream has answered about orphans."""

    settled: tuple[MissingOutcome, ...] = ()
    """Orphans with a certain outcome: the upstream reports it, or the missing trace proves a rollback."""
    absent: frozenset[int] = frozenset()
    """The start_ts of the orphans that the upstream has no trace of."""


def outcomes_of(orphans: Iterable[Orphan], waited_ms: Callable[[int], int], source: SourceConfig) -> UpstreamAnswers:
    """What the upstream answers about the oldest ``ASKED_AT_ONCE`` of ``orphans``.

    ``waited_ms``: how long it has had no trace of a start_ts (``WaitingTimes``).
    """
    asked = sorted(orphans, key=lambda orphan: orphan.start_ts)[:ASKED_AT_ONCE]
    addresses = _addresses(source) if asked else ()
    if not addresses:
        return UpstreamAnswers()
    ports = StatusPorts(addresses, TlsSettings.of(source.security), lambda: _cluster(source))
    settled = []
    verdicts: dict[int, Verdict] = {}
    for orphan in asked:
        if orphan.start_ts not in verdicts:
            verdict = _asked(ports, orphan)
            if verdict is None:
                # no port answers: the others would wait as long, one after another
                break
            verdicts[orphan.start_ts] = verdict
    # Read after the verdicts: before them it could be older than what they were made from.
    safe_point = _safe_point(source, ports) if verdicts else None
    for orphan in asked:
        if orphan.start_ts not in verdicts:
            continue
        verdict = verdicts[orphan.start_ts]
        decision = decide(verdict, orphan.start_ts, waited_ms(orphan.start_ts), safe_point)
        if decision is Decision.UNDECIDED:
            _tell_undecided(orphan, verdict, source)
        if decision not in (Decision.COMMIT, Decision.ROLL_BACK):
            continue
        _log.warning(
            "the Prewrite of start_ts %d (%s) on Pump %s had no outcome for %d ms; the upstream reports: %s", orphan.start_ts, as_time(orphan.start_ts),
            orphan.pump, orphan.age_ms, verdict.finding.value,
        )  # fmt: skip
        settled.append(MissingOutcome(orphan.pump, orphan.start_ts, verdict.commit_ts))
    absent = frozenset(ts for ts, verdict in verdicts.items() if verdict.finding is TransactionState.ABSENT)
    return UpstreamAnswers(tuple(settled), absent)


def _addresses(source: SourceConfig) -> Sequence[str]:
    """The status ports in the settings, else those that PD knows now. Empty: there is no PD, or it does not answer."""
    named = "" if names_file(source.tidb_status) else source.tidb_status
    if named or not names_registry(source):
        return status_ports(named)
    try:
        return status_ports_in(source.pumps, TlsSettings.of(source.security))
    except PumpUnavailable as error:
        _log.warning("Prewrites without an outcome wait, because PD does not name the status ports of TiDB: %s", error)
        return ()


def _cluster(source: SourceConfig) -> OwnCluster:
    if not names_registry(source):
        return own_cluster(None, source.cluster_id)
    with closing(open_registry(source.pumps, TlsSettings.of(source.security))) as registry:
        return own_cluster(registry, source.cluster_id)


def _asked(ports: StatusPorts, orphan: Orphan) -> Verdict | None:
    try:
        return ports.ask(orphan.start_ts, prewrite_key_of(orphan.payload))
    except PumpUnavailable as error:
        _log.warning("the Prewrite of start_ts %d on Pump %s still has no outcome: %s", orphan.start_ts, orphan.pump, error)
        return None


def _safe_point(source: SourceConfig, ports: StatusPorts) -> int | None:
    """The MVCC GC safe point, from the registry or the status port; None if neither reports it."""
    if not names_registry(source):
        return mvcc_safe_point(None, ports)
    with closing(open_registry(source.pumps, TlsSettings.of(source.security))) as registry:
        return mvcc_safe_point(registry, ports)


def _tell_undecided(orphan: Orphan, verdict: Verdict, source: SourceConfig) -> None:
    """Log it the first time, and then at intervals."""
    now = time.monotonic()
    if now - _told_at.get(orphan.start_ts, float("-inf")) < _UNDECIDED_EVERY:
        return
    _told_at[orphan.start_ts] = now
    try:
        with closing(discovery_of(source)) as discovery:
            address = discovery.pumps().get(orphan.pump, orphan.pump)
    except PumpUnavailable:
        address = orphan.pump
    tls = TlsSettings.of(source.security)
    _log.error("%s", undecided_text(orphan.start_ts, prewrite_key_of(orphan.payload), verdict, orphan.pump, address, tls))


def prewrite_key_of(payload: bytes) -> bytes:
    """The transaction's primary key; empty if the payload has none."""
    try:
        return binlog_pb2.Binlog.FromString(payload).prewrite_key
    except DecodeError:
        return b""


def tell(settles: Iterable[MissingOutcome], endpoints: Mapping[str, Endpoint]) -> None:
    """Write the outcomes to the Pumps' logs; a write that fails is retried with a later batch."""
    writers: dict[str, PumpWriter] = {}
    away: set[str] = set()
    with ExitStack() as connections:
        for settle in settles:
            endpoint = endpoints.get(settle.pump)
            if endpoint is None:
                _log.warning(
                    "Pump %s is no longer listed, so the outcome of start_ts %d cannot be written to its log", settle.pump, settle.start_ts
                )
            if endpoint is None or settle.pump in away:
                continue
            try:
                if settle.pump not in writers:
                    writers[settle.pump] = connections.enter_context(closing(_writer_to(endpoint)))
                writers[settle.pump].write(outcome_payload(settle.start_ts, settle.commit_ts))
            except WriteFailed as error:
                _log.warning("the outcome of start_ts %d is not written yet: %s", settle.start_ts, error)
                if error.code == "DEADLINE_EXCEEDED":
                    # The connection to a host that crashed still looks open: the next outcome gets a new one.
                    del writers[settle.pump]
            except PumpUnavailable as error:
                _log.warning("the outcomes from start_ts %d on are not written yet: %s", settle.start_ts, error)
                away.add(settle.pump)


def _writer_to(endpoint: Endpoint) -> PumpWriter:
    """A connection to the Pump.

    Raises:
        PumpUnavailable: another Pump answers at its address.
    """
    require_itself(endpoint, OUTCOME_CONNECT_SECONDS)
    return PumpWriter(endpoint.address, endpoint.cluster_id, OUTCOME_TIMEOUT, endpoint.pump, OUTCOME_CONNECT_SECONDS, tls=endpoint.tls)
