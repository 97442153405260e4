"""Checks the address that a Pump or Drainer registers: other nodes must reach it. The check resolves names and a route.

Promises: three kinds of addresses are refused: an address that only serves to listen on (``0.0.0.0``, ``[::]``, none), a port of 0, and a
loopback address, unless the registry is on this machine's loopback too. The error names ``advertise-addr``, and suggests this machine's
address on the route to the registry.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from pyspark_tidb_binlog.schemas.errors import ConfigError

_ANYWHERE = ("", "0.0.0.0", "::")


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
