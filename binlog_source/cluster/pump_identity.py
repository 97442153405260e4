"""Which Pump answers at an address. A Pump's successor may have its address, and a real Pump's pull does not name its node. HTTP shell.

``PUT /state/ID/who``: a Pump compares the id with its own, then its state with online, and then refuses what is no action, so that the request
changes nothing (wire.md 8.1). A real Pump logs each of them. So a connection is kept, and the next question on it is for what is no page: who
answers there is the process that has named itself.

Promises: while a connection is lent, the Pump at the address is the one that was asked for, or was when the answer came.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias
from urllib.parse import quote

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_TIMEOUT = 5.0
_NO_ACTION = "who"
_NO_PAGE = "/state"
_NAMES_ITSELF = ", this pump's nodeID is "
_Key: TypeAlias = tuple[int, str, str, TlsSettings | None]
_kept: dict[_Key, HttpConnection] = {}
"""Of this process alone: a fork shares the connections of its parent."""


def named_in(message: str, pump: str) -> str:
    """The node id of the Pump whose answer to ``PUT /state/PUMP/who`` has this message; empty: it is no such answer."""
    if _NAMES_ITSELF in message:
        return message.rpartition(_NAMES_ITSELF)[2]
    return pump if f"apply {_NO_ACTION} failed" in message or f"action {_NO_ACTION}" in message else ""


@contextmanager
def identified(pump: str, address: str, tls: TlsSettings | None = None, timeout: float = _TIMEOUT) -> Iterator[HttpConnection]:
    """A connection to the Pump at ``address`` (``host:port``), whose node id is ``pump``; ``tls``: the cluster's;
    ``timeout``: seconds, for a new one.

    Raises:
        PumpUnavailable: it does not answer, or another one does.
    """
    key = os.getpid(), pump, address, tls
    connection = _still_open(key) or _introduced(pump, address, tls, timeout)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    if connection.is_open and _kept.setdefault(key, connection) is connection:
        return
    connection.close()


def require_pump(pump: str, address: str, tls: TlsSettings | None = None, timeout: float = _TIMEOUT) -> None:
    """Return if the Pump at ``address`` is ``pump``.

    Raises:
        PumpUnavailable: it does not answer, or another one does.
    """
    with identified(pump, address, tls, timeout):
        pass


def _still_open(key: _Key) -> HttpConnection | None:
    connection = _kept.pop(key, None)
    if connection is None:
        return None
    try:
        connection.request("GET", _NO_PAGE)
    except FAILURES:
        return None
    return connection if connection.is_open else None


def _introduced(pump: str, address: str, tls: TlsSettings | None, timeout: float) -> HttpConnection:
    path = f"/state/{quote(pump, safe=':')}/{_NO_ACTION}"
    connection = HttpConnection.to(address, timeout, tls=tls or False)
    try:
        answer = connection.request("PUT", path)
        named = named_in(str(json.loads(answer.body)["message"]), pump) if answer.ok else ""
        why = f"HTTP {answer.status}, {len(answer.body)} bytes"
    except (*FAILURES, ValueError, KeyError, TypeError) as error:
        named, why = "", f"{type(error).__name__}: {error}"
    if named == pump:
        return connection
    connection.close()
    if named:
        raise PumpUnavailable(f"{address} is the address of Pump {named}, not {pump}")
    raise PumpUnavailable(
        f"Pump {pump} does not say who it is at {'https' if tls else 'http'}://{address}{path} ({why}), and another one may have its address: "
        "make that page reachable from this machine, by PUT"
    )
