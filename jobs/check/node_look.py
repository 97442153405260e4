"""Asks nodes for their pages: what ``ctl`` and the doctor know of a Drainer that runs. HTTP shell around ``node_report``."""

import json

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_TIMEOUT = 10.0


def asked(address: str, method: str, path: str, tls: TlsSettings | None, *, missing: bytes | None = None) -> bytes:
    """The body of a node's answer; ``missing`` if it has no such page.

    Raises:
        PumpUnavailable: the node does not answer, or with an error.
    """
    try:
        with HttpConnection.to(address, _TIMEOUT, tls=tls or False) as connection:
            answer = connection.request(method, path)
    except (*FAILURES, ValueError) as error:
        raise PumpUnavailable(f"the node at {address} does not answer ({error}); check that it runs and is reachable from here") from error
    if answer.status == 404 and missing is not None:
        return missing
    if not answer.ok:
        raise PumpUnavailable(f"the node at {address} answered {path} with HTTP {answer.status}: {answer.text.strip()[:200]}")
    return answer.body


def look(node: NodeStatus, tls: TlsSettings | None, *, registered: bool = True) -> NodeReport:
    """What a Drainer answers, or why it does not; ``registered``: whether ``node`` comes from a registry."""
    try:
        progress = json.loads(asked(node.host, "GET", "/progress", tls, missing=b"{}"))
        status = json.loads(asked(node.host, "GET", "/status", tls))
        if not isinstance(progress, dict) or not isinstance(status, dict):
            raise ValueError("its JSON is no object")
    except PumpUnavailable as error:
        return NodeReport(node, {}, {}, str(error), registered=registered)
    except ValueError as error:
        trouble = f"the program at {node.host} is not a Drainer ({error}): check the address"
        return NodeReport(node, {}, {}, trouble, registered=registered)
    return NodeReport(node, progress, status, "")
