"""The Drainer's HTTP endpoints: those of a real Drainer (wire.md 8.2), and ours.

    GET  /status                   {"PumpPos": {nodeID: ts}, "Synced": bool, "LastTS": ts, "TsMap": ""}
    GET  /commit_ts                {"message": …, "code": 200, "data": {"ts": checkpoint}}
    PUT  /state/{nodeID}/{action}  pause, resume, close
    GET  /metrics                  Prometheus text
    GET  /progress                 the job's progress line as JSON: lag, counts, findings, and what holds progress back
    PUT  /rest/{seconds}           no batch begins for so long, 60 s at most; 0: the rest is over
    PUT  /reload/{tables}          DB.TABLE,...: a lake reads these tables again from the upstream
    GET  /                         a page to look at, page.html
    GET  /page.json?after=SECOND   what it shows, with its figures since then (docs/page.md)
    GET  /docs/{page}              a document of this release as plain text

Promises: JSON, texts and codes of the first four are a real Drainer's, with its wording ("this pump's"). The page asks nobody else for anything, and no
other page may show it: its Content-Security-Policy allows its own script and style, by their hashes.
"""

import base64
import functools
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from pyspark_tidb_binlog.binlog_source.cluster.registration import Action
from pyspark_tidb_binlog.binlog_source.rpc.http1 import (
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
from pyspark_tidb_binlog.schemas.errors import ReplicationError

SYNCED_CHECK_SECONDS = 300.0
"""Seconds without an applied transaction after which the Drainer counts as synced (``synced-check-time``)."""


@dataclass(frozen=True, slots=True)
class ServedStream:
    """What a node shows of its stream, and what it can do with the stream. The functions are called from several threads and must be quick."""

    commit_ts: Callable[[], int]
    """Everything up to here is in the target; 0 = unknown."""
    pump_positions: Callable[[], Mapping[str, int] | None]
    """Node id of each Pump and the newest ts received from it; None before the Pumps have answered."""
    applied_at: Callable[[], float]
    """``time.monotonic`` when a transaction was applied last, or the stream was started."""
    progress: Callable[[], Mapping[str, Any]]
    metrics: Callable[[], bytes]
    page: Callable[[int], Mapping[str, Any]]
    """What the page shows, with the figures behind a second since 1970."""
    document: Callable[[str], str | None]
    """The text of a document by its name, the list for an empty one; None: there is none."""

    pause: Callable[[], None]
    """Have no further batch begin; returns at once. It and ``resume`` raise OSError where nothing has changed."""
    resume: Callable[[], None]
    rest: Callable[[float], None]
    """Have no further batch begin for so many seconds; 0: the rest is over. May raise OSError."""
    keep: Callable[[], None]
    """Called with each heartbeat: have what ``pause`` or ``resume`` did last. May raise OSError."""
    resting: Callable[[], bool]
    """Whether it is paused and no batch is being applied."""
    end: Callable[[], None]
    """Have the process end as on SIGTERM; returns at once."""
    reload: Callable[[str], None]
    """Have tables, ``DB.TABLE,...``, loaded again beside the stream; returns at once. ``ReplicationError``: why not."""


_MOST_REST = 60
_NO_GUESSES = (("X-Content-Type-Options", "nosniff"),)
_FRESH = (("Cache-Control", "no-store"), *_NO_GUESSES)
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@functools.cache
def page() -> HttpResponse:
    """The page, which is the same for every stream."""
    html = Path(__file__).with_name("page.html").read_bytes()
    allowed = {
        kind.decode(): f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for kind, text in _INLINE.findall(html)
    }
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (*_FRESH, ("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer"))
    return HttpResponse(body=html, content_type="text/html; charset=utf-8", headers=headers)


def _after(query: str) -> int:
    """The second of ``?after=``; 0: all."""
    given = parse_qs(query).get("after", [""])[0]
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0


class DrainerPages:
    """``answer`` is the handler of the RPC server."""

    def __init__(self, node_id: str, stream: ServedStream, act: Callable[[Action], str], synced_check_seconds: float) -> None:
        """``act`` performs an action. It returns "", or the name of the state in which the action is refused, and raises if the action fails."""
        self._node_id = node_id
        self._stream = stream
        self._act = act
        self._synced_check_seconds = synced_check_seconds

    def answer(self, request: HttpRequest) -> HttpResponse:
        """One request's answer."""
        match request.path.strip("/").split("/"):
            case ["status"]:
                return only("GET", request, self._status)
            case ["commit_ts"]:
                return only("GET", request, self._commit_ts)
            case ["state", node_id, action]:
                return only("PUT", request, lambda: self._change(node_id, action))
            case ["metrics"]:
                return only("GET", request, lambda: HttpResponse(body=self._stream.metrics(), content_type=CONTENT_TYPE))
            case ["progress"]:
                return only("GET", request, lambda: json_answer(self._stream.progress()))
            case [""]:
                return only("GET", request, page)
            case ["page.json"]:
                return only("GET", request, lambda: replace(json_answer(self._stream.page(_after(request.query))), headers=_FRESH))
            case ["docs", *names]:
                return only("GET", request, lambda: self._document("/".join(names)))
            case ["rest", seconds]:
                return only("PUT", request, lambda: self._rest(seconds))
            case ["reload", *names]:
                return only("PUT", request, lambda: self._reload("/".join(names)))
            case _:
                return NOT_FOUND

    def _document(self, name: str) -> HttpResponse:
        text = self._stream.document(name)
        return HttpResponse(body=text.encode(), headers=_NO_GUESSES) if text is not None else NOT_FOUND

    def _status(self) -> HttpResponse:
        positions = self._stream.pump_positions()
        if positions is None:
            return json_answer({"PumpPos": None, "Synced": False, "LastTS": 0, "TsMap": ""})
        synced = time.monotonic() - self._stream.applied_at() > self._synced_check_seconds
        return json_answer({"PumpPos": dict(positions), "Synced": synced, "LastTS": self._stream.commit_ts(), "TsMap": ""})

    def _commit_ts(self) -> HttpResponse:
        return node_answer("get drainer's latest ts success!", SUCCESS, {"ts": self._stream.commit_ts()})

    def _rest(self, seconds: str) -> HttpResponse:
        if not (seconds.isascii() and seconds.isdigit() and int(seconds) <= _MOST_REST):
            return node_answer(f"{seconds} is no number of seconds from 0 to {_MOST_REST}", OTHER_ERROR)
        try:
            self._stream.rest(float(seconds))
        except OSError as error:
            return node_answer(str(error), OTHER_ERROR)
        return node_answer(f"no batch begins for {seconds} s", SUCCESS)

    def _reload(self, names: str) -> HttpResponse:
        try:
            self._stream.reload(names)
        except ReplicationError as error:
            return node_answer(str(error), OTHER_ERROR)
        return node_answer(
            f"{names} will be read again from the upstream, at the next moment of the lake: if this Drainer dies before `lake tables` shows it, ask again",
            SUCCESS,
        )

    def _change(self, node_id: str, action: str) -> HttpResponse:
        if node_id != self._node_id:
            return node_answer(f"invalid nodeID {node_id}, this pump's nodeID is {self._node_id}", OTHER_ERROR)
        if action not in list(Action):
            return node_answer(f"invalid action {action}", OTHER_ERROR)
        try:
            refused_in = self._act(Action(action))
        except ReplicationError as error:
            return node_answer(str(error), OTHER_ERROR)
        if refused_in:
            return node_answer(f"this pump's state is {refused_in}, apply {action} failed!", OTHER_ERROR)
        return node_answer(f"apply action {action} success!", SUCCESS)
