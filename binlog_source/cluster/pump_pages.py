"""What a Pump's HTTP pages say: which Pump answers at an address, and the upstream's present time. HTTP shell.

A Pump's successor may have its address, and a real Pump's pull does not name its node. So the Pump is asked by ``PUT /state/ID/who``. It
compares the id with its own, then its state with online, and then refuses the unknown action: nothing changes (wire.md 8.1). A real Pump
logs each such request, so a process that has confirmed the id is not asked again. The start time in its metrics identifies the process.

``GET /status`` has the present time as ``CommitTS``: a fresh timestamp of PD (wire.md 8.1), or without a registry a timestamp above all in the
Pump's log. This machine's clock is not asked: a clock that is behind would name a time that binlogs have passed, and a clock that is ahead
a time that binlogs reach much later.

Promises: each question has its own connection, which ends with the answer. It reaches the process that listens at the address now. The
present time is above every commit_ts that the answering Pump had delivered before the question.
"""

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

ANSWER_SECONDS = 5.0
_NO_ACTION = "who"
_STARTED = re.compile(r"^process_start_time_seconds[ \t]+(\S+)", re.MULTILINE)
_answered: dict[tuple[str, TlsSettings | None], tuple[str, str]] = {}
"""Of an address: when the process there was started, and its node id."""


def named_in(message: str, pump: str) -> str:
    """The node id of the Pump whose answer to ``PUT /state/PUMP/who`` has this message; empty: it is no such answer."""
    _, told, other = message.partition(f"nodeID {pump}, this pump's nodeID is ")
    if told:
        return other
    return pump if message.endswith((f", apply {_NO_ACTION} failed!", f" action {_NO_ACTION}")) else ""


def require_pump(pump: str, address: str, tls: TlsSettings | None, timeout: float = ANSWER_SECONDS) -> str:
    """Check that ``pump`` answers at ``address`` (``host:port``). The result is its page of metrics; empty: it has none.

    ``tls``: the cluster's; ``timeout``: seconds for each of at most two answers.

    Raises:
        PumpUnavailable: no Pump answers, or another Pump.
    """
    path = f"/state/{quote(pump, safe=':')}/{_NO_ACTION}"
    named, page = "", ""
    try:
        with HttpConnection.to(address, timeout, tls=tls or False) as connection:
            metrics = connection.request("GET", "/metrics")
            page = metrics.text if metrics.ok else ""
            found = _STARTED.search(page)
            started = found[1] if found else ""
            if started and _answered.get((address, tls)) == (started, pump):
                named, why = pump, ""
            else:
                answer = connection.request("PUT", path)
                why = f"HTTP {answer.status}, {len(answer.body)} bytes"
                named = named_in(str(json.loads(answer.body)["message"]), pump) if answer.ok else ""
                if named:
                    _answered[address, tls] = started, named
    except (*FAILURES, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    if named == pump:
        return page
    if named:
        raise PumpUnavailable(f"{address} is the address of Pump {named}, not {pump}")
    raise PumpUnavailable(
        f"Pump {pump} does not confirm its node id at {'https' if tls else 'http'}://{address}{path} ({why}), so another Pump may have its address: "
        "make this page reachable from this machine, by PUT"
    )


def now_by_pumps(addresses: Iterable[str], tls: TlsSettings | None) -> int:
    """The greatest present time that the Pumps at ``addresses`` (``host:port``) report; one answer is enough. ``tls``: the cluster's.

    Raises:
        PumpUnavailable: no Pump reports a time.
    """
    told, silent = [], []
    for address in addresses:
        try:
            told.append(_now_by(address, tls))
        except PumpUnavailable as error:
            silent.append(str(error))
    if not told:
        raise PumpUnavailable(f"no Pump reports the upstream's time: {'; '.join(silent)}")
    return max(told)


def _now_by(address: str, tls: TlsSettings | None) -> int:
    page, code = f"{'https' if tls else 'http'}://{address}/status", "no answer"
    try:
        with HttpConnection.to(address, ANSWER_SECONDS, tls=tls or False) as connection:
            answer = connection.request("GET", "/status")
            code = f"HTTP {answer.status}"
        found = json.loads(answer.text) if answer.ok else {}
        ts, trouble = int(found["CommitTS"]), found.get("ErrMsg") or "CommitTS is 0"
    except FAILURES as error:
        raise PumpUnavailable(f"{page} does not answer ({type(error).__name__}: {error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PumpUnavailable(f"{page} has no CommitTS ({code})") from error
    if ts <= 0:
        raise PumpUnavailable(f"{page}: {trouble}")
    return ts
