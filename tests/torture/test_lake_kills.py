"""Deaths of a lake's writer: the real drainer is killed at random moments, and lives without Spark are suspended for a minute at every point."""

import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger
from tests.support.arena import Arena, Cut
from tests.support.bank_states import TOTAL
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN
from tests.support.lake_lives import LOST, life, replicate, sink_of
from tests.support.lake_rows import ledger_of
from tests.support.mirror_rows import assert_mirrored, totals

pytestmark = [pytest.mark.torture, pytest.mark.slow]

KILLS = {"bank": 40, "keys": 20, "ddl": 20, "types": 20}
"""In each delivery. A case that ends before it has so many begins again with another lake."""
CUTS = {"bank": Cut(step_bytes=1000, max_bytes=8_000, atomic_rows=20), "ddl": Cut(step_bytes=300, max_bytes=2_000)}
SMALL = Cut(step_bytes=150, max_bytes=1_000, atomic_rows=10)


@pytest.mark.spark
@pytest.mark.grpc
@pytest.mark.parametrize("name", list(KILLS))
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_the_drainer_is_killed_at_random(delivery: str, name: str, tmp_path: Path) -> None:
    chance, lake = random.Random(delivery + name), tmp_path / "lake"
    more = {"syncer.db-type": "lake", "syncer.to.dir": lake, "spark.lake-interval": 0, "spark.mirror-interval": 0}
    wanted, killed, ends = untroubled(name, tmp_path / "untroubled"), 0, 0
    with Arena(load(GOLDEN / name), None, tmp_path / "arena", delivery, CUTS.get(name, SMALL), more) as arena:
        arena.write()
        while killed < KILLS[name]:
            before = commit_ts(lake)
            with arena.drainer() as drainer:
                # Most lives get somewhere; some end while they start.
                starts = chance.random() < 0.1
                while not starts and commit_ts(lake) == before and drainer.running:
                    time.sleep(0.05)
                time.sleep(chance.uniform(0, 2.5))
                if drainer.running:
                    killed += 1
                    continue
                assert drainer.wait() == 0, drainer.output()
            ends += 1
            assert_whole(name, lake, wanted)
            shutil.rmtree(lake)
            arena.forget(delta=True)
        arena.live_and_die("")
    print(f"{name} {delivery}: killed {killed} times, {ends} times it came to the end before")
    assert_whole(name, lake, wanted)


def commit_ts(lake: Path) -> int | None:
    state = Ledger(str(lake)).load()
    return state.commit_ts if state is not None else None


def untroubled(name: str, lake: Path) -> list[dict[str, Any]]:
    """The ledger of one life."""
    sink = sink_of(lake)
    replicate(sink, case=name)
    sink.close()
    return ledger_of(lake)


def assert_whole(name: str, lake: Path, wanted: list[dict[str, Any]]) -> None:
    """No row twice, none missing, in the mirrors and in the ledger as far as it is kept; each moment of ``bank`` has the same total."""
    state = Ledger(str(lake)).load()
    assert state is not None
    begin_ts = state.begin_ts

    def changes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        columns, kept = ("commit_ts", "seq", "table_id", "row_key", "op", "before", "after"), (r for r in rows if r["commit_ts"] > begin_ts)
        return [tuple(r[c] for c in columns) for r in kept if r["op"] != "ddl"]

    def jobs(rows: list[dict[str, Any]]) -> list[int]:
        return sorted(r["job_id"] for r in rows if r["op"] == "ddl")

    found = ledger_of(lake)
    assert changes(found) == changes(wanted)
    assert jobs(found) == jobs(wanted)
    assert_mirrored(name, lake)
    if name == "bank":
        assert set(totals(lake)) - {0} == {TOTAL}


POINTS = {
    "before-downstream-commit": "bank",
    "after-downstream-commit": "bank",
    "before-compaction-commit": "bank",
    "after-compaction-commit": "bank",
    "before-log-checkpoint": "bank",
    "after-log-checkpoint": "bank",
    "after-mirror-merge": "bank",
    "after-mirror-ddl": "ddl",
    "before-publication": "bank",
    "after-publication": "ddl",
    "before-thinning": "bank",
    "after-thinning": "bank",
    "after-directory-removal": "ddl",
    "before-files-removal": "bank",
    "after-files-removal": "bank",
    "before-log-checkpoints": "ddl",
}
MINUTE = 60.0


def test_a_writer_that_was_suspended_for_a_minute_at_every_point(tmp_path: Path) -> None:
    """Another one does its work meanwhile. All points at once: one minute."""
    with ExitStack() as stack:
        first = {
            point: stack.enter_context(life(tmp_path / point, stop=f"{point}:2", mirrored=case, busy=True, short=True))
            for point, case in POINTS.items()
        }
        for point, one in first.items():
            eventually(one.is_stopped, seconds=120, what=f"suspended at {point}")
        begun = time.monotonic()
        for point, case in POINTS.items():
            with life(tmp_path / point, mirrored=case, busy=True, short=True) as second:
                assert second.ended() == 0, point
        time.sleep(max(0.0, MINUTE - (time.monotonic() - begun)))
        for point, one in first.items():
            one.wake()
            # All of its steps may have been in the ledger before.
            assert one.ended() in (0, LOST), point
    for point, case in POINTS.items():
        assert_whole(case, tmp_path / point, untroubled(case, tmp_path / "untroubled" / point))


@pytest.mark.parametrize("case", ["bank", "ddl"])
def test_writers_that_take_the_lease_from_each_other(case: str, tmp_path: Path) -> None:
    with (
        life(tmp_path / "lake", lease_timeout=0.02, again=True, mirrored=case, busy=True, short=True) as one,
        life(tmp_path / "lake", lease_timeout=0.02, again=True, mirrored=case, busy=True, short=True) as other,
    ):
        assert (one.ended(300), other.ended(300)) == (0, 0)
    assert_whole(case, tmp_path / "lake", untroubled(case, tmp_path / "untroubled"))
