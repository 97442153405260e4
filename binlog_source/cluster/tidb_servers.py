"""The status ports of the running TiDB servers, as PD knows them now.

Promises: PD is asked at most every ``ASK_EVERY`` seconds, so an added, moved or removed server is noticed without a restart. While PD does
not answer, or names no server, the last known ports are returned: a server that restarts has the same address. Thread-safe.
"""

import logging
import threading
import time
from collections.abc import Callable

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

ASK_EVERY = 5.0
"""Seconds for which an answer of PD is used."""
_log = logging.getLogger(__name__)


class TidbServers:
    """``ask`` returns ``host:port`` of each running server (``PdRegistry.tidb_status_ports``)."""

    def __init__(self, ask: Callable[[], tuple[str, ...]], clock: Callable[[], float] = time.monotonic, scheme: str = "http") -> None:
        self._ask = ask
        self._scheme = scheme
        self._clock = clock
        self._known: tuple[str, ...] = ()
        self._asked_at = float("-inf")
        self._lock = threading.Lock()

    def status_ports(self) -> tuple[str, ...]:
        """``host:port`` of each server.

        Raises:
            PumpUnavailable: none is known, because PD does not answer or no TiDB server has registered itself there.
        """
        with self._lock:
            if self._clock() - self._asked_at >= ASK_EVERY:
                self._refresh()
            return self._known

    def _refresh(self) -> None:
        try:
            found = self._ask()
        except PumpUnavailable as error:
            if not self._known:
                raise
            _log.warning("PD names no TiDB servers now, so the last known status ports are used, %s: %s", ", ".join(self._known), error)
            found = ()
        if found and found != self._known:
            _log.info("TiDB's status ports: %s", ", ".join(found))
        self._known = found or self._known
        if not self._known:
            raise PumpUnavailable(
                "PD names no running TiDB server, so no status port can be asked: start a TiDB server, or set tidb-status"
            )
        self._asked_at = self._clock()

    def urls(self) -> tuple[str, ...]:
        """The same as ``http://host:port`` each; with TLS in the cluster, ``scheme`` is ``https``."""
        return tuple(f"{self._scheme}://{address}" for address in self.status_ports())
