"""The Pump's HTTP endpoints (wire.md 8.1): status, state changes, single records, orphans, GC on demand, metrics.

Promises: the JSON and the texts are a real Pump's, with its spelling. ``/debug/pprof`` is specific to Go and not served. Of a binlog the
page shows its place, its length and how many changes of which tables. Rows, keys and the upstream's MVCC data of a key (which has values)
are shown only if the settings say so.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.binlog_source.cluster.registration import Move
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS, NodeState, Registry
from pyspark_tidb_binlog.binlog_source.pump.orphans import near_present, settle
from pyspark_tidb_binlog.binlog_source.pump.service import PumpService
from pyspark_tidb_binlog.binlog_source.pump.storage.index import Entry
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, parse, read
from pyspark_tidb_binlog.binlog_source.rpc.http1 import (
    NO_SUCH_NODE,
    NOT_FOUND,
    OTHER_ERROR,
    SUCCESS,
    HttpRequest,
    HttpResponse,
    json_answer,
    node_answer,
    only,
)
from pyspark_tidb_binlog.binlog_source.wire.prometheus_text import CONTENT_TYPE
from pyspark_tidb_binlog.conf.entry import COMMAND
from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

_NUMBER = re.compile("[0-9]{1,19}")
_LARGEST = (1 << 63) - 1
_IN_FULL = 1 << 20
"""Bytes of a binlog up to which all of it is shown: more would hold up the Pump."""
_COUNTED = 64 << 20
"""Bytes of a binlog up to which its rows are counted."""


def _number(text: str) -> int | None:
    """A ts in a path: decimal digits, at most 2**63 - 1; None if it is none."""
    found = int(text) if _NUMBER.fullmatch(text) else None
    return found if found is None or found <= _LARGEST else None


@dataclass(frozen=True, slots=True)
class PumpControls:
    """What the endpoints can do with their Pump."""

    move: Callable[[Move], None]
    """Begin to pause or close; called only while online."""
    trigger_gc: Callable[[], bool]
    """False: a collection is running."""
    mvcc: Callable[[bytes], str]
    """What the upstream reports of a key, as text."""
    now: Callable[[], int]
    """A timestamp of now, above every ts in the log; asked where there is no registry."""
    waiting: Callable[[], list[dict[str, object]]] = list
    """The Prewrites that wait for their outcome."""


class StatusPages:
    """``answer`` is the handler of the RPC server."""

    def __init__(self, service: PumpService, registry: Registry | None, controls: PumpControls, *, shows_rows: bool) -> None:
        """``shows_rows``: whether single binlogs are shown with rows and keys."""
        self._shows_rows = shows_rows
        self._service = service
        self._registry = registry
        self._controls = controls
        self._large = threading.Lock()

    def answer(self, request: HttpRequest) -> HttpResponse:
        """One request's answer."""
        match request.path.strip("/").split("/"):
            case ["status"]:
                return only("GET", request, self._status)
            case ["state", node_id, action]:
                return only("PUT", request, lambda: self._change(node_id, action))
            case ["drainers"]:
                return only("GET", request, self._drainers)
            case ["debug", "binlog", ts]:
                return only("GET", request, lambda: self._binlog(ts))
            case ["debug", "gc", "trigger"]:
                return only("POST", request, self._gc)
            case ["orphans"]:
                return only("GET", request, lambda: json_answer(self._controls.waiting()))
            case ["orphans", start_ts, "commit", commit_ts]:
                return only("PUT", request, lambda: self._settle(start_ts, commit_ts))
            case ["orphans", start_ts, "rollback"]:
                return only("PUT", request, lambda: self._settle(start_ts, "0"))
            case ["metrics"]:
                return only("GET", request, lambda: HttpResponse(body=self._service.metrics.text(), content_type=CONTENT_TYPE))
            case _:
                return NOT_FOUND

    def _status(self) -> HttpResponse:
        status: Mapping[str, Any] | None = None
        commit_ts, trouble = 0, ""
        try:
            if self._registry is not None:
                status = {node.node_id: node.to_dict() for node in self._registry.listing(PUMPS).nodes}
                commit_ts = self._registry.tso()
            else:
                commit_ts = self._controls.now()
        except ReplicationError as error:
            status, trouble = None, str(error)
        return json_answer({"status": status, "CommitTS": commit_ts, "Checkpoint": {}, "ErrMsg": trouble})

    def _drainers(self) -> HttpResponse:
        nodes = self._registry.listing(DRAINERS).nodes if self._registry is not None else ()
        return json_answer([node.to_dict() for node in nodes] or None)

    def _change(self, node_id: str, action: str) -> HttpResponse:
        own, state = self._service.node_id, self._service.state
        if node_id != own:
            return node_answer(f"invalide nodeID {node_id}, this pump's nodeID is {own}", NO_SUCH_NODE)
        if state is not NodeState.ONLINE:
            return node_answer(f"this pump's state is {state.value}, apply {action} failed!", OTHER_ERROR)
        if action not in (Move.PAUSE, Move.CLOSE):
            return node_answer(f"invalide action {action}", OTHER_ERROR)
        self._controls.move(Move(action))
        return node_answer(f"apply action {action} success!", SUCCESS)

    def _settle(self, start_ts: str, commit_ts: str) -> HttpResponse:
        """Write the outcome that an operator states for a waiting Prewrite."""
        begun, outcome = _number(start_ts), _number(commit_ts)
        if begun is None or outcome is None:
            return HttpResponse(HTTPStatus.BAD_REQUEST, b"start_ts and commit_ts are numbers\n")
        try:
            return HttpResponse(body=f"{settle(self._service.store, begun, outcome, self._present)}\n".encode())
        except (ReplicationError, OSError) as error:
            return HttpResponse(HTTPStatus.CONFLICT, f"{error}\n".encode())

    def _present(self) -> int:
        """A ts that no commit_ts can be above."""
        return self._registry.tso() if self._registry is not None else near_present(self._service.store)

    def _binlog(self, text: str) -> HttpResponse:
        ts = _number(text)
        if ts is None:
            return HttpResponse(HTTPStatus.BAD_REQUEST, f"invalid parameter ts: {text[:20]}\n".encode())
        entry = self._service.store.entry(ts)
        if entry is None:
            return HttpResponse(body=f"fail read binlog by ts: {ts}: leveldb: not found\n".encode())
        try:
            if entry.length <= _IN_FULL:
                return self._in_full(entry) if self._shows_rows else _lines(self._in_short(entry))
            if not self._large.acquire(blocking=False):
                return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, b"another large binlog is being shown; try again\n")
            try:
                return _lines(self._in_short(entry))
            finally:
                self._large.release()
        except (ReplicationError, DecodeError) as error:
            return HttpResponse(body=f"fail read binlog by ts: {ts}: {error}\n".encode())

    def _in_full(self, entry: Entry) -> HttpResponse:
        payload = self._service.store.payload(entry)
        binlog = parse(payload)
        parts = [_head(entry), str(binlog)]
        if read(payload).kind is RecordKind.PREWRITE:
            parts.append(str(binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value)))
        if binlog.prewrite_key:
            parts.append(f"mvcc of {binlog.prewrite_key.hex()}: {self._controls.mvcc(binlog.prewrite_key)}")
        return _lines(parts)

    def _in_short(self, entry: Entry) -> list[str]:
        """How many changes a binlog has of each table."""
        lines = [_head(entry)]
        if entry.length > _COUNTED:
            return [*lines, f"too large to be counted here: {COMMAND} pump inspect DATA_DIR"]
        binlog = parse(self._service.store.payload(entry))
        counts: Counter[int] = Counter()
        for mutation in binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).mutations:
            counts[mutation.table_id] += len(mutation.sequence)
        outcome = [f"commit_ts {binlog.commit_ts}"] if binlog.commit_ts else []
        return [
            *lines,
            f"start_ts {binlog.start_ts}",
            *outcome,
            *(f"table id {table_id}: {count} changes" for table_id, count in counts.items()),
        ]

    def _gc(self) -> HttpResponse:
        return HttpResponse(body=b"trigger gc success\n" if self._controls.trigger_gc() else b"gc is working\n")


def _lines(lines: list[str]) -> HttpResponse:
    return HttpResponse(body="\n".join(lines).encode() + b"\n")


def _head(entry: Entry) -> str:
    return f"{entry.kind.name} at {entry.at}, {entry.length} bytes"
