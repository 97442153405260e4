"""The case ``bench``, 279,016 row events in parts, with deaths in every phase."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.arena import Arena, Cut, numbered
from tests.support.golden_case import GOLDEN

CASE = GOLDEN / "bench"

pytestmark = [
    pytest.mark.torture,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.grpc,
    pytest.mark.mysql,
]

POINTS = (
    "before-deletes",
    "between-phases",
    "before-part-delete-commit",
    "after-part-delete",
    "before-part-write-commit",
    "after-part-write",
    "before-downstream-commit",
    "after-downstream-commit",
)


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_bench_in_parts(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    cut = Cut(step_bytes=1 << 20, max_bytes=4 << 20, atomic_rows=20_000, parts=3)
    with Arena(load(CASE), fresh_mariadb, tmp_path, delivery, cut) as arena:
        arena.write()
        died = arena.live_and_die(numbered(dict.fromkeys(POINTS, (1, 2, 3))))
        print(f"bench {delivery}: {died} deaths: {dict(arena.deaths())}")
        assert arena.deaths() == dict.fromkeys(POINTS, 3)
        arena.assert_equal()
