"""``./spark-submit.sh rehearse CASE``: a recorded case of a real TiDB, written to embedded Pumps and replicated by the Drainer job. [spark]

Promises: the stream is the one of ``drainer``, but any finding ends it unless ``on-finding = record`` is given. ``--drop`` allows a target that already
has the case's databases. A target with the records of another stream is always refused. The oracle starts above the last recorded ts, GC is off, the
cluster id is the case's. At the end ``verify`` compares a server's tables with those that were recorded: exit code 0 means equal, 1 different.
"""

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RecordedCase, load
from pyspark_tidb_binlog.conf.entry import COMMAND
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, TargetConfig
from pyspark_tidb_binlog.jobs.demo import ENDS_AT_A_FINDING, verified_against
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_progress, add_settings, add_switch, config_of, parser, target_of
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.lab.emulator.rehearsal import feed, schedule
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PUMP, PumpProcess
from pyspark_tidb_binlog.jobs.lab.recorded_cases import case_of
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.lab.small_cluster import into_lake, privately
from pyspark_tidb_binlog.jobs.lab.target_use import require_no_stream
from pyspark_tidb_binlog.jobs.lab.upstream_tables import contents_recorded
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.jobs.stream.reporter import Reporter, reporter_of
from pyspark_tidb_binlog.jobs.stream.targets import require_server
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.mysql.session import connect

_LAKE = "lake:"


