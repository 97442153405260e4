"""The pure parts of setting up."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import setup
from tests.support.eventually import eventually


def test_where_apt_is_not_allowed_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_NO_APT", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(setup.SetupError, match="no Java was found: run `apt-get install .*openjdk-17-jre-headless` as root"):
        setup.apt_install(["openjdk-17-jre-headless"], "no Java was found")


def test_elsewhere_than_on_debian_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(setup.SetupError, match="install what Debian calls mariadb-server"):
        setup.apt_install(["mariadb-server"], "no server")


@pytest.mark.parametrize(
    ("refusal", "calls"),
    [("Could not get lock /var/lib/apt/lists/lock", ["update"] * 3 + ["install"]), ("Temporary failure resolving", ["update"])],
)
def test_another_apt_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str, calls: list[str]) -> None:
    """The first two updates fail. Only a lock is worth waiting for."""
    called = tmp_path / "called"
    fails = f"""echo "$*" >> {called}; [ $(wc -l < {called}) -gt 2 ] || {{ echo 'E: {refusal}' >&2; exit 100; }}"""
    for name, does in (("apt-get", fails), ("sleep", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("TIDB_BINLOG_NO_APT", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with contextlib.nullcontext() if "install" in calls else pytest.raises(setup.SetupError, match=refusal):
        setup.apt_install(["one", "two"], "they were not found")
    assert [next(word for word in ("update", "install") if word in line.split()) for line in called.read_text().splitlines()] == calls
    assert ("DPkg::Lock::Timeout=300 install -y --no-install-recommends one two" in called.read_text()) == ("install" in calls)


def test_etcd_is_installed_only_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_NO_APT", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    setup.ensure_etcd()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "etcd" else f"/usr/bin/{name}")
    with pytest.raises(setup.SetupError, match="etcd was not found: run `apt-get install .*etcd-server` as root"):
        setup.ensure_etcd()


def test_a_browser_is_installed_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_NO_APT", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    setup.ensure_browser()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "chromedriver" else f"/usr/bin/{name}")
    with pytest.raises(setup.SetupError, match="Chromium was not found: run `apt-get install .*chromium chromium-driver` as root"):
        setup.ensure_browser()


@pytest.mark.parametrize("module", ["setup", "command"])
def test_nothing_has_to_be_installed(module: str) -> None:
    """On a bare machine ``setup`` installs the packages, and the command says which are missing."""
    bare = [sys.executable, "-S", "-c", f"import pyspark_tidb_binlog.jobs.{module}"]
    done = subprocess.run(bare, env={"PYTHONPATH": str(setup.CODE)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_archive_for_executors_holds_every_package(tmp_path: Path) -> None:
    setup.write_zip(tmp_path / "sub" / "code.zip")
    names = set(zipfile.ZipFile(tmp_path / "sub" / "code.zip").namelist())
    wanted = {"__init__.py", "jobs/entry/cli.py", "schemas/errors.py", "schemas/proto/binlog_pb2.py", "conf/drainer.toml", "py.typed"}
    assert {f"pyspark_tidb_binlog/{name}" for name in wanted} <= names
    assert all(name.startswith("pyspark_tidb_binlog/") and "__pycache__" not in name for name in names)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["code.zip"]


def test_its_python_finds_the_package_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment that is copied to another checkout finds the code of that checkout."""
    first, second = tmp_path / "first", tmp_path / "second"
    for checkout in (first, second):
        (checkout / "pyspark_tidb_binlog").mkdir(parents=True)
        (checkout / "pyspark_tidb_binlog" / "__init__.py").touch()
        (checkout / "requirements.txt").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(first / ".venv")], check=True)
    (first / ".venv" / ".requirements.txt").touch()
    for name, value in (("PROJECT", first), ("VENV", first / ".venv"), ("PYTHON", first / ".venv/bin/python")):
        monkeypatch.setattr(setup, name, value)
    setup.ensure_packages(dev=False)
    shutil.copytree(first / ".venv", second / ".venv", symlinks=True)
    for checkout in (first, second):
        command = [str(checkout / ".venv/bin/python"), "-c", "import pyspark_tidb_binlog as p; print(p.__file__)"]
        done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == (str(checkout / "pyspark_tidb_binlog" / "__init__.py"), "")


@pytest.mark.parametrize(
    ("script", "deaf"),
    [
        pytest.param("trap '' INT; sleep 1000 & echo $! > started; wait", True, id="a-jvm"),
        pytest.param("trap '' INT; echo $$ > started; sleep 1; echo whole > ended", False, id="apt"),
    ],
)
def test_ctrl_c_ends_it_and_what_it_has_started(script: str, deaf: bool, tmp_path: Path) -> None:
    """A JVM goes. dpkg must not be killed: it is waited for."""
    started = tmp_path / "started"
    step = f"lambda dev: setup.run(['sh', '-c', {script!r}], 'a step', deaf={deaf})"
    code = f"import sys; from pyspark_tidb_binlog.jobs import setup; setup.ensure_packages = {step}; sys.exit(setup.main([]))"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, process_group=0
    ) as running:
        eventually(lambda: started.exists() and started.read_text())
        os.killpg(running.pid, signal.SIGINT)
        assert (running.communicate()[1], running.returncode) == ("setup: stopped\n", 130)
    there = Path("/proc", started.read_text().strip(), "stat")
    eventually(lambda: not there.exists() or ") Z " in there.read_text())
    assert (tmp_path / "ended").exists() != deaf
