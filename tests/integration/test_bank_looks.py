"""Readers of the target during the recorded case ``bank``: 400,000 in total at every look, and exactly the recorded state of its commitTS.

A look is ONE statement over both tables and the checkpoint, in a REPEATABLE READ transaction of its own. ``TIDB_BINLOG_PACES`` names the paces
(recorded time times the pace; ``make looks``: 1 and 0.2).
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.rehearse import prepare_target
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from tests.support.arena import Arena, Cut
from tests.support.bank_states import TOTAL, Change, bank_changes, states_at
from tests.support.drainer_process import RUN_SECONDS
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN, load_case

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PACES = [float(pace) for pace in os.environ.get("TIDB_BINLOG_PACES", "0.02").split(",")]
LOOKS, STATES = 100, 10

LOOK = (
    "SELECT 'checking', id, balance, '' FROM g_bank.checking UNION ALL SELECT 'savings', id, balance, '' FROM g_bank.savings "
    "UNION ALL SELECT 'checkpoint', 0, 0, checkPoint FROM tidb_binlog.checkpoint"
)
Rows = frozenset[tuple[str, int, int]]


class Looker(threading.Thread):
    """Looks again and again; each different sight is kept once, with how often it was seen."""

    def __init__(self, target: PrivateMariaDB) -> None:
        """Begin once both tables and the checkpoint are there."""
        super().__init__(name="looker")
        self._target = target
        self._ended = threading.Event()
        self.sights: dict[tuple[int, Rows], int] = {}

    @property
    def looks(self) -> int:
        """Looks so far."""
        return sum(self.sights.copy().values())

    def run(self) -> None:
        """Look until ``end``."""
        with contextlib.closing(self._target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._wait_for_tables(cursor.execute)
            # Looks without a pause take the stream's second core.
            while not self._ended.wait(0.02):
                cursor.execute("START TRANSACTION")
                cursor.execute(LOOK)
                rows = cursor.fetchall()
                cursor.execute("COMMIT")
                (checkpoint,) = [Checkpoint.from_json(row[3]) for row in rows if row[0] == "checkpoint"]
                sight = checkpoint.commit_ts, frozenset(row[:3] for row in rows if row[0] != "checkpoint")
                self.sights[sight] = self.sights.get(sight, 0) + 1

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join()

    def _wait_for_tables(self, execute: Callable[[str], int]) -> None:
        wanted = "SELECT 1 FROM information_schema.tables WHERE table_schema = 'g_bank' AND table_name = 'savings'"
        while not execute(wanted) and not self._ended.wait(0.005):
            pass


def check(sights: dict[tuple[int, Rows], int], changes: list[Change]) -> None:
    """Every sight is the recorded state of its commitTS, and holds the total once the tables are filled."""
    ordered = sorted(sights, key=lambda sight: sight[0])
    for (commit_ts, seen), state in zip(ordered, states_at(changes, [ts for ts, _ in ordered]), strict=True):
        assert seen == {(table, row_id, balance) for (table, row_id), balance in state.items()}, commit_ts
        assert not seen or sum(balance for _, _, balance in seen) == TOTAL, commit_ts


@pytest.mark.shows("drainer gotcha 4")
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("delivery", [pytest.param("sorted", marks=pytest.mark.slow), "raw"])
def test_every_look_is_a_state_that_was(spark: SparkSession, mariadb: PrivateMariaDB, tmp_path: Path, pace: float, delivery: str) -> None:
    case = load(GOLDEN / "bank")
    changes = bank_changes(case, load_case("bank").history)
    with Arena(case, mariadb, tmp_path, delivery, Cut(step_bytes=8_000, max_bytes=100_000)) as arena:
        prepare_target(mariadb.target(), arena.settings(), case.databases, drop=True)
        feeder = threading.Thread(target=arena.write, kwargs={"pace": pace})
        feeder.start()
        looker = Looker(mariadb)
        looker.start()
        try:
            with Replication(spark, arena.settings()) as replication:
                eventually(lambda: replication.reached(case.end_ts) and looker.looks >= LOOKS, seconds=RUN_SECONDS)
        finally:
            looker.end()
            feeder.join()
        arena.assert_equal()
    times = {commit_ts for commit_ts, rows in looker.sights if rows}
    print(f"bank at pace {pace:g}, {delivery}: {looker.looks} looks, {len(times)} different commitTS")
    assert len(times) >= STATES and looker.looks >= LOOKS
    check(looker.sights, changes)
