"""Serves over HTTP what PD and TiDB provide to a cluster: timestamps, registry, DDL history, MVCC look-ups.

    GET  /tso?count=N            {"ts": first of N in a row}
    GET  /cluster_id             {"cluster_id": id}
    GET  /gc_safe_point          {"gc_safe_point": MVCC data up to this ts may be collected}
    GET  /registry/pumps         {"revision": N, "nodes": [Status, ...]}    (also /registry/drainers; by node id)
         ?after=N&wait=SECONDS   only what was written after revision N; waits up to SECONDS, 60 at most, for it (``Registry.changes``)
    GET  /registry/pumps/ID/own  {"state": the state that the node registered last itself, or null}
    PUT  /registry/pumps/ID      body: Status            (the last writer wins)
    GET  /info/all               {"servers_num": 1, "all_servers_info": {id: {"ip": …, "listening_port": …, "binlog_status": …}}}
    GET  /ddl/history            jobs, ascending; ?limit=N newest N, descending; ?start_job_id=S&limit=N ids <= S, descending
    GET  /mvcc/hex/KEY           rows.md 9.3
    GET  /schema, /schema/DB     every database, every table of one
    GET  /db-table/ID            one table, its database, and the schema version
    POST /COMMAND?...            further commands of the service's owner (``commands``)

Promises: served by ``rpc``, with its limits; on loopback by default. With a ``data_dir`` node states survive a restart. ``stop`` ends every
wait and closes every connection: no request is answered after it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

from pyspark_tidb_binlog.binlog_source.cluster.registry import KINDS, Listing, NodeStatus
from pyspark_tidb_binlog.binlog_source.rpc.calls import Methods
from pyspark_tidb_binlog.binlog_source.rpc.http1 import NOT_ALLOWED, NOT_FOUND, BadRequest, HttpRequest, HttpResponse, json_answer
from pyspark_tidb_binlog.binlog_source.rpc.rpc_server import RpcServer
from pyspark_tidb_binlog.jobs.lab.registry.nodes import Nodes, NodesClosed
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, ReplicationError
from pyspark_tidb_binlog.schemas.tls import TlsSettings

Job = dict[str, Any]
Query = Mapping[str, Sequence[str]]
"""The parameters of a request."""
History = Callable[[], Sequence[Job]]
Mvcc = Callable[[bytes], Any]
Schema = Callable[[str | None], Any]
"""Takes a database's name, or None for the list of databases; returns None if there is no such database."""
Command = Callable[[Mapping[str, str]], Any]
"""Takes the query parameters, returns a JSON value; a ``ReplicationError`` is answered with 409 Conflict."""

_WAITING = 512
"""Requests that wait for a change at the same time: every Pump and Drainer may wait for both kinds. Further ones are answered at once."""
_ANSWERING = 16
"""Other requests that are answered at the same time."""
_MOST_TIMESTAMPS = 1 << 18
"""Timestamps given at once: those of one millisecond."""
_MAX_WAIT = 60.0
"""Seconds that a request waits for a change at most: the thread of a client that has gone is free again after it."""
_GRACE = 2.0
"""Seconds for the requests under way when the service stops."""


def no_history() -> Sequence[Job]:
    """The history of a cluster without any DDL."""
    return ()


def nothing_known(key: bytes) -> Any:
    """The MVCC answer of a store without data at ``key``."""
    return {"key": key.hex().upper(), "region_id": 1, "value": {"info": {}}}


def no_schema(database: str | None) -> Any:
    """The schema of a cluster without any database."""
    return [] if database is None else None


def history_page(jobs: Sequence[Job], query: Query) -> list[Job]:
    """The jobs that ``/ddl/history`` answers (ddl.md 2)."""
    limit, start = _whole(query, "limit", 1), _whole(query, "start_job_id", 1)
    ordered = sorted(jobs, key=lambda job: cast(int, job["id"]))
    if limit is None:
        if start is not None:
            raise BadRequest("start_job_id needs a limit")
        return ordered
    if start is not None:
        ordered = [job for job in ordered if job["id"] <= start]
    return ordered[::-1][:limit]


def _whole(query: Query, name: str, least: int, most: int = (1 << 63) - 1) -> int | None:
    if name not in query:
        return None
    text = query[name][-1]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(f"{name} must be a number from {least} to {most}, not {text[:50]!r}")
    return int(text)


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadRequest(f"{text!r} is not a hexadecimal key") from error


def _seconds(query: Query, name: str) -> float:
    text = query.get(name, ["0"])[-1]
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 20):
        raise BadRequest(f"{name} must be a number of seconds, not {text[:50]!r}")
    return float(text)


