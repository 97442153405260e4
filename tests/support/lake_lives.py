"""Lives of a writer of a lake, each a process of its own: delta-rs may not be used on both sides of a fork, so a fork server makes them.

A life replicates the golden case ``CASE`` in steps, without Spark, until all of it is in the ledger, or until it dies.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.schemas.errors import LeaseHeld, LeaseLost
from pyspark_tidb_binlog.sinks.engine.batch_report import Written
from pyspark_tidb_binlog.sinks.lake import lake_table, mirror_table, mirrors, net_changes, upkeep
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
from pyspark_tidb_binlog.sinks.lake.moments import LOADING
from tests.support import golden_messages
from tests.support.eventually import eventually
from tests.support.golden_messages import spans_of
from tests.support.mirror_rows import published
from tests.support.recorded_upstream import RecordedUpstream, begin_of, spans_from

CASE = "txn"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.lake_lives", "tests.support.cases_of_lives"])
LOST, HELD = 41, 42
"""Exit codes."""
PAUSE = 0.1
"""Seconds between two looks at what is published, which take a core while they last."""


BUSY_UPKEEP = {
    (upkeep, "MOST_OPEN"): 4,
    (upkeep, "LOOK_EVERY"): 1,
    (upkeep, "CHECKPOINT_EVERY"): 3,
    (lake_table, "LOG_VERSIONS"): 4,
    (lake_table, "LOG_SECONDS"): 0.5,
}
"""Limits with which the few steps of a case are compacted many times."""
SHORT_PAST = {
    (lake_table, "LOG_SECONDS"): 0.5,
    (upkeep, "PASS_SECONDS"): 0.0,
    (upkeep, "LOOK_SECONDS"): 1e9,
    (upkeep, "YOUNG_HOURS"): 0,
    (upkeep, "KEPT_HOURS"): 0,
    (upkeep, "HOUR_MS"): 1_000,
    (upkeep, "DAY_MS"): 500,
    (mirror_table, "_HERE_BYTES"): -1,
}
"""Limits with which old versions and directories of mirrors go at once. A second stands for an hour. Of a ledger, with ``BUSY_UPKEEP``, what is older than all moments."""
SMALL_PIECES = {(mirrors, "PIECE_BYTES"): 1, (net_changes, "PIECE_BYTES"): 10_000, (mirror_table, "_MOST_FILES"): 1}
"""Limits with which rows come in pieces, and mirrors are compacted."""
SHORT_RETENTION = 3.0
"""Seconds; less than `bank` lasted."""


class TidySink(LakeSink):
    """Waits behind each step until nothing is to be compacted."""

    def apply(self, *given: Any) -> Written:
        done = super().apply(*given)
        eventually(lambda: self.lost or not self.is_due())
        return done

    def is_due(self) -> bool:
        with self._lock:
            return bool(upkeep.due(self._ledger.files()))


class FollowedSink(TidySink):
    """Waits behind each step until the mirrors have it."""

    def apply(self, *given: Any) -> Written:
        done, followed = super().apply(*given), self._mirrors
        assert followed is not None
        # A process that is suspended for long goes on then.
        eventually(lambda: self.lost or done == Written() or followed._snapshots.moment.resolved_ts >= self.commit_ts, seconds=float("inf"))
        return done


def sink_of(
    lake: Path | str,
    lease_timeout: float = 1.0,
    mirrors: bool = False,
    loads: TableLoads | None = None,
    large: LargeMirrors | None = None,
    followed: bool = False,
) -> LakeSink:
    """``followed``: each step is a moment; else one may have all of them, and a point is passed only once."""
    settings = LakeSettings(str(lake), 1, lease_timeout=lease_timeout, mirror_interval=0.0 if mirrors else None)
    if mirrors and upkeep.HOUR_MS == SHORT_PAST[upkeep, "HOUR_MS"]:
        days = int(upkeep.MOST_OPEN == BUSY_UPKEEP[upkeep, "MOST_OPEN"])
        return FollowedSink(replace(settings, retention=SHORT_RETENTION, days=days), loads=loads, large=large)
    if followed:
        return FollowedSink(settings, large=large)
    return (TidySink if upkeep.MOST_OPEN == BUSY_UPKEEP[upkeep, "MOST_OPEN"] else LakeSink)(settings, loads=loads, large=large)


def replicate(sink: LakeSink, steps: int = 6, upto: int = 1 << 62, case: str = CASE) -> None:
    """What is not in the lake yet, in about ``steps`` batches; the sink stays open."""
    golden_messages.replicate(sink, case, spans_of(case, steps), upto)


def replicated(lake: Path, steps: int = 6, upto: int = 1 << 62, case: str = CASE, mirrors: bool = False) -> LakeSink:
    """The sink of a whole life, which is closed."""
    sink = sink_of(lake, mirrors=mirrors)
    replicate(sink, steps, upto, case)
    sink.close()
    return sink


def replicate_loaded(sink: LakeSink, case: str, lake: Path) -> None:
    """The second half of a case, and all loads; the sink stays open."""
    begin = begin_of(case)
    golden_messages.replicate(sink, case, spans_from(case, begin), begin_ts=begin)
    eventually(lambda: sink.lost or not any(s.state == LOADING for s in published(lake).values()), seconds=60, pause=PAUSE)


@contextmanager
def life(
    lake: Path,
    die: str = "",
    stop: str = "",
    lease_timeout: float = 1.0,
    again: bool = False,
    busy: bool = False,
    mirrored: str = "",
    pieces: bool = False,
    short: bool = False,
    loaded: Path | None = None,
    large: bool = False,
) -> Iterator["_Life"]:
    """A life that has begun. ``die``: as ``conf.failpoints`` reads it. ``stop``: likewise, but the process is suspended there. ``again``: another one
    follows in the same process whenever the lease is another's. ``busy``: with ``BUSY_UPKEEP``. ``mirrored``: the case, if its tables are mirrored.
    ``pieces``: with ``SMALL_PIECES``. ``short``: with ``SHORT_PAST``. ``loaded``: it begins with a first load in the middle of the case, from a
    ``RecordedUpstream`` in that directory. ``large``: every mirror is large, for a Spark session of its own.
    """
    process = _SERVER.Process(target=_live, args=(lake, die, stop, lease_timeout, again, busy, mirrored, pieces, short, loaded, large))
    process.start()
    try:
        yield _Life(process)
    finally:
        process.kill()
        process.join()


class _Life:
    def __init__(self, process: multiprocessing.Process) -> None:
        self._process = process

    def ended(self, seconds: float = 120.0) -> int | None:
        """How; None: it lives."""
        self._process.join(seconds)
        return self._process.exitcode

    def is_stopped(self) -> bool:
        """Whether it has suspended itself."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def wake(self) -> None:
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGCONT)


