"""Asks nodes for their pages: what ``ctl`` and the doctor know of a Drainer that runs. HTTP shell around ``node_report``."""

import contextlib
import json

from pyspark_tidb_binlog.binlog_source.cluster.discovery import names_registry
from pyspark_tidb_binlog.binlog_source.cluster.node_answers import SUCCESS
from pyspark_tidb_binlog.binlog_source.cluster.registries import open_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeStatus
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable, ReplicationError
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


def address_of(config: DrainerConfig, tls: TlsSettings | None) -> str:
    """Where the Drainer with these settings is, as the registry, or else the settings say it; empty: neither does.

    Raises:
        ReplicationError: the registry does not answer.
    """
    if names_registry(config.source):
        with contextlib.closing(open_registry(config.source.pumps, tls)) as registry:
            found = next((node.host for node in registry.listing(DRAINERS).nodes if node.node_id == config.apply.drainer), "")
            if found:
                return found
    address = config.advertise_addr or config.addr
    return "" if address.endswith(":0") else address


def rest(config: DrainerConfig, seconds: float) -> str:
    """Ask the Drainer to begin no batch for so long, or again if ``seconds`` is 0; why it does not, in words."""
    tls = TlsSettings.of(config.source.security)
    try:
        address = address_of(config, tls)
        if not address:
            return "nobody says where it is: give its addr a port"
        answer = json.loads(asked(address, "PUT", f"/rest/{seconds:.0f}", tls))
    except (ReplicationError, ValueError) as error:
        return str(error)
    return "" if answer.get("code") == SUCCESS else str(answer.get("message"))


def look(node: NodeStatus, tls: TlsSettings | None, *, registered: bool = True) -> NodeReport:
    """What a Drainer answers, or why it does not; ``registered``: whether ``node`` comes from a registry."""
    try:
        progress = json.loads(asked(node.host, "GET", "/progress", tls, missing=b"{}"))
        status = json.loads(asked(node.host, "GET", "/status", tls))
        if not isinstance(progress, dict) or not isinstance(status, dict):
            raise ValueError("its JSON is no object")
        if "PumpPos" not in status:
            raise ValueError("its status has no positions of Pumps")
    except PumpUnavailable as error:
        return NodeReport(node, {}, {}, str(error), registered=registered)
    except ValueError as error:
        trouble = f"the program at {node.host} is not a Drainer ({error}): check the address"
        return NodeReport(node, {}, {}, trouble, registered=registered)
    return NodeReport(node, progress, status, "")
