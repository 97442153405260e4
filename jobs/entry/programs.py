"""The programs of a MariaDB server on this machine, which the demo, rehearsals and tests start."""

import os
import shutil

from pyspark_tidb_binlog.schemas.errors import ConfigError

_NOT_ON_EVERY_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin"
SERVER = ("mariadbd", "mariadb-install-db")


def server_program(name: str) -> str:
    """The path of the program.

    Raises:
        ConfigError: it is not installed.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_NOT_ON_EVERY_PATH}")
    if found is None:
        raise ConfigError(
            f"a private MariaDB server is needed, and {name} is not installed: on Debian or Ubuntu run `apt-get install mariadb-server` "
            "(the system's own service need not run), or name a server with --to mysql://user:password@host:port"
        )
    return found


def require_server_programs() -> None:
    """Raise ConfigError if one of them is not installed."""
    for name in SERVER:
        server_program(name)
