"""A running Drainer as other programs see it: its pages over HTTP, and the text that ``ctl status`` prints. Also what ``ctl`` has it do."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pyspark_tidb_binlog.binlog_source.cluster.discovery import names_registry
from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, NodeStatus
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import open_registry
from pyspark_tidb_binlog.binlog_source.rpc.http1 import SUCCESS
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, age_of, plain, progress_in
from pyspark_tidb_binlog.jobs.stream.targets import words_for
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable, ReplicationError
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

A = TypeVar("A")
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One Drainer: its entry in the registry, and its answers."""

    node: NodeStatus
    progress: Mapping[str, Any]
    """``GET /progress``; empty for a real Drainer, which has no such page."""
    status: Mapping[str, Any]
    """``GET /status``; empty if it does not answer."""
    trouble: str
    """Why the Drainer does not answer; empty if it does."""
    registered: bool = True
    """Whether ``node`` comes from a registry; else it is only an address."""
    is_other: bool = False
    """Whether another stream's Drainer answers there."""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"Drainer {self.node.node_id} at {self.node.host}"

    def seen(self, now: float) -> Progress:
        """What is known of its stream; ``now``: seconds since the epoch. A real Drainer shows positions only."""
        positions = sorted((self.status.get("PumpPos") or {}).items())
        pumps = tuple(SeenPump(pump, read_upto=ts, lag_seconds=age_of(ts, now)) for pump, ts in positions)
        if self.progress:
            known = progress_in(self.progress)
            return known if known.pumps else replace(known, pumps=pumps)
        if self.trouble:
            return Progress()
        at = int(self.status.get("LastTS") or 0)
        holding = "not known: a real Drainer does not say"
        return Progress(at, age_of(at, now), holding=holding, held_seconds=age_of(at, now), state=self.node.state.value, pumps=pumps)

    def text(self) -> str:
        """Some lines: the state, how far it is, what holds it back, its Pumps, its findings."""
        progress = self.progress
        name = self.name
        if self.trouble and not self.registered:
            return f"{name}: no answer\n  {self.trouble}"
        if self.trouble:
            return f"{name}: no answer, registered as {self.node.state}\n  {self.trouble}\n  registered last: {self._at(self.node.max_commit_ts)}"
        lines = [f"{name}: {progress.get('state') or self.node.state}"]
        if progress.get("bootstrap"):
            return "\n".join([*lines, f"  the stream has not begun: {progress['bootstrap']}"])
        # Until a Pump has answered, the page of the real programs has no position.
        at = int(self.status.get("LastTS") or progress.get("resolved_ts") or 0)
        lines.append(f"  everything up to {self._at(at)} is in the target" if at else "  nothing is in the target yet")
        if progress:
            lines.append(
                f"  lag {progress['lag_seconds']:.1f} s, {progress['rows_per_second']:,.0f} rows/s; since its start {progress['transactions']:,} "
                f"transactions, {progress['row_events']:,} row events, {progress['ddls']:,} DDLs"
            )
            lines.append(f"  held back by: {progress_in(progress).held or 'nothing'}")
        else:
            lines.append("  a real Drainer does not report what holds it back: if a Pump does, it is the Pump with the lowest position")
        if progress.get("unrecorded"):
            lines.append(f"  {progress['unrecorded']}")
        positions = sorted((self.status.get("PumpPos") or {}).items(), key=lambda item: (item[1], item[0]))
        lines += [f"  Pump {pump} is read up to {self._at(ts)}" for pump, ts in positions]
        if progress.get("findings"):
            lines.append(f"  {progress['findings']:,} findings since its start, the newest:")
            lines += [f"    - {words}" for words in progress["newest_findings"]]
        return "\n".join(map(plain, lines))

    def json(self) -> str:
        """The same as one JSON object."""
        node = self.node.to_dict() if self.registered else None
        said = {"registered": node, "status": self.status, "progress": self.progress, "trouble": self.trouble}
        return json.dumps(said, ensure_ascii=False)

    def _at(self, ts: int) -> str:
        return f"{as_time(ts)} (TSO {ts})" if ts else "nothing yet"


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
