"""``jobs/setup.sh``, whose functions run with programs of the tests in place of the machine's."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry.versions import JAVA
from tests.support.eventually import eventually

SETUP = Path(__file__).resolve().parents[3] / "jobs" / "setup.sh"
TOOLS = ("bash", "cat", "mktemp", "rm", "sed", "sh", "tail", "wc")


def program(place: Path, name: str, does: str = "") -> None:
    (place / name).write_text(f"#!/bin/sh\n{does}\n")
    (place / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that is all of ``PATH``; ``apt-get`` is in it."""
    place = tmp_path / "programs"
    place.mkdir()
    for tool in TOOLS:
        (place / tool).symlink_to(shutil.which(tool) or "/nonexistent")
    program(place, "apt-get")
    return place


def shell(programs: Path, code: str, setup: Path = SETUP, **environ: str) -> subprocess.CompletedProcess[str]:
    """``code`` behind the functions; root may use apt unless ``TIDB_BINLOG_NO_APT`` says otherwise."""
    # no other place for programs of servers, and a user id that only a test can choose
    text = (
        setup.read_text()
        .replace(":/usr/sbin:/usr/local/sbin", "")
        .replace("$EUID", "$USER_ID")
        .replace("${BASH_SOURCE[0]%/*}", str(setup.parent))
    )
    command = [str(programs / "bash"), "-euo", "pipefail", "-c", f"{text}\n{code}"]
    return subprocess.run(command, env={"PATH": str(programs), "USER_ID": "0", **environ}, capture_output=True, text=True, check=False)


def test_where_apt_is_not_allowed_the_command_is_told(programs: Path) -> None:
    for environ in ({"TIDB_BINLOG_NO_APT": "1"}, {"USER_ID": "1000"}):
        done = shell(programs, "need_java", **environ)
        assert done.returncode == 1
        assert done.stderr.startswith("setup: no Java was found; Spark needs Java 17 or later")
        assert done.stderr.endswith("run `apt-get install --no-install-recommends openjdk-17-jre-headless` as root and start again\n")


def test_elsewhere_than_on_debian_the_package_is_named(programs: Path) -> None:
    (programs / "apt-get").unlink()
    done = shell(programs, "need 'a server' mariadbd mariadb-server")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: a server was not found: install what Debian calls mariadb-server and start again\n",
    )


@pytest.mark.parametrize(
    ("version", "words"), [('openjdk version "17.0.15" 2025-04-15', ""), ('java version "1.8.0_392"', "Java 8 is too old")]
)
def test_a_java_that_is_new_enough_is_taken(programs: Path, version: str, words: str) -> None:
    program(programs, "java", f"echo '{version}' >&2; echo 'and more' >&2")
    done = shell(programs, "need_java", TIDB_BINLOG_NO_APT="1")
    assert (done.returncode == 0, words in done.stderr) == (not words, True)


def test_a_java_that_the_environment_names_wrongly_is_not_replaced(programs: Path, tmp_path: Path) -> None:
    """Whatever apt installs, Spark would run that one."""
    (tmp_path / "old" / "bin").mkdir(parents=True)
    program(tmp_path / "old" / "bin", "java", "echo 'openjdk version \"11.0.2\"' >&2")
    for home, state in ((tmp_path / "none", "no Java was found"), (tmp_path / "old", "Java 11 is too old")):
        done = shell(programs, "need_java", JAVA_HOME=str(home))
        assert (done.returncode, done.stderr.startswith(f"setup: {state} in JAVA_HOME ({home})")) == (1, True)


def test_the_shell_and_the_command_want_the_same_java() -> None:
    assert f"\njava_needed={JAVA}\n" in SETUP.read_text()


@pytest.mark.parametrize(
    ("refusal", "calls"),
    [("Could not get lock /var/lib/apt/lists/lock", ["update"] * 3 + ["install"]), ("Temporary failure resolving", ["update"])],
)
def test_another_apt_is_waited_for(programs: Path, tmp_path: Path, refusal: str, calls: list[str]) -> None:
    """The first two updates fail. Only a lock is worth waiting for."""
    called = tmp_path / "called"
    program(programs, "apt-get", f"""echo "$*" >> {called}; [ $(wc -l < {called}) -gt 2 ] || {{ echo 'E: {refusal}' >&2; exit 100; }}""")
    program(programs, "sleep")
    program(programs, "seq", "echo 1 2 3 4")
    done = shell(programs, "install 'they were not found' one two")
    assert done.returncode == ("install" not in calls), done.stderr
    assert (refusal in done.stderr) == (done.returncode == 1)
    assert [next(word for word in ("update", "install") if word in line.split()) for line in called.read_text().splitlines()] == calls
    assert ("DPkg::Lock::Timeout=300 install -y --no-install-recommends one two" in called.read_text()) == ("install" in calls)


