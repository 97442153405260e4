"""Which Pumps a stream calls, and how they deliver their logs."""

from collections.abc import Mapping
from contextlib import closing

from pyspark_tidb_binlog.binlog_source.cluster.discovery import PumpDiscovery, discovery_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint, offers_raw
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.events import Delivery


def endpoints_of(config: SourceConfig, discovery: PumpDiscovery, pumps: Mapping[str, str]) -> dict[str, Endpoint]:
    """Where and how to call the Pumps, given by id and address; in the order of their ids."""
    cluster_id = discovery.cluster_id()
    return {
        pump: Endpoint(pump, address, cluster_id, discovery.tls, config.compressor == "gzip") for pump, address in sorted(pumps.items())
    }


def resolve_delivery(config: SourceConfig, patience: float = 60.0) -> Delivery:
    """The delivery that ``config`` sets; if it sets none: raw if every Pump offers it, else sorted. ``patience``: seconds."""
    if config.delivery:
        return Delivery(config.delivery)
    with closing(discovery_of(config)) as discovery:
        endpoints = endpoints_of(config, discovery, discovery.pumps())
    return Delivery.RAW if all(offers_raw(endpoint, patience) for endpoint in endpoints.values()) else Delivery.SORTED
