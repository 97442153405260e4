"""Checks that a status port belongs to the cluster of this program. Pure; ``StatusPorts`` asks the port.

Another cluster's TiDB has no trace of our Prewrites, so each committed transaction would be settled as rolled back.

    PD names the port's address, or the id of a TiDB server that /info reports   ours (a load balancer passes /info on)
    /cluster_id answers (the standalone registry, the embedded upstream)         the id decides
    no PD, and the port reports no id: a TiDB                                    assumed to be ours

Promises: with PD, a port must show a TiDB server of this cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """What is known of the cluster."""

    cluster_id: int = 0
    """0: unknown."""
    servers: Mapping[str, str] | None = None
    """``ip:status_port`` of each TiDB server that PD names, by id; None: there is no PD."""

    def believes(self, address: str) -> bool:
        """Whether the port need not be asked: PD names this status port, or nothing is known to compare with."""
        if self.servers is None:
            return not self.cluster_id
        return address.rpartition("://")[2] in self.servers.values()

    def why_foreign(self, cluster_id: int | None, server_id: str | None) -> str:
        """Why a port with these ids is not of this cluster; "": it is. None: the port does not report that id."""
        if cluster_id is not None and self.cluster_id:
            return (
                "" if cluster_id == self.cluster_id else f"it is of cluster {cluster_id}, but this program serves cluster {self.cluster_id}"
            )
        if self.servers is None or (server_id is not None and server_id in self.servers):
            return ""
        named = ", ".join(sorted(self.servers.values())) or "none"
        return f"it is no TiDB of this cluster: PD names {named}, but not the server {server_id or 'at this address'}"


def own_cluster(registry: Registry | None, cluster_id: int) -> OwnCluster:
    """The cluster of ``registry``; ``cluster_id``: the configured one, 0 = the registry's.

    Raises:
        PumpUnavailable: the registry does not answer.
    """
    known = cluster_id or (registry.cluster_id() if registry is not None else 0)
    return OwnCluster(known, registry.tidb_servers() if isinstance(registry, PdRegistry) else None)
