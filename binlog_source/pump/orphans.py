"""Orphan resolution: if a Prewrite has no outcome, the Pump asks the upstream and writes the missing record (pump.md 5).

    the upstream reports    the Pump
    committed               writes a Commit (no prewrite_key, no ddl fields: the Prewrite has them)
    rolled back             writes a Rollback
    locked                  waits
    no trace                waits; writes a Rollback once "no trace" was the only answer for ``ORPHAN_TIMEOUT``, as this process counts
    no trace, which proves  waits, logs an error, and lets an operator ``settle`` the Prewrite (``txn_outcome.decide``)
    nothing (GC passed)
    no answer               waits, and logs an error

Promises: an outcome is written only if the upstream reported it, if the missing trace proves it, or if an operator stated it.
"""

import logging
import time
from collections.abc import Callable, Sequence

from pyspark_tidb_binlog.binlog_source.cluster.status_port import OwnCluster, StatusPorts
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import (
    ASK_AFTER,
    ASKED_AT_ONCE,
    Decision,
    Reading,
    TransactionState,
    Verdict,
    WaitingTimes,
    decide,
    outcome_payload,
    require_past,
    running_time,
    undecided_text,
)
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.index import Entry
from pyspark_tidb_binlog.binlog_source.pump.storage.record import canonical, parse
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store
from pyspark_tidb_binlog.schemas.errors import BinlogPurged, ConfigError, Corruption, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time, physical_ms, tso
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_ALARM_EVERY, _UNDECIDED_EVERY = 10.0, 60.0
_ANY_TS = (1 << 63) - 1
_CLOCKS_DIFFER_MS = 60_000
_SETTLE = "Find out the outcome, and state it to this Pump: PUT /orphans/{0}/commit/COMMIT_TS or PUT /orphans/{0}/rollback"
_log = logging.getLogger(__name__)


def settle(store: Store, start_ts: int, commit_ts: int, present: Callable[[], int]) -> str:
    """Write the outcome that an operator states for a waiting Prewrite: its ``commit_ts``, or 0 for rolled back. Returns what was done, as text.

    ``present`` returns a ts that no commit_ts exceeds. A commit_ts that is too high would make this Pump promise that nothing below it follows.

    Raises:
        ConfigError: no such Prewrite waits, or it cannot have committed at that ts.
        PumpUnavailable: ``present`` got no answer.
    """
    with store.settling(start_ts) as waits:
        if not waits:
            raise ConfigError(
                f"no Prewrite of start_ts {start_ts} waits for its outcome on this Pump: GET /orphans lists the Prewrites that wait"
            )
        promised = store.state.sorted_promise
        if commit_ts and commit_ts <= max(start_ts, promised):
            raise ConfigError(f"start_ts {start_ts} cannot have committed at {commit_ts}: give a commit_ts above {max(start_ts, promised)}")
        if commit_ts:
            require_past(start_ts, commit_ts, present())
        if commit_ts and store.entry(commit_ts) is not None:
            raise ConfigError(f"start_ts {start_ts} cannot have committed at {commit_ts}: another binlog has this ts")
        store.write([canonical(outcome_payload(start_ts, commit_ts))])
    said = f"committed at {commit_ts}" if commit_ts else "rolled back"
    _log.warning("an operator settled start_ts %d: %s", start_ts, said)
    return f"start_ts {start_ts} is {said}"


