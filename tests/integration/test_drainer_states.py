"""Pause, resume and close of a running drainer, as an operator asks for them: by ``ctl`` over HTTP, with Pumps and a target."""

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS, PUMPS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream import replication
from pyspark_tidb_binlog.schemas.errors import LeaseHeld, ReplicationError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.http_client import fetch
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from tests.support.asked_metrics import asked_metrics, served_metrics
from tests.support.eventually import eventually
from tests.support.fakes.push_gateway import PushGateway
from tests.support.job_scene import LONGEST, Scene, at_work, ended_in_order, scene_in, stands_in_order, streaming, to_process
from tests.support.spark_queries import drained
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]


@pytest.fixture
def scene(tmp_path: Path, fresh_mariadb: PrivateMariaDB) -> Iterator[Scene]:
    with scene_in(tmp_path, fresh_mariadb, ddl_every=30) as scene:
        yield scene


class Life(Protocol):
    """A life of the drainer, in a process or in the tests' session."""

    def over(self) -> bool: ...

    def said(self) -> str: ...


L = TypeVar("L", bound=Life)


class InSession:
    """A drainer in the tests' session; ``more``: further flags."""

    def __init__(self, spark: SparkSession, scene: Scene, *more: str) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._life = self._pool.submit(drained, spark, ["--progress=json", *scene.flags(), *more], {}, self._stop)

    def over(self) -> bool:
        return self._life.done()

    def said(self) -> str:
        return repr(self._life)

    def end(self) -> None:
        """What a signal does. What ended it before is raised as itself."""
        self._stop.set()
        self._life.result(LONGEST)


@pytest.fixture
def in_session(spark: SparkSession, scene: Scene, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., InSession]]:
    """Starts a drainer, whose lines ``capsys`` has."""
    with contextlib.ExitStack() as stack:

        def start(*more: str) -> InSession:
            made = InSession(spark, scene, *more)
            stack.callback(made.end)
            return made

        yield start


def control(scene: Scene, *command: str) -> None:
    assert ctl.main([*command, "-node-id", "drainer", "-registry", scene.workload.url]) == 0


def address(scene: Scene) -> str:
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        (node,) = registry.listing(DRAINERS).nodes
    return node.host


def upstream_now(scene: Scene) -> int:
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        return registry.tso()


def until(life: Life, condition: Callable[[], bool], what: str) -> None:
    eventually(lambda: life.over() or condition(), seconds=LONGEST, what=what, seen=life.said, pause=0.05)
    assert not life.over(), life.said()


def progress(scene: Scene) -> dict[str, object]:
    found: dict[str, object] = json.loads(fetch(f"http://{address(scene)}/progress", 10).body)
    return found


def paused(scene: Scene, life: L) -> L:
    control(scene, "pause-drainer")
    until(life, lambda: scene.registered() == {"drainer": "paused"}, "it is paused")
    return life


def resumed(scene: Scene, life: L) -> L:
    """It catches up with what it has missed."""
    missed = upstream_now(scene)
    control(scene, "resume-drainer")
    until(life, lambda: scene.standing() > missed, "it has caught up")
    until(life, lambda: scene.registered() == {"drainer": "online"}, "it is online")
    return life


def complete(scene: Scene, life: L) -> L:
    """The upstream ends, and the drainer has everything."""
    upto = scene.workload.end().upto_ts
    until(life, lambda: scene.standing() >= upto, "it has everything")
    return life


def as_upstream(scene: Scene, summary: dict[str, object]) -> None:
    """Nothing was left out, and no row was found where it should not be."""
    assert summary["findings"] == 0
    assert scene.differences() == []


