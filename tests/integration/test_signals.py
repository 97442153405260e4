"""Signals to a running drainer, Pump and demo, as a user, Kubernetes and systemd send them: it ends in order, and leaves nothing behind."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from tests.support.eventually import eventually
from tests.support.job_scene import LONGEST, Job, Scene, Send, ended_in_order, scene_in, streaming, to_everyone, to_group, to_process

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.grpc]


@pytest.fixture(scope="module")
def one_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Of tests that each end a life of one drainer. Without DDLs a batch is one transaction of the target."""
    with PrivateMariaDB() as target, scene_in(tmp_path_factory.mktemp("scene"), target, ddl_every=0) as scene:
        yield scene


@pytest.fixture
def scene(tmp_path: Path, fresh_mariadb: PrivateMariaDB) -> Iterator[Scene]:
    with scene_in(tmp_path, fresh_mariadb) as scene:
        yield scene


# In `make test` the stream that is left ends by a signal to every process, and streams in the tests' session end between two batches.
@pytest.mark.slow
@pytest.mark.parametrize("send", [to_everyone, to_group, to_process])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_ends_between_two_batches(one_scene: Scene, send: Send, number: signal.Signals) -> None:
    job = streaming(one_scene)
    send(job, number)
    assert ended_in_order(job, one_scene)["batches"]


@pytest.mark.parametrize("send", [to_everyone, pytest.param(to_process, marks=pytest.mark.slow)])
def test_a_start_is_given_up(one_scene: Scene, send: Send) -> None:
    job = one_scene.drainer()
    eventually(lambda: job.runs("java"), seconds=LONGEST, what="a JVM", pause=0.05)
    send(job, signal.SIGTERM)
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    assert one_scene.registered() in ({}, {"drainer": "paused"})
    job.leaves_nothing()


@contextlib.contextmanager
def held_up(scene: Scene) -> Iterator[None]:
    """A batch that is under way does not end while the block lasts: it waits for the checkpoint, so all former ones were reported."""
    with contextlib.closing(scene.target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM tidb_binlog.checkpoint FOR UPDATE")
        waiting = "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        eventually(lambda: cursor.execute(waiting), seconds=LONGEST, what="a batch under way", pause=0.2)
        yield
        cursor.execute("ROLLBACK")


@pytest.mark.slow
def test_a_batch_that_takes_its_time_is_finished(scene: Scene) -> None:
    job = streaming(scene)
    with held_up(scene):
        standing = scene.standing()
        job.look()
        to_group(job, signal.SIGTERM)
        time.sleep(1.0)  # less than the batch is given
        assert job.process.poll() is None
    assert ended_in_order(job, scene)["resolved_ts"] != standing


def test_a_batch_that_takes_for_ever_is_left(one_scene: Scene) -> None:
    """What is left has moved no checkpoint."""
    job = streaming(one_scene)
    with held_up(one_scene):
        job.look()
        to_everyone(job, signal.SIGTERM)
        assert job.wait() == 0, job.said()
    ended_in_order(job, one_scene)


@pytest.mark.slow
def test_a_target_that_is_away_holds_nobody(scene: Scene) -> None:
    job = streaming(scene)
    scene.target.kill()
    eventually(
        lambda: "not reachable since" in str(job.lines()[-1].get("holding")), seconds=LONGEST, what="it says what it waits for", pause=0.05
    )
    to_process(job, signal.SIGTERM)
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    scene.target.restart()
    assert scene.registered() == {"drainer": "paused"}
    job.leaves_nothing()


# In `make test` a playground with a target gets two signals, which is a drainer with more around it, and tests/unit/jobs/test_signals.py sends them to processes.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(scene: Scene, number: signal.Signals) -> None:
    job = streaming(scene)
    with held_up(scene):
        job.look()
        to_group(job, number)
        time.sleep(0.5)  # two signals at the same moment are one
        to_group(job, number)
        assert job.wait() in (130, 128 + number), job.said()
    job.leaves_nothing()


def test_a_pump_pauses(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        job = Job(tmp_path, "pump", "--pd-urls=", "--addr=127.0.0.1:0", f"--data-dir={tmp_path / 'pump'}")
        eventually(lambda job=job: job.out.read_text().startswith("serving"), seconds=LONGEST, what="it serves", pause=0.05)
        to_group(job, number)
        assert (job.wait(), job.err.read_text()) == (0, ""), job.said()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_demo_leaves_no_server_behind(tmp_path: Path, numbers: list[signal.Signals]) -> None:
    job = Job(tmp_path, "demo", "--seconds=600", "--rate=20", "--progress=json")
    with contextlib.ExitStack() as stack:
        stack.callback(job.end)
        eventually(
            lambda: any("now the workload writes" in str(line.get("message")) for line in job.lines()),
            seconds=LONGEST,
            what="the workload writes",
            pause=0.05,
        )
        assert job.runs("java") and job.runs("mariadbd")
        for number in numbers:
            to_group(job, number)
            time.sleep(0.5)  # two signals at the same moment are one
        assert (job.wait() == 0) == (len(numbers) == 1), job.said()
        job.leaves_nothing()
