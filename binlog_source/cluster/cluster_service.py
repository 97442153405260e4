"""What PD and TiDB provide to a cluster, in one small HTTP server: timestamps, registry, DDL history, MVCC look-ups.

    GET  /tso?count=N            {"ts": first of N in a row}
    GET  /cluster_id             {"cluster_id": id}
    GET  /gc_safe_point          {"gc_safe_point": MVCC data up to this ts may be collected}
    GET  /registry/pumps         {"revision": N, "nodes": [Status, ...]}    (also /registry/drainers; by node id)
         ?after=N&wait=SECONDS   only what was written after revision N; waits up to SECONDS for it (``Registry.changes``)
    PUT  /registry/pumps/ID      body: Status            (the last writer wins)
    GET  /ddl/history            jobs, ascending; ?limit=N newest N, descending; ?start_job_id=S&limit=N ids <= S, descending
    GET  /mvcc/hex/KEY           rows.md 9.3
    POST /COMMAND?...            further commands of the service's owner (``commands``)

Promises: HTTP/1.1 with keep-alive connections, one thread each; loopback by default. Node states survive a restart if there is a
``data_dir``. ``stop`` closes every connection, so that no request is answered after it.
"""

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.nodes import Nodes, NodesClosed
from pyspark_tidb_binlog.binlog_source.cluster.oracle import Oracle
from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeStatus
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, ReplicationError

Job = dict[str, Any]
History = Callable[[], Sequence[Job]]
Mvcc = Callable[[bytes], Any]
Command = Callable[[Mapping[str, str]], Any]
"""Takes the query parameters, returns a JSON value; a ``ReplicationError`` is answered with 409 Conflict."""


class _BadRequest(Exception):
    """The request cannot be served; the text is the answer."""


def no_history() -> Sequence[Job]:
    """The history of a cluster without any DDL."""
    return ()


def nothing_known(key: bytes) -> Any:
    """The MVCC answer of a store without data at ``key``."""
    return {"key": key.hex().upper(), "region_id": 1, "value": {"info": {}}}


def history_page(jobs: Sequence[Job], query: dict[str, list[str]]) -> list[Job]:
    """The jobs that ``/ddl/history`` answers (ddl.md 2)."""
    limit, start = _whole(query, "limit", 1), _whole(query, "start_job_id", 1)
    ordered = sorted(jobs, key=lambda job: cast(int, job["id"]))
    if limit is None:
        if start is not None:
            raise _BadRequest("start_job_id needs a limit")
        return ordered
    if start is not None:
        ordered = [job for job in ordered if job["id"] <= start]
    return ordered[::-1][:limit]


def _whole(query: dict[str, list[str]], name: str, least: int) -> int | None:
    if name not in query:
        return None
    text = query[name][-1]
    if not text.isdigit() or int(text) < least:
        raise _BadRequest(f"{name} must be a number above {least - 1}, not {text!r}")
    return int(text)


def _seconds(query: dict[str, list[str]], name: str) -> float:
    text = query.get(name, ["0"])[-1]
    if not text.replace(".", "", 1).isdigit():
        raise _BadRequest(f"{name} must be a number of seconds, not {text!r}")
    return float(text)


class UpstreamService:
    """The HTTP server; ``history`` and ``mvcc`` are called for every request."""

    def __init__(
        self,
        oracle: Oracle,
        cluster_id: int,
        *,
        addr: str = "127.0.0.1:0",
        data_dir: Path | None = None,
        history: History = no_history,
        mvcc: Mvcc = nothing_known,
        gc_safe_point: Callable[[], int] = lambda: 0,
        commands: Mapping[str, Command] | None = None,
    ) -> None:
        self.oracle = oracle
        self.cluster_id = cluster_id
        self.nodes = Nodes(data_dir / "nodes.json" if data_dir is not None else None)
        self.history = history
        self.mvcc = mvcc
        self.gc_safe_point = gc_safe_point
        self.commands = commands or {}
        host, _, port = addr.rpartition(":")
        self._server = _Server((host, int(port)), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="upstream service", daemon=True
        )

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.address}"

    def start(self) -> "UpstreamService":
        """Serve in a thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self.nodes.close()
        self._server.hang_up()
        self._thread.join()

    def answer(self, path: str, query: dict[str, list[str]]) -> Any:
        """The JSON value that answers a GET."""
        parts = path.strip("/").split("/")
        match parts:
            case ["tso"]:
                return {"ts": self.oracle.next(_whole(query, "count", 1) or 1)}
            case ["cluster_id"]:
                return {"cluster_id": self.cluster_id}
            case ["gc_safe_point"]:
                return {"gc_safe_point": self.gc_safe_point()}
            case ["registry", kind] if kind in KINDS:
                return _listing_json(self._listing(kind, query))
            case ["ddl", "history"]:
                return history_page(self.history(), query)
            case ["mvcc", "hex", text]:
                try:
                    return self.mvcc(bytes.fromhex(text))
                except ValueError as error:
                    raise _BadRequest(f"{text!r} is not a hexadecimal key") from error
            case _:
                raise _BadRequest(f"404 page not found: {path}")

    def _listing(self, kind: str, query: dict[str, list[str]]) -> Listing:
        after = _whole(query, "after", 0)
        return self.nodes.listing(kind) if after is None else self.nodes.changes(kind, after, _seconds(query, "wait"))


def _listing_json(listing: Listing) -> dict[str, Any]:
    return {"revision": listing.revision, "nodes": [status.to_dict() for status in listing.nodes]}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], service: UpstreamService) -> None:
        self.service = service
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread of its own."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close one connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close every connection, so that its thread ends."""
        for request in tuple(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report the error, unless the client closed the connection or the registry stops."""
        if not isinstance(sys.exception(), ConnectionError | NodesClosed):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # an answer is two small writes: without this the second one waits for the peer's delayed ACK
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer one request."""
        parts = urlsplit(self.path)
        try:
            value = cast(_Server, self.server).service.answer(parts.path, parse_qs(parts.query))
        except _BadRequest as error:
            status = HTTPStatus.NOT_FOUND if str(error).startswith("404") else HTTPStatus.BAD_REQUEST
            self._send(status, str(error).encode(), "text/plain; charset=utf-8")
            return
        self._send(HTTPStatus.OK, json.dumps(value, indent=1).encode(), "application/json")

    def do_PUT(self) -> None:  # noqa: N802 - the name that http.server calls
        """Store one node's status."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if len(parts) != 3 or parts[0] != "registry" or parts[1] not in KINDS:
            self._send(HTTPStatus.NOT_FOUND, b"404 page not found", "text/plain; charset=utf-8")
            return
        try:
            status = NodeStatus.from_json(body)
        except ProtocolViolation as error:
            self._send(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain; charset=utf-8")
            return
        cast(_Server, self.server).service.nodes.put(parts[1], status)
        self._send(HTTPStatus.OK, b"{}", "application/json")

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        """Run one command."""
        parts = urlsplit(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        command = cast(_Server, self.server).service.commands.get(parts.path.strip("/"))
        if command is None:
            self._send(HTTPStatus.NOT_FOUND, b"404 page not found", "text/plain; charset=utf-8")
            return
        try:
            value = command({name: values[-1] for name, values in parse_qs(parts.query).items()})
        except ReplicationError as error:
            self._send(HTTPStatus.CONFLICT, str(error).encode(), "text/plain; charset=utf-8")
            return
        self._send(HTTPStatus.OK, json.dumps(value).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log: every node sends a heartbeat every two seconds."""
