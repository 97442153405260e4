"""The playground as a newcomer starts it, and what README.md and docs/playground.md have them paste, as it stands there."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.entry import PLAYGROUND_PORT
from pyspark_tidb_binlog.jobs import lake as lake_command
from pyspark_tidb_binlog.jobs.lab.ports import free_port
from pyspark_tidb_binlog.jobs.playground import LAKE, PYTHON
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.http_client import fetch
from tests.support.eventually import eventually
from tests.support.job_scene import LONGEST, Job, to_group, to_process

pytestmark = pytest.mark.grpc
ROOT = Path(__file__).parents[2]
NO_PYTHON = ("./", "curl ", "tiup ")
UP = "Ctrl-C ends it and leaves nothing behind."
TOLD = "ctl status -registry"


@contextmanager
def started(work_dir: Path, *options: str, until: str = UP) -> Iterator[Job]:
    """A playground that is up."""
    job = Job(work_dir, "playground", *options)
    try:
        eventually(lambda: until in job.out.read_text() or job.process.poll() is not None, seconds=LONGEST, what="it is up", pause=0.05)
        assert until in job.out.read_text(), job.said()
        yield job
        if job.process.poll() is None:
            to_process(job, signal.SIGTERM)
            assert job.wait() == 0, job.said()
    finally:
        job.end()


def workload_lines(job: Job) -> list[str]:
    """Those that stop the workload, and have it go on."""
    return re.findall(r"^    (curl .*?) +#", job.out.read_text(), re.M)


def replicates(job: Job) -> None:
    """Wait for the lines of the target. The workload pauses meanwhile: else what is to be caught up with grows while Spark starts."""
    stop, go_on = workload_lines(job)
    in_shell(stop)
    eventually(lambda: TOLD in job.out.read_text() or job.process.poll() is not None, seconds=LONGEST, what="it replicates", pause=0.05)
    assert TOLD in job.out.read_text(), job.said()
    in_shell(go_on)


def place_of(port: int) -> Path:
    return Path(tempfile.gettempdir(), f"tidb-binlog-playground-{os.getuid()}-{port}")


def left_behind(port: int) -> bool:
    return place_of(port).exists()


def ends_and_leaves_nothing(job: Job, number: signal.Signals, port: int) -> None:
    assert len(job.look()) >= 3 and left_behind(port)
    to_group(job, number)
    assert (job.wait(), job.err.read_text()) == (0, ""), job.said()
    job.leaves_nothing()
    assert not left_behind(port)


def blocks(page: str) -> list[str]:
    """What is to be pasted, in the order of the page."""
    return [textwrap.dedent(block).lstrip("\n") for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", (ROOT / page).read_text(), re.M)]


def in_shell(line: str) -> str:
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(shown: str) -> list[list[str]]:
    """The cells of the tables that Spark shows."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines() if line.startswith("|")]


@pytest.mark.spark
def test_what_the_pages_say_works_as_printed(tmp_path: Path) -> None:
    """README's lines, and then those of the tutorial, in one session."""
    _, start, python, _ = blocks("README.md")
    first, *tutorial = (block for block in blocks("docs/playground.md") if "pyspark_tidb_binlog.lake" not in block)
    assert first == start
    assert python == PYTHON % {"url": f"http://127.0.0.1:{PLAYGROUND_PORT}"} and len(python.splitlines()) <= 10
    (command, *options) = start.split()
    assert (ROOT / command).samefile(ROOT / "spark-submit.sh")
    with started(tmp_path, *options[1:]) as job:
        assert textwrap.indent(python, "    ") in job.out.read_text()
        pasted = "print('--- the tutorial')\n".join([python, *(block for block in tutorial if not block.startswith(NO_PYTHON))])
        done = subprocess.run([sys.executable], input=pasted, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)
        assert not job.runs("java")
        ends_and_leaves_nothing(job, signal.SIGHUP, PLAYGROUND_PORT)
    assert done.returncode == 0, done.stderr
    ours, changes, recent, paid, bank = done.stdout.split("--- the tutorial\n")
    shown = rows_of(ours)
    assert shown[0] == ["table", "insert", "update", "delete", "ddl"] and {"account", "orders"} <= {row[0] for row in shown}
    header = next(row for row in shown if "_change_type" in row)
    assert header[:5] == ["id", "customer", "item", "status", "total"] and len(set(header)) == len(header)
    kinds = [row[header.index("_change_type")] for row in shown if len(row) == len(header) and row != header]
    assert kinds[0] == "insert" and {"update_preimage", "update_postimage"} <= set(kinds)
    assert shown.count(header) > 2, "orders are shown as they change"
    first, later = [place for place, row in enumerate(shown) if row == header][:2]
    lives = [row[header.index("_change_type")] for row in shown[first + 1 : later]]
    assert all((one == "update_preimage") == (then == "update_postimage") for one, then in pairwise(lives))
    assert "CREATE DATABASE" in changes and rows_of(changes)[0] == ["commit_time", "email", "email"]
    header, *counts = rows_of(recent)
    assert header[0] == "item" and {row[0] for row in counts} == {"cake", "coffee", "soup", "tea"}
    header, *counts = rows_of(paid)
    assert header == ["customer", "sum(total)"] and counts
    assert {("checking", "update"), ("savings", "update")} <= {(row[0], row[1]) for row in rows_of(bank)}


