"""``./spark-submit.sh demo``: a private MariaDB or a lake, two Pumps, a workload and the drainer on one machine, verified at the end. [spark]

The data path: workload (a process with the embedded upstream) -> two Pumps (processes) -> ``Replication``, the stream that ``drainer``
runs -> MariaDB, or a lake.

Promises: nothing outside a temporary directory is changed, and only a lake stays. Exit code 0 only if ``verify`` finds every table equal.
"""

import contextlib
import dataclasses
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import COMMAND, IN_CHECKOUT, document, sample
from pyspark_tidb_binlog.conf.model import DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.check.verify_run import TextView, VerifyRun
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_progress, add_settings, config_of, parser, target_of
from pyspark_tidb_binlog.jobs.entry.logs import log_file
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.lab.emulator.workload import ARCHIVE, DATABASE, ORDERS, PROBE, WorkloadConfig
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import Status, WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.lag import LakeWatch, Probes, ProbeWatch, ServerWatch, Sightings, lags, percentile, start_up_end
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.small_cluster import PUMPS, into_lake, settings_for, upstream
from pyspark_tidb_binlog.jobs.lab.target_use import DEMO_CLUSTER, require_no_stream
from pyspark_tidb_binlog.jobs.lab.upstream_tables import TableContent, contents_of, upstream_tables
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.jobs.stream.report import Progress
from pyspark_tidb_binlog.jobs.stream.reporter import Reporter, reporter_of
from pyspark_tidb_binlog.jobs.stream.targets import require_server
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.verify.lake_comparison import LakeComparison

ENDS_AT_A_FINDING = {"spark.on-finding": "stop"}
"""The default for ``on-finding``: the demo should have no findings."""
_POLL_SECONDS = 0.02
_STALLED_SECONDS = 120.0


def catch_up(replication: Replication, upto_ts: int, stalled_seconds: float = _STALLED_SECONDS) -> None:
    """Wait until the target holds everything up to ``upto_ts``; raise an error if it makes no progress for ``stalled_seconds``."""
    stood_at, since = 0, time.monotonic()
    while not replication.reached(upto_ts):
        if replication.commit_ts != stood_at:
            stood_at, since = replication.commit_ts, time.monotonic()
        if time.monotonic() - since > stalled_seconds:
            held = replication.progress().holding or "an unknown cause"
            raise ReplicationError(
                f"the target has been at commit_ts {stood_at} for {stalled_seconds:.0f} s, the upstream is at {upto_ts}; "
                f"held by {held}; Spark's log is {log_file()}"
            )
        time.sleep(_POLL_SECONDS)


def main(argv: Sequence[str]) -> int:
    """Run the demo."""
    options = parser("demo", "A target, two Pumps, a workload and the drainer: see it work, then compare every table.")
    options.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long the workload writes (default: 60)")
    options.add_argument("--rate", type=float, default=200.0, metavar="N", help="transactions a second (default: 200)")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="the workload's seed, which determines its content (default: 1)")
    options.add_argument(
        "--target",
        choices=("mariadb", "lake"),
        default="mariadb",
        metavar="KIND",
        help="mariadb: a private one; lake: a new one, which stays (default: mariadb)",
    )
    options.add_argument("--to", metavar="URL", default="", help="mysql://user:password@host:port in place of the private MariaDB")
    add_progress(options)
    add_settings(options, DrainerConfig, ENDS_AT_A_FINDING)
    arguments = options.parsed(argv)
    for name in ("seconds", "rate"):
        if getattr(arguments, name) <= 0:
            raise ConfigError(f"--{name} {getattr(arguments, name):g}: it must be above 0")
    if arguments.to and arguments.target == "lake":
        options.error("--to and --target lake: the demo has one target; give one of them")
    config = require_server(config_of(DrainerConfig, arguments))
    stop = stop_on_signals()
    with contextlib.ExitStack() as stack:
        work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True)))
        if arguments.target == "lake":
            to, config = _lake(Path(tempfile.mkdtemp(prefix="tidb-binlog-lake-")), config)
        else:
            server = target_of(arguments.to) if arguments.to else stack.enter_context(PrivateMariaDB()).target()
            to, config = _server(server, config)
        spark = build_session("tidb-binlog demo")
        workload = stack.enter_context(upstream(work_dir, WorkloadConfig(seed=arguments.seed, rate=arguments.rate)))
        settings = settings_for(workload, config, config.target, work_dir)
        opened = workload.open(PUMPS)
        replication = stack.enter_context(Replication(spark, settings))
        stack.enter_context(to.watch)
        show = Show(replication, workload, settings, to, opened.upto_ts)
        return show.run(arguments.seconds, stop, reporter_of(replication.progress, arguments, "demo"))