@dataclasses.dataclass(frozen=True, slots=True)
class RehearsalUpstream:
    """The environment of a rehearsal: the upstream's services and its empty Pumps."""

    case: RecordedCase
    service: ClusterService
    pumps: tuple[PumpProcess, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each Pump."""
        return tuple(pump.address for pump in self.pumps)


@contextlib.contextmanager
def staged(case: RecordedCase, work_dir: Path, module: str = PUMP) -> Iterator[RehearsalUpstream]:
    """Pumps and upstream services of ``case`` on loopback, stopped at the end of the block. ``module``: what a Pump runs (``PumpProcess``)."""
    oracle = Oracle(work_dir / "oracle", floor=max(tso(time.time_ns() // 1_000_000), case.last_ts) + 1)
    service = ClusterService(oracle, case.cluster_id, data_dir=work_dir).start()
    with contextlib.ExitStack() as stack:
        stack.callback(service.stop)
        pumps = []
        for number in range(1, len(case.pumps) + 1):
            config = PumpConfig(
                node_id=f"pump-{number}",
                addr="127.0.0.1:0",
                data_dir=str(work_dir / f"pump-{number}"),
                registry=service.url,
                cluster_id=case.cluster_id,
                fake_binlog_interval=0,
                stop_write_at_available_space="",
            )
            pumps.append(PumpProcess(config, module).start())
            stack.callback(pumps[-1].stop)
        yield RehearsalUpstream(case, service, tuple(pumps))


def settings_for(stage: RehearsalUpstream, config: DrainerConfig, target: TargetConfig, work_dir: Path) -> DrainerConfig:
    """The Drainer's settings for a rehearsal: what the case and its upstream determine, the rest from ``config``."""
    source = dataclasses.replace(
        config.source,
        pumps=stage.service.url,
        tidb_status=str(stage.case.history),
        cluster_id=stage.case.cluster_id,
        starting_commit_ts=stage.case.start_ts,
        ending_commit_ts=stage.case.end_ts,
        # the upstream's clock is not that of the recording: a fake would promise what is still to be written
        wake_idle_pumps="0",
    )
    return privately(config, source, target, work_dir)


def prepare_target(target: TargetConfig, config: DrainerConfig, databases: Sequence[str], *, drop: bool) -> None:
    """Refuse, or with ``drop`` remove, what an earlier rehearsal left: the case's databases and the stream's checkpoints."""
    wanted = [*databases, config.apply.checkpoint_schema]
    with connect(target, config.apply) as session:
        there = {str(row[0]) for row in session.query("SELECT schema_name FROM information_schema.schemata")}
        found = [name for name in wanted if name in there]
        if found and not drop:
            raise ConfigError(f"the target already has {', '.join(found)}: pass --drop to remove them first, or name another target")
        for name in found:
            session.execute(f"DROP DATABASE {quote_name(name)}")


def main(argv: Sequence[str]) -> int:
    """Rehearse one case."""
    options = parser("rehearse", "Replicate a recorded case of a real TiDB through embedded Pumps.")
    options.add_argument(
        "case",
        type=Path,
        metavar="CASE",
        help="folder of the case (case.json, pump-N.binlogs.gz, ddl_history.json.gz); in a checkout also the name of a case in tests/golden",
    )
    options.add_argument(
        "--to", metavar="URL", default="", help="mysql://user:password@host:port, or lake:DIR, a new directory (default: a private MariaDB)"
    )
    add_switch(options, "--drop", what="first drop the case's databases and the checkpoints from the target")
    options.add_argument(
        "--pace", type=float, default=0.0, metavar="X", help="0 = all at once (default), 1 = as recorded, 2 = half as fast"
    )
    options.add_argument(
        "--move-back", type=int, default=None, metavar="SEED", help="write each Prewrite a random distance earlier than recorded"
    )
    options.add_argument("--work-dir", type=Path, default=None, metavar="DIR", help="keep the Pumps' logs and the checkpoints here")
    add_progress(options)
    add_settings(options, DrainerConfig, ENDS_AT_A_FINDING)
    arguments = options.parsed(argv)
    config = require_server(config_of(DrainerConfig, arguments))
    case = load(case_of(arguments.case))
    stop = stop_on_signals()
    with contextlib.ExitStack() as stack:
        work_dir = arguments.work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearse-")))
        if arguments.to.startswith(_LAKE):
            target, config = config.target, into_lake(config, Path(arguments.to.removeprefix(_LAKE)))
        else:
            target = target_of(arguments.to) if arguments.to else stack.enter_context(PrivateMariaDB()).target()
            require_no_stream(target, config.apply, case.cluster_id)
            prepare_target(target, config, case.databases, drop=arguments.drop)
        spark = build_session(f"tidb-binlog rehearse {case.directory.name}")
        stage = stack.enter_context(staged(case, work_dir))
        feeder = Feeder(lambda: feed(case, stage.addresses, arguments.pace, logs=schedule(case, move_back_seed=arguments.move_back)))
        settings = settings_for(stage, config, target, work_dir)
        replication = Replication(spark, settings)
        reporter = reporter_of(replication.progress, arguments, f"rehearse {case.directory.name}")
        return _run(stack, replication, feeder, stop, case, settings, reporter)


def _run(
    stack: contextlib.ExitStack,
    replication: Replication,
    feeder: "Feeder",
    stop: threading.Event,
    case: RecordedCase,
    settings: DrainerConfig,
    reporter: Reporter,
) -> int:
    lake, target = settings.files.dir if settings.apply.db_type == "lake" else "", settings.target
    feeder.start()
    stack.enter_context(replication)
    stack.enter_context(reporter)
    reporter.say(f"rehearsing {case.directory.name}, delivery {replication.delivery}, into {lake or f'{target.host}:{target.port}'}")
    while not replication.reached(case.end_ts):
        feeder.check()
        if stop.wait(0.02):
            reporter.say("stopped before the case's end")
            return EXIT_FAILED
    reporter.finish()
    if lake:
        reporter.conclude(
            f"{case.directory.name} {replication.delivery} is in {lake}; see its tables with {COMMAND} lake tables --dir {lake}"
        )
        return 0
    contents = list(contents_recorded(case))
    return EXIT_FAILED if contents and not verified_against(contents, settings, reporter.conclude) else 0


class Feeder(threading.Thread):
    """Writes a case to the Pumps while the stream runs; ``check`` raises its errors."""

    def __init__(self, begin: Callable[[], Iterator[object]]) -> None:
        """``begin`` returns the steps of the feeding, which the thread executes."""
        super().__init__(name="feeder", daemon=True)
        self._begin = begin
        self._failure: Exception | None = None

    def run(self) -> None:
        """Feed to the end."""
        try:
            for _ in self._begin():
                pass
        except ReplicationError as error:
            self._failure = error

    def check(self) -> None:
        """Raise the error that ended the feeding early."""
        if self._failure is not None:
            raise self._failure
