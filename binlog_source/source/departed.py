"""Pumps that a stream has read and that are gone: which of them it continues without, and with what loss. Pure but for a clock.

    registered as offline by itself, with nothing above R           left: its whole log was read (``PumpDiscovery`` omits it)
    registered as offline, does not answer, and may have had more   lost: it holds R; ``fail-on-data-loss = false`` leaves it out
    set offline by somebody else, and the stream's offset names it  the same; its last heartbeat, older than its death, proves nothing
    not in the registry, or not in the list                         vanished: it holds R, or ends the stream

Promises: a Pump that the stream's offset names is never left out just because it is not listed: a registry may have lost its memory, and a
list may have been mistyped. ``gone-pumps`` names the Pumps that are gone for ever. A Pump that is listed and not offline is read in spite
of it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.cluster.discovery import OfflinePump, names_registry
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Membership:
    """The Pumps of a stream."""

    pumps: Mapping[str, str]
    """Pump id -> ``host:port`` of those to read."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Pumps that the stream leaves out although they may have had binlogs above R, and up to which ts; 0 = unknown."""

    def noted(self, end: BinlogOffset) -> Mapping[str, int]:
        """``left_out`` as a batch that ends at ``end`` records it."""
        return {pump: upto_ts or end.resolved_ts for pump, upto_ts in self.left_out.items()}


class DepartedPumps:
    """Decides for one stream; remembers since when a Pump does not answer."""

    def __init__(self, source: SourceConfig, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``patience``: seconds for which a Pump that is registered as offline has to be silent before it counts as dead."""
        self._source, self._patience, self._clock = source, patience, clock
        self._silent_since: dict[str, float] = {}
        self._left_out: set[str] = set()
        self._told: set[str] = set()

    def membership(
        self, before: BinlogOffset, listed: Mapping[str, str], offline: Mapping[str, OfflinePump], silent: Mapping[str, str]
    ) -> Membership:
        """The Pumps of the batch after ``before``.

        ``listed``: the Pumps that may have binlogs above R, by discovery. ``offline``: all that are registered as offline. ``silent``: the Pumps
        that do not answer, and why. A Pump counts as silent, too, if another Pump has its address.

        Raises:
            PumpUnavailable: a Pump is not in the registry, or is dead with binlogs that were not read.
            ConfigError: a Pump is not in the list.
        """
        gone = self._source.gone
        silent = dict(silent) | {
            pump: f"Pump {left.successor} now answers at its address {left.address}" for pump, left in offline.items() if left.successor
        }
        # A list names Pumps by their addresses: a registry that has taken its place lists the same ones.
        vanished = sorted(set(before.pumps) - set(listed) - set(offline) - set(listed.values()))
        if strangers := [pump for pump in vanished if pump not in gone]:
            raise vanished_error(strangers, before.resolved_ts, self._source)
        for pump in sorted(set(vanished) - self._told):
            _log.warning("%s", left_out_text(pump, before.resolved_ts))
        self._told = set(vanished)
        wanted = {pump: gone.address for pump, gone in offline.items() if pump in before.pumps and not gone.left} | dict(listed)
        passed = before.resolved_ts
        dead = {
            pump: gone.upto_ts if gone.upto_ts > passed else 0
            for pump, gone in offline.items()
            if pump in wanted and self._is_dead(pump, gone, before, silent)
        }
        self._left_out = set(dead)
        self._silent_since = {pump: at for pump, at in self._silent_since.items() if pump in wanted and pump in silent}
        return Membership({pump: at for pump, at in wanted.items() if pump not in dead}, dict.fromkeys(vanished, 0) | dead)

    def _is_dead(self, pump: str, gone: OfflinePump, before: BinlogOffset, silent: Mapping[str, str]) -> bool:
        if pump in self._left_out or pump in before.left:
            return True
        now = self._clock()
        if pump not in silent or (not gone.successor and now - self._silent_since.setdefault(pump, now) < self._patience):
            return False
        if self._source.fail_on_data_loss and pump not in self._source.gone:
            why = (
                "the stream has not read all binlogs of this Pump"
                if gone.left
                else "it did not leave by itself, so the stream may not have read its last binlogs"
            )
            raise PumpUnavailable(
                f"Pump {pump} is registered as offline and does not answer ({silent[pump]}), and {why}: restart this Pump. "
                "If the Pump is gone for ever, name it in spark.gone-pumps, or set spark.fail-on-data-loss = false. The stream then skips "
                f"the binlogs above ts {before.resolved_ts} ({as_time(before.resolved_ts)}) that only this Pump had"
            )
        _log.warning("%s", left_out_text(pump, before.resolved_ts))
        return True


def vanished_error(pumps: list[str], resolved_ts: int, source: SourceConfig) -> PumpUnavailable | ConfigError:
    """The error about ``pumps`` that are no longer named, although the stream has read them up to ``resolved_ts``."""
    names = ", ".join(pumps)
    gone = (
        "If the Pump is gone for ever, or has another name or address now, name it in spark.gone-pumps. The stream then skips the binlogs above "
        f"ts {resolved_ts} ({as_time(resolved_ts)}) that only this Pump had"
    )
    if names_registry(source):
        return PumpUnavailable(
            f"Pump {names} is not in the registry {source.pumps} any more, but the stream still reads this Pump: start it, or check that "
            f"this is the Pump's registry. {gone}"
        )
    return ConfigError(
        f"Pump {names} is not among the Pumps that the settings list, but the stream has read this Pump: name it again. {gone}"
    )


def left_out_text(pump: str, after_ts: int) -> str:
    """The message about a Pump that the stream continues without."""
    return f"Pump {pump} is gone, and the stream continues without it: the binlogs above ts {after_ts} ({as_time(after_ts)}) that only this Pump had are lost"
