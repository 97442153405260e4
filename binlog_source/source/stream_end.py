"""Where a stream ends: at ``endingCommitTs``, at what the Pumps have now (Trigger.AvailableNow), or when its stop file exists. Shell.

Promises: the end of Trigger.AvailableNow is fixed once, after every Pump has reported its whole log.
"""

import contextlib
import os
import time
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.source.admission import holder
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.source.outage import Outage
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

_QUIET_SECONDS = 0.5


def asking_file(stop_file: str | Path) -> Path:
    """The file that exists from when Spark asks for a batch until it is given one: while it exists, no batch is running."""
    return Path(f"{stop_file}.asking")


class StreamEnd:
    """The end of one stream."""

    def __init__(self, ending_commit_ts: int, stop_file: str, outage: Outage) -> None:
        """``ending_commit_ts`` 0: none; ``stop_file`` empty: none."""
        self.ceiling = ending_commit_ts or None
        """The highest R of the stream, as far as it is known."""
        self.finite = False
        """Whether the stream ends at what the Pumps have now."""
        self._to_be_fixed = False
        self._stop_file = stop_file
        self._outage = outage

    def available_now(self) -> None:
        """Trigger.AvailableNow: end at the R that the Pumps have reached."""
        self.finite = self._to_be_fixed = True

    def stopping(self) -> bool:
        """Whether the stop file exists. If its directory is missing, the answer is yes: who made the directory makes it again."""
        return bool(self._stop_file) and (os.path.exists(self._stop_file) or not os.path.exists(os.path.dirname(self._stop_file) or "."))

    def note_asking(self) -> None:
        """Note that Spark asks for a batch (``asking_file``). A failed note only makes a stop less tidy."""
        if self._stop_file:
            with contextlib.suppress(OSError):
                asking_file(self._stop_file).touch()

    def note_given(self) -> None:
        """Spark is given a batch."""
        if self._stop_file:
            with contextlib.suppress(OSError):
                asking_file(self._stop_file).unlink(missing_ok=True)

    def reached(self, before: BinlogOffset) -> bool:
        """Whether the stream is complete. Trigger.AvailableNow takes an unchanged offset for the end, so it must not be returned before."""
        return self.stopping() or (self.ceiling is not None and before.resolved_ts >= self.ceiling)

    def fix(self, tails: Tails, before: BinlogOffset) -> None:
        """Trigger.AvailableNow: let the stream end at the R known once every Pump has reported its whole log.

        Raises:
            PumpUnavailable: not all Pumps reported it in time.
        """
        if not self._to_be_fixed:
            return
        begun = time.monotonic()
        while not self._told(tails, before, begun):
            if self.stopping():
                return
            time.sleep(_QUIET_SECONDS / 10)
        with tails.changed:
            views = tails.views(before)
        target = max(before.resolved_ts, holder(views, before.delivery).promise) if views else before.resolved_ts
        self.ceiling = target if self.ceiling is None else min(target, self.ceiling)
        self._to_be_fixed = False

    def _told(self, tails: Tails, before: BinlogOffset, begun: float) -> bool:
        """Whether the Pumps have reported their logs: no message for ``_QUIET_SECONDS``, or messages for ten times as long."""
        waited = time.monotonic() - begun
        with tails.changed:
            answered = tails.views(before) is not None
        if not answered and waited >= self._outage.patience:
            self._outage.began(begun)
            raise PumpUnavailable(
                f"Trigger.AvailableNow needs the end of every Pump's log, but after {waited:.0f} s some are missing: {away_text(tails)}"
            )
        if not answered:
            return False
        return tails.quiet_for() >= _QUIET_SECONDS or waited >= 10 * _QUIET_SECONDS


def away_text(tails: Tails) -> str:
    """The unreachable Pumps with their reasons, and what to do."""
    away = "; ".join(f"Pump {pump}: {why}" for pump, why in sorted(tails.unreachable().items()))
    return (
        f"{away or 'a Pump has not reported its log up to the position of the stream'}. Restart the Pump, or set it offline in the registry"
    )
