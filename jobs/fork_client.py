"""``worker-python ARGUMENTS``: has ``jobs/worker_forks.py`` run them in a fork of the job, and waits until that has ended.

Promises: stdlib only, in an interpreter without site-packages: it starts in hundredths of a second. Arguments, environment, directory, stdin,
stdout and stderr are passed on; the exit code is that of the fork. Where nothing answers, the arguments are run by Python itself.
"""

import json
import os
import socket
import sys

FORKS = "TIDB_BINLOG_FORKS"
"""Environment variable: the Unix socket of the process that forks."""


def ask(arguments: list[str]) -> int:
    """Have ``arguments`` run; returns the exit code.

    Raises:
        OSError: nothing forks there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(os.environ.get(FORKS, ""))
        request = json.dumps({"arguments": arguments, "environ": dict(os.environ), "directory": os.getcwd()}).encode()
        socket.send_fds(link, [len(request).to_bytes(4, "big")], [0, 1, 2])
        link.sendall(request)
        for descriptor in (0, 1, 2):
            # the fork's own copies say when it has closed them
            os.close(descriptor)
        code = link.recv(1)
        return code[0] if code else 1


if __name__ == "__main__":
    try:
        sys.exit(ask(sys.argv[1:]))
    except OSError:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
