"""Fault points: silent unless named, counted over processes by their log, deadly exactly at the named pass."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import failpoints

ROOT = Path(__file__).parents[3]
PASS_FOUR_TIMES = (
    "from pyspark_tidb_binlog.conf import failpoints\nfor _ in range(4): failpoints.point('a'); failpoints.point('b')\nprint('alive')"
)


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDB_BINLOG")} | variables
    return subprocess.run([sys.executable, "-c", PASS_FOUR_TIMES], env=environ, cwd=ROOT, capture_output=True, text=True, check=False)


def test_nothing_happens_without_the_variable(tmp_path: Path) -> None:
    assert run(**{failpoints.DIE_LOG: str(tmp_path / "log")}).stdout == "alive\n"
    assert not (tmp_path / "log").exists()


def test_other_points_are_passed_and_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.DIE, "b:1")
    monkeypatch.setenv(failpoints.DIE_LOG, str(tmp_path / "log"))
    failpoints.point("a")
    assert not (tmp_path / "log").exists()


def test_death_at_the_nth_pass_counted_over_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    variables = {failpoints.DIE: "a:3,b:4", failpoints.DIE_LOG: str(log)}
    assert run(**variables).returncode == -signal.SIGKILL
    assert [line.split()[:2] + line.split()[3:] for line in log.read_text().splitlines()] == [
        ["a", "1"], ["b", "1"], ["a", "2"], ["b", "2"], ["a", "3", "died"],
    ]  # fmt: skip
    assert run(**variables).returncode == -signal.SIGKILL
    assert log.read_text().splitlines()[-1].startswith("b 4 ")
    assert run(**variables).stdout == "alive\n"


def test_without_a_log_passes_are_counted_in_the_process() -> None:
    assert run(**{failpoints.DIE: "a:4"}).returncode == -signal.SIGKILL
    assert run(**{failpoints.DIE: "a:5"}).stdout == "alive\n"


def test_the_launcher_dies_with_its_group(tmp_path: Path) -> None:
    """The point is passed in a process outside the launcher's group, as Spark's Python workers are."""
    worker = f"import os; os.setpgid(0, 0); {PASS_FOUR_TIMES.splitlines()[0]}; failpoints.point('a')"
    launcher = (
        "import os, subprocess, sys, time\n"
        "os.environ['TIDB_BINLOG_DIE_PID'] = str(os.getpid())\n"
        f"subprocess.run([sys.executable, '-c', {worker!r}])\n"
        "print('outlived')"
    )
    environ = os.environ | {failpoints.DIE: "a:1", failpoints.DIE_LOG: str(tmp_path / "log")}
    done = subprocess.run(
        [sys.executable, "-c", launcher], env=environ, cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


@pytest.mark.parametrize("spec", ["a", "a:0", "a:x", ":1", "a:1,,b:2"])
def test_a_malformed_variable_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="TIDB_BINLOG_DIE"):
        failpoints.fatal_passes(spec)


def test_one_point_may_be_deadly_more_than_once() -> None:
    assert failpoints.fatal_passes("a:1,a:3,b-c:2") == {"a": frozenset({1, 3}), "b-c": frozenset({2})}