@dataclasses.dataclass(frozen=True, slots=True)
class DemoTarget:
    """What of a demo depends on where it writes."""

    name: str
    watch: ProbeWatch
    visible: str
    """Where a row is when ``watch`` sees it."""
    look: str = ""
    """What to do with it afterwards."""


def _server(target: TargetConfig, config: DrainerConfig) -> tuple[DemoTarget, DrainerConfig]:
    """A MySQL-protocol server, and the settings that write to it."""
    require_no_stream(target, config.apply, DEMO_CLUSTER)
    _require_none_of_a_demo(target, config)
    watch = ServerWatch(target, config.apply, PROBE, _POLL_SECONDS)
    return DemoTarget(f"{target.host}:{target.port}", watch, "visible"), dataclasses.replace(config, target=target)


def _lake(directory: Path, config: DrainerConfig) -> tuple[DemoTarget, DrainerConfig]:
    """A new lake, and the settings that write to it."""
    look = f"""the lake stays in {directory}; rm -r removes it:
  its tables: {COMMAND} lake tables --dir {directory}
  rows of one table: {COMMAND} lake show {ORDERS} --dir {directory}
  is it the same, by its own ledger: {COMMAND} lake verify --dir {directory}
  as DataFrames, now and at any moment before: {document("lake")}
"""
    watch = LakeWatch(directory, PROBE, _POLL_SECONDS)
    return DemoTarget(str(directory), watch, "visible in the ledger", look), into_lake(config, directory)


@dataclasses.dataclass(frozen=True, slots=True)
class Show:
    """The parts of a running demo."""

    replication: Replication
    workload: WorkloadProcess
    settings: DrainerConfig
    to: DemoTarget
    opened_ts: int
    """The upstream's timestamp when its tables were created."""

    def run(self, seconds: float, stop: threading.Event, reporter: Reporter) -> int:
        """Write for ``seconds`` or until ``stop``, catch up, compare; the exit code."""
        with reporter:
            reporter.say(
                f"workload -> {PUMPS} Pumps -> Spark, delivery {self.replication.delivery} -> {self.to.name}; starting with the tables"
            )
            catch_up(self.replication, self.opened_ts)
            reporter.say(f"the target has the tables; now the workload writes for {seconds:.0f} s")
            self._write(seconds, stop)
            written = self.workload.end()
            if written.failure:
                raise ReplicationError(f"the workload ended early: {written.failure}")
            reporter.say("the workload has stopped; waiting until the target has everything")
            catch_up(self.replication, written.upto_ts)
            applied = reporter.finish()
        return self._tell(reporter, written, applied)

    def _write(self, seconds: float, stop: threading.Event) -> None:
        self.workload.begin()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not stop.wait(min(1.0, left)):
            self.replication.check()
            self.workload.status()

    def _tell(self, reporter: Reporter, written: Status, applied: Progress) -> int:
        reporter.say("verify compares every table with the upstream's")
        equal = verified(self.replication, self.settings, self.workload, reporter.conclude)
        for line in lag_lines(self.workload.probes(), self.to.watch.sightings, self.to.visible):
            reporter.conclude(line)
        reporter.conclude(
            f"{counts_line(written, applied)}; " + ("every table is equal" if equal else f"SOMETHING DIFFERS; Spark's log is {log_file()}")
        )
        if equal:
            reporter.say(self.to.look + _NEXT)
        return 0 if equal else EXIT_FAILED


