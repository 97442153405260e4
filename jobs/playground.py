"""``./spark-submit.sh playground``: a small cluster that stays up, to try things on; with ``--target`` or ``--lake`` [spark] also the drainer.

The registry has a fixed address and the cluster a fixed id, so that lines copied from a page work unchanged. Two requests to the registry stop and
restart the workload. At the end a target or a lake is verified.

Promises: Ctrl-C, SIGTERM or SIGHUP ends the playground, which leaves no process and no directory but a lake. A start removes the remains of a killed
playground. Without ``--target`` and ``--lake`` no JVM starts.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.cluster import registry
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.conf.entry import COMMAND, HOME, PLAYGROUND_PORT
from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.conf.model import DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.check.verify_run import print_at_once
from pyspark_tidb_binlog.jobs.entry.cli import add_progress, add_switch, parser
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.jobs.lab.emulator.workload import ORDERS
from pyspark_tidb_binlog.jobs.lab.emulator.workload_process import WorkloadProcess
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.ports import free_port, require_free
from pyspark_tidb_binlog.jobs.lab.small_cluster import CALM, PUMPS, into_lake, settings_for, upstream
from pyspark_tidb_binlog.schemas.errors import NotUsableYet

PYTHON = f"""\
from pyspark_tidb_binlog import build_session
spark = build_session("playground")
cluster = {{"pumps": "%(url)s", "startingCommitTs": 0}}
past = spark.read.format("tidb_binlog").options(**cluster).load()
past.groupBy("table").pivot("op", ["insert", "update", "delete", "ddl"]).count().orderBy("table").show()
spark.read.format("tidb_binlog").options(**cluster, table="{ORDERS}").load().orderBy("id", "_commit_version", "_change_seq", "_change_type", ascending=[1, 1, 1, 0]).show()
live = spark.readStream.format("tidb_binlog").options(pumps=cluster["pumps"], table="{ORDERS}").load()
query = live.writeStream.foreachBatch(lambda rows, number: rows.show()).trigger(processingTime="2 seconds").start()
query.awaitTermination(10)
query.stop()
"""
"""What a person pastes, as README.md has it; ``url``: the registry's."""
LAKE = f"""\
from datetime import timedelta
from pyspark_tidb_binlog import build_session
from pyspark_tidb_binlog.lake import Lake
spark = build_session("lake")
lake = Lake(spark, "%(dir)s")
lake.table("{ORDERS}").groupBy("status").count().show()
lake.at(lake.time - timedelta(seconds=5)).table("{ORDERS}").groupBy("status").count().show()
lake.changes("{ORDERS}").where("op = 'update'").selectExpr("commit_time", "before:status::string as was", "after:status::string as became").show(5, False)
"""
"""What a person pastes to read a lake, as docs/playground.md has it; ``dir``: the lake."""
LAG = """\
SELECT UNIX_TIMESTAMP(NOW(3)) - (CAST(JSON_EXTRACT(checkPoint, '$.commitTS') AS UNSIGNED) >> 18) / 1000 AS lag_seconds FROM tidb_binlog.checkpoint"""
_LOOK_SECONDS = 1.0
_CATCH_UP_SECONDS = 30.0


def main(argv: Sequence[str]) -> int:
    """Keep the cluster up until it is stopped."""
    options = parser(
        "playground", "A small cluster that stays up: a registry, two Pumps, a workload. It prints what to paste; Ctrl-C ends it."
    )
    options.add_argument(
        "--port", type=int, default=PLAYGROUND_PORT, metavar="PORT", help=f"of the registry on 127.0.0.1 (default: {PLAYGROUND_PORT})"
    )
    add_switch(options, "--target", what="also run the drainer, into a private MariaDB; starts Spark")
    options.add_argument("--lake", type=Path, metavar="DIR", help="also run the drainer, into a lake in DIR, which stays; starts Spark")
    add_progress(options, "with --target or --lake, a live panel")
    arguments = options.parsed(argv)
    if arguments.target and arguments.lake:
        options.error("--target and --lake: the playground has one drainer; give one of them")
    lake = into_lake(load_drainer(), arguments.lake) if arguments.lake else None
    stop = stop_on_signals()
    port = arguments.port or free_port()
    require_free(
        port,
        f"if that process is a playground, use it from any terminal or end it with Ctrl-C; {COMMAND} playground --port N takes another port",
    )
    say = _since(time.monotonic())
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(_place(port))
        say(f"starts a registry on 127.0.0.1:{port}, and {PUMPS} Pumps")
        workload = stack.enter_context(upstream(place, CALM, addr=f"127.0.0.1:{port}"))
        settings = settings_for(workload, lake, lake.target, place) if lake is not None else None
        lines = _lake_lines(settings) if settings is not None else iter(())
        if arguments.target:
            say("starts a private MariaDB")
            target = stack.enter_context(PrivateMariaDB()).target()
            # The drainer's page names host and port, not a path that is gone with the playground.
            settings = settings_for(workload, load_drainer(otherwise={"node-id": "playground"}), replace(target, socket=""), place)
            lines = _target_lines(target, workload.url)
        opened = workload.open(PUMPS)
        workload.begin()
        say(f"is up: {_pumps(workload)}; the workload writes {CALM.rate:g} transactions a second")
        _print(_lines(workload.url, to_a_target=settings is not None))
        follow = _replicating(stack, arguments, workload, settings, lines, opened.upto_ts, stop, say) if settings is not None else iter(())
        while not stop.wait(_LOOK_SECONDS):
            workload.status()
            next(follow, None)
        for _ in follow:
            pass
        say("stops")
    return 0


