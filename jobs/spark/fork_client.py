"""``worker-python ARGUMENTS``: has ``jobs/spark/worker_forks.py`` run them in a fork of the job, and waits until that has ended.

Promises: stdlib only, in an interpreter without site-packages, which starts in hundredths of a second. The fork gets the arguments, environment,
directory, stdin, stdout and stderr; its exit code is returned. If no process takes the request, this interpreter runs the arguments. They never run twice.
"""

import contextlib
import json
import os
import socket
import struct
import sys

FORKS = "TIDB_BINLOG_FORKS"
"""Environment variable: the Unix socket of the process that forks."""


TAKEN = b"t"
"""The first answer: the request will be run. The second is the exit code."""
_FORKED = ("-c", "-m")
"""How Spark starts Python. Anything else is run by an interpreter."""


class NotTaken(Exception):
    """Nothing has been run."""


def ask(arguments: list[str]) -> int:
    """Have ``arguments`` run; returns the exit code.

    Raises:
        NotTaken: no process takes the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.connect(os.environ.get(FORKS, ""))
            if user_of(link) != os.getuid():
                raise NotTaken  # the request holds the environment
            request = json.dumps({"arguments": arguments, "environ": dict(os.environ), "directory": os.getcwd()}).encode()
            socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2])
            link.sendall(request)
            if link.recv(1) != TAKEN:
                raise NotTaken
        except OSError as error:
            raise NotTaken from error
        for descriptor in (0, 1, 2):
            # the fork's own copies say when it has closed them
            os.close(descriptor)
        try:
            code = link.recv(1)
        except OSError:
            return 1
        return code[0] if code else 1


def user_of(link: socket.socket) -> int:
    """The user id of the process at the other end."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def run(arguments: list[str]) -> int:
    """Run ``arguments``."""
    if arguments[:1] and arguments[0] in _FORKED:
        with contextlib.suppress(NotTaken):
            return ask(arguments)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
