"""What a Pump or Drainer registers: its states and their transitions, the address at which others reach it, and its entry.

    Pump     (any)    --start-->  online
             online   --pause-->  pausing --done--> paused
             online   --close-->  closing --done--> offline
             closing  --pause-->  pausing: the process ends early; the next start is online, as a real Pump's (pump.md 2)

    Drainer  online   --pause-->  pausing --rested-->  paused
             pausing, paused --resume--> online
             online, pausing, paused --close--> closing

A Drainer's pause keeps the process: the stream stops between two batches, and HTTP and gRPC continue. (A real Drainer ends its process, has no
resume, and accepts ``close`` only while it is online.) When the process ends, a closing Drainer is registered as ``offline``, any other as
``paused``.

Promises: a transition that is not in its table is refused. Three kinds of addresses are refused: an address that only serves to listen on
(``0.0.0.0``, ``[::]``, none), a port of 0, and a loopback address, unless the registry is on this machine's loopback too. The error names
``advertise-addr``, and suggests this machine's address on the route to the registry.
"""

import enum
import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeState, NodeStatus, Registry
from pyspark_tidb_binlog.schemas.errors import ConfigError

_ANYWHERE = ("", "0.0.0.0", "::")


class Move(enum.StrEnum):
    """What changes the state of a running Pump."""

    PAUSE = "pause"
    CLOSE = "close"
    DONE = "done"


PUMP_TRANSITIONS: Mapping[tuple[NodeState, Move], NodeState] = {
    (NodeState.ONLINE, Move.PAUSE): NodeState.PAUSING,
    (NodeState.CLOSING, Move.PAUSE): NodeState.PAUSING,
    (NodeState.ONLINE, Move.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSING, Move.DONE): NodeState.PAUSED,
    (NodeState.CLOSING, Move.DONE): NodeState.OFFLINE,
}


class Action(enum.StrEnum):
    """What an operator asks a Drainer for."""

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"


DRAINER_TRANSITIONS: Mapping[tuple[NodeState, Action], NodeState] = {
    (NodeState.ONLINE, Action.PAUSE): NodeState.PAUSING,
    (NodeState.PAUSING, Action.RESUME): NodeState.ONLINE,
    (NodeState.PAUSED, Action.RESUME): NodeState.ONLINE,
    (NodeState.ONLINE, Action.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSING, Action.CLOSE): NodeState.CLOSING,
    (NodeState.PAUSED, Action.CLOSE): NodeState.CLOSING,
}


def last_state(state: NodeState) -> NodeState:
    """What a Drainer in ``state`` registers when its process ends."""
    return NodeState.OFFLINE if state is NodeState.CLOSING else NodeState.PAUSED


@dataclass(frozen=True, slots=True)
class Registration:
    """One node's entry."""

    registry: Registry
    kind: str
    """``PUMPS`` or ``DRAINERS``."""
    node_id: str
    address: str
    """``host:port`` at which other nodes reach it."""
    commit_ts: Callable[[], int]
    """A Pump's sorted promise, a Drainer's checkpoint."""
    score: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def put(self, state: NodeState) -> None:
        """Register the node in this state.

        Raises:
            PumpUnavailable: the registry does not answer.
        """
        status = NodeStatus(self.node_id, self.address, state, self.commit_ts(), self.registry.tso(), self.score, dict(self.labels))
        self.registry.put_status(self.kind, status)


def advertised(addr: str, advertise_addr: str, port: int, registry_url: str) -> str:
    """The ``host:port`` to register: ``advertise_addr``, or the host of ``addr`` with the ``port`` that is listened on.

    Raises:
        ConfigError: other nodes cannot reach it.
    """
    given = advertise_addr or f"{addr.rpartition(':')[0]}:{port}"
    host, _, port_text = given.rpartition(":")
    host = host.strip("[]")
    registries = [urlsplit(url.strip()) for url in registry_url.split(",")]
    if not port_text.isdigit() or not 0 < int(port_text) < 1 << 16:
        why = "the address has no valid port"
    elif host in _ANYWHERE:
        why = "the address only serves to listen on"
    elif _on_loopback(host) and not all(_on_loopback(registry.hostname or "") for registry in registries):
        why = f"the address is this machine's loopback, and the registry {registry_url} is elsewhere"
    else:
        return given
    best = _on_the_way_to(registries[0].hostname or "", registries[0].port or 80)
    shown = f"[{best}]" if ":" in best else best
    raise ConfigError(
        f"{given} cannot be registered, because other nodes cannot reach this address: {why}. Set addr and advertise-addr, for example "
        f"--addr 0.0.0.0:{port} --advertise-addr {shown or 'HOST'}:{port}"
    )


def _on_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, has only loopback addresses; a name that does not resolve has none."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def _on_the_way_to(host: str, port: int) -> str:
    """The address of this machine on the route to ``host``; empty if there is none. Nothing is sent to ``host``."""
    try:
        family, kind, protocol, _name, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
