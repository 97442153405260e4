"""A private MariaDB server: the target of demo, rehearse, tests and benchmarks, on a random loopback port.

Promises: no existing server, datadir or account of the machine is touched. All files of a server are in its datadir and in one directory
with a short name for its socket, both inaccessible to other users. It never runs as root: started by root, it runs as the system user of
Debian's package. Its account ``ACCOUNT`` has a random password, on the socket as on TCP, and cannot access the machine's files; MariaDB's
own root is accessible to that system user only. Durability is Debian's default: the log is flushed at every commit.
The server ends with the thread that started it (if ``setpriv`` exists), with ``stop``, or at the end of the ``with`` block.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pymysql
from pymysql.connections import Connection

from pyspark_tidb_binlog.conf.model import TargetConfig
from pyspark_tidb_binlog.jobs.entry.programs import server_program
from pyspark_tidb_binlog.jobs.lab.emulator.process import dies_with_parent
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.schemas.errors import ConfigError

START_TIMEOUT = 60.0
"""Seconds that a server may take to answer, including crash recovery."""
STOP_TIMEOUT = 60.0

ACCOUNT = "tidb_binlog"
"""The account that the stream connects as: all privileges on all databases except FILE."""
_LONGEST_STATEMENT = 240
"""Seconds. Without a limit a statement waits a day for a table that another transaction uses."""
_SYSTEM_USERS = ("mysql", "nobody")
"""System users as which a server started by root runs: the first that exists."""

DEBIAN_DEFAULTS = {
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_general_ci",
    "innodb-flush-log-at-trx-commit": "1",
}
"""Settings of Debian's package, explicit or by default, on which benchmarks depend."""
UNSYNCED = {"innodb-flush-method": "nosync", "debug-no-sync": "1"}
"""Options of a server that leaves writing to the disk to the operating system. A kill of the server loses nothing, a crash of the machine may."""