def _live(
    lake: Path,
    die: str,
    stop: str,
    lease_timeout: float,
    again: bool,
    busy: bool,
    mirrored: str,
    pieces: bool,
    short: bool,
    loaded: Path | None = None,
    large: bool = False,
) -> None:
    for (module, name), value in ((BUSY_UPKEEP if busy else {}) | (SMALL_PIECES if pieces else {}) | (SHORT_PAST if short else {})).items():
        setattr(module, name, value)
    os.environ[failpoints.DIE] = die
    os.environ.pop(failpoints.DIE_LOG, None)
    if stop:
        os.environ[failpoints.DIE] = stop
        failpoints._die = lambda: os.kill(os.getpid(), signal.SIGSTOP)
    spark = LargeMirrors(build_session("life", master="local[1]"), 0) if large else None
    while True:
        loads = RecordedUpstream(mirrored, loaded).loads if loaded is not None else None
        sink = sink_of(lake, lease_timeout, bool(mirrored), loads, spark, bool(mirrored) and not pieces and loads is None)
        try:
            if loaded is not None:
                replicate_loaded(sink, mirrored, lake)
            else:
                replicate(sink, case=mirrored or CASE)
        except (LeaseLost, LeaseHeld) as error:
            if not again:
                os._exit(LOST if isinstance(error, LeaseLost) else HELD)
            time.sleep(0.01)
            continue
        finally:
            sink.close()
        return
