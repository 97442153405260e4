"""Fixtures that more than one test package needs: real servers, each made once and only when asked for."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from pymysql.err import OperationalError

from pyspark_tidb_binlog.jobs.lab import mariadb as lab
from tests.support import installed_once
from tests.support.durations import in_shard, recorded
from tests.support.private_mysql import MYSQLD, PrivateMySQL

# Containers often forbid Python to keep what it compiles: then each of a run's hundreds of processes compiles all of the product again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests kill servers, and no machine.
lab.PrivateMariaDB.defaults = lab.DEBIAN_DEFAULTS | lab.UNSYNCED
if not MYSQLD:
    lab.PrivateMariaDB._install = installed_once.install  # type: ignore[method-assign]
else:
    # Before any module of tests takes the name.
    lab.PrivateMariaDB = PrivateMySQL  # type: ignore[misc]

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Starting a JVM forks, and gRPC's fork handlers let the child die now and then, although it runs nothing but the JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# The same examples in every run of `make test`, which decides over a change; `make property` draws new ones, twice as many.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("TIDB_BINLOG_EXAMPLES", "same"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, one shard of what ``-m`` selects; a limit of its own for what is meant to take long; at a MySQL server not what only a MariaDB does."""
    seconds, which = recorded(), os.environ.get("TIDB_BINLOG_SHARD", "")
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))
    items[:] = [item for place, item in enumerate(items) if in_shard(place, which)]
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("torture"):
            item.add_marker(pytest.mark.timeout(5400))
        if MYSQLD and item.get_closest_marker("mariadb"):
            item.add_marker(pytest.mark.skip(reason="only at a MariaDB"))


@pytest.fixture(scope="session")
def mariadbs() -> list[PrivateMariaDB]:
    """``mariadb``, once a test has asked for it."""
    return []


@pytest.fixture(scope="session")
def mariadb(mariadbs: list[PrivateMariaDB]) -> Iterator[PrivateMariaDB]:
    """One private MariaDB for the whole run. Tests use databases of their own and drop them; for crashes take ``fresh_mariadb``."""
    with PrivateMariaDB() as server:
        mariadbs.append(server)
        yield server
        mariadbs.clear()


@pytest.fixture(scope="module", autouse=True)
def left_empty(mariadbs: list[PrivateMariaDB]) -> Iterator[None]:
    """No file of tests finds the databases of another, whichever files its process runs."""
    yield
    for server in mariadbs:
        # A session that a test has left open may hold a table.
        with contextlib.suppress(OperationalError), server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 10")
            cursor.execute("SHOW DATABASES")
            for (name,) in cursor.fetchall():
                if name not in ("information_schema", "mysql", "performance_schema", "sys"):
                    cursor.execute(f"DROP DATABASE `{name}`")


@pytest.fixture
def fresh_mariadb() -> Iterator[PrivateMariaDB]:
    """A private MariaDB of this test alone, to be killed and restarted at will."""
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One local session on two cores with the settings of the jobs."""
    # Not at module level: unit tests must not pay for pyspark.
    from pyspark_tidb_binlog.jobs.spark.spark_session import build_session

    session = build_session("tests", master="local[2]")
    yield session
    session.stop()
