"""A real etcd of the test's own: one process on loopback with free ports and a data directory that the test gives.

Promises: ``start`` returns when it answers; ``kill`` is ``kill -9``; ``start`` after ``kill`` runs on the same ports and data. Where etcd is
not installed the test fails and says what to install.
"""

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark_tidb_binlog.jobs.lab.ports import free_port
from tests.support.eventually import eventually


class EtcdProcess:
    """One etcd server; ``address`` is its client port."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.address, self._peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "EtcdProcess":
        """Start it and wait until it answers."""
        binary = shutil.which("etcd")
        assert binary is not None, "etcd is not installed: run `make setup`, or install Debian's package etcd-server"
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(binary), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory)
        eventually(self._ready, what="etcd answers", seen=self._log_end)
        return self

    def kill(self) -> None:
        """``kill -9``, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def gateway(self, path: str, **fields: Any) -> dict[str, Any]:
        """One question to its JSON gateway, ``/v3/PATH``: a second opinion beside the client under test. Bytes go as base64."""
        fields = {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in fields.items()}
        request = urllib.request.Request(f"http://{self.address}/v3/{path}", json.dumps(fields).encode())
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: dict[str, Any] = json.loads(response.read())
        return answer

    def __enter__(self) -> "EtcdProcess":
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _log_end(self) -> str:
        return (self._directory / "etcd.log").read_text()[-2000:]

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log_end()
        try:
            self.gateway("kv/range", key=b"k")
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _command(self, binary: str) -> list[str]:
        flags = {
            "name": "one",
            "data-dir": "data",
            "listen-client-urls": f"http://{self.address}",
            "advertise-client-urls": f"http://{self.address}",
            "listen-peer-urls": f"http://{self._peer}",
            "initial-advertise-peer-urls": f"http://{self._peer}",
            "initial-cluster": f"one=http://{self._peer}",
            # it elects itself: no need to wait a second for others
            "heartbeat-interval": "10",
            "election-timeout": "50",
            "log-level": "error",
        }
        # a test run that is killed leaves no server behind
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return [*dies_with_us, binary, *(f"--{name}={value}" for name, value in flags.items())]
