"""Which Pumps a stream calls, and how they deliver their logs."""

import time
from collections.abc import Mapping
from contextlib import closing

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery, Waiting, discovery_of, log_waiting, names_registry, patiently
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, offers_raw
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.events import Delivery


def endpoints_of(config: SourceConfig, discovery: PumpDiscovery, pumps: Mapping[str, str]) -> dict[str, Endpoint]:
    """Where and how to call the Pumps, given by id and address; in the order of their ids."""
    cluster_id, tls, gzip, listed = discovery.cluster_id(), discovery.tls, config.compressor == "gzip", not names_registry(config)
    return {pump: Endpoint(pump, address, cluster_id, tls, gzip, listed) for pump, address in sorted(pumps.items())}


def _serving(discovery: PumpDiscovery) -> Mapping[str, str]:
    """The Pumps that may answer: not those that are registered as offline, unless there are no others."""
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
        endpoints = patiently(lambda: endpoints_of(config, discovery, _serving(discovery)), patience, waiting)
    until = time.monotonic() + patience
    raw = all(offers_raw(endpoint, max(0.0, until - time.monotonic()), waiting) for endpoint in endpoints.values())
    return Delivery.RAW if raw else Delivery.SORTED
