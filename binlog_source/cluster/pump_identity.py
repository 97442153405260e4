"""Finds out which Pump answers at an address. HTTP shell.

A Pump's successor may have its address, and a real Pump's pull does not name its node. So the Pump is asked by ``PUT /state/ID/who``. It
compares the id with its own, then its state with online, and then refuses the unknown action: nothing changes (wire.md 8.1). A real Pump
logs each such request, so a process that has confirmed the id is not asked again. The start time in its metrics identifies the process.

Promises: each question has its own connection, which ends with the answer. It reaches the process that listens at the address now.
"""

import json
import re
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


def require_pump(pump: str, address: str, tls: TlsSettings | None = None, timeout: float = ANSWER_SECONDS) -> str:
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
