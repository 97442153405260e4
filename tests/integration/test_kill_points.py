"""The kill test in small: the drainer dies at six points of one recorded case, is started again each time, and nothing differs at the end.

The whole of it is ``tests/torture`` (``make torture``).
"""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.emulator.rehearsal import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

SIX = {"source-read": 3, "pair-state": 9, "before-downstream-commit": 9, "after-ddl-intent": 12, "after-ddl": 20, "after-spark-commit": 3}
"""Point and the pass that kills: a worker, the pairing state, an open transaction, a DDL not run, a DDL run, a batch that Spark has recorded."""


def test_six_deaths_and_nothing_differs(fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    case = load(GOLDEN / "ddl")
    with Arena(case, fresh_mariadb, tmp_path, "raw", Cut(step_bytes=400, max_bytes=3000)) as arena:
        arena.write()
        died = arena.live_and_die(",".join(f"{name}:{n}" for name, n in SIX.items()))
        assert died == len(SIX)
        assert arena.deaths() == dict.fromkeys(SIX, 1)
        arena.assert_equal()
