"""A private MySQL server in the place of the tests' MariaDB: what holds at one kind of target is asked of the other.

``TIDB_BINLOG_TEST_MYSQLD`` names the program ``mysqld``; ``make test-mysql`` sets it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark_tidb_binlog.jobs.lab.mariadb import ACCOUNT, PrivateMariaDB

MYSQLD = os.environ.get("TIDB_BINLOG_TEST_MYSQLD", "")
NO_PAD_BIN = "utf8mb4_0900_bin" if MYSQLD else "utf8mb4_nopad_bin"
"""The collation that tells every two texts apart, as the server of the tests names it."""

RealMariaDB = PrivateMariaDB
"""A MariaDB whichever server is the target: it plays a TiDB, the upstream of a bootstrap by its tables' former versions, or a target with timestamps."""

_DEFAULTS = {"disable-log-bin": "1", "innodb-log-writer-threads": "OFF"}
"""As the MariaDB of the tests: no binary log; and fewer threads that wait busily, on a machine of two cores."""


class PrivateMySQL(PrivateMariaDB):
    """One mysqld process and its data directory. Its character set and collation are MySQL's own defaults."""

    def __init__(self, data_dir: Path | str | None = None, options: Mapping[str, str] | None = None, port: int = 0) -> None:
        """Like MariaDB's; asking for a binary log enables it."""
        super().__init__(data_dir, options, port)
        asked = {name.replace("_", "-"): value for name, value in (options or {}).items()}
        self._options = asked if "log-bin" in asked else {**_DEFAULTS, **asked}

    def _first_statements(self) -> list[str]:
        accounts = f"'{ACCOUNT}'@'localhost'", f"'{ACCOUNT}'@'127.0.0.1'"
        made = [(f"CREATE USER IF NOT EXISTS {one}", f"ALTER USER {one} IDENTIFIED BY '{self._password}'") for one in accounts]
        return [
            "ALTER USER 'root'@'localhost' ACCOUNT LOCK",
            *(statement for pair in made for statement in pair),
            *(f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION" for account in accounts),
            *(f"REVOKE FILE ON *.* FROM {account}" for account in accounts),
        ]

    def _installing(self) -> list[str]:
        # What it is installed with it cannot be started without.
        kept = [f"--{name}={value}" for name, value in self._options.items() if name == "lower-case-table-names"]
        return [MYSQLD, "--no-defaults", "--initialize-insecure", f"--datadir={self._data_dir}", *kept]

    def _serving(self) -> list[str]:
        return [MYSQLD, *super()._serving()[1:], "--mysqlx=OFF"]
