"""Pause, resume and close of a running drainer, as an operator asks for them: by ``ctl`` over HTTP, with a JVM, Pumps and a target."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.cluster.registry import DRAINERS
from pyspark_tidb_binlog.binlog_source.cluster.registry_client import RegistryClient
from pyspark_tidb_binlog.jobs import ctl
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.http_client import fetch
from tests.support.eventually import eventually
from tests.support.job_scene import LONGEST, Job, Scene, ended_in_order, scene_in, streaming

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]


@pytest.fixture
def scene(tmp_path: Path, fresh_mariadb: PrivateMariaDB) -> Iterator[Scene]:
    with scene_in(tmp_path, fresh_mariadb) as scene:
        yield scene


def control(scene: Scene, *command: str) -> None:
    assert ctl.main([*command, "-node-id", "drainer", "-registry", scene.workload.url]) == 0


def address(scene: Scene) -> str:
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        (node,) = registry.listing(DRAINERS).nodes
    return node.host


def upstream_now(scene: Scene) -> int:
    with contextlib.closing(RegistryClient(scene.workload.url)) as registry:
        return registry.tso()


def until(job: Job, condition: Callable[[], bool], what: str) -> None:
    eventually(lambda: job.process.poll() is not None or condition(), seconds=LONGEST, what=what, seen=job.said, pause=0.05)
    assert job.process.poll() is None, job.said()


def progress(scene: Scene) -> dict[str, object]:
    found: dict[str, object] = json.loads(fetch(f"http://{address(scene)}/progress", 10).body)
    return found


def test_a_pause_stands_still_and_a_resume_catches_up(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    job = streaming(scene)
    metrics = fetch(f"http://{address(scene)}/metrics", 10).text
    assert 'binlog_drainer_pump_position{nodeID="' in metrics and 'binlog_drainer_read_binlog_size_count{nodeID="' in metrics, metrics
    control(scene, "pause-drainer")
    until(job, lambda: scene.registered() == {"drainer": "paused"}, "it is paused")
    standing = scene.standing()
    time.sleep(2.0)  # the workload goes on
    assert scene.standing() == standing, "nothing is written while it is paused"
    assert progress(scene)["holding"] == "an operator (paused)"
    capsys.readouterr()
    control(scene, "status")
    assert "held back by: an operator (paused)" in capsys.readouterr().out
    missed = upstream_now(scene)
    control(scene, "resume-drainer")
    until(job, lambda: scene.standing() > missed, "it has caught up")
    until(job, lambda: scene.registered() == {"drainer": "online"}, "it is online")
    control(scene, "offline-drainer")
    summary = ended_in_order(job, scene, "offline")
    assert summary["findings"] == 0, "nothing was applied twice or left out"


def test_a_close_while_it_is_paused_ends_it(scene: Scene) -> None:
    job = streaming(scene)
    control(scene, "pause-drainer")
    until(job, lambda: scene.registered() == {"drainer": "paused"}, "it is paused")
    control(scene, "offline-drainer")
    ended_in_order(job, scene, "offline")
