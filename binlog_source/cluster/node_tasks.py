"""What a Pump or Drainer repeats in threads: heartbeat, GC, checks; and the push of its metrics to a Prometheus push gateway, as the real
nodes do: job ``binlog``, grouped by ``instance``, the node id.

Promises: a daemon thread that ends soon after ``stop``. A failed task is logged and run again after its interval, as in a real Pump. Each push
replaces the former push of the same instance. Nothing else depends on the gateway.
"""

import base64
import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote_plus

from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.http_client import FAILURES, fetch

_PUSH_TIMEOUT = 10.0
_ACCEPTED = (HTTPStatus.OK, HTTPStatus.ACCEPTED)
_log = logging.getLogger(__name__)


class PeriodicTask:
    """Calls ``act`` every ``interval`` seconds until stopped."""

    def __init__(self, name: str, interval: float, act: Callable[[], None], *, at_once: bool = False) -> None:
        """``at_once``: the first time now, not after an interval."""
        self._interval = interval
        self._wait = 0.0 if at_once else interval
        self._act = act
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._wait):
            self._wait = self._interval
            try:
                self._act()
            except (ReplicationError, OSError) as error:
                _log.warning("%s: %s", self._thread.name, error)
            except Exception:  # logged in full; a node whose heartbeat ended would look dead to all others
                _log.exception("%s", self._thread.name)

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._stopped.set()
        self._thread.join()


def push_url(gateway: str, instance: str) -> str:
    """Where the metrics of ``instance`` are put; ``gateway``: ``host:port`` or a URL."""
    base = gateway if "://" in gateway else f"http://{gateway}"
    if "/" in instance:
        return f"{base.rstrip('/')}/metrics/job/binlog/instance@base64/{base64.urlsafe_b64encode(instance.encode()).decode().rstrip('=')}"
    return f"{base.rstrip('/')}/metrics/job/binlog/instance/{quote_plus(instance)}"


def push_regularly(gateway: str, interval: float, instance: str, text: Callable[[], bytes]) -> PeriodicTask | None:
    """A task that pushes what ``text`` returns every ``interval`` seconds; None without a gateway or an interval.

    Raises:
        ConfigError: ``gateway`` is no address.
    """
    if not gateway or interval <= 0:
        return None
    url = push_url(gateway, instance)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"metrics-addr: {gateway!r} is not of the form host:port or http://host:port")

    def push() -> None:
        try:
            answer = fetch(url, _PUSH_TIMEOUT, "PUT", text())
        except (*FAILURES, ValueError) as error:
            raise OSError(f"cannot push metrics to {gateway}: {error}") from error
        if answer.status not in _ACCEPTED:
            raise OSError(f"the push gateway {gateway} answered {answer.status}: {answer.text.strip()[:200]}")

    return PeriodicTask(f"{instance} metrics", interval, push)
