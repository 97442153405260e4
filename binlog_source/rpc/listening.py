"""The addresses where a server listens: which failures pass by themselves, and the file of its Unix socket.

Promises: a socket at which somebody answers is left alone, and so is any other file. A stale socket may be replaced. A process removes only
its own file, never the file of a process that has replaced it.
"""

import errno
import os
import re
import socket
import stat

from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet

_PASSING = frozenset(
    {
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    }
)
"""Failures that pass: the port's former owner still has it, this machine has not got the address yet, a resource runs short."""
_NO_NAME = re.compile(r"[0-9.]*|.*:.*")
"""Hosts that no name server is asked for."""
_ANSWER_SECONDS = 1.0
_Inode = tuple[int, int]


def host_and_port(addr: str) -> tuple[str | None, int]:
    """The parts of ``host:port``; None: every address.

    Raises:
        ValueError: it has no port.
    """
    host, _, text = addr.rpartition(":")
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise ValueError(f"{port} is no port")
    return host.strip("[]") or None, port


def cannot_listen(what: str, host: str, error: Exception) -> ConfigError:
    """The error about a failure to listen; ``what``: the server and its address, ``host``: the address's host."""
    text = f"{what}: {error}"
    if isinstance(error, socket.gaierror):
        passes = not _NO_NAME.fullmatch(host)
    else:
        passes = isinstance(error, OSError) and error.errno in _PASSING
    return NotUsableYet(text) if passes else ConfigError(text)


def _is_bound(path: str) -> bool:
    """Whether a process of this machine has a socket of that name; also if there is no telling."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
            bound = [line.split(maxsplit=7)[7:] for line in table]
    except OSError:
        return True
    return any(os.path.basename(entry[0].strip()) == os.path.basename(path) for entry in bound if entry)


class SocketFile:
    """The file of a Unix socket that this process listens at."""

    def __init__(self, path: str) -> None:
        """Look at the file of the path.

        Raises:
            OSError: somebody answers at the socket (EADDRINUSE), or the file is no socket, or cannot be looked at.
        """
        self.path = path
        self._own: _Inode | None = None
        found = self._there()
        if found is None:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_ANSWER_SECONDS)
            try:
                probe.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                return  # its process is gone
            except (BlockingIOError, TimeoutError):
                pass  # it has no time to answer
            except PermissionError:
                if not _is_bound(path):
                    return  # another user's, whose process is gone
        raise OSError(errno.EADDRINUSE, "another process listens there", path)

    def bound(self) -> None:
        """It was made by this process."""
        self._own = self._inode()

    def check(self) -> None:
        """Check that the file is still this process's own.

        Raises:
            OSError: another process has replaced it (EADDRINUSE).
        """
        if self._inode() != self._own:
            raise OSError(errno.EADDRINUSE, "another process has replaced it, or it was removed", self.path)

    def remove(self) -> None:
        """Remove it, if it is one's own."""
        if self._own is not None and self._inode() == self._own:
            os.unlink(self.path)

    def _there(self) -> os.stat_result | None:
        try:
            return os.lstat(self.path)
        except FileNotFoundError:
            return None

    def _inode(self) -> _Inode | None:
        found = self._there()
        return (found.st_dev, found.st_ino) if found is not None else None