def take_back(job: Job, lake: Path, pasted: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The tutorial of a wrong DELETE, in the session of a lake."""
    mistake, *python, undo = blocks("docs/undo.md")
    counted = pasted["lake"].table("demo.orders").where("customer = 'Ada'").count()
    before = Lake(pasted["spark"], lake).commit_ts
    in_shell(mistake.replace(f":{PLAYGROUND_PORT}/", f":{urlsplit(workload_lines(job)[0].split()[-1]).port}/"))
    eventually(lambda: Lake(pasted["spark"], lake).table("demo.orders").where("customer = 'Ada'").count() == 0, seconds=LONGEST, pause=0.5)
    capsys.readouterr()
    for block in python:
        exec(compile(block, "what is pasted", "exec"), pasted)
    shown = capsys.readouterr().out
    lost, worst = re.search(r"^(\d+) orders of Ada$", shown, re.M), pasted["worst"]["commit_ts"]
    assert lost is not None and int(lost[1]) > 0 and worst > before and counted > 0
    life, differences, restored = (rows_of(part) for part in shown.split("+\n\n")[:3])
    assert (life[1][1], life[-1][1]) == ("insert", "delete")
    assert ["demo", "orders", "0", lost[1], "0"] in differences
    assert f"`demo`.`orders`: 0 deletes, 0 updates, {lost[1]} inserts" in shown and restored[1][0] == "insert"
    argv = undo.replace("COMMIT_TS", str(worst)).replace("/tmp/lake", str(lake)).split()
    assert lake_command.main(argv[2:]) == 0
    assert capsys.readouterr().out.count("INSERT INTO `demo`.`orders` (`id`,`customer`,`item`,`status`,`total`) VALUES (") == int(lost[1])


@pytest.mark.spark
def test_a_lake_is_read_with_the_lines_that_are_printed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are pasted into this process, whose Spark is warm."""
    monkeypatch.setenv("TIDB_BINLOG__SPARK__MIRROR_INTERVAL", "2")
    lake = tmp_path / "lake"
    (told,) = (block for block in blocks("docs/playground.md") if "pyspark_tidb_binlog.lake" in block)
    with started(tmp_path, f"--port={free_port()}", f"--lake={lake}") as job:
        replicates(job)
        python, printed = LAKE % {"dir": lake}, job.out.read_text()
        assert textwrap.indent(python, "    ") in printed and told == python.replace(str(lake), "/tmp/lake")
        begun = datetime.now(UTC)
        eventually(lambda: Lake(spark, lake).time > begun + timedelta(seconds=7), seconds=LONGEST, pause=0.5)
        pasted: dict[str, Any] = {}
        (tables,) = re.findall(r"^    .* (tables --dir .*)$", printed, re.M)
        capsys.readouterr()
        exec(compile(python, "what is pasted", "exec"), pasted)
        now, before, changes = capsys.readouterr().out.split("+\n\n")[:3]
        take_back(job, lake, pasted, capsys)
        assert lake_command.main(tables.split()) == 0
        assert re.search(r"^\|demo +\|orders +\|\d+ +\|mirrored\|NULL", capsys.readouterr().out, re.M)
        to_process(job, signal.SIGTERM)
        assert job.wait() == 0, job.said()
        assert re.search(r"rows: [1-9][\d,]* equal, 0 differing; 0 tables not compared$", job.out.read_text(), re.M), job.said()
        job.leaves_nothing()
    counts = []
    for shown in (now, before):
        header, *rows = rows_of(shown)
        assert header == ["status", "count"] and {row[0] for row in rows} <= {"new", "paid", "sent"}
        counts.append(sum(int(row[1]) for row in rows))
    assert counts[0] > counts[1] > 0
    assert rows_of(changes)[0] == ["commit_time", "was", "became"] and len(rows_of(changes)) == 6
    assert Lake(spark, lake).table("demo.orders").count() >= counts[0], "the lake stays"
    (tmp_path / "again").mkdir()
    again = Job(tmp_path / "again", "playground", f"--port={free_port()}", f"--lake={lake}")
    assert again.wait() == 2
    assert "is the lake of an earlier run, whose upstream is gone" in again.err.read_text()


def test_it_stays_up_and_its_workload_stops_and_goes_on(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, f"--port={port}") as job:
        stop, go_on = workload_lines(job)

        def counts() -> str:
            return re.sub(r'"upto_ts":\d+', "", in_shell(stop.replace("/stop", "/status")))

        stopped = re.sub(r'"upto_ts":\d+', "", in_shell(stop))
        assert counts() == stopped == re.sub(r'"upto_ts":\d+', "", in_shell(stop))
        assert '"running":false' in stopped
        assert '"running":true' in in_shell(go_on)
        in_shell(go_on)
        eventually(lambda: counts() != stopped, seconds=LONGEST, what="it writes again")
        (pumps,) = re.findall(r"^    (.* ctl pumps .*)$", job.out.read_text(), re.M)
        assert in_shell(pumps).count("State: online") == 2
        (tmp_path / "twice").mkdir()
        again = Job(tmp_path / "twice", "playground", f"--port={port}")
        assert again.wait() == 1
        assert re.fullmatch(
            rf"error: cannot listen on 127.0.0.1:{port}: process \d+ \(.*\) listens there; .* --port N takes another port\n",
            again.err.read_text(),
        )
        ends_and_leaves_nothing(job, signal.SIGTERM, port)


def lose_upstream(job: Job, port: int) -> None:
    (upstream,) = [process for process in job.look() if any("workload_process" in part for part in process.cmdline())]
    upstream.kill()
    assert job.wait() == 1, job.said()
    assert f"error: the workload at http://127.0.0.1:{port} does not answer" in job.err.read_text()
    job.leaves_nothing()
    assert not left_behind(port)


def test_a_start_after_one_that_was_killed_is_as_any_other(tmp_path: Path) -> None:
    """Without its upstream it ends with an error."""
    port = free_port()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with started(first, f"--port={port}") as job:
        job.look()
        to_process(job, signal.SIGKILL)
        job.wait()
        job.leaves_nothing()
    assert left_behind(port)
    with started(second, f"--port={port}") as job:
        lose_upstream(job, port)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.mariadb
def test_a_target_without_its_upstream_ends_with_an_error(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, f"--port={port}", "--target", until=TOLD) as job:
        lose_upstream(job, port)


@pytest.mark.parametrize("taken", ["link", "held"])
def test_a_directory_that_it_may_not_use_is_left_alone(tmp_path: Path, taken: str) -> None:
    """Somebody has planted a link under its name; another playground has the directory, and no port yet."""
    place, kept = place_of(port := free_port()), tmp_path / "kept"
    (kept / "all").mkdir(parents=True)
    place.symlink_to(kept) if taken == "link" else kept.rename(place)
    directory = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        (place / "all/file").touch()
        job = Job(tmp_path, "playground", f"--port={port}")
        assert job.wait() == 1, job.said()
        assert re.fullmatch(rf"error: cannot use the directory {place} \(.*\): .* --port N takes another one\n", job.err.read_text())
        assert (place / "all/file").exists()
    finally:
        os.close(directory)
        place.unlink() if place.is_symlink() else shutil.rmtree(place)


@pytest.mark.spark
@pytest.mark.mysql
@pytest.mark.mariadb
def test_a_target_follows_the_cluster_and_the_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, f"--port={port}", "--target") as job:
        replicates(job)
        assert "More lines follow when the target has the tables." in job.out.read_text().split(UP)[1].split("replicates")[0]
        lag, orders, status = re.findall(r"^    (mariadb .*|.* ctl status .*)$", job.out.read_text(), re.M)
        eventually(lambda: "new" in in_shell(orders), seconds=LONGEST, what="orders are at the target")
        assert re.search(r"\| +\d+\.\d+ \|", in_shell(lag))
        (page,) = re.findall(r"shows the drainer at (http://\S+/)", job.out.read_text())
        target = json.loads(fetch(f"{page}page.json", 30).body)["target"]
        assert fetch(page, 30).ok and target["kind"] == "mysql" and re.fullmatch(r"127\.0\.0\.1:\d+", target["name"])
        assert f"--socket={place_of(port)}/" in lag, "a start after kill -9 removes the target's files, too"
        assert "is in the target" in in_shell(status)
        assert job.runs("java") and job.runs("mariadbd")
        for _ in range(2):
            to_group(job, signal.SIGINT)
            time.sleep(0.5)  # two signals at the same moment are one
        assert job.wait() == 128 + signal.SIGINT, job.said()
        job.leaves_nothing()
    shutil.rmtree(place_of(port), ignore_errors=True)  # for which it may have had no time
