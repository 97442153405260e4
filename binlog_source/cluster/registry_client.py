"""Client of the standalone registry and oracle, over HTTP; and ``open_registry``, which chooses between this one and PD.

Promises: those of ``binlog_source.cluster.registry.Registry``. A client has one keep-alive connection, and one more for each call that
waits for changes, so that a wait blocks no other call. A lost connection is reopened once per call. Then ``PumpUnavailable`` names the URL
that did not answer.
"""

import json
import threading
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry
from pyspark_tidb_binlog.binlog_source.cluster.registry import Listing, NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpAnswer, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

PD_SCHEME = "pd://"
_TIMEOUT = 10.0


class RegistryClient:
    """A client of ``http://host:port`` or ``https://host:port`` (``jobs/lab/registry/cluster_service.py``)."""

    def __init__(self, url: str, tls: TlsSettings | None = None) -> None:
        """``tls``: how an ``https://`` server is verified; None: by the CAs that this machine trusts."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ConfigError(f"registry {url!r} is not of the form http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self._open = partial(HttpConnection, parts.hostname, parts.port, tls=parts.scheme == "https" and (tls or True))
        self._connection = self._open(_TIMEOUT)
        self._lock = threading.Lock()
        self._waiting: set[HttpConnection] = set()

    def cluster_id(self) -> int:
        """The cluster's id."""
        return int(self._json("GET", "/cluster_id")["cluster_id"])

    def tso(self, count: int = 1) -> int:
        """The first of ``count`` consecutive new timestamps."""
        return int(self._json("GET", f"/tso?count={count}")["ts"])

    def gc_safe_point(self) -> int:
        """MVCC data up to this ts may be collected."""
        return int(self._json("GET", "/gc_safe_point")["gc_safe_point"])

    def tidb_servers(self) -> None:
        """Unknown here."""

    def listing(self, kind: str) -> Listing:
        """Every node of ``kind`` that ever registered, by node id."""
        return _listing(self._json("GET", f"/registry/{kind}"))

    def changes(self, kind: str, after: int, timeout: float) -> Listing:
        """The nodes of ``kind`` written after revision ``after``; waits up to ``timeout`` seconds for one (``Registry``)."""
        path = f"/registry/{kind}?after={after}&wait={max(0.0, timeout):f}"
        with self._open(timeout + _TIMEOUT) as connection:
            self._waiting.add(connection)
            try:
                answer = connection.request("GET", path)
            except FAILURES as error:
                raise self._silent(error) from error
            finally:
                self._waiting.discard(connection)
        return _listing(self._parsed(path, self._checked(path, answer)))

    def put_status(self, kind: str, status: NodeStatus) -> None:
        """Register a node (``kind`` is ``pumps`` or ``drainers``); the last writer wins."""
        self._request("PUT", f"/registry/{kind}/{quote(status.node_id, safe=':')}", status.to_json().encode())

    def own_state(self, kind: str, node_id: str) -> NodeState | None:
        """The state that a node registered last itself; None: it has not."""
        said = self._json("GET", f"/registry/{kind}/{quote(node_id, safe='')}/own")
        return NodeState(said["state"]) if said["state"] else None

    def close(self) -> None:
        """Close the connections, which ends every wait; the next request opens them again."""
        for waiting in tuple(self._waiting):
            waiting.interrupt()
        with self._lock:
            self._connection.close()

    def _json(self, method: str, path: str) -> Any:
        return self._parsed(path, self._request(method, path))

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with self._lock:
            try:
                answer = self._connection.request(method, path, body)
            except FAILURES:
                # the server may have closed the idle connection; a second failure is real
                try:
                    answer = self._connection.request(method, path, body)
                except FAILURES as error:
                    raise self._silent(error) from error
        return self._checked(path, answer)

    def _silent(self, error: Exception) -> PumpUnavailable:
        return PumpUnavailable(f"registry {self.url} does not answer ({error}): check that the registry runs, and at this address")

    def _checked(self, path: str, answer: HttpAnswer) -> bytes:
        if not answer.ok:
            raise PumpUnavailable(f"registry {self.url}{path} answered {answer.status}: {answer.text}")
        return answer.body

    def _parsed(self, path: str, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ProtocolViolation(f"registry {self.url}{path} did not answer with JSON: {answer[:200]!r}") from error


def _listing(data: Any) -> Listing:
    try:
        items, revision = tuple(data["nodes"]), int(data["revision"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolViolation(f"the registry did not answer with a listing: {data!r}") from error
    return Listing(tuple(NodeStatus.from_dict(item) for item in items), revision)


def open_registry(url: str, tls: TlsSettings | None) -> Registry:
    """The registry at ``http://host:port`` (standalone) or ``pd://host:port,host:port`` (PD); no request is sent yet.

    ``tls``: the cluster's; PD is then spoken to with it, unless its addresses are URLs themselves, and the standalone registry where its
    URL is ``https://``.

    Raises:
        ConfigError: the URL has another form.
    """
    if url.startswith(PD_SCHEME):
        addresses = [address.strip() for address in url.removeprefix(PD_SCHEME).split(",") if address.strip()]
        scheme = "" if all("://" in address for address in addresses) else "https://" if tls else "http://"
        return PdRegistry(",".join(scheme + address for address in addresses), tls)
    if url.startswith(("http://", "https://")):
        return RegistryClient(url, tls)
    raise ConfigError(f"registry {url!r} is not of the form http://host:port (standalone) or pd://host:port,host:port (PD)")


def tidb_status_ports(registry: Registry) -> tuple[str, ...]:
    """``host:port`` of the status port of each TiDB server that ``registry`` knows, ascending.

    Raises:
        PumpUnavailable: PD does not answer.
    """
    return tuple(sorted(set((registry.tidb_servers() or {}).values())))


def status_ports_in(url: str, tls: TlsSettings | None) -> tuple[str, ...]:
    """The ``tidb_status_ports`` of the registry at ``url``, over a connection of its own."""
    with closing(open_registry(url, tls)) as registry:
        return tidb_status_ports(registry)
