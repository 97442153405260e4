"""Reparo with a database as its destination: files of a file sink, applied to a real MariaDB, are the upstream's tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import replay
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from tests.support.golden_case import GOLDEN, compared
from tests.support.golden_messages import from_drainer

pytestmark = pytest.mark.mysql


class Destination:
    """A database to which files are replayed."""

    def __init__(self, server: PrivateMariaDB, directory: Path) -> None:
        self.server = server
        self.directory = directory

    def write(self, payloads: list[bytes]) -> None:
        writer = BinlogWriter(self.directory / "binlogs", 4000)
        writer.append(payloads)
        writer.close()

    def replay(self, *options: str) -> int:
        to = self.server.target()
        config = self.directory / "reparo.toml"
        config.write_text(
            f'data-dir = "{self.directory / "binlogs"}"\ndest-type = "mysql"\n[dest-db]\nhost = "{to.host}"\nport = {to.port}\nuser = "{to.user}"\n'
            f'password = "{to.password}"\n'
        )
        return replay.main(["-config", str(config), *options])

    def query(self, sql: str) -> tuple[tuple[object, ...], ...]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchall())


@pytest.fixture
def destination(mariadb: PrivateMariaDB, tmp_path: Path) -> Iterator[Destination]:
    found = Destination(mariadb, tmp_path)
    before = {name for (name,) in found.query("SHOW DATABASES")}
    yield found
    for (name,) in found.query("SHOW DATABASES"):
        if name not in before:
            found.query(f"DROP DATABASE `{name}`")


@pytest.mark.parametrize("case", ["types", "keys", "txn"])
def test_a_replay_into_an_empty_database_makes_the_upstreams_tables(
    case: str, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a real Drainer's files; then once more in safe mode from the last DDL on."""
    monkeypatch.setenv("TZ", "UTC")
    destination.write(from_drainer(case, "drainer.pb"))
    assert destination.replay() == 0
    assert compared(GOLDEN / case, destination.server.target()) == ""