def _replicating(
    stack: contextlib.ExitStack,
    arguments: argparse.Namespace,
    workload: WorkloadProcess,
    settings: DrainerConfig,
    lines: Iterator[str],
    tables_ts: int,
    stop: threading.Event,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Run the drainer's stream, which ends with ``stack``: each step looks at it, and raises its failure. After ``stop`` the target is verified.

    ``lines`` are printed when the target has the tables, which are there at ``tables_ts``.
    """
    # without a target nothing of Spark is imported
    from pyspark_tidb_binlog.jobs.demo import catch_up, verified
    from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
    from pyspark_tidb_binlog.jobs.stream.replication import Replication
    from pyspark_tidb_binlog.jobs.stream.reporter import reporter_of

    say("starts Spark and the drainer")
    replication = stack.enter_context(Replication(build_session("tidb-binlog playground"), settings, stop))
    say(f"shows the drainer at {replication.page_url}")
    stack.enter_context(reporter_of(replication.progress, arguments, "playground"))
    told = False
    while not stop.is_set():
        if not told and replication.reached(tables_ts) and (not settings.files.dir or _is_readable(settings.files.dir, tables_ts)):
            say(f"replicates into {settings.files.dir or 'the private MariaDB'}")
            _print(lines)
            told = True
        yield
        replication.check()
    if told:
        say("stops the workload and verifies what the drainer wrote; Ctrl-C ends at once")
        catch_up(replication, workload.end().upto_ts, _CATCH_UP_SECONDS)
        verified(replication, settings, workload, print_at_once)


def _is_readable(lake: str, tables_ts: int) -> bool:
    """Whether a lake's tables are published."""
    from pyspark_tidb_binlog.sinks.lake.moments import Snapshots

    newest = Snapshots(lake).load()
    return newest is not None and newest.resolved_ts >= tables_ts


@contextlib.contextmanager
def _place(port: int) -> Iterator[Path]:
    """An empty directory for all that this process writes, its temporary files included. What a killed one has left there is removed.

    Raises:
        NotUsableYet: another playground has just started with ``port``, or somebody else has taken the directory's name.
    """
    shared = tempfile.gettempdir()
    place = Path(shared, f"tidb-binlog-playground-{os.getuid()}-{port}")
    # Others may pass through, not list: started by root, MariaDB runs as another user.
    mode = 0o711
    with contextlib.ExitStack() as held:
        try:
            place.mkdir(mode, exist_ok=True)
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid != os.getuid():
                raise PermissionError(f"it belongs to user {os.fstat(descriptor).st_uid}")
        except OSError as error:
            raise NotUsableYet(
                f"cannot use the directory {place} ({error}): another playground starts, or somebody has taken its name; "
                f"{COMMAND} playground --port N takes another one"
            ) from error
        held.callback(shutil.rmtree, place, ignore_errors=True)
        inside = place / "all"
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(mode)
        held.callback(setattr, tempfile, "tempdir", shared)
        tempfile.tempdir = str(inside)
        yield inside


def _lines(url: str, *, to_a_target: bool) -> Iterator[str]:
    python = Path(sys.executable)
    yield f"In Python, in another terminal ({python.relative_to(HOME) if python.is_relative_to(HOME) else python}):"
    yield PYTHON % {"url": url}
    yield "In a shell:"
    yield (
        f"{COMMAND} ctl pumps -registry {url}\n"
        f"curl -X POST {url}/stop     # the workload pauses, the cluster stays\n"
        f"curl -X POST {url}/start    # the workload goes on\n"
    )
    yield "Ctrl-C ends it and leaves nothing behind."
    if to_a_target:
        yield "More lines follow when the target has the tables."


def _target_lines(target: TargetConfig, registry: str) -> Iterator[str]:
    client = f"mariadb --socket={target.socket} --user={target.user} --password={target.password} -t"
    yield "How far the target is behind, what it has, and what the drainer does:"
    yield (
        f'{client} -e "{LAG}"\n'
        f'{client} -e "SELECT status, COUNT(*), SUM(total) FROM {ORDERS} GROUP BY status"\n'
        f"{COMMAND} ctl status -registry {registry}\n"
    )


def _lake_lines(settings: DrainerConfig) -> Iterator[str]:
    yield "The lake stays after Ctrl-C. In Python, in another terminal:"
    yield LAKE % {"dir": settings.files.dir}
    yield "What the lake has, and what the drainer does:"
    yield f"{COMMAND} lake tables --dir {settings.files.dir}\n{COMMAND} ctl status -registry {settings.source.pumps}\n"


def _print(parts: Iterator[str]) -> None:
    """Sentences at the margin, what is to be pasted indented, as on a page."""
    for part in parts:
        pasted = part.endswith("\n")
        print("\n".join(f"    {line}" for line in part.splitlines()) + "\n" if pasted else f"{part}\n", flush=True)


def _since(begin: float) -> Callable[[str], None]:
    return lambda what: print(f"{time.monotonic() - begin:5.1f} s  the playground {what}", flush=True)


def _pumps(workload: WorkloadProcess) -> str:
    with contextlib.closing(RegistryClient(workload.url)) as client:
        return ", ".join(f"{node.node_id} at {node.host}" for node in client.listing(registry.PUMPS).nodes)