@contextlib.contextmanager
def held(scene: Scene, *statements: str) -> Iterator[None]:
    """What the statements lock at the target is locked while the block lasts."""
    with contextlib.closing(scene.target.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        yield
        cursor.execute("ROLLBACK")
        cursor.execute("UNLOCK TABLES")


def reads_of(tables: Iterable[str]) -> list[str]:
    """Statements of a transaction that no DDL of these tables passes, while their rows may change."""
    return ["BEGIN", *(f"SELECT 1 FROM {table} LIMIT 1" for table in tables)]


def in_a_statement(scene: Scene) -> bool:
    """Whether the target makes one wait for the lock of a table."""
    return bool(
        run_sql(scene.target, "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'")[0][0]
    )


def rival_is_refused(scene: Scene) -> None:
    """After more than the lease's timeout."""
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        cluster_id = registry.cluster_id()
    apply = ApplyConfig(drainer="rival", lease_timeout=1.0)
    rival = MySQLSink(DrainerConfig(target=scene.target.target(), apply=apply), cluster_id)
    with contextlib.closing(rival), pytest.raises(LeaseHeld, match="already has a running Drainer on this target: drainer 'drainer'"):
        rival.open(lambda _, commit_ts: commit_ts or 0, SchemaHistory)


def the_board_asks_for_what_is_there(scene: Scene) -> None:
    """The dashboard and the alert rules of ``deploy/``."""
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        nodes = [address(scene), *(pump.host for pump in registry.listing(PUMPS).nodes)]
    assert asked_metrics() - served_metrics(*(fetch(f"http://{node}/metrics", 10).text for node in nodes)) == set()


@pytest.mark.shows("metrics-addr", "metrics-interval", "pump metrics-addr", "pump metrics-interval", "drainer PUT /state/{nodeID}/resume")
def test_a_pause_waits_for_a_ddl_then_stands_still_and_a_resume_catches_up(
    scene: Scene, gateway: PushGateway, in_session: Callable[..., InSession], capsys: pytest.CaptureFixture[str]
) -> None:
    """Paused it keeps its lease, and ends as paused."""
    # tables that the workload creates later may be missing at the target, or dropped there at any moment
    lasting = scene.workload.tables()
    scene.workload.begin()
    job = in_session(f"-metrics-addr={gateway.address}", "-metrics-interval=1", "--lease-timeout=3")
    until(job, lambda: bool(scene.registered()) and bool(progress(scene)["transactions"]), "it has applied transactions")
    for name in ("pump_position", "read_binlog_size_count"):
        shown = f'binlog_drainer_{name}{{nodeID="'
        until(job, lambda shown=shown: shown in fetch(f"http://{address(scene)}/metrics", 10).text, shown)  # type: ignore[misc]
    the_board_asks_for_what_is_there(scene)
    with held(scene, *reads_of(lasting)):
        until(job, lambda: progress(scene)["holding"] == "ddl" and in_a_statement(scene), "a DDL is under way")
        control(scene, "pause-drainer")
        until(job, lambda: scene.registered() == {"drainer": "pausing"}, "it is about to pause")
        time.sleep(1.0)
        assert scene.registered() == {"drainer": "pausing"}, "it is not paused while a DDL runs"
    until(job, lambda: scene.registered() == {"drainer": "paused"}, "it is paused")
    until(
        job, lambda: scene.standing() == progress(scene)["resolved_ts"], "the record of a step in which nothing was applied is saved, too"
    )
    standing = scene.standing()
    rival_is_refused(scene)  # the workload goes on
    assert scene.standing() == standing, "nothing is written while it is paused"
    assert progress(scene)["holding"] == "an operator (paused)"
    capsys.readouterr()
    control(scene, "status")
    assert "held back by: an operator (paused)" in capsys.readouterr().out
    gateway.received.queue.clear()
    pushed = gateway.received.get(timeout=LONGEST)
    assert (pushed.method, pushed.path) == ("PUT", "/metrics/job/binlog/instance/drainer")
    assert b'\nbinlog_drainer_pump_position{nodeID="' in pushed.body, "metrics are pushed while it is paused, too"
    paused(scene, complete(scene, resumed(scene, job)))
    job.end()
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    stands_in_order(summary, scene, "paused")
    as_upstream(scene, summary)


def test_a_tidb_that_writes_no_binlogs_is_an_alarm_and_stays_in_the_findings(
    scene: Scene, in_session: Callable[..., InSession], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replication, "LOOK_SECONDS", 0.1)
    scene.workload.binlog("Skipping")
    scene.workload.begin()
    job = in_session()

    def page(name: str) -> str:
        return fetch(f"http://{address(scene)}/{name}", 10).text

    until(job, lambda: bool(scene.registered()) and bool(progress(scene)["silent"]), "it is seen")
    said = "TiDB server 127.0.0.1:4000 writes no binlog (Skipping) since before "
    assert [words[: len(said)] for words in progress(scene)["silent"]] == [said]  # type: ignore[attr-defined]
    until(job, lambda: "tidb-without-binlog" in {one["name"] for one in json.loads(page("page.json"))["alarms"]}, "it is an alarm")
    metric = 'binlog_drainer_spark_tidb_without_binlog{server="127.0.0.1:4000"} 1'
    until(job, lambda: metric in page("metrics"), metric)
    scene.workload.binlog("On")
    until(job, lambda: progress(scene)["findings"] == 2 and progress(scene)["silent"] == [], "it has passed, and stays a finding")
    assert metric not in page("metrics")
    job.end()
    capsys.readouterr()
    settings = scene.work_dir / "drainer.toml"
    settings.write_text(f'spark.delta-dir = "{scene.work_dir / "delta"}"')
    assert ctl.main(["findings", "-config", str(settings)]) == 0
    began, ended = capsys.readouterr().out.splitlines()
    assert f"lost: {said}" in began
    assert re.search(
        r"lost: TiDB server 127.0.0.1:4000 wrote no binlog \(Skipping\) from before [-0-9: ]+ UTC until [-0-9: ]+ UTC: ", ended
    )


@pytest.mark.slow
def test_a_paused_one_that_was_killed_goes_on_with_a_start(scene: Scene) -> None:
    """A pause does not outlive the process, as a real Drainer's: it is registered as paused, but a start goes on."""
    job = paused(scene, streaming(scene, "--lease-timeout=1"))
    standing = scene.standing()
    time.sleep(3.0)
    rival = scene.drainer("--lease-timeout=1", "--node-id=rival", f"--checkpoint-dir={scene.work_dir / 'other'}")
    assert rival.wait() == 1 and "already has a running Drainer on this target: drainer 'drainer'" in rival.err.read_text(), rival.said()
    assert scene.standing() == standing and not job.over()
    job.end()
    assert scene.registered() == {"drainer": "paused"}
    again = scene.drainer()
    until(again, lambda: scene.registered() == {"drainer": "online"}, "it is online")
    until(again, lambda: scene.standing() > standing, "it goes on")
    paused(scene, complete(scene, again))
    again.look()
    to_process(again, signal.SIGTERM)
    as_upstream(scene, ended_in_order(again, scene, "paused"))


@pytest.mark.shows("spark.atomic-rows", "spark.parts")
@pytest.mark.slow
def test_a_pause_waits_for_a_span_in_parts_and_a_kill_leaves_it_to_the_next_start(scene: Scene) -> None:
    """Which is paused, goes on, and is closed while it is paused again."""
    in_parts = ("--spark.atomic-rows=1", "--spark.parts=2")
    job = streaming(scene, *in_parts)
    with held(scene, "LOCK TABLES demo.probe WRITE"):
        until(job, lambda: progress(scene)["holding"] == "apply" and in_a_statement(scene), "a part is under way")
        control(scene, "pause-drainer")
        with pytest.raises(ReplicationError, match="this pump's state is pausing, apply pause failed!"):
            control(scene, "pause-drainer")
        time.sleep(2.0)
        assert scene.registered() == {"drainer": "pausing"}, "it is not paused while parts are written"
        job.end()
    again = scene.drainer(*in_parts)
    at_work(again)
    paused(scene, complete(scene, resumed(scene, paused(scene, again))))
    control(scene, "offline-drainer")
    as_upstream(scene, ended_in_order(again, scene, "offline"))
