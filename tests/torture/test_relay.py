"""A drainer with a relay log is killed again and again, in parts and row by row; after each death the upstream is away, and recovery dies too."""

import random
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.relay_site import RelaySite

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

KILLS = 8
WAYS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "parts": (
        {},
        (
            "after-relay-write",
            "before-deletes",
            "before-part-delete-commit",
            "before-part-write-commit",
            "after-part-write",
            "before-downstream-commit",
        ),
    ),
    "rows": (
        {"spark.net-change": "false", "syncer.worker-count": 4, "syncer.txn-batch": 3},
        ("after-relay-write", "before-rows-commit", "after-rows-commit", "before-downstream-commit"),
    ),
    "rows in small files": (
        {"spark.net-change": "false", "syncer.worker-count": 4, "syncer.txn-batch": 3, "relay-max-file-size": 1500},
        ("before-rows-commit", "after-rows-commit"),
    ),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_every_death_can_be_recovered_from(way: str, delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    more, points = WAYS[way]
    chance = random.Random(way + delivery)
    site = RelaySite(fresh_mariadb, tmp_path, more, delivery)
    recovered = 0
    with site.arena as arena:
        arena.write()
    for number in range(KILLS):
        site.arena.die_log.write_text("")
        with site.arena:
            if not site.killed(f"{points[number % len(points)]}:{chance.randint(2, 6)}"):
                break
        if site.checkpoint().consistent:
            site.assert_snapshot(site.checkpoint().commit_ts)
            continue
        for _ in range(chance.randint(0, 2)):
            if site.checkpoint().consistent:
                break
            site.arena.die_log.write_text("")
            site.die_in_recovery(f"{chance.choice(['before', 'after'])}-rows-commit:1")
        site.arena.die_log.write_text("")
        if not site.checkpoint().consistent and chance.random() < 0.8:
            site.recover()
        recovered += site.checkpoint().consistent
    print(f"{way}, {delivery}: {recovered} recoveries")
    assert recovered >= 2
    with site.arena as arena:
        arena.live_and_die("", flags=lambda _: site.in_few_batches)
        arena.assert_equal()
