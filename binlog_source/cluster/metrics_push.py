"""Sends metrics to a Prometheus push gateway, as the real Drainer and Pump do: job ``binlog``, grouped by ``instance``, the node id.

Promises: each push replaces the former push of the same instance. If the gateway does not answer, the task logs that and tries again after
the interval. Nothing else depends on the gateway.
"""

import base64
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote_plus

from pyspark_tidb_binlog.binlog_source.cluster.periodic_task import PeriodicTask
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.http_client import FAILURES, fetch

_TIMEOUT = 10.0
_ACCEPTED = (HTTPStatus.OK, HTTPStatus.ACCEPTED)


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
            answer = fetch(url, _TIMEOUT, "PUT", text())
        except (*FAILURES, ValueError) as error:
            raise OSError(f"cannot push metrics to {gateway}: {error}") from error
        if answer.status not in _ACCEPTED:
            raise OSError(f"the push gateway {gateway} answered {answer.status}: {answer.text.strip()[:200]}")

    return PeriodicTask(f"{instance} metrics", interval, push)
