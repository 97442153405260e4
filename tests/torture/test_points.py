"""Death at every named point, at least three times in each delivery, over several cases; the drainer's directories are lost on the way."""

import dataclasses
import heapq
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import Log, Scheduled, schedule
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.arena import Arena, Cut, numbered
from tests.support.bank_states import TOTAL, bank_changes, states_at
from tests.support.golden_case import GOLDEN, load_case
from tests.support.keyless_case import keyless_case
from tests.support.target_rows import balances_of

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql]

ATOMIC = ("source-read", "before-deletes", "between-phases", "before-downstream-commit", "after-downstream-commit", "after-spark-commit")
PAIRING = ("pair-state",)
DELTA = ("before-delta", "after-delta")
PARTS = ("before-part-delete-commit", "after-part-delete", "before-part-write-commit", "after-part-write")
DDL = ("after-ddl-intent", "after-ddl", "before-ddl-done")
PUT_OFF = ("after-record-put-off",)
"""Passed by a step in which nothing is applied, soon after one whose record was saved."""

FEW = Cut(step_bytes=150, max_bytes=450)
"""At most five transactions a batch."""
LULL, LULL_EVERY = 60, 6
"""Fakes of one lull, and after how many binlogs there is one."""
BANK = 300
"""Transactions of ``bank``."""


def directories_lost(arena: Arena) -> Callable[[int], None]:
    """After the fifth death Spark's directory goes, after the ninth Delta's too."""

    def after_death(deaths: int) -> None:
        if deaths in (5, 9):
            arena.forget(delta=deaths == 9)

    return after_death


def torture(arena: Arena, points: tuple[str, ...], passes: tuple[int, ...], after_death: Callable[[int], None] | None = None) -> None:
    """Write the case, then die at all ``points``."""
    arena.write()
    die_at(arena, points, passes, after_death or directories_lost(arena))


def die_at(arena: Arena, points: tuple[str, ...], passes: tuple[int, ...], after_death: Callable[[int], None]) -> None:
    """Die at each of ``points`` at each of these passes, and end with everything replicated."""
    died = arena.live_and_die(numbered(dict.fromkeys(points, passes)), after_death)
    print(f"{arena.case.directory.name} {arena.delivery}: {died} deaths in {arena.lives} lives: {dict(arena.deaths())}")
    # Two executors may die at two points in one life: the log tells.
    assert arena.deaths() == dict.fromkeys(points, len(passes))


def assert_balances(arena: Arena) -> None:
    """Both tables of ``bank`` are as recorded at the arena's end, and the total is kept."""
    case = arena.case
    (wanted,) = states_at(bank_changes(case, load_case("bank").history), [case.end_ts])
    found = balances_of(arena.target)
    assert found == wanted
    assert sum(found.values()) == TOTAL


def points_of(delivery: str) -> tuple[str, ...]:
    """The points that a stream of rows passes in this delivery."""
    return ATOMIC + (PAIRING if delivery == "raw" else ())


STORIES: dict[str, tuple[str, Cut, tuple[str, ...], tuple[int, ...]]] = {
    "keyless": ("keyless", FEW, ATOMIC, (3, 5, 8)),
    "keyless in parts": (
        "keyless",
        Cut(step_bytes=300, max_bytes=2500, atomic_rows=2),
        ("before-deletes", "between-phases", "before-part-write-commit", "after-part-write", "before-downstream-commit"),
        (1, 3, 5),
    ),
    "keys": ("keys", FEW, ATOMIC, (2, 4, 6)),
    "keys in parts": ("keys", Cut(step_bytes=300, max_bytes=2500, atomic_rows=1), PARTS, (1, 2, 4)),
}


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
@pytest.mark.parametrize("story", STORIES)
def test_rows(story: str, delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    name, cut, points, passes = STORIES[story]
    case = keyless_case(tmp_path / "case") if name == "keyless" else load(GOLDEN / name)
    with Arena(case, fresh_mariadb, tmp_path / "arena", delivery, cut) as arena:
        torture(arena, points_of(delivery) if points is ATOMIC else points, passes)
        arena.assert_equal()
        assert cut is not FEW or arena.most_transactions() <= 5


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_bank(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """Its first transactions: the whole of it, at five a batch, is for the patient (``test_kills`` takes more at a time)."""
    whole = load(GOLDEN / "bank")
    ends = sorted({change.commit_ts for change in bank_changes(whole, load_case("bank").history)})
    with Arena(dataclasses.replace(whole, end_ts=ends[BANK]), fresh_mariadb, tmp_path, delivery, FEW) as arena:
        torture(arena, points_of(delivery), (2, 20, 40))
        assert_balances(arena)
        assert arena.most_transactions() <= 5


@pytest.mark.shows("known wrong: own replay")
@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_ddl(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """Exchanged, truncated and dropped partitions, truncated tables and swapped names are among its DDLs."""
    with Arena(load(GOLDEN / "ddl"), fresh_mariadb, tmp_path, delivery, FEW) as arena:
        torture(arena, DDL, (3, 11, 19, 27, 35))
        arena.assert_equal()
        assert arena.most_transactions() <= 5


MOVING = ("exchange-partition", "rename-table", "rename-tables", "truncate-table", "truncate-partition", "drop-partition")
"""Kinds of DDL that hardly show in the structure, or lose rows when they run twice."""


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_ddls_that_move_or_drop_rows(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """Before and after each of the first of every kind; the case has two tables that swap their names among them."""
    with Arena(load(GOLDEN / "ddl"), fresh_mariadb, tmp_path, delivery, FEW) as arena:
        torture(arena, tuple(f"{point}-{kind}" for kind in MOVING for point in DDL), (1,))
        arena.assert_equal()


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_steps_in_which_nothing_is_applied(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """What Spark has committed is beyond the target's record at each of these deaths; its directory is not lost, or is."""
    case = load(GOLDEN / "keys")
    with Arena(case, fresh_mariadb, tmp_path, delivery, FEW) as arena:
        arena.write(with_lulls(schedule(case)))
        die_at(arena, (*PUT_OFF, "after-spark-commit"), (1, 2, 3), lambda deaths: arena.forget(delta=False) if deaths == 4 else None)
        arena.assert_equal()


def with_lulls(logs: tuple[Log, ...]) -> tuple[Log, ...]:
    """``logs`` with times in which all Pumps have fakes only, each for more than one batch."""
    stamps = sorted({item.ts for log in logs for item in log})
    lulls = [ts for ts, after in pairwise(stamps) if after - ts > LULL][::LULL_EVERY]
    fakes = [Scheduled(ts + n, fake(ts + n).payload) for ts in lulls for n in range(1, LULL + 1)]
    return tuple(tuple(heapq.merge(log, fakes, key=lambda item: item.ts)) for log in logs)


@pytest.mark.parametrize("delivery", ["sorted", "raw"])
def test_delta(delivery: str, fresh_mariadb: PrivateMariaDB, tmp_path: Path) -> None:
    """The table is lost at every death, so each life has a row to commit: where the target stands."""
    with Arena(load(GOLDEN / "txn"), fresh_mariadb, tmp_path, delivery) as arena:
        torture(arena, DELTA, (1, 2, 3), lambda deaths: shutil.rmtree(arena.delta_dir, ignore_errors=True))
        arena.assert_equal()
