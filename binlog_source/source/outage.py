"""A registry or Pump that does not answer: the stream waits, and fails only after ``patience`` seconds. Shell over a clock.

Promises: an error is raised once it has lasted for ``patience`` seconds without one success. Until then it is logged.
"""

import logging
import time

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

_log = logging.getLogger(__name__)


class Outage:
    """How long something has not answered."""

    def __init__(self, patience: float) -> None:
        """``patience``: seconds."""
        self.patience = patience
        self._since = 0.0

    def began(self, at: float) -> None:
        """It has lasted since ``at``, by the monotonic clock, if not for longer."""
        self._since = self._since or at

    def over(self) -> None:
        """Everything answers."""
        self._since = 0.0

    def endure(self, error: PumpUnavailable) -> None:
        """Log an error, or raise it if it has lasted too long."""
        now = time.monotonic()
        self.began(now)
        if now - self._since >= self.patience:
            raise error
        _log.warning("no new batch: %s", error)
