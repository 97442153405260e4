"""Where a drainer is killed again and again: a recorded case in two Pumps and a target that outlive it, and the drainer as a process group.

Promises: the drainer is the real job (``jobs.drainer``), started the way ``spark-submit.sh`` has it started, and shares nothing with the test but
the Pumps, the target and its own directories. The log of the fault points proves which deaths happened where.
"""

import contextlib
import dataclasses
import json
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.load import flags_of
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, PumpConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import Log, feed, schedule
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import table_of
from tests.support.drainer_process import Drainer, arguments_of, command_of, environ_of, password_of
from tests.support.fine_pump import FinePump
from tests.support.golden_case import compared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """How finely the source cuts its batches, and which of them are applied in parts."""

    step_bytes: int = 300
    max_bytes: int = 1200
    atomic_rows: int = 50_000
    parts: int = 2
    on_finding: str = "stop"
    """record: the case has rows that are findings."""


class Arena:
    """One case on its way to one target by one delivery, over any number of lives of the drainer."""

    def __init__(
        self,
        case: RecordedCase,
        target: PrivateMariaDB | None,
        work_dir: Path,
        delivery: str,
        cut: Cut | None = None,
        more: Mapping[str, object] | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        """Nothing runs before the ``with`` block. ``target`` None: ``more``, flags of every life, name another one. ``tls``: of everything
        inside the cluster.
        """
        self.tls = tls
        self.case, self._server, self.work_dir, self.delivery = case, target, work_dir, delivery
        self._more = dict(more or {})
        self.cut = cut or Cut()
        self.lives = 0
        self.die_log = work_dir / "points.log"
        self._stack = contextlib.ExitStack()
        self.addresses: tuple[str, ...] = ()
        """``host:port`` of each Pump."""
        self._registry = ""

    @property
    def target(self) -> PrivateMariaDB:
        """The server that is written to."""
        assert self._server is not None, "this arena has no server"
        return self._server

    @property
    def spark_dir(self) -> Path:
        """Spark's checkpoint directory."""
        return self.work_dir / "spark"

    @property
    def delta_dir(self) -> Path:
        """The Delta table."""
        return self.work_dir / "delta"

    def __enter__(self) -> "Arena":
        """Start the upstream's services and the Pumps and write the whole case."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.die_log.touch()
        case, stack = self.case, self._stack
        oracle = Oracle(self.work_dir / "oracle", floor=max(tso(time.time_ns() // 1_000_000), case.last_ts) + 1)
        service = ClusterService(oracle, case.cluster_id, data_dir=self.work_dir, tls=self.tls).start()
        stack.callback(service.stop)
        self.service, self._registry = service, service.url
        pumps = [stack.enter_context(FinePump(self._pump_config(n), span=self.cut.step_bytes)) for n in range(1, len(case.pumps) + 1)]
        self.addresses = tuple(pump.address for pump in pumps)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def write(self, logs: tuple[Log, ...] | None = None, pace: float = 0) -> None:
        """Have the Pumps keep the case: as recorded, or as ``logs``."""
        for _ in feed(self.case, self.addresses, pace, logs=logs or schedule(self.case), tls=self.tls):
            pass

    def settings(self) -> DrainerConfig:
        """The drainer's settings."""
        case, cut = self.case, self.cut
        source = SourceConfig(
            pumps=self._registry,
            tidb_status=str(case.history),
            cluster_id=case.cluster_id,
            delivery=self.delivery,
            starting_commit_ts=case.start_ts,
            ending_commit_ts=case.end_ts,
            max_bytes_per_trigger=cut.max_bytes,
            wake_idle_pumps="0",
            security=table_of(self.tls),
        )
        return DrainerConfig(
            source=source,
            target=self._server.target() if self._server else TargetConfig(),
            apply=ApplyConfig(atomic_rows=cut.atomic_rows, parts=cut.parts, on_finding=cut.on_finding),
            checkpoint_dir=str(self.spark_dir),
            delta_dir=str(self.delta_dir),
        )

    def drainer(self, die: str = "", flags: Sequence[str] = ()) -> "Drainer":
        """A new life of the drainer; ``die`` as ``conf.failpoints`` reads it, ``flags`` in addition or instead."""
        self.lives += 1
        environ = environ_of(self._server, self.work_dir / f"job-{self.lives}.log")
        if die:
            environ |= {failpoints.DIE: die, failpoints.DIE_LOG: str(self.die_log)}
        return Drainer([*command_of(self.flags()), *flags], environ, self.work_dir / f"out-{self.lives}.txt")

    def drain(self, spark: "SparkSession", flags: Sequence[str] = ()) -> None:
        """A life of the drainer in this session; ``flags`` in addition or instead."""
        # Not at module level: who only kills drainers must not pay for pyspark.
        from tests.support.spark_queries import drained

        drained(spark, [*arguments_of(self.flags()), *flags], password_of(self._server))

    def live_and_die(
        self,
        die: str,
        after_death: Callable[[int], None] = lambda deaths: None,
        flags: Callable[[int], Sequence[str]] = lambda deaths: (),
        spark: "SparkSession | None" = None,
    ) -> int:
        """Start the drainer again whenever it was killed, until it ends by itself with everything replicated; returns the deaths.

        ``flags``: in addition or instead, of the life after so many deaths. ``spark``: where the life after the last death runs.
        """
        deaths, deadly = 0, sum(map(len, failpoints.fatal_passes(die).values())) if die else 0
        while True:
            if spark is not None and deaths == deadly:
                self.drain(spark, flags(deaths))
                return deaths
            with self.drainer(die, flags(deaths)) as drainer:
                code = drainer.wait()
            if code == 0:
                return deaths
            assert code == -signal.SIGKILL, f"life {self.lives} ended with {code}:\n{drainer.output()}"
            deaths += 1
            after_death(deaths)

    def deaths(self) -> Counter[str]:
        """How often each point killed, by the log."""
        lines = (line.split() for line in self.die_log.read_text().splitlines())
        return Counter(words[0] for words in lines if words[-1] == "died")

    def passes(self) -> Counter[str]:
        """How often each named point was passed, by the log."""
        return Counter(line.split()[0] for line in self.die_log.read_text().splitlines())

    def most_transactions(self) -> int:
        """The most transactions of one batch, of those that the Delta table knows: a death may leave a file that no commit names."""
        lines = [line for commit in self.delta_dir.glob("_delta_log/*.json") for line in commit.read_text().splitlines()]
        added = [self.delta_dir / entry["add"]["path"] for entry in map(json.loads, lines) if "add" in entry]
        counts = [parquet.read_table(path, columns=["transactions"]).column(0).to_pylist() for path in added if path.exists()]
        return max(sum(counts, []))

    def checkpoint(self) -> str:
        """The target's checkpoint, whatever it is; empty where there is none."""
        with self.target.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM information_schema.tables WHERE table_schema = 'tidb_binlog' AND table_name = 'checkpoint'")
            if not cursor.fetchall():
                return ""
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            return str(cursor.fetchall())

    def moved(self, since: str) -> bool:
        """Whether the checkpoint is another one than ``since``."""
        return self.checkpoint() != since

    def compare(self) -> None:
        """The target's tables are what the case says."""
        assert compared(self.case.directory, self.target.target()) == ""

    def assert_equal(self) -> None:
        """The target is what the case says, and nothing is unfinished."""
        self.compare()
        with contextlib.closing(self.target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            assert [bool(re.search(rf'"consistent":true,"commitTS":{self.case.end_ts},', row[0])) for row in cursor.fetchall()] == [True]
            cursor.execute("SELECT COUNT(*) FROM tidb_binlog.spark_state WHERE name <> 'ours'")
            assert cursor.fetchall() == ((0,),)
            cursor.execute("SELECT job_id FROM tidb_binlog.spark_ddl WHERE state = 'intent'")
            assert cursor.fetchall() == ()

    def forget(self, *, delta: bool) -> None:
        """What an operator's ``rm -r`` does to the drainer's directories."""
        shutil.rmtree(self.spark_dir, ignore_errors=True)
        if delta:
            shutil.rmtree(self.delta_dir, ignore_errors=True)

    def _pump_config(self, number: int) -> PumpConfig:
        return PumpConfig(
            node_id=f"pump-{number}",
            addr="127.0.0.1:0",
            data_dir=str(self.work_dir / f"pump-{number}"),
            registry=self._registry,
            cluster_id=self.case.cluster_id,
            fake_binlog_interval=0,
            sync_log=False,
            stop_write_at_available_space="",
            security=table_of(self.tls),
        )

    def flags(self) -> dict[str, object]:
        """The drainer's settings by the names of its flags, without the password."""
        settings = self.settings()
        source, apply, to = settings.source, settings.apply, settings.target
        return {
            "spark.pumps": source.pumps,
            "spark.tidb-status": source.tidb_status,
            "spark.cluster-id": source.cluster_id,
            "spark.delivery": source.delivery,
            "initial-commit-ts": source.starting_commit_ts,
            "spark.ending-commit-ts": source.ending_commit_ts,
            "spark.max-bytes-per-trigger": source.max_bytes_per_trigger,
            "spark.wake-idle-pumps": source.wake_idle_pumps,
            "syncer.to.port": to.port,
            "spark.socket": to.socket,
            "syncer.to.user": to.user,
            "spark.atomic-rows": apply.atomic_rows,
            "spark.parts": apply.parts,
            "spark.on-finding": apply.on_finding,
            "addr": settings.addr,
            "node-id": apply.drainer,
            "checkpoint-dir": settings.checkpoint_dir,
            "delta-dir": settings.delta_dir,
            **{path: value for path, value in flags_of(settings).items() if path.startswith("security.")},
        } | self._more


def numbered(deadly: Mapping[str, Sequence[int]]) -> str:
    """``TIDB_BINLOG_DIE`` that kills at each of these points, at each of its passes."""
    return ",".join(f"{name}:{n}" for name, passes in deadly.items() for n in passes)


def counted(deadly: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """``Arena.deaths`` when all of them have killed."""
    return {name: len(passes) for name, passes in deadly.items()}
