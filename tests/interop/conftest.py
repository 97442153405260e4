"""The real cluster that the tests of this directory look at; without one they are skipped."""

import contextlib
import os
from collections.abc import Iterator

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.pd import PdRegistry


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is here unless a cluster is named."""
    if not (os.environ.get("PD_URLS") and os.environ.get("TIDB_STATUS")):
        for item in items:
            if "interop" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="PD_URLS and TIDB_STATUS name no real cluster"))


@pytest.fixture
def pd() -> Iterator[PdRegistry]:
    """The PD of ``PD_URLS``: ``http://host:2379,…``."""
    with contextlib.closing(PdRegistry(os.environ["PD_URLS"], tls=None)) as registry:
        yield registry


@pytest.fixture
def tidb_status() -> str:
    """``TIDB_STATUS``: ``http://host:10080``."""
    return os.environ["TIDB_STATUS"].rstrip("/")
