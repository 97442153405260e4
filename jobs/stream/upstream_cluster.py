"""The TiDB servers of the stream's cluster: whether ``[spark.upstream]`` is one of them, and which of them write no binlogs.

Tables of another cluster would be copied without an error. Rows written through a server without binlogs are lost without one.

Promises: ``unverified`` compares the ids of TiDB servers, which no two processes share. The stream's side has them from PD or the status ports, the upstream reports
them by SQL. In the versions of TiDB with binlogs, SQL does not report a cluster's id. If one side reports no servers, the answer is unknown.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark_tidb_binlog.binlog_source.cluster.status_port import StatusPorts, status_ports
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, PumpUnavailable, ServerRefused
from pyspark_tidb_binlog.schemas.events import as_time, tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.schemas.remarks import some
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource

LOOK_SECONDS = 30.0
"""Interval between two looks at the servers' binlogs."""
Place = str | Callable[[], Sequence[str]]
"""Of the DDL history, as ``history_at`` gives it: a file, or status ports."""
_log = logging.getLogger(__name__)

StreamServers = Callable[[], Mapping[str, str]]
"""``ip:port`` of each TiDB server of the stream's cluster, by id; ``PumpUnavailable``: not known."""


def ports_at(where: Place, tls: TlsSettings | None) -> StatusPorts:
    """The status ports at ``where``.

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
    except ServerRefused as error:
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
    return some([f"{address} ({uuid})" for uuid, address in sorted(servers.items())], 3)


@dataclass(frozen=True, slots=True)
class SilentServer:
    """A TiDB server that writes no binlogs: rows and DDLs that it executes reach no Pump."""

    address: str
    status: str
    """``Skipping``: it has met an error, with ``binlog.ignore-error``; ``Off``: without ``binlog.enable``."""
    since: str = ""
    """UTC, in words: when the server was seen without this last; empty = not known."""

    @property
    def words(self) -> str:
        """What is wrong."""
        return f"TiDB server {self.address} writes no binlog ({self.status}){f' since {self.since}' if self.since else ''}"


def silent_among(statuses: Mapping[str, str]) -> tuple[SilentServer, ...]:
    """Those of all servers of a cluster, by the ``binlog_status`` of each; Unknown is none of them. Pure."""
    return tuple(SilentServer(address, status) for address, status in sorted(statuses.items()) if status in ("Skipping", "Off"))


class BinlogWatch:
    """Looks from time to time which TiDB servers write no binlogs. A finding says when a server began, another one from when until when it did so.

    Promises: a status port that does not answer changes nothing. ``servers`` and ``findings`` may be asked by other threads.
    """

    def __init__(self, where: Place, tls: TlsSettings | None, clock: Callable[[], float] = time.time) -> None:
        """Looks at nothing."""
        self._where, self._tls, self._clock = where, tls, clock
        self.servers: tuple[SilentServer, ...] = ()
        """Those that wrote none at the last look."""
        self._seen_at = ""
        """When that was; empty = never."""
        self._findings: deque[Finding] = deque()

    def look(self) -> None:
        """Look now."""
        with contextlib.suppress(PumpUnavailable):
            silent, now = silent_among(ports_at(self._where, self._tls).binlogs()), f"{as_time(tso(int(self._clock() * 1000)))[:-4]} UTC"
            before = {one.address: one for one in self.servers}
            since = self._seen_at or f"before {now}"
            self.servers = tuple(replace(one, since=before[one.address].since if one.address in before else since) for one in silent)
            for one in self.servers:
                if before.pop(one.address, None) is None:
                    self._found(f"{one.words}: what is written through it is lost to the stream")
            for one in before.values():
                self._found(
                    f"TiDB server {one.address} wrote no binlog ({one.status}) from {one.since} until {now}: copy what was written through it"
                )
            self._seen_at = now

    def findings(self) -> tuple[Finding, ...]:
        """Those that nobody has taken yet."""
        return tuple(self._findings.popleft() for _ in range(len(self._findings)))

    def _found(self, words: str) -> None:
        _log.warning("%s", words)
        self._findings.append(Finding(FindingKind.LOST, words))
