"""Keeps TiKV's GC behind this Drainer's checkpoint, so that the schema at the checkpoint can be read again (drainer.md 12).

Used only with ``load-schema-snapshot`` and PD; other registries have no GC. As in a real Drainer the safe point belongs to a service
``drainer_<unix nanoseconds>`` in PD. It holds for 300 s and is renewed every 150 s, with up to 11 attempts a second apart.

Promises: if PD does not answer, or refuses because it has no TiKV yet, that is logged and retried, never an error. ``stop`` removes the
service. After a kill -9 the safe point ends after its 300 s.
"""

import logging
import threading
import time
from collections.abc import Callable

from pyspark_tidb_binlog.binlog_source.cluster.endpoints import RequestRefused
from pyspark_tidb_binlog.binlog_source.cluster.node_tasks import PeriodicTask
from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import as_time

HOLD_SECONDS = 300
"""For how long PD keeps a safe point that is not renewed."""
_ATTEMPTS = 11
_PAUSE = 1.0
_log = logging.getLogger(__name__)


class GcHold:
    """The safe point of one Drainer; ``safe_point`` returns its checkpoint's ts."""

    def __init__(self, registry: PdRegistry, safe_point: Callable[[], int], every: float = HOLD_SECONDS / 2, pause: float = _PAUSE) -> None:
        """Set it, if PD answers, and renew it in the background. ``every``, ``pause``: seconds."""
        self._registry = registry
        self._safe_point = safe_point
        self._pause = pause
        self._stopped = threading.Event()
        self._refused_at = 0
        self.service_id = f"drainer_{time.time_ns()}"
        try:
            self._renew()
        except PumpUnavailable as error:
            _log.warning("PD does not keep GC behind this Drainer's checkpoint yet; the next attempt is in %.0f s: %s", every, error)
        self._task = PeriodicTask("GC safe point", every, self._renew)

    def stop(self) -> None:
        """Let GC pass again."""
        self._stopped.set()
        self._task.stop()
        try:
            self._registry.hold_gc(self.service_id, self._safe_point(), 0)
        except PumpUnavailable as error:
            _log.warning(
                "the safe point of this Drainer could not be removed from PD, and may keep GC back for %d s more: %s", HOLD_SECONDS, error
            )

    def _renew(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            wanted = self._safe_point()
            try:
                lowest = self._registry.hold_gc(self.service_id, wanted, HOLD_SECONDS)
            except PumpUnavailable as error:
                if attempt == _ATTEMPTS or isinstance(error, RequestRefused):
                    raise
                if self._stopped.wait(self._pause):
                    return
                continue
            if lowest > wanted != self._refused_at:
                self._refused_at = wanted
                _log.warning(
                    "PD does not keep GC back at the checkpoint %d (%s): GC may have collected up to %d (%s). If this Drainer loses its files "
                    "now, the schema at the checkpoint may no longer be readable. Keep data-dir and Spark's checkpoint directory",
                    wanted, as_time(wanted), lowest, as_time(lowest),
                )  # fmt: skip
            return
