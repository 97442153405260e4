"""The recorded case ``bank`` with a drainer that keeps a relay log, and an upstream that can be taken away as a whole."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from tests.support.arena import Arena, Cut
from tests.support.bank_states import bank_changes, states_at
from tests.support.golden_case import GOLDEN, load_case
from tests.support.target_rows import balances_of, run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = Cut(step_bytes=1000, max_bytes=30_000, atomic_rows=20, parts=2)


class RelaySite:
    """``with site.arena:`` is the time in which there is an upstream."""

    def __init__(self, target: PrivateMariaDB, work_dir: Path, more: dict[str, object], delivery: str = "sorted") -> None:
        """``more``: flags of the drainer."""
        self.log_dir = work_dir / "relay"
        self.arena = Arena(load(GOLDEN / "bank"), target, work_dir / "arena", delivery, PARTS, {"relay-log-dir": self.log_dir} | more)
        self._changes = bank_changes(self.arena.case, load_case("bank").history)

    in_few_batches = ("--spark.atomic-rows=50000", "--spark.max-bytes-per-trigger=1000000")
    """Flags of a life whose batches do not matter."""

    def live(self, die: str = "") -> tuple[int, str]:
        """One life of the drainer: its exit code, and what it said."""
        with self.arena.drainer(die) as drainer:
            return drainer.wait(), drainer.output()

    def killed(self, die: str) -> bool:
        """One life; whether it was killed. The other possibility is that everything was replicated before."""
        code, said = self.live(die)
        assert code in (0, -signal.SIGKILL), said
        return code != 0

    def checkpoint(self) -> Checkpoint:
        """The target's."""
        ((value,),) = run_sql(self.arena.target, "SELECT checkPoint FROM tidb_binlog.checkpoint")
        return Checkpoint.from_json(value)

    def recover(self) -> int:
        """A life without the upstream, to its end: the commit_ts at which the target is consistent, and as the upstream was there."""
        code, said = self.live()
        return self._recovered(code, said)

    def recover_in(self, spark: "SparkSession") -> int:
        """The same in this session."""
        with pytest.raises(PumpUnavailable) as ended:
            self.arena.drain(spark)
        return self._recovered(1, str(ended.value))

    def die_in_recovery(self, die: str) -> None:
        """A life without the upstream that is killed, unless it has done everything before."""
        code, said = self.live(die)
        if code != -signal.SIGKILL and not self.checkpoint().consistent:
            raise AssertionError(said)
        if code != -signal.SIGKILL:
            self._recovered(code, said)

    def _recovered(self, code: int, said: str) -> int:
        found = re.search(r"The target\s+is consistent at (\d+)", said)
        assert code == 1 and "the upstream cannot be reached" in said and found, said
        checkpoint = self.checkpoint()
        assert (checkpoint.consistent, checkpoint.commit_ts) == (True, int(found[1]))
        self.assert_snapshot(checkpoint.commit_ts)
        return checkpoint.commit_ts

    def assert_snapshot(self, commit_ts: int) -> None:
        """The target holds what the upstream held at ``commit_ts``."""
        (wanted,) = (dict(state) for state in states_at(self._changes, [commit_ts]))
        assert balances_of(self.arena.target) == wanted
