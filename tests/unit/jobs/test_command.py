"""What the command reads from its arguments, and what it says before it starts anything."""

import subprocess
import sys

import pytest

from pyspark_tidb_binlog.conf.entry import CODE
from pyspark_tidb_binlog.jobs import command
from pyspark_tidb_binlog.jobs.command import JOBS, Given, parsed, require_packages, usage
from pyspark_tidb_binlog.jobs.spark.fetched_jars import names_delta
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
