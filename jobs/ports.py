"""A TCP port on loopback for a server that is started next. Reads the kernel's range once a call; holds nothing.

Promises: it was free a moment ago, and lies outside the range from which the kernel takes the ports of outgoing connections, so that no
client of anybody's takes it before the server does, or while the server is restarted.
"""

import contextlib
import random
import socket
from pathlib import Path

from schemas.errors import ConfigError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
"""Below it are the ports of servers that everybody knows."""
_TRIES = 1000


def free_port() -> int:
    """A port that nobody listens on.

    Raises:
        ConfigError: none was found.
    """
    first_ephemeral = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, max(first_ephemeral, _LOWEST + 1_000))
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise ConfigError(f"no free port on 127.0.0.1 from {_LOWEST} on in {_TRIES} tries")
