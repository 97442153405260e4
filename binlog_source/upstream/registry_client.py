"""The registry and oracle over HTTP, as Pumps, the source and the loader use them.

Promises: one kept-alive connection per client, safe for many threads; a lost connection is opened again once per call; then
``PumpUnavailable`` says which URL did not answer.
"""

import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

from binlog_source.registry import DRAINERS, PUMPS, NodeStatus
from schemas.errors import ConfigError, ProtocolViolation, PumpUnavailable

_TIMEOUT = 10.0


class RegistryClient:
    """A client of ``http://host:port`` (``binlog_source/upstream/service.py``)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"registry {url!r} is not of the form http://host:port")
        self.url = url.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=_TIMEOUT)
        self._lock = threading.Lock()

    def pumps(self) -> list[NodeStatus]:
        """All Pumps that ever registered, by node id."""
        return self._nodes(PUMPS)

    def drainers(self) -> list[NodeStatus]:
        """All Drainers that ever registered, by node id."""
        return self._nodes(DRAINERS)

    def _nodes(self, kind: str) -> list[NodeStatus]:
        return [NodeStatus.from_dict(item) for item in self._json("GET", f"/registry/{kind}")]

    def put_status(self, kind: str, status: NodeStatus) -> None:
        """Register a node (``kind`` is ``pumps`` or ``drainers``); the last writer wins."""
        self._request("PUT", f"/registry/{kind}/{status.node_id}", status.to_json().encode())

    def tso(self, count: int = 1) -> int:
        """The first of ``count`` fresh timestamps in a row."""
        return int(self._json("GET", f"/tso?count={count}")["ts"])

    def cluster_id(self) -> int:
        """The cluster's id."""
        return int(self._json("GET", "/cluster_id")["cluster_id"])

    def mvcc(self, key: bytes) -> Any:
        """What became of the transactions on a primary key (rows.md 9.3)."""
        return self._json("GET", f"/mvcc/hex/{key.hex()}")

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            self._connection.close()

    def _json(self, method: str, path: str) -> Any:
        body = self._request(method, path)
        try:
            return json.loads(body)
        except ValueError as error:
            raise ProtocolViolation(f"registry {self.url}{path} answered no JSON: {body[:200]!r}") from error

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with self._lock:
            for attempt in (1, 2):
                try:
                    self._connection.request(method, path, body)
                    response = self._connection.getresponse()
                    answer = response.read()
                    break
                except (OSError, http.client.HTTPException) as error:
                    # the server may have closed the idle connection; a second failure is real
                    self._connection.close()
                    if attempt == 2:
                        raise PumpUnavailable(f"registry {self.url} does not answer ({error}); is it running?") from error
        if response.status != http.client.OK:
            raise PumpUnavailable(f"registry {self.url}{path} answered {response.status}: {answer.decode(errors='replace')}")
        return answer
