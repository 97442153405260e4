"""Client of TiDB's status port, or of the embedded upstream's. HTTP shell around ``txn_outcome``.

    GET /mvcc/hex/{key}        what the upstream reports about a transaction (rows.md 9.3)
    GET /schema, /schema/{db}  the schema that the TiDB server has now
    GET /ddl/history           one DDL job
    GET /info/all              the TiDB servers: id, address, version, whether they write binlogs

A port must be of the cluster of this program. Another cluster's TiDB has no trace of our Prewrites, so each committed transaction would be
settled as rolled back.

    PD names the port's address, or the id of a TiDB server that /info reports   ours (a load balancer passes /info on)
    /cluster_id answers (the standalone registry, the embedded upstream)         the id decides
    no PD, and the port reports no id: a TiDB                                    assumed to be ours

A port is ``http://host:port``, ``https://host:port``, or ``host:port`` as PD names it. The last form uses TLS if the cluster does.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import TransactionState, Verdict, mvcc_info, verdict_of
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpAnswer, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

A = TypeVar("A")
_TIMEOUT = 5.0
_PORTS = {"http": 80, "https": 443}


def status_ports(urls: str) -> tuple[str, ...]:
    """``http://host:port,https://host:port`` as ``scheme://host:port`` each.

    Raises:
        ConfigError: one of them is not such a URL.
    """
    found = []
    for url in filter(None, (part.strip() for part in urls.split(","))):
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or parts.hostname is None:
            raise ConfigError(f"status port {url!r} is not of the form http://host:port or https://host:port")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        found.append(f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """What is known of the cluster: with PD, a port must show a TiDB server of it. Pure."""

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


class StatusPorts:
    """The status ports of one cluster. Each request goes to the first port that answers. A port that failed is asked last from then on."""

    def __init__(self, addresses: Sequence[str], tls: TlsSettings | None, cluster: Callable[[], OwnCluster] = lambda: OwnCluster()) -> None:
        """``addresses``: at least one; ``tls``: the cluster's; ``cluster``: the ports must be of it (``PumpUnavailable``: not known now)."""
        self._addresses = tuple(addresses)
        self._tls = tls
        self._cluster = functools.cache(cluster)
        self._why_foreign = functools.cache(self._look_whose)

    def ask(self, start_ts: int, key: bytes) -> Verdict:
        """The outcome of the transaction ``start_ts`` with primary key ``key``. "No trace" counts only from a port of this cluster.

        Raises:
            PumpUnavailable: no port answered, so there is no verdict.
        """

        def ask(address: str) -> Verdict:
            verdict = verdict_of(self._mvcc(address, key), start_ts)
            if verdict.finding is TransactionState.ABSENT and (why := self._why_foreign(address)):
                raise ValueError(why)
            return verdict

        return self._first(ask, f"about start_ts {start_ts}")

    def gc_safe_point(self) -> int | None:
        """The MVCC GC safe point, if the port reports it: the embedded upstream's does, TiDB's does not (PD does)."""
        try:
            return int(self._first(lambda address: self._json(address, "/gc_safe_point"), "for the GC safe point")["gc_safe_point"])
        except PumpUnavailable:
            return None

    def look_up(self, key: bytes) -> Any:
        """The MVCC data of a key, as JSON; ``PumpUnavailable`` if no port answered."""

        def ask(address: str) -> Any:
            answer = self._mvcc(address, key)
            mvcc_info(answer)
            return answer

        return self._first(ask, f"about key {key.hex()}")

    def databases(self) -> Any:
        """The JSON of every database's ``DBInfo``, those in memory too; ``PumpUnavailable`` if no port answered."""
        return self._first(lambda address: self._json(address, "/schema"), "for the databases")

    def tables(self, database: str) -> Any:
        """The JSON of every ``TableInfo`` of a database; ``PumpUnavailable`` if no port answered, or none knows the database."""
        path = f"/schema/{quote(database, safe='')}"
        return self._first(lambda address: self._json(address, path), f"for the tables of database {database!r}")

    def servers(self) -> dict[str, str]:
        """``ip:port`` of every TiDB server of the cluster, by its id; ``PumpUnavailable`` if no port answered."""
        return {str(uuid): _server(info) for uuid, info in self._infos().items()}

    def versions(self) -> dict[str, str]:
        """The version of every TiDB server, such as ``8.0.11-TiDB-v8.3.0``, by its ``ip:port``; ``PumpUnavailable`` if no port answered."""
        return {_server(info): str(info.get("version", "")) for info in self._infos().values()}

    def binlogs(self) -> dict[str, str]:
        """``On``, ``Off``, ``Skipping`` or ``Unknown`` of every TiDB server, by its ``ip:port``; ``PumpUnavailable`` if no port answered."""
        return {_server(info): str(info.get("binlog_status", "")) for info in self._infos().values()}

    def job(self, job_id: int) -> Any:
        """The JSON of one finished DDL job; None if the history does not have it. ``PumpUnavailable`` if no port answered."""
        path = f"/ddl/history?start_job_id={job_id}&limit=1"
        found = self._first(lambda address: self._json(address, path), f"for DDL job {job_id}") or []
        return next((job for job in found if job["id"] == job_id), None)

    def _infos(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._first(
            lambda address: self._json(address, "/info/all")["all_servers_info"], "for the TiDB servers"
        )
        return found

    def _first(self, question: Callable[[str], A], about: str) -> A:
        failures = []
        for address in self._addresses:
            try:
                return question(address)
            except (*FAILURES, ValueError, KeyError, TypeError) as error:
                failures.append(f"{address}: {error}")
                self._addresses = (*(other for other in self._addresses if other != address), address)
        raise PumpUnavailable(f"no status port answers the request {about} ({'; '.join(failures) or 'none is known'})")

    def _look_whose(self, address: str) -> str:
        """Why this port's silence about a transaction means nothing; "" where it is the cluster's."""
        cluster = self._cluster()
        if cluster.believes(address):
            return ""
        told, server = self._page(address, "/cluster_id"), self._page(address, "/info")
        cluster_id, server_id = told.get("cluster_id"), server.get("ddl_id")
        return cluster.why_foreign(int(cluster_id) if cluster_id is not None else None, str(server_id) if server_id else None)

    def _page(self, address: str, path: str) -> dict[str, Any]:
        """What a page answers; nothing where there is none."""
        answer = self._answer(address, path)
        try:
            found = json.loads(answer.body) if answer.ok else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _mvcc(self, address: str, key: bytes) -> Any:
        return self._json(address, f"/mvcc/hex/{key.hex()}")

    def _json(self, address: str, path: str) -> Any:
        answer = self._answer(address, path)
        if not answer.ok:
            raise ValueError(f"HTTP {answer.status} {answer.body[:200].decode(errors='replace')}")
        return json.loads(answer.body)

    def _answer(self, address: str, path: str) -> HttpAnswer:
        scheme, _, place = address.rpartition("://")
        secure = self._tls is not None if not scheme else scheme == "https"
        with HttpConnection.to(place, _TIMEOUT, tls=secure and (self._tls or True)) as connection:
            return connection.request("GET", path)


def own_cluster(registry: Registry | None, cluster_id: int) -> OwnCluster:
    """The cluster of ``registry``; ``cluster_id``: the configured one, 0 = the registry's.

    Raises:
        PumpUnavailable: the registry does not answer.
    """
    known = cluster_id or (registry.cluster_id() if registry is not None else 0)
    return OwnCluster(known, registry.tidb_servers() if registry is not None else None)


def mvcc_safe_point(registry: Registry | None, ports: StatusPorts) -> int | None:
    """Up to which ts MVCC data may be collected, from the registry or without one from a status port; None if it is not reported."""
    try:
        return registry.gc_safe_point() if registry is not None else ports.gc_safe_point()
    except PumpUnavailable:
        return None


def _server(info: dict[str, Any]) -> str:
    return f"{info.get('ip')}:{info.get('listening_port')}"
