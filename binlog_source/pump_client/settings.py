"""What all parts of one Pump client share: its settings, its clock and its counters.

Promises: thread-safe. An invalid setting raises a ``ValueError`` that names the field. The registry has a timeout of its own.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.schemas.tls import TlsSettings


@dataclass(frozen=True, slots=True)
class PumpClientSettings:
    """How a client chooses Pumps, waits, retries and gives up: the constants of TiDB's Pump client (pump_client.md 1 and 2)."""

    write_timeout: float = 15.0
    """Timeout of one call, and the minimum time for which a Prewrite is retried. Seconds; TiDB's ``binlog.write-timeout``."""
    probe_interval: float = 30.0
    """Between two probes of an unavailable Pump. Seconds."""
    max_errors: int = 10
    """Consecutive failed calls up to which a Pump is usable."""
    prewrite_pause: float = 0.1
    """Before a Prewrite is tried again. Seconds."""
    outcome_pause: float = 1.0
    """Before a Commit or Rollback is tried again. Seconds."""
    outcome_patience: float = 600.0
    """Age from which a Commit or Rollback that fails is given up. Seconds."""
    strategy: str = "range"
    """How a Pump is chosen: ``range``, ``hash`` or ``score``; anything else is ``range``, with a warning (``selection.py``)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """This client's own labels. Pumps that have all of them are preferred; others get what none of these accepts. Empty: no preference."""
    socket: str = ""
    """``unix:///path`` of the one local Pump that everything is written to, instead of the registered ones; TiDB's ``binlog-socket``."""
    tls: TlsSettings | None = None
    """How the Pumps are called; None: without TLS, as always at a socket."""
    gather: float = 0.0
    """Outcomes that come within this time go to a Pump in one call; 0 = at once, with those that came during the call before. Seconds."""
    watch_wait: float = 1.0
    """How long one request to the registry waits for changes, and so how long ``close`` may take. Seconds."""

    def __post_init__(self) -> None:
        for name in ("write_timeout", "probe_interval", "prewrite_pause", "outcome_pause", "watch_wait"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("max_errors", "outcome_patience", "gather"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0")
        if self.socket and not self.socket.startswith("unix:"):
            raise ValueError(f"socket must be of the form unix:///path, not {self.socket!r}")


DEFAULTS = PumpClientSettings()
"""What TiDB does when nothing is configured."""


class Clock:
    """The machine's monotonic clock, in seconds from an arbitrary origin. A test can replace it, to let ten minutes pass at once."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def now(self) -> float:
        """The current time."""
        return time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait; True when the clock is closed: the caller should end."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        """End every wait, now and later."""
        self._closed.set()


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the client was made."""

    prewrites: int = 0
    """Prewrites that a Pump accepted."""
    retries: int = 0
    """Retries of records of any kind."""
    failovers: int = 0
    """Prewrites accepted by another Pump than the one tried first."""
    outcomes_given_up: int = 0
    """Commits and Rollbacks that were not written: too old, without a known Prewrite, or for an offline Pump. Orphan resolution finds them."""
    probes: int = 0
    """Empty binlogs sent to unavailable Pumps."""
    demotions: int = 0
    """Pumps found unusable and moved to the unavailable ones."""


class Counters:
    """The counts while they grow. A snapshot is consistent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ClientStats()

    def add(self, **more: int) -> None:
        """Raise counts, by their names in ``ClientStats``."""
        with self._lock:
            self._now = replace(self._now, **{name: getattr(self._now, name) + number for name, number in more.items()})

    def snapshot(self) -> ClientStats:
        """The counts now."""
        return self._now
