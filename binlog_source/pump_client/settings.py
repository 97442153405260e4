"""The constants of TiDB's Pump client (pump_client.md 1 and 2), each a field with unit and default.

Promises: pure; a value that cannot work is refused with a ``ValueError`` that names the field. The timeout of the registry is the registry's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PumpClientSettings:
    """How a client chooses, waits and gives up."""

    write_timeout: float = 15.0
    """One call may take so long, and Prewrites are tried in turn for at least so long. Seconds; TiDB's ``binlog.write-timeout``."""
    probe_interval: float = 30.0
    """Between two looks whether an unavailable Pump answers again. Seconds."""
    max_errors: int = 10
    """Failed calls in a row that a Pump may have and still be usable."""
    prewrite_pause: float = 0.1
    """Before a Prewrite is tried again. Seconds."""
    outcome_pause: float = 1.0
    """Before a Commit or Rollback is tried again. Seconds."""
    outcome_patience: float = 600.0
    """Age from which a Commit or Rollback that fails is given up. Seconds."""
    strategy: str = "range"
    """How a Pump is chosen: ``range``, ``hash`` or ``score``; anything else is ``range``, with a warning (``selection.py``)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """This client's own labels. Pumps that carry all of them come first; others get what no available one of these takes. Empty: all are alike."""
    socket: str = ""
    """``unix:///path`` of the one local Pump that everything is written to, instead of those of the registry; TiDB's ``binlog-socket``."""
    gather: float = 0.0
    """Prewrites of several callers, and outcomes, begun within so long go to a Pump in one call; 0 = each alone at once. Seconds."""
    watch_wait: float = 1.0
    """One question to the registry for news may wait so long; so long may ``close`` take. Seconds."""

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