class ClusterService:
    """The routes, and the server that answers them; ``history``, ``mvcc`` and ``schema`` are called for every request."""

    def __init__(
        self,
        oracle: Oracle,
        cluster_id: int,
        *,
        addr: str = "127.0.0.1:0",
        data_dir: Path | None = None,
        history: History = no_history,
        mvcc: Mvcc = nothing_known,
        schema: Schema = no_schema,
        table: Callable[[int], Any] | None = None,
        gc_safe_point: Callable[[], int] = lambda: 0,
        commands: Mapping[str, Command] | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        self.oracle = oracle
        self.cluster_id = cluster_id
        self.nodes = Nodes(data_dir / "nodes.json" if data_dir is not None else None)
        self.history = history
        self.mvcc = mvcc
        self.schema = schema
        self.table = table
        self.gc_safe_point = gc_safe_point
        self.commands = commands or {}
        self.servers: Mapping[str, Mapping[str, Any]] = {}
        """The TiDB servers of the cluster, by id, as ``/info/all`` answers."""
        self._waits = threading.BoundedSemaphore(_WAITING)
        self._host = addr.rpartition(":")[0]
        self._server = RpcServer("registry").bind(addr, tls=tls)
        self._scheme = "http" if tls is None else "https"

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self._host}:{self._server.port}"

    @property
    def url(self) -> str:
        """``http://host:port``, ``https://`` with TLS."""
        return f"{self._scheme}://{self.address}"

    def start(self) -> "ClusterService":
        """Serve in threads."""
        self._server.serve(Methods(http=self.respond, http_threads=_WAITING + _ANSWERING))
        return self

    def tell_server(self, binlog_status: str = "On") -> None:
        """``/info/all`` has one TiDB server from now on, in this ``binlog_status``."""
        self.servers = {"emulator": {"ip": "127.0.0.1", "listening_port": 4000, "binlog_status": binlog_status}}

    def stop(self) -> None:
        """Stop serving; clients that wait for a change are refused."""
        self.nodes.close()
        self._server.stop(_GRACE)

    def respond(self, request: HttpRequest) -> HttpResponse:
        """The response to one request."""
        try:
            match request.method:
                case "GET" | "HEAD":
                    return json_answer(self.answer(request.path, parse_qs(request.query)), indent=1)
                case "PUT":
                    return self._put(request)
                case "POST":
                    return self._command(request)
                case _:
                    return NOT_ALLOWED
        except BadRequest as error:
            return HttpResponse(error.status, f"{error}\n".encode())
        except NodesClosed:
            return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"the registry stops\n")

    def answer(self, path: str, query: Query) -> Any:
        """The JSON value that answers a GET.

        Raises:
            BadRequest: there is no such page, it is a command, or a parameter is invalid.
            NodesClosed: the registry stops.
        """
        parts = path.strip("/").split("/")
        match parts:
            case ["tso"]:
                return {"ts": self.oracle.next(_whole(query, "count", 1, _MOST_TIMESTAMPS) or 1)}
            case ["cluster_id"]:
                return {"cluster_id": self.cluster_id}
            case ["gc_safe_point"]:
                return {"gc_safe_point": self.gc_safe_point()}
            case ["registry", kind] if kind in KINDS:
                return _listing_json(self._listing(kind, query))
            case ["registry", kind, *name, "own"] if kind in KINDS and name:
                return {"state": self.nodes.own_state(kind, "/".join(name))}
            case ["info", "all"]:
                return {"servers_num": len(self.servers), "all_servers_info": self.servers}
            case ["ddl", "history"]:
                return history_page(self.history(), query)
            case ["mvcc", "hex", text]:
                return self.mvcc(_key(text))
            case ["schema"]:
                return self.schema(None)
            case ["schema", name]:
                tables = self.schema(name)
                if tables is None:
                    raise BadRequest(f"[schema:1049]Unknown database '{name}'")
                return tables
            case ["db-table", table_id] if self.table is not None:
                found = self.table(_whole({"id": [table_id]}, "id", 1) or 0)
                if found is None:
                    raise BadRequest(f"[schema:1146]Table which ID = {table_id} does not exist.")
                return found
            case [name] if name in self.commands:
                raise BadRequest(f"/{name} is a command: use POST", HTTPStatus.METHOD_NOT_ALLOWED)
            case _:
                raise BadRequest(f"404 page not found: {path}", HTTPStatus.NOT_FOUND)

    def _listing(self, kind: str, query: Query) -> Listing:
        after = _whole(query, "after", 0)
        if after is None:
            return self.nodes.listing(kind)
        may_wait = self._waits.acquire(blocking=False)
        try:
            return self.nodes.changes(kind, after, min(_MAX_WAIT, _seconds(query, "wait")) if may_wait else 0.0)
        finally:
            if may_wait:
                self._waits.release()

    def _put(self, request: HttpRequest) -> HttpResponse:
        """Store one node's status."""
        match request.path.strip("/").split("/"):
            case ["registry", kind, _, *_] if kind in KINDS:
                try:
                    status = NodeStatus.from_json(request.body)
                except ProtocolViolation as error:
                    raise BadRequest(str(error)) from error
                self.nodes.put(kind, status)
                return json_answer({})
            case _:
                return NOT_FOUND

    def _command(self, request: HttpRequest) -> HttpResponse:
        command = self.commands.get(request.path.strip("/"))
        if command is None:
            return NOT_FOUND
        try:
            value = command({name: values[-1] for name, values in parse_qs(request.query).items()})
        except ReplicationError as error:
            return HttpResponse(HTTPStatus.CONFLICT, str(error).encode())
        return json_answer(value)


def _listing_json(listing: Listing) -> dict[str, Any]:
    return {"revision": listing.revision, "nodes": [status.to_dict() for status in listing.nodes]}
