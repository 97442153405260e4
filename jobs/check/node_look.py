"""Asks nodes for their pages: what ``ctl`` and the doctor know of a Drainer that runs. HTTP shell around ``node_report``."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pyspark_tidb_binlog.binlog_source.cluster.discovery import names_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.rpc.http1 import SUCCESS
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.check.node_report import NodeReport
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

A = TypeVar("A")
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
        if "PumpPos" not in status:
            raise ValueError("its status has no positions of Pumps")
    except PumpUnavailable as error:
        return NodeReport(node, {}, {}, str(error), registered=registered)
    except ValueError as error:
        trouble = f"the program at {node.host} is not a Drainer ({error}): check the address"
        return NodeReport(node, {}, {}, trouble, registered=registered)
    return NodeReport(node, progress, status, "")


class Question(Generic[A]):
    """Something that is asked in a thread of its own from now on."""

    def __init__(self, ask: Callable[[], A], seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._found: list[A | ReplicationError] = []
        self._thread = threading.Thread(target=self._run, name="doctor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._ask())
        except ReplicationError as error:
            self._found.append(error)

    @property
    def answer(self) -> A | str:
        """The answer, or why there is none."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if not self._found:
            return f"no answer within {self._seconds:.0f} s" if self._thread.is_alive() else "the check failed: the log has the trace"
        return str(found) if isinstance(found := self._found[0], ReplicationError) else found


def drainer_of(config: DrainerConfig, address: str, tls: TlsSettings | None, seconds: float = _TIMEOUT) -> NodeReport | None:
    """The Drainer with these settings; None: nobody says where it is. ``address``: of a person, in place of the registered one. ``seconds``: how long the registry may take.

    Raises:
        ConfigError: the registry does not know it.
    """
    name = config.apply.drainer
    if not address and names_registry(config.source):
        # A registry that says nothing is no reason not to ask the Drainer.
        known = Question(lambda: _registered(config, tls), seconds).answer
        if isinstance(known, dict):
            if name in known:
                return _of_this_stream(look(known[name], tls), config, tls)
            there = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"no Drainer {name!r} is registered at {config.source.pumps}; there is {there}: correct node-id")
    address = address or config.advertise_addr or config.addr
    return None if address.endswith(":0") else _of_this_stream(look(NodeStatus(name, address), tls, registered=False), config, tls)


def _registered(config: DrainerConfig, tls: TlsSettings | None) -> dict[str, NodeStatus]:
    with contextlib.closing(open_registry(config.source.pumps, tls)) as registry:
        return {node.node_id: node for node in registry.listing(DRAINERS).nodes}


def _of_this_stream(report: NodeReport, config: DrainerConfig, tls: TlsSettings | None) -> NodeReport:
    """The report, unless another stream's Drainer answers there: it then has the port of one that is gone. Its page says whose it is."""
    if report.trouble or not report.progress:
        return report
    page = json.loads(asked(report.node.host, "GET", f"/page.json?after={10**12}", tls, missing=b"{}"))
    name, into = config.apply.drainer, words_for(config).where
    whose, target = page.get("drainer", name), page.get("target", {}).get("name", into)
    # An address by hand may be given with settings without a name. Other kinds of targets have names that the cluster's id is part of.
    if (whose == name or not report.registered) and (target == into or config.apply.db_type not in ("mysql", "tidb")):
        return report
    trouble = f"at {report.node.host} answers Drainer {whose!r} into {target}, but the settings are of {name!r} into {into}"
    return NodeReport(report.node, {}, {}, trouble, report.registered, is_other=True)


def rest(config: DrainerConfig, seconds: float) -> str:
    """Ask the Drainer to begin no batch for so long, or again if ``seconds`` is 0; why it does not, in words."""
    tls = TlsSettings.of(config.source.security)
    try:
        found = drainer_of(config, "", tls)
        if found is None or found.trouble:
            return found.trouble if found else "nobody says where it is: give its addr a port"
        answer = json.loads(asked(found.node.host, "PUT", f"/rest/{seconds:.0f}", tls))
    except (ReplicationError, ValueError) as error:
        return str(error)
    return "" if answer.get("code") == SUCCESS else str(answer.get("message"))
