"""A server's own binlog in row format, transaction by transaction, as ``mariadb-binlog`` prints it: what really was written, and by whom.

Promises: every transaction that changed a row of an InnoDB table, in the order of commit, with the images before and after. Numbers are int,
NULL is None, all else is the text that the program prints, without its quotes. DDLs are left out. Of a MySQL's binlog, which has no statements that the
program knows, the file is read, since the program takes no MySQL for a server that it could ask.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.private_mysql import MYSQLD
from tests.support.target_rows import run_sql

ROW_BINLOG = {"log-bin": "rows", "binlog-format": "ROW", "server-id": "1"}
"""Options of a server whose binlog can be read."""
_FILE = "rows.000001"
_POSITION = re.compile(r"#\d{6}\s.* end_log_pos (\d+) ")
_CHANGE = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(.*)`\.`(.*)`")
_CELL = re.compile(r"###   @\d+=(.*)", re.DOTALL)
_NUMBER = re.compile(r"(-?\d+)( \(\d+\))?\Z")

Image = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One changed row."""

    table: str
    """``database.table``."""
    old: Image | None
    new: Image | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """What was committed as one."""

    changes: tuple[Change, ...]
    statements: tuple[str, ...]
    """Empty where the server is a MySQL."""


class RowBinlog:
    """Reads on from where it was."""

    def __init__(self, server: PrivateMariaDB) -> None:
        """``server`` has the options ``ROW_BINLOG``. What is there already is not read."""
        self._server = server
        ((name, position, *_),) = run_sql(server, "SHOW BINARY LOG STATUS" if MYSQLD else "SHOW MASTER STATUS")
        assert name == _FILE, "the server has begun another file"
        self._position = int(position)

    def read(self) -> list[Transaction]:
        """What was committed since the last call."""
        found = list(self._parsed(self._printed().splitlines()))
        self._position = found[-1][1] if found else self._position
        return [transaction for transaction, _ in found]

    def _printed(self) -> str:
        command = ["mariadb-binlog", "--no-defaults", "-v", "--base64-output=decode-rows", f"--start-position={self._position}"]
        if MYSQLD:
            # Behind the last whole event there may be a part of one, at which the program ends with an error.
            done = subprocess.run([*command, str(self._server.data_dir / _FILE)], capture_output=True, text=True, check=False)
            assert done.stdout, done.stderr
            return done.stdout
        to = self._server.target()
        account = [f"--socket={to.socket}", f"--user={to.user}", f"--password={to.password}"]
        remote = ["--read-from-remote-server", *account, "--to-last-log", _FILE]
        return subprocess.run([*command, *remote], capture_output=True, text=True, check=True).stdout

    def _parsed(self, lines: list[str]) -> Iterator[tuple[Transaction, int]]:
        changes: list[_Growing] = []
        statements: list[str] = []
        position = 0
        for line in lines:
            if at := _POSITION.match(line):
                position = int(at[1])
            elif line.startswith("#Q> "):
                statements.append(line.removeprefix("#Q> "))
            elif begun := _CHANGE.match(line):
                changes.append(_Growing(begun[1], f"{begun[2]}.{begun[3]}"))
            elif line in ("### WHERE", "### SET"):
                changes[-1].images.append([])
            elif cell := _CELL.match(line):
                changes[-1].images[-1].append(_value(cell[1]))
            elif line.startswith("COMMIT"):
                yield Transaction(tuple(c.done() for c in changes), tuple(statements)), position
                changes, statements = [], []


class _Growing:
    def __init__(self, verb: str, table: str) -> None:
        self._verb, self._table = verb, table
        self.images: list[list[int | str | None]] = []

    def done(self) -> Change:
        images: list[Image | None] = [tuple(image) for image in self.images]
        if self._verb == "INSERT INTO":
            images.insert(0, None)
        elif self._verb == "DELETE FROM":
            images.append(None)
        old, new = images
        return Change(self._table, old, new)


def _value(text: str) -> int | str | None:
    if text == "NULL":
        return None
    number = _NUMBER.match(text)
    return int(number[1]) if number else text.strip("'")