class PrivateMariaDB:
    """One mariadbd process and its datadir.

    ``data_dir`` None: a temporary one that ``stop`` removes. A given one is created when absent and kept.
    ``options`` become ``--name=value`` of mariadbd and win over the defaults.
    """

    defaults: ClassVar[Mapping[str, str]] = DEBIAN_DEFAULTS

    def __init__(self, data_dir: Path | str | None = None, options: Mapping[str, str] | None = None, port: int = 0) -> None:
        """Describe the server; ``start`` (or ``with``) runs it. ``port`` 0 takes a free one and keeps it over restarts."""
        self._user = _system_user()
        self._password = secrets.token_urlsafe(24)
        self._run_dir = Path(tempfile.mkdtemp(prefix="tbs-db-"))
        self._data_dir = Path(data_dir).resolve() if data_dir is not None else self._run_dir / "data"
        self._options = {**self.defaults, **(options or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port
        """TCP port on 127.0.0.1; 0 until the first start if none was asked for."""

    @property
    def socket(self) -> Path:
        """The Unix socket. In a directory of its own, because a socket path is limited to 107 bytes."""
        return self._run_dir / "s"

    @property
    def data_dir(self) -> Path:
        """The server's data directory."""
        return self._data_dir

    @property
    def log_file(self) -> Path:
        """The server's output, over all its starts."""
        return self._data_dir.with_name(self._data_dir.name + ".log")

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ConfigError("the private MariaDB is not running: call start() first")
        return self._process.pid

    def start(self) -> Self:
        """Install the datadir if it is new, start the server and wait until it answers."""
        self._make_places()
        if not (self._data_dir / "mysql").is_dir():
            self._install()
        self.port = self.port or free_port()
        self._process = self._spawn()
        self._wait_ready()
        return self

    def stop(self) -> None:
        """Shut the server down cleanly and remove temporary files. Without a running server, only the latter."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def kill(self) -> None:
        """``kill -9``: after ``restart``, exactly what was committed is there."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT)
        self._process = None

    def restart(self) -> Self:
        """Start again on the same port and datadir, after ``kill`` or after shutting down a running server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT)
            self._process = None
        return self.start()

    def target(self) -> TargetConfig:
        """The settings that reach this server over its Unix socket."""
        return TargetConfig(host="127.0.0.1", port=self.port, user=ACCOUNT, password=self._password, socket=str(self.socket))

    def connect(self) -> "Connection[pymysql.cursors.Cursor]":
        """A plain autocommit connection, for checks and workloads."""
        return pymysql.connect(
            unix_socket=str(self.socket),
            user=ACCOUNT,
            password=self._password,
            charset="utf8mb4",
            autocommit=True,
            read_timeout=_LONGEST_STATEMENT,
            ssl_disabled=True,  # PyMySQL would read the machine's certificates anew for each connection, for a socket that is private anyway
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _make_places(self) -> None:
        """Create the directories, owned by the server's user and inaccessible to others, and the init file."""
        no_files = self._run_dir / "no-files"
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        no_files.mkdir(mode=0o500, exist_ok=True)
        first = self._run_dir / "first.sql"
        first.touch(0o600)
        first.write_text("".join(statement + ";\n" for statement in self._first_statements()))
        if self._user is not None:
            for path in (self._run_dir, first, no_files, self._data_dir):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
            self._require_reach(self._user)

    def _first_statements(self) -> list[str]:
        accounts = f"'{ACCOUNT}'@'localhost'", f"'{ACCOUNT}'@'127.0.0.1'"
        return [
            "DELETE FROM mysql.global_priv WHERE User = ''",
            "FLUSH PRIVILEGES",
            *(f"CREATE OR REPLACE USER {account} IDENTIFIED BY '{self._password}'" for account in accounts),
            *(f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION" for account in accounts),
            *(f"REVOKE FILE ON *.* FROM {account}" for account in accounts),
        ]

    def _require_reach(self, user: pwd.struct_passwd) -> None:
        for directory in self._data_dir.parents:
            found = directory.stat()
            bit = 0o100 if found.st_uid == user.pw_uid else 0o010 if found.st_gid == user.pw_gid else 0o001
            if not found.st_mode & bit:
                raise ConfigError(
                    f"{directory} is not accessible to the system user {user.pw_name}, as which MariaDB runs when started by root: "
                    f"put the data directory {self._data_dir} elsewhere, or start as a user other than root"
                )

    def _as_user(self) -> dict[str, Any]:
        """The arguments with which ``subprocess`` starts a program as the server's user."""
        if self._user is None:
            return {"cwd": self._run_dir}
        return {"cwd": self._run_dir, "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": ()}

    def _installing(self) -> list[str]:
        """The command that makes the data directory."""
        return [
            server_program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self._data_dir}",
            "--auth-root-authentication-method=socket",
            "--skip-test-db",
            *(f"--{name}={self._options[name]}" for name in UNSYNCED if name in self._options),
        ]

    def _serving(self) -> list[str]:
        """The command that starts the server, less the options that were asked for."""
        return [
            server_program("mariadbd"),
            "--no-defaults",
            f"--datadir={self._data_dir}",
            f"--tmpdir={self._run_dir}",
            f"--socket={self.socket}",
            f"--pid-file={self._run_dir / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--init-file={self._run_dir / 'first.sql'}",
            f"--secure-file-priv={self._run_dir / 'no-files'}",
            "--local-infile=0",
        ]

    def _install(self) -> None:
        command = self._installing()
        # Its temporary tables have fixed names: two concurrent installations must not share a directory.
        environ = {**os.environ, "TMPDIR": str(self._run_dir)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, **self._as_user())
        if done.returncode != 0:
            raise ConfigError(f"{Path(command[0]).name} could not create {self._data_dir}: {(done.stderr or done.stdout).strip()[-1000:]}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [
            *dies_with_parent("TERM"),
            *self._serving(),
            *(f"--{name}={value}" for name, value in self._options.items()),
        ]
        with self.log_file.open("ab") as log:
            # Its own session: Ctrl-C at the terminal reaches only the job, which then shuts the server down cleanly.
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as_user())

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                self._listens()
                self.connect().close()
                (self._run_dir / "first.sql").unlink()
                return
            except (pymysql.err.OperationalError, OSError) as refused:
                code = self._process.poll()
                if code is not None or time.monotonic() > deadline:
                    state = f"ended with code {code}" if code is not None else f"did not answer within {START_TIMEOUT:.0f} s"
                    raise ConfigError(f"mariadbd {state}; its log is {self.log_file}:\n{self._log_tail()}") from refused
            time.sleep(0.02)

    def _listens(self) -> None:
        """Raise OSError until the server listens; PyMySQL would leave its socket open, which tests treat as an error."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(self.socket))

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])


def _system_user() -> pwd.struct_passwd | None:
    """The user as which the server runs; None: the current one, which is not root."""
    if os.geteuid() != 0:
        return None
    for name in _SYSTEM_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigError(f"MariaDB is not started as root, and the machine has no user {' or '.join(_SYSTEM_USERS)}: start as another user")