_NEXT = f"""where to look next:
  the data flow, step by step: {document("architecture")}
  is your target the same as its upstream: {document("verify")}
  your own Pumps and target: {COMMAND} drainer --config FILE, with {sample("conf/drainer.toml")} as a beginning
  a recording of a real TiDB through the same stream: {COMMAND} rehearse {"types" if IN_CHECKOUT else "tests/golden/types, from the repository"}
  changes as DataFrames, the stream and its lag in a notebook: {sample("notebooks/replicate.ipynb")}"""


def verified(replication: Replication, settings: DrainerConfig, workload: WorkloadProcess, write: Callable[[str], None]) -> bool:
    """Compare the target, which has everything, with a workload that has ended. ``write`` gets the lines of ``verify``; False: something differs."""
    if settings.files.dir:
        # Its end publishes the last moment.
        replication.close()
    return verified_against(contents_of(workload, rowids=bool(settings.files.dir)), settings, write)


def verified_against(contents: Iterable[TableContent], settings: DrainerConfig, write: Callable[[str], None]) -> bool:
    """Compare the target with an upstream that has these tables, as ``verified`` does."""
    with upstream_tables(contents) as source:
        if settings.files.dir:
            found, flavour = LakeComparison(settings.files.dir, source, settings.apply).run(), Flavour.TIDB
        else:
            run, flavour = verification(settings, source)
            found = run.run()
        taken = VerifyRun(TextView(flavour, {}, sys.stderr, write), None, lambda table: [])
        equal = taken.to_its_end(found, threading.Event()) == 0
        return equal and all(table.tally is not None for table in taken.tables)


def lag_lines(probes: Probes, sightings: Sightings, visible: str = "visible") -> Iterator[str]:
    """The lag after the start-up of the stream, and apart from it the lag during the start-up."""
    if not probes:
        return
    end = start_up_end(probes, sightings)
    early = [probe for probe in probes if end is None or probe[1] < end]
    if end is None or len(early) == len(probes):
        yield f"lag from commit to {visible}: not measured, because the start-up lasted as long as the workload; give more --seconds"
    else:
        yield f"lag from commit to {visible}: {_percentiles(lags(probes[len(early) :], sightings))}"
        yield f"lag during the start-up, its first {(end - probes[0][1]) / 1e9:.1f} s: {_percentiles(lags(early, sightings))}"


def _percentiles(measured: Sequence[float]) -> str:
    return f"p50 {percentile(measured, 0.5):.2f} s, p99 {percentile(measured, 0.99):.2f} s over {len(measured):,} probe rows"


def counts_line(written: Status, applied: Progress) -> str:
    """What the upstream wrote, and what the Drainer applied if the numbers differ."""
    ddls = written.first_ddls + written.ddls
    wrote = f"{written.transactions:,} transactions, {written.changes:,} row changes and {ddls:,} DDLs"
    if (written.transactions, written.changes, ddls) == (applied.transactions, applied.row_events, applied.ddls):
        return f"the upstream wrote {wrote}, and the Drainer applied as many"
    return f"the upstream wrote {wrote}; the Drainer applied {applied.transactions:,}, {applied.row_events:,} and {applied.ddls:,}"


def _require_none_of_a_demo(target: TargetConfig, config: DrainerConfig) -> None:
    """Refuse a target with the databases of an earlier demo."""
    with connect(target, config.apply) as session:
        there = {str(row[0]) for row in session.query("SELECT schema_name FROM information_schema.schemata")}
    found = sorted(there & {DATABASE, ARCHIVE, config.apply.checkpoint_schema})
    if found:
        raise ConfigError(f"the target already has {', '.join(found)}: drop them first, or name another target")
