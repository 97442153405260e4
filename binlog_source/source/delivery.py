"""Which Pumps a stream calls, and how they deliver their logs."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery, Waiting, discovery_of, log_waiting, names_registry, patiently
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, offers_raw, require_itself
from pyspark_tidb_binlog.binlog_source.source.span_read import refusal
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.backoff import Retries, steady
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.events import Delivery, tso

_REFUSES_SECONDS = 1.0
"""A real Pump that takes a pull is silent; one that refuses it says so at once."""
_RECENT_SECONDS = 60.0
"""A real Pump writes a fake binlog every 3 s, so it has something newer than this."""
_ASKED_AGAIN = 0.2
_UNFIT_SECONDS = 3.0
"""A Pump that is far or busy needs several attempts to connect: gRPC gives up the first one after 0.1 s."""


def endpoints_of(config: SourceConfig, discovery: PumpDiscovery, pumps: Mapping[str, str]) -> dict[str, Endpoint]:
    """Where and how to call the Pumps, given by id and address; in the order of their ids."""
    cluster_id, tls, gzip, listed = discovery.cluster_id(), discovery.tls, config.compressor == "gzip", not names_registry(config)
    return {pump: Endpoint(pump, address, cluster_id, tls, gzip, listed) for pump, address in sorted(pumps.items())}


def serving(discovery: PumpDiscovery) -> Mapping[str, str]:
    """The Pumps that a start calls, id and address: not those that are registered as offline, unless there are no others."""
    listed, offline = discovery.pumps(), discovery.offline()
    return {pump: address for pump, address in listed.items() if pump not in offline} or listed


def resolve_delivery(config: SourceConfig, patience: float = 60.0, waiting: Waiting = log_waiting) -> Delivery:
    """The delivery that ``config`` sets; if it sets none: raw if every Pump offers it, else sorted.

    ``patience``: seconds that they may take in all, and the registry; ``waiting`` hears of each attempt that failed.

    Raises:
        PumpUnavailable: the registry, or a Pump, does not answer in time.
    """
    if config.delivery:
        return Delivery(config.delivery)
    with closing(discovery_of(config)) as discovery:
        endpoints = patiently(lambda: endpoints_of(config, discovery, serving(discovery)), patience, waiting)
    until = time.monotonic() + patience
    raw = all(offers_raw(endpoint, max(0.0, until - time.monotonic()), waiting) for endpoint in endpoints.values())
    return Delivery.RAW if raw else Delivery.SORTED


def unfit(config: SourceConfig, discovery: PumpDiscovery, pumps: Mapping[str, str], seconds: float) -> dict[str, str]:
    """By id, which of ``pumps`` (id and address) do not serve this stream, and why, in words that name id and address.

    All are asked at once; ``seconds``: how long to wait for an answer.

    Raises:
        PumpUnavailable: the registry does not answer.
    """
    endpoints = endpoints_of(config, discovery, pumps).values()
    pool = ThreadPoolExecutor(len(endpoints) + 1, "asks a Pump")
    asked = {pool.submit(_unfit, endpoint): endpoint for endpoint in endpoints}
    done, _ = wait(asked, seconds)
    pool.shutdown(wait=False)
    late = f"did not answer within {seconds:.0f} s"
    return {
        pump.pump: text
        for answer, pump in asked.items()
        if (text := answer.result() if answer in done else f"Pump {pump.pump} at {pump.address} {late}")
    }


def _unfit(endpoint: Endpoint) -> str:
    """What is still wrong after ``_UNFIT_SECONDS``; empty: nothing."""
    retries = Retries(steady(_ASKED_AGAIN), _UNFIT_SECONDS)
    while (found := _unfit_now(endpoint)) and not retries.over:
        retries.pause()
    return found


def _unfit_now(endpoint: Endpoint) -> str:
    try:
        if offers_raw(endpoint, 0, lambda why: None):
            return ""
        if refused := refusal(endpoint, _REFUSES_SECONDS, tso(int((time.time() - _RECENT_SECONDS) * 1000))):
            return f"Pump {endpoint.pump} at {endpoint.address} refuses the stream's call: {refused}"
        require_itself(endpoint, _UNFIT_SECONDS)
    except ReplicationError as error:
        return str(error)
    return ""
