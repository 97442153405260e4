"""The entry script: what it offers, refuses, passes on, and what a person sees of it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.version import VERSION
from tests.support.past_scene import lake_of

ROOT = Path(__file__).parents[2]
ENTRY = str(ROOT / "spark-submit.sh")


def run(*arguments: str, log: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"TIDB_BINLOG_LOG": str(log / "job.log")} | variables
    return subprocess.run([ENTRY, *arguments], env=environ, cwd=log, capture_output=True, text=True, check=False, timeout=300)


def test_without_a_job_the_jobs_are_listed(tmp_path: Path) -> None:
    done = run(log=tmp_path)
    assert done.returncode == 2
    assert "rehearse" in done.stderr
    assert run("--help", log=tmp_path).returncode == 0


@pytest.mark.parametrize(("job", "near"), [("nosuch", ""), ("setup/../pump", ""), ("dranier", "did you mean drainer? "), ("report", "")])
def test_what_is_no_job_is_refused_in_one_line(job: str, near: str, tmp_path: Path) -> None:
    done = run(job, log=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"spark-submit.sh: there is no job '{job}'; {near}./spark-submit.sh --help lists them\n"


def test_what_is_no_flag_is_refused_in_one_line(tmp_path: Path) -> None:
    for arguments, line in (
        (["--mastr", "local", "demo"], "spark-submit.sh: unknown option --mastr before the job; did you mean --master? ./spark-submit.sh --help lists the jobs"),
        (["pump", "--data-dri"], "error: unknown flag --data-dri; did you mean --data-dir?"),
        (["lake", "tables", "--config=/nonexistent"], "error: cannot read the settings file /nonexistent: No such file or directory"),
        (["ctl", "findngs"], "error: spark-submit.sh ctl has no command 'findngs'; did you mean findings?"),
        (["setup", "--jva"], "setup: unknown flag --jva; the flags are --java --mariadb --etcd --kafka --browser --dev"),
    ):  # fmt: skip
        done = run(*arguments, log=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


def test_words_about_a_job_need_neither_java_nor_mariadb(tmp_path: Path) -> None:
    nothing = {"JAVA_HOME": "/nonexistent", "TIDB_BINLOG_NO_APT": "1"}
    for job in ("demo", "rehearse", "ctl"):
        done = run(job, "--version", log=tmp_path, **nothing)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"Release Version: {VERSION}\n")
    assert run("--version", log=tmp_path, **nothing).stdout.endswith(f" {VERSION}\n")
    for words in (("demo", "-help"), ("drainer", "--help-all")):
        done = run(*words, log=tmp_path, **nothing)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: spark-submit.sh {words[0]}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["docs", "runbook"],
        ["ctl", "encrypt", "-text", "a"],
        ["ctl", "--help"],
        ["setup", "--help"],
        ["drainer", "--check"],
        ["pump", "-pd-urls=", "-addr=127.0.0.1:0", "--data-dir=pump"],
        pytest.param(["lake", "tables", "--dir=lake"], marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param(["rehearse", "bank"], marks=[pytest.mark.spark, pytest.mark.mysql, pytest.mark.slow]),
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_a_command_without_a_word(arguments: list[str], tmp_path: Path) -> None:
    if arguments[0] == "lake":
        lake_of("bank", tmp_path / "lake", 4)
    read, write = os.pipe()
    os.close(read)
    environ = os.environ | {"TIDB_BINLOG_LOG": str(tmp_path / "job.log")}
    try:
        done = subprocess.run(
            [ENTRY, *arguments], env=environ, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False, timeout=300
        )
    finally:
        os.close(write)
    # What argparse prints has no error, and a shell is ended by the signal itself.
    expected = -signal.SIGPIPE if arguments[0] == "setup" else 0 if "--help" in arguments[1:] else 141
    assert (done.returncode, done.stderr) == (expected, b"")


def test_a_spark_option_needs_its_value(tmp_path: Path) -> None:
    assert "--master needs a value" in run("drainer", "--master", log=tmp_path).stderr


@pytest.mark.shows("-c after the job")
def test_c_after_the_job_is_the_jobs(tmp_path: Path) -> None:
    """Spark's short form of --conf before the job, the real Drainer's worker-count after it; a Pump has no such flag, and needs no JVM to say so."""
    done = run("pump", "-c", "16", log=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "error: spark-submit.sh pump has no flag -c; spark-submit.sh pump --help-all lists its flags\n",
    )
    assert "-c needs a value" in run("-c", log=tmp_path).stderr


@pytest.mark.shows("pump data-dir")
@pytest.mark.grpc
def test_a_pump_serves_until_it_is_told_to_stop_without_a_jvm(tmp_path: Path) -> None:
    command = [ENTRY, "pump", "-pd-urls=", "-addr", "127.0.0.1:0", "--data-dir", str(tmp_path / "pump")]
    environ = os.environ | {"TIDB_BINLOG_LOG": str(tmp_path / "job.log"), "JAVA_HOME": "/nonexistent"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as pump:
        assert pump.stdout is not None
        assert pump.stdout.readline().startswith("serving 127.0.0.1:")
        pump.send_signal(signal.SIGTERM)
        assert pump.wait(60) == 0
    assert (tmp_path / "pump" / "value").is_dir()


@pytest.mark.spark
def test_a_wrong_setting_is_one_line_on_stderr_and_nothing_of_java(tmp_path: Path) -> None:
    done = run("--master", "local[1]", "drainer", "--parts", "two", "--conf", "spark.ui.enabled=false", log=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: flag --spark.parts: 'two' is not a whole number\n"


@pytest.mark.spark
def test_output_to_a_file_is_appended(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before\n")
    with (tmp_path / "out").open("a") as out:
        environ = os.environ | {"TIDB_BINLOG_LOG": str(tmp_path / "job.log")}
        done = subprocess.run([ENTRY, "drainer", "--help"], env=environ, cwd=tmp_path, stdout=out, stderr=out, check=False, timeout=300)
    assert done.returncode == 0
    assert (tmp_path / "out").read_text().startswith("before\nusage: spark-submit.sh drainer")
