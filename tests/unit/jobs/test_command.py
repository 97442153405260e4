"""What the command reads from its arguments, and what it says before it starts anything."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.entry import CODE
from pyspark_tidb_binlog.jobs import command
from pyspark_tidb_binlog.jobs.command import JOBS, Given, parsed, require_packages, usage
from pyspark_tidb_binlog.jobs.spark.fetched_jars import FetchedJars, names_delta
from pyspark_tidb_binlog.schemas.errors import ConfigError


def test_options_of_spark_are_taken_out_in_any_position() -> None:
    given = parsed(
        ["--master", "local[1]", "--verbose", "drainer", "--config=x", "--conf", "a=b", "--jars=j", "--safe-mode", "--py-files", "p"]
    )
    assert given == Given("drainer", ["--config=x", "--safe-mode"], ["--verbose", "--conf", "a=b"], "local[1]", "j", "p")


def test_c_is_confs_before_the_job_and_the_drainers_behind_it() -> None:
    assert parsed(["-c", "a=b", "drainer", "-c", "16"]) == Given("drainer", ["-c", "16"], ["-c", "a=b"])
    assert parsed(["drainer", "-c=16"]).options == ["-c=16"]


def test_everything_behind_two_dashes_is_the_jobs() -> None:
    assert parsed(["pump", "--", "--master", "x"]) == Given("pump", ["--master", "x"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["drainer", "--master"], "--master needs a value"),
        (["--name", "--", "drainer"], "--name needs a value"),
        (["--nonsense", "drainer"], "unknown option --nonsense before the job"),
        (["drainer", "--deploy-mode", "cluster"], "--deploy-mode cluster is not possible"),
    ],
)
def test_nonsense_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(argv)


@pytest.mark.parametrize("word", ["-h", "--help", "-V", "--version"])
def test_help_and_version_count_before_a_job_only(word: str) -> None:
    assert parsed([word]).job == word
    assert parsed(["drainer", word]) == Given("drainer", [word])


def test_help_names_the_command_that_a_person_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usage().startswith("usage: ./spark-submit.sh [spark options] JOB") and "\n  setup " in usage()
    monkeypatch.setattr(command, "IN_CHECKOUT", False)
    monkeypatch.setattr(command, "COMMAND", "tidb-binlog")
    assert usage().startswith("usage: tidb-binlog [spark options] JOB") and "setup" not in usage()


def test_a_missing_package_is_one_line_with_the_extra_that_has_it() -> None:
    with pytest.raises(ConfigError, match=r"drainer needs packages .* lacks: pyspark, h11\. .*pip install '.*\.whl\[drainer\]'$"):
        require_packages("drainer", JOBS["drainer"], lambda name: None if name in ("pyspark", "h11") else name)
    require_packages("pump", JOBS["pump"], lambda name: None if name in ("pyspark", "pandas") else name)


@pytest.mark.parametrize(
    ("text", "is_delta"),
    [
        ("--packages io.delta:delta-spark_4.2_2.13:4.4.0", True),
        ("/jars/delta-spark_4.2_2.13-4.4.1.jar", True),
        ("s3://x/delta-spark.jar", True),
        ("/jars/delta-kernel-api-4.4.0.jar,/jars/my-delta.jar", False),
        ("spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension", False),
    ],
)
def test_jars_of_delta_that_a_person_names_are_known(text: str, is_delta: bool) -> None:
    assert names_delta(text) == is_delta


def test_what_a_lake_has_at_a_moment_is_shown_without_a_jvm() -> None:
    assert all(command._without_spark([word, "--dir", "x"]) for word in ("tables", "versions", "snapshots", "show"))
    assert command._without_spark(["verify", "--config", "x"]) and not command._without_spark(["verify", "--dir", "x"])
    assert not command._without_spark(["life", "--dir", "show"])
    assert not command._without_spark([])


def test_nothing_has_to_be_installed() -> None:
    """On a bare machine the command says which packages are missing."""
    bare = [sys.executable, "-S", "-c", "import pyspark_tidb_binlog.jobs.command"]
    done = subprocess.run(bare, env={"PYTHONPATH": str(CODE)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that has everything, and this is its Python; ``ran`` has what was set up."""
    (tmp_path / "requirements.txt").write_text("a==1")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".requirements.txt").write_text("a==1")
    (tmp_path / "spark-submit.sh").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/ran\n")
    (tmp_path / "spark-submit.sh").chmod(0o755)
    monkeypatch.setattr(command, "HOME", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(command, "java_of", lambda environ: (Path("java"), None))
    monkeypatch.setattr(FetchedJars, "place", lambda jars: tmp_path)
    monkeypatch.setattr(command, "require_server_programs", lambda: None)
    return tmp_path


def no_server() -> None:
    raise ConfigError("there is no mariadbd")


def test_a_checkout_with_everything_sets_nothing_up(checkout: Path) -> None:
    assert command._set_up(java=True, server=True) == 0 and not (checkout / "ran").exists()


def test_what_a_job_lacks_is_set_up(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for java in ((None, None), (Path("java"), 11)):
        monkeypatch.setattr(command, "java_of", lambda environ, java=java: java)
        assert command._set_up(java=False, server=True) == command._set_up(java=True, server=False) == 0
    monkeypatch.setattr(command, "java_of", lambda environ: (Path("java"), 21))
    monkeypatch.setattr(FetchedJars, "place", lambda jars: None)
    monkeypatch.setattr(command, "require_server_programs", no_server)
    (checkout / "requirements.txt").write_text("a==2")
    assert command._set_up(java=True, server=True) == command._set_up(java=False, server=False) == 0
    assert (checkout / "ran").read_text().splitlines() == ["setup --java", "setup --java", "setup --java --mariadb", "setup"]


def test_a_set_up_that_fails_ends_the_command(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "require_server_programs", no_server)
    with (checkout / "spark-submit.sh").open("a") as script:
        script.write("exit 7\n")
    assert command._set_up(java=True, server=True) == 7


def test_another_python_becomes_the_environments(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "argv", ["command", "pump", "--addr=x"])
    monkeypatch.setattr(command, "_become", lambda argv, environ: became.append(argv))
    command._set_up(java=False, server=False)
    assert became == [[str(checkout / ".venv" / "bin" / "python"), "-m", "pyspark_tidb_binlog.jobs.command", "pump", "--addr=x"]]


def test_ctrl_c_waits_for_what_is_being_set_up(checkout: Path) -> None:
    """A package manager must not be killed."""
    (checkout / ".venv" / ".requirements.txt").write_text("a==0")
    with (checkout / "spark-submit.sh").open("a") as script:
        script.write(f"sleep 0.5; kill -INT $PPID; sleep 1; echo whole >> {checkout}/ran; exit 130\n")
    code = "import sys; from pathlib import Path; from pyspark_tidb_binlog.jobs import command; command.HOME = Path(sys.argv[1]); "
    code += "sys.exit(command._set_up(java=False, server=False))"
    done = subprocess.run([sys.executable, "-c", code, str(checkout)], env={"PYTHONPATH": str(CODE)}, check=False)
    assert (done.returncode, (checkout / "ran").read_text().splitlines()) == (130, ["setup", "whole"])
