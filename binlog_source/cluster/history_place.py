"""Finds out where to read the upstream's DDL history: at a named place, or at the running TiDB servers, as PD knows them now."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from pyspark_tidb_binlog.binlog_source.cluster.registry_client import PD_SCHEME, status_ports_in
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.tls import TlsSettings

ASK_EVERY = 5.0
"""Seconds for which an answer of PD is used."""
_log = logging.getLogger(__name__)


class TidbServers:
    """The status ports of the running TiDB servers. Thread-safe.

    PD is asked at most every ``ASK_EVERY`` seconds, so an added, moved or removed server is noticed without a restart. While PD does not answer, or
    names no server, the last known ports are returned: a server that restarts has the same address.
    """

    def __init__(self, ask: Callable[[], tuple[str, ...]], clock: Callable[[], float] = time.monotonic, scheme: str = "http") -> None:
        """``ask`` returns ``host:port`` of each (``status_ports_in``)."""
        self._ask = ask
        self._scheme = scheme
        self._clock = clock
        self._known: tuple[str, ...] = ()
        self._asked_at = float("-inf")
        self._lock = threading.Lock()

    def urls(self) -> tuple[str, ...]:
        """``http://host:port`` of each server; with TLS in the cluster, ``scheme`` is ``https``.

        Raises:
            PumpUnavailable: none is known, because PD does not answer or no TiDB server has registered itself there.
        """
        with self._lock:
            if self._clock() - self._asked_at >= ASK_EVERY:
                self._refresh()
            return tuple(f"{self._scheme}://{address}" for address in self._known)

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


def history_at(source: SourceConfig, tls: TlsSettings | None, setting: str = "spark.tidb-status") -> str | Callable[[], Sequence[str]]:
    """The place of the history for ``HistoryFeed``: ``tidb_status``, else the standalone registry, else the TiDB servers that PD knows.

    Args:
        source: the Pumps and their registry, and ``tidb_status``: status ports, the path of a recorded history, or empty = ask the registry.
        tls: the cluster's; None: without TLS.
        setting: the setting that an error tells the user to set.

    Raises:
        ConfigError: neither ``tidb_status`` nor a registry is set.
    """
    if source.tidb_status:
        return source.tidb_status
    if "://" not in source.pumps:
        raise ConfigError(f"{setting} is not set: name TiDB's status port (http://host:10080) or a recorded history file")
    if not source.pumps.startswith(PD_SCHEME):
        return source.pumps
    return TidbServers(partial(status_ports_in, source.pumps, tls), scheme="https" if tls else "http").urls
