"""A free TCP port on loopback for a server that is about to start. Reads the kernel's ephemeral port range at each call; reserves nothing.

Promises: the port was free a moment ago and lies outside the range from which the kernel takes the ports of outgoing connections, so that
no client takes it before the server does, or while the server restarts.
"""

import contextlib
import random
import socket
from pathlib import Path

from pyspark_tidb_binlog.schemas.errors import ConfigError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
"""The ports below it are those of well-known services."""
_TRIES = 1000


def free_port() -> int:
    """A port that no server listens on.

    Raises:
        ConfigError: no free port was found.
    """
    first_ephemeral = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, max(first_ephemeral, _LOWEST + 1_000))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise ConfigError(f"no free port on 127.0.0.1 from {_LOWEST} on in {_TRIES} tries")