@pytest.mark.parametrize(
    ("flag", "package", "needed"),
    [
        ("--mariadb", "mariadb-server", "mariadbd"),
        ("--etcd", "etcd-server", "etcd"),
        ("--browser", "chromium chromium-driver", "chromedriver"),
    ],
)
def test_a_program_is_installed_only_where_it_is_missing(programs: Path, flag: str, package: str, needed: str) -> None:
    code = f"need_packages() {{ echo packages; }}; set_up {flag}"
    done = shell(programs, code, TIDB_BINLOG_NO_APT="1")
    assert done.returncode == 1
    assert f"was not found: run `apt-get install --no-install-recommends {package}` as root" in done.stderr
    program(programs, needed)
    done = shell(programs, code, TIDB_BINLOG_NO_APT="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "packages\n", "")


@pytest.mark.parametrize(
    ("step", "code"),
    [("fetched_jars spark-jars", "set_up --java"), ("class_archive", "set_up --java"), ("fetched_jars kafka-jars", "set_up --kafka")],
)
def test_a_step_that_fails_ends_it(programs: Path, step: str, code: str) -> None:
    fakes = f'need_java() {{ :; }}; need_packages() {{ :; }}; prepare() {{ echo "$*"; [[ "$*" != "{step}" ]]; }}'
    done = shell(programs, f"{fakes}; false || {code}; echo later")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == step


def test_its_python_finds_the_package_from_anywhere(tmp_path: Path) -> None:
    """A virtual environment that is copied to another checkout finds the code of that checkout."""
    first, second = tmp_path / "first", tmp_path / "second"
    for checkout in (first, second):
        (checkout / "pyspark_tidb_binlog").mkdir(parents=True)
        (checkout / "pyspark_tidb_binlog" / "__init__.py").touch()
        (checkout / "requirements.txt").touch()
    (first / "jobs").mkdir()
    shutil.copy(SETUP, first / "jobs")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(first / ".venv")], check=True)
    (first / ".venv" / ".requirements.txt").touch()
    done = shell(Path("/usr/bin"), "need_packages requirements.txt", first / "jobs" / "setup.sh")
    assert (done.returncode, done.stderr) == (0, "")
    shutil.copytree(first / ".venv", second / ".venv", symlinks=True)
    for checkout in (first, second):
        command = [str(checkout / ".venv/bin/python"), "-c", "import pyspark_tidb_binlog as p; print(p.__file__)"]
        done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == (str(checkout / "pyspark_tidb_binlog" / "__init__.py"), "")


def ended_by_ctrl_c(command: list[str], place: Path) -> tuple[str, int]:
    """What a command printed, and its exit code, after a Ctrl-C once it has written its number into ``started``."""
    environ = {**os.environ, "PYTHONPATH": str(SETUP.parents[1])}
    with subprocess.Popen(command, cwd=place, env=environ, stderr=subprocess.PIPE, text=True, process_group=0) as running:
        eventually(lambda: (place / "started").exists() and (place / "started").read_text())
        os.killpg(running.pid, signal.SIGINT)
        printed = running.communicate()[1]
    there = Path("/proc", (place / "started").read_text().strip(), "stat")
    eventually(lambda: not there.exists() or ") Z " in there.read_text())
    return printed, running.returncode


def test_ctrl_c_waits_for_apt(tmp_path: Path) -> None:
    """Its dpkg must not be killed."""
    step = "trap '' INT; echo $$ > started; sleep 1; echo whole > ended"
    code = f'. {SETUP}; need_packages() {{ step apt sh -c "{step.replace("$", chr(92) + "$")}"; }}; set_up'
    assert ended_by_ctrl_c(["bash", "-euo", "pipefail", "-c", code], tmp_path) == ("setup: stopped\n", 130)
    assert (tmp_path / "ended").exists()


def test_ctrl_c_ends_a_jvm(tmp_path: Path) -> None:
    # later than Python has started it
    step = "trap '' INT; sleep 1000 & child=$!; sleep 0.5; echo $child > started; wait; echo whole > ended"
    code = "import os, sys; from pyspark_tidb_binlog.jobs.spark import fetched_jars as f; sys.exit(f.set_up(lambda: f.run_once(['sh', '-c', sys.argv[1]], 'a step', os.environ)))"
    assert ended_by_ctrl_c([sys.executable, "-c", code, step], tmp_path) == ("", 130)
    assert not (tmp_path / "ended").exists()
