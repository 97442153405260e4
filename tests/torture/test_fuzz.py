"""Broken sessions against the front for ten minutes (TIDB_BINLOG_FUZZ_MINUTES)."""

import os

import pytest

from tests.support.rpc_fuzz import fire

pytestmark = [pytest.mark.torture, pytest.mark.slow]


def test_the_front_outlives_whatever_clients_send() -> None:
    fire(60 * float(os.environ.get("TIDB_BINLOG_FUZZ_MINUTES", "10")))
