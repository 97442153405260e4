"""Whether ``[spark.upstream]`` is a TiDB of the cluster whose binlogs come: tables of another one would be copied without an error.

Promises: told by the ids of TiDB servers, which no two processes share: those that the stream's side knows (PD, or the status ports) and those that the
upstream tells by SQL. A cluster's id cannot be asked by SQL in the versions of TiDB that have binlogs. Where one side does not tell, nobody knows.
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
    if isinstance(where, str) and "://" not in where:
        raise PumpUnavailable(f"the DDL history is the file {where}, so no TiDB server of the stream's cluster is known")
    return StatusPorts(status_ports(where) if isinstance(where, str) else where(), tls).servers()


def unverified(upstream: SnapshotSource, cluster_id: int, known: StreamServers) -> str:
    """Why it is not known whether ``upstream`` is of the stream's cluster; empty: it is.

    Raises:
        BootstrapRefused: it is of another one.
        RetryableApplyError: it does not answer.
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
        return f"no TiDB server is told by {'spark.upstream' if ours else 'the side of the stream'}"
    if not ours.keys() & theirs.keys():
        raise BootstrapRefused(
            f"spark.upstream ({upstream.where}) is a TiDB of another cluster than {cluster_id}, whose binlogs come: its cluster has the TiDB servers "
            f"{_some(theirs)}; cluster {cluster_id} has {_some(ours)}. Correct spark.upstream, or pd-urls, spark.pumps and spark.tidb-status"
        )
    return ""


def _some(servers: Mapping[str, str]) -> str:
    shown = [f"{address} ({uuid})" for uuid, address in sorted(servers.items())]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
