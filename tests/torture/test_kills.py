"""Deaths at no named point: ``kill -9`` of the drainer at random moments, over several cases, and of the target under it."""

import functools
import random
import time
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.arena import Arena, Cut
from tests.support.golden_case import GOLDEN
from tests.support.keyless_case import keyless_case

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

KILLS = {"bank": 20, "keys": 8, "ddl": 12, "keyless": 8}
"""In each delivery; the small cases end before more."""
TARGET_KILLS = 5
CUT = Cut(step_bytes=1000, max_bytes=8_000)
FEW = Cut(step_bytes=150, max_bytes=450)
"""Small cases last for some lives only when a batch takes little."""


@pytest.mark.parametrize("name", list(KILLS))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_the_drainer_is_killed_at_random(delivery: str, name: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    chance = random.Random(delivery + name)
    case = keyless_case(tmp_path / "case", 300) if name == "keyless" else load(GOLDEN / name)
    with Arena(case, fresh_mariadb, tmp_path / "arena", delivery, CUT if name == "bank" else FEW) as arena:
        arena.write()
        killed = 0
        while killed < KILLS[name]:
            before = arena.checkpoint()
            with arena.drainer() as drainer:
                # Most lives get somewhere; some end while they start.
                while chance.random() < 0.95 and not arena.moved(before) and drainer.running:
                    time.sleep(0.05)
                time.sleep(chance.uniform(0, 1.5))
                if not drainer.running:
                    assert drainer.wait() == 0, drainer.output()
                    break
            killed += 1
        arena.live_and_die("")
        print(f"{name} {delivery}: killed {killed} times")
        assert killed == KILLS[name]
        arena.assert_equal()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_the_target_is_killed_and_the_drainer_lives_on(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    chance = random.Random(delivery)
    with Arena(load(GOLDEN / "bank"), fresh_mariadb, tmp_path, delivery, CUT) as arena:
        arena.write()
        with arena.drainer() as drainer:
            for _ in range(TARGET_KILLS):
                before = arena.checkpoint()
                drainer.until(functools.partial(arena.moved, before))
                time.sleep(chance.uniform(0, 0.3))
                assert drainer.running, drainer.output()
                fresh_mariadb.kill()
                fresh_mariadb.restart()
            assert drainer.wait() == 0, drainer.output()
        arena.assert_equal()
