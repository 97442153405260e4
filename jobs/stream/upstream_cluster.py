"""Checks that ``[spark.upstream]`` is a TiDB of the stream's cluster: tables of another cluster would be copied without an error.

Promises: compares the ids of TiDB servers, which no two processes share. The stream's side has them from PD or the status ports, the upstream reports
them by SQL. In the versions of TiDB with binlogs, SQL does not report a cluster's id. If one side reports no servers, the answer is unknown.
"""

from collections.abc import Callable, Mapping, Sequence

from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts, status_ports
from pyspark_tidb_binlog.schemas.errors import ApplyError, BootstrapRefused, PumpUnavailable, RetryableApplyError
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource

StreamServers = Callable[[], Mapping[str, str]]
"""``ip:port`` of each TiDB server of the stream's cluster, by id; ``PumpUnavailable``: not known."""


def servers_at(where: str | Callable[[], Sequence[str]], tls: TlsSettings | None) -> Mapping[str, str]:
    """The stream's TiDB servers; ``where``: of the DDL history, as ``history_at`` gives it.

    Raises:
        PumpUnavailable: no status port answers, or the history is a file.
    """
    return ports_at(where, tls).servers()


def ports_at(where: str | Callable[[], Sequence[str]], tls: TlsSettings | None) -> StatusPorts:
    """The status ports at ``where``, of the DDL history.

    Raises:
        PumpUnavailable: the history is a file, or PD does not answer.
    """
    if isinstance(where, str) and "://" not in where:
        raise PumpUnavailable(f"the DDL history is the file {where}, so no TiDB server of the stream's cluster is known")
    return StatusPorts(status_ports(where) if isinstance(where, str) else where(), tls)


def unverified(upstream: SnapshotSource, cluster_id: int, known: StreamServers) -> str:
    """Why the check has no answer; empty: ``upstream`` belongs to the stream's cluster.

    Raises:
        BootstrapRefused: ``upstream`` belongs to another cluster.
        RetryableApplyError: ``upstream`` does not answer.
    """
    try:
        ours = known()
    except PumpUnavailable as error:
        return str(error)
    try:
        theirs = {server.id: server.address for server in upstream.servers()}
    except RetryableApplyError:
        raise
    except ApplyError as error:
        return str(error)
    if not ours or not theirs:
        return f"{'spark.upstream' if ours else 'the side of the stream'} reports no TiDB server"
    if not ours.keys() & theirs.keys():
        raise BootstrapRefused(
            f"spark.upstream ({upstream.where}) is a TiDB of another cluster than {cluster_id}, whose binlogs the stream reads: its cluster has the TiDB servers "
            f"{_some(theirs)}; cluster {cluster_id} has {_some(ours)}. Correct spark.upstream, or pd-urls, spark.pumps and spark.tidb-status"
        )
    return ""


def _some(servers: Mapping[str, str]) -> str:
    shown = [f"{address} ({uuid})" for uuid, address in sorted(servers.items())]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
