"""TCP ports on loopback for a new server: finds a free port, or the process that holds a wanted port. Reserves nothing.

Promises of ``free_port``: the port was free a moment ago, and is outside the kernel's range for outgoing connections. So no client takes the port before
the server starts, or while it restarts.
"""

import contextlib
import os
import random
import socket
from pathlib import Path

from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
"""The ports below it are those of well-known services."""
_TRIES = 1000
_LISTENS = "0A"
"""A state in ``/proc/net/tcp``."""


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


def require_free(port: int, instead: str) -> None:
    """Check that no server listens on ``port``; ``instead``: what to do otherwise, for the error.

    Raises:
        NotUsableYet: a server listens; the error names its process, if this user may see it.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise NotUsableYet(f"cannot listen on 127.0.0.1:{port}: {_holder(port) or error}; {instead}") from error


def _holder(port: int) -> str:
    """The process that listens on ``port``, in words; empty: it cannot be seen."""
    rows = [
        row.split() for table in ("tcp", "tcp6") if (path := Path("/proc/net", table)).exists() for row in path.read_text().splitlines()[1:]
    ]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and row[1].endswith(f":{port:04X}")}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) in sockets:
                command = (link.parents[1] / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                return f"process {link.parts[2]} ({command.strip()[:120]}) listens there"
    return ""