def near_present(store: Store) -> int:
    """A ts that no commit_ts can be above, for a Pump without a registry: by this machine's clock and the log, which may be behind a little."""
    return max(tso(time.time_ns() // 1_000_000), store.written_max_ts) + tso(_CLOCKS_DIFFER_MS)


class OrphanResolver:
    """Resolves the waiting Prewrites, one pass per call."""

    def __init__(
        self,
        service: PumpService,
        ports: Callable[[], Sequence[str]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        safe_point: Callable[[StatusPorts], int | None] = StatusPorts.gc_safe_point,
        address: str = "HOST:PORT",
        running: Callable[[], Reading] = running_time,
        tls: TlsSettings | None = None,
        cluster: Callable[[], OwnCluster] = lambda: OwnCluster(),
    ) -> None:
        """``ports``: the status ports to ask (``status_port``), ``tls``: the cluster's.

        ``cluster``: the Pump's, of which the ports must be. ``safe_point``: up to which ts MVCC data is collected; ``address``: of this Pump, for messages; ``running``: the clock of waiting.
        """
        self._running = running
        self._waits = WaitingTimes()
        self._service = service
        self._safe_point = safe_point
        self._address = address
        self._undecided: dict[int, str] = {}
        self._ports = ports
        self._tls = tls
        self._cluster = cluster
        self._now_ms = now_ms
        self._alarmed_at = self._told_at = float("-inf")
        """How often the outcome of a Prewrite could not be found out."""

    def __call__(self) -> None:
        """Write the outcomes that the upstream reports."""
        # a slow clock must not make the Prewrites appear younger than they are
        now = max(self._now_ms(), physical_ms(self._service.store.state.max_ts))
        waiting = self._service.store.orphans(tso(now - int(ASK_AFTER * 1000)))
        self._undecided = {entry.ts: self._undecided[entry.ts] for entry in waiting if entry.ts in self._undecided}
        running = self._running()
        absent = {entry.ts for entry in waiting[ASKED_AT_ONCE:] if entry.ts in self._waits.since_ms}
        try:
            ports = StatusPorts(self._ports(), self._tls, self._cluster) if waiting else None
            for entry in waiting[:ASKED_AT_ONCE]:
                assert ports is not None
                verdict = self._settle(entry, ports, self._waits.waited_ms(entry.ts, running))
                if verdict is not None and verdict.finding is TransactionState.ABSENT:
                    absent.add(entry.ts)
        except PumpUnavailable as error:
            self._alarm(waiting, error)
        self._waits = self._waits.seen(absent, running)

    def waiting(self) -> list[dict[str, object]]:
        """The Prewrites that wait for their outcome, for operators. ``undecided``: why only an operator can settle the Prewrite, else ""."""
        return [
            {"start_ts": entry.ts, "since": as_time(entry.ts), "undecided": self._undecided.get(entry.ts, "")}
            for entry in self._service.store.orphans(_ANY_TS)
        ]

    def _settle(self, entry: Entry, ports: StatusPorts, waited_ms: float) -> Verdict | None:
        """The upstream's verdict; None: the upstream cannot be asked, because the Prewrite is damaged."""
        try:
            key = parse(self._service.store.payload(entry)).prewrite_key
        except (Corruption, BinlogPurged) as error:
            # those behind it must be asked nevertheless
            self._tell(
                entry,
                f"start_ts {entry.ts} ({as_time(entry.ts)}) waits for its outcome, and its Prewrite cannot be read: {error}. {_SETTLE.format(entry.ts)}",
            )
            return None
        self._service.metrics.asked()
        verdict = ports.ask(entry.ts, key)
        match decide(verdict, entry.ts, waited_ms, self._safe_point(ports)):
            case Decision.WAIT:
                pass
            case Decision.UNDECIDED:
                self._tell(entry, undecided_text(entry.ts, key, verdict, self._service.node_id, self._address, self._tls))
            case Decision.COMMIT | Decision.ROLL_BACK:
                self._write(entry, verdict)
        return verdict

    def _write(self, entry: Entry, verdict: Verdict) -> None:
        _log.warning(
            "Pump %s: TiDB did not write the outcome of start_ts %d (%s). The upstream reports: %s", self._service.node_id, entry.ts,
            as_time(entry.ts), verdict.finding.value,
        )  # fmt: skip
        with self._service.store.settling(entry.ts) as waits:
            if waits:
                self._service.store.write([canonical(outcome_payload(entry.ts, verdict.commit_ts))])

    def _tell(self, entry: Entry, text: str) -> None:
        """Log it when it is new, and again every ``_UNDECIDED_EVERY`` seconds."""
        new = entry.ts not in self._undecided
        self._undecided[entry.ts] = text
        if new or time.monotonic() - self._told_at >= _UNDECIDED_EVERY:
            self._told_at = time.monotonic()
            _log.error("Pump %s: %s", self._service.node_id, text)

    def _alarm(self, waiting: Sequence[Entry], error: PumpUnavailable) -> None:
        if time.monotonic() - self._alarmed_at >= _ALARM_EVERY:
            self._alarmed_at = time.monotonic()
            _log.error(
                "Pump %s: %d Prewrites wait for an outcome, the oldest since %s (start_ts %d), and %s. No Drainer can advance beyond these Prewrites. "
                "Set tidb-status to a TiDB's status port", self._service.node_id, len(waiting), as_time(waiting[0].ts), waiting[0].ts, error,
            )  # fmt: skip
