"""Command lines: settings as flags, errors in one message, exit codes, target URLs."""

import json
import logging
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, TargetConfig
from pyspark_tidb_binlog.conf.setting import settings_of
from pyspark_tidb_binlog.jobs import ctl, demo, rehearse
from pyspark_tidb_binlog.jobs.check import preflight
from pyspark_tidb_binlog.jobs.entry import cli, logs
from pyspark_tidb_binlog.jobs.lab import small_cluster
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, DdlRefused, NotUsableYet, Stopped

WORKER_TRACE = """\
pyspark.errors.exceptions.captured.StreamingQueryException: [STREAM_FAILED] Query [id = 1] terminated with exception:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/sinks/apply.py", line 18, in apply
    raise ApplyError("x")
pyspark_tidb_binlog.schemas.errors.ApplyError: inner: deadlock

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/sinks/ddl_apply.py", line 3, in apply
pyspark_tidb_binlog.schemas.errors.DdlRefused: DDL at commit_ts 5 was refused:
  ALTER TABLE t ADD x
  the server said: no (1064)
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:665)
Driver stacktrace:
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A log file of the test's own; log handlers as they were."""
    monkeypatch.setenv("TIDB_BINLOG_LOG", str(tmp_path / "log" / "job.log"))
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def raising(error: BaseException) -> int:
    def main(argv: Sequence[str]) -> int:
        raise error

    return cli.run_job(main, [])


def test_the_exit_code_is_the_jobs_own() -> None:
    assert cli.run_job(lambda argv: len(argv), ["a", "b"]) == 2


def test_a_thread_that_dies_is_in_the_log(tmp_path: Path) -> None:
    def main(argv: Sequence[str]) -> int:
        def die() -> None:
            raise ZeroDivisionError("of nobody's making")

        dying = threading.Thread(target=die, name="some thread")
        dying.start()
        dying.join()
        return 3

    before = threading.excepthook
    assert cli.run_job(main, []) == 3 and threading.excepthook is before
    said = (tmp_path / "log" / "job.log").read_text()
    assert "the thread 'some thread' died" in said and "of nobody's making" in said


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("spark.parts must be at least 1"), 2, "error: spark.parts must be at least 1\n"),
        (ApplyError("table a.b at commit_ts 5: server gone"), 1, "error: table a.b at commit_ts 5: server gone\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
    ],
)
def test_an_error_is_one_message(error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(error) == code
    assert capsys.readouterr().err == words


def test_to_be_stopped_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(Stopped("while the target was waited for")) == 0
    assert capsys.readouterr().err == ""
    assert "while the target was waited for" in logs.log_file().read_text()


@pytest.mark.shows("log-level", "pump log-level")
def test_the_log_level_is_a_setting() -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    cli.config_of(DrainerConfig, parser.parsed(["--log-level", "debug"]))
    assert (logging.getLogger().level, logs.spark_level()) == (logging.DEBUG, "INFO")
    cli.config_of(DrainerConfig, parser.parsed([]))
    assert (logging.getLogger().level, logs.spark_level()) == (logging.INFO, "WARN")
    with pytest.raises(ConfigError, match="log-level: 'loud' is not"):
        cli.config_of(DrainerConfig, parser.parsed(["--log-level", "loud"]))


def test_a_log_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/var/log/job.log")

    monkeypatch.setattr(cli, "log_to_file", full)
    assert cli.run_job(lambda argv: 0, []) == cli.EXIT_FAILED
    assert capsys.readouterr().err == (
        "error: cannot write a log: [Errno 28] No space left on device: '/var/log/job.log'; set TIDB_BINLOG_LOG to a writable file\n"
    )


def test_the_trace_goes_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(ZeroDivisionError("by zero")) == 70
    assert "Traceback" not in (shown := capsys.readouterr().err)
    assert shown.startswith("internal error: ZeroDivisionError: by zero\n(the trace is in ")
    assert "Traceback" in logs.log_file().read_text()


def test_what_may_work_later_is_not_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A unit is started again, but for a wrong setting."""
    assert raising(ConfigError("no such thing")) == cli.EXIT_CONFIG and raising(NotUsableYet("taken")) == cli.EXIT_FAILED
    assert capsys.readouterr().err == "error: no such thing\nerror: taken\n"


def test_a_package_that_the_executors_lack_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: Sequence[str]) -> int:
        raise RuntimeError("Failed to create Python data source\nModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000")

    assert cli.run_job(main, []) == cli.EXIT_CONFIG
    assert "no package pyarrow: install the packages of requirements.txt in the Python of PYSPARK_PYTHON" in capsys.readouterr().err


def test_an_error_inside_sparks_own_is_shown_as_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(RuntimeError(WORKER_TRACE)) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(
        "error: DDL at commit_ts 5 was refused:\n  ALTER TABLE t ADD x\n  the server said: no (1064)\n(the trace is in "
    )


def test_the_chain_of_causes_is_searched_too(capsys: pytest.CaptureFixture[str]) -> None:
    failure = RuntimeError("java says nothing")
    failure.__cause__ = DdlRefused("this DDL")
    assert raising(failure) == 1
    assert capsys.readouterr().err.startswith("error: this DDL\n")


def test_a_trace_without_our_errors_has_none() -> None:
    assert cli.replication_error_in("ValueError: schemas.errors are fine") is None


def test_every_setting_is_a_flag_by_path_and_unique_name() -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    arguments = parser.parsed(["--syncer.to.host", "db", "--ddl-policy", "skip", "--pumps=a:1,b:2", "--spark.parts", "4"])
    config = cli.config_of(DrainerConfig, arguments)
    assert (config.target.host, config.apply.ddl_policy, config.source.pumps, config.apply.parts) == ("db", "skip", "a:1,b:2", 4)


@pytest.mark.shows("-config")
@pytest.mark.parametrize(
    "argv",
    [
        ["-addr", "h:1", "-initial-commit-ts", "-1", "-L", "error", "-c", "16", "-sync-ddl", "-safe-mode=false", "-dest-db-type", "mysql"],
        ["--addr=h:1", "--initial-commit-ts=-1", "--L=error", "--c=16", "--sync-ddl=T", "--safe-mode=0", "--dest-db-type=mysql"],
        ["-syncer.worker-count=16", "-log-level", "error", "--addr", "h:1"],
    ],
)
def test_flags_are_read_as_go_reads_them(argv: list[str]) -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    config = cli.config_of(DrainerConfig, parser.parsed(argv))
    assert (config.addr, config.source.starting_commit_ts, config.log_level, config.apply.sync_ddl) == ("h:1", -1, "error", True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-safe-mode", "false"], "'false' is not a flag (a switch takes its value as in -safe-mode=false)"),
        (["-worker-cout", "3"], "unknown flag -worker-cout; did you mean --worker-count?"),
        (["-addr"], "flag -addr needs a value"),
        (["---addr=h:1"], "unknown flag ---addr; did you mean --addr?"),
        (["-safe-mode", "--", "-addr", "h:1"], "'-addr' is not a flag (a switch takes its value as in -safe-mode=false)"),
        (["-host", "db"], "unknown flag -host; did you mean --syncer.to.host or --spark.upstream.host or --syncer.to.checkpoint.host?"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_was_meant(argv: list[str], words: str) -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    with pytest.raises(ConfigError) as refused:
        parser.parsed(argv)
    assert str(refused.value) == words


@pytest.mark.shows("-V")
@pytest.mark.parametrize("flag", ["-V", "--V", "-h", "--help", "-help"])
def test_version_and_help_end_well(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    with pytest.raises(SystemExit) as ended:
        parser.parsed([flag])
    assert ended.value.code == 0
    assert (
        "Release Version: 0.1.0\nPython Version: 3" if flag.endswith("V") else "usage: spark-submit.sh drainer"
    ) in capsys.readouterr().out


@pytest.mark.shows("--help")
@pytest.mark.parametrize("model", [DrainerConfig, PumpConfig])
def test_help_has_a_line_for_every_setting(model: type[DrainerConfig] | type[PumpConfig], capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.parser("x", "")
    cli.add_settings(parser, model)
    with pytest.raises(SystemExit):
        parser.parsed(["-help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    for setting in settings_of(model):
        assert f"--{setting.path}" in shown
        assert setting.help and "\n" not in setting.help and setting.help[1:].split(" ")[-1] in shown


def test_options_and_arguments_of_a_job_stand_beside_settings() -> None:
    parser = cli.parser("rehearse", "")
    parser.add_argument("case", metavar="CASE")
    parser.add_argument("--drop", action="store_true")
    cli.add_settings(parser, DrainerConfig)
    given = parser.parsed(["-drop", "folder", "-addr", "h:1"])
    assert (given.case, given.drop, cli.config_of(DrainerConfig, given).addr) == ("folder", True, "h:1")


@pytest.mark.parametrize(("given", "counts"), [("", "stop"), ("flag", "record"), ("file", "record"), ("environment", "record")])
@pytest.mark.parametrize("job", [demo, rehearse], ids=["demo", "rehearse"])
def test_demo_and_rehearse_end_at_a_finding_unless_told_otherwise(
    job: Any, given: str, counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "d.toml").write_text('[spark]\non-finding = "record"\n')
    if given == "environment":
        monkeypatch.setenv("TIDB_BINLOG__SPARK__ON_FINDING", "record")
    argv = ["case"] * (job is rehearse) + {"flag": ["-on-finding=record"], "file": [f"--config={file}"]}.get(given, [])
    loaded: list[DrainerConfig] = []
    monkeypatch.setattr(job, "require_server", lambda config: loaded.append(config) or sys.exit())
    with pytest.raises(SystemExit):
        job.main(argv)
    monkeypatch.setattr(small_cluster, "RegistryClient", lambda url: SimpleNamespace(tso=lambda: 1, close=lambda: None))
    case = SimpleNamespace(cluster_id=1, start_ts=1, end_ts=2, history="h")
    upstream = SimpleNamespace(url="http://r:1", service=SimpleNamespace(url="http://r:1"), case=case)
    assert job.settings_for(upstream, loaded[0], TargetConfig(), tmp_path).apply.on_finding == counts
    with pytest.raises(SystemExit):
        job.main(["--help"])
    assert 'do not match the binlogs [default: "stop"]' in " ".join(capsys.readouterr().out.split())


@pytest.mark.shows("spark.log-format", "pump spark.log-format")
def test_the_settings_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_moved_to", [])
    logs.log_to_file()
    parser = cli.parser("pump", "")
    cli.add_settings(parser, PumpConfig)
    cli.config_of(PumpConfig, parser.parsed([f"-log-file={tmp_path / 'of' / 'pump.log'}", "-log-format=json"]))
    logging.warning("there")
    assert json.loads((tmp_path / "of" / "pump.log").read_text())["message"] == "there" and logs.log_file() == tmp_path / "of" / "pump.log"
    assert not (tmp_path / "log" / "job.log").exists()
    assert logs.spark_log_file() == tmp_path / "log" / "job.spark.log", "the JVM writes since before the settings were read"


@pytest.mark.shows("log-file", "pump log-file")
def test_what_is_said_about_settings_is_in_the_log_that_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_moved_to", [])
    logs.log_to_file()
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    cli.config_of(DrainerConfig, parser.parsed([f"-log-file={tmp_path / 'drainer.log'}", "-c", "32"]))
    assert '["without effect here: syncer.worker-count' in (tmp_path / "drainer.log").read_text()
    assert not (tmp_path / "log" / "job.log").exists()


def test_who_only_looks_at_a_drainers_settings_leaves_its_log_alone(tmp_path: Path) -> None:
    """Root's look would make the file, and a lock, that the unit's user may not write to."""
    there = tmp_path / "of" / "drainer.log"
    (tmp_path / "d.toml").write_text(f'log-file = "{there}"\n[spark]\ndelta-dir = "{tmp_path / "delta"}"\n')
    assert ctl.main(["findings", "-config", str(tmp_path / "d.toml")]) == cli.EXIT_FAILED
    assert preflight.main(["--config", str(tmp_path / "d.toml"), "--pumps", "127.0.0.1:1", "--db-type", "file"]) == cli.EXIT_FAILED
    assert not there.parent.exists()


def test_no_file_may_be_named(tmp_path: Path) -> None:
    parser = cli.parser("pump", "")
    cli.add_settings(parser, PumpConfig)
    assert cli.config_of(PumpConfig, parser.parsed(["-config=", "-node-id=p"])).node_id == "p"
    with pytest.raises(ConfigError, match=f"cannot read the settings file {tmp_path}: Is a directory"):
        cli.config_of(PumpConfig, parser.parsed(["-config", str(tmp_path)]))


def test_a_log_file_that_cannot_be_written_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_moved_to", [])
    (tmp_path / "file").touch()
    parser = cli.parser("pump", "")
    cli.add_settings(parser, PumpConfig)
    (tmp_path / "directory").mkdir()
    for place in (tmp_path / "directory", tmp_path / "file" / "log"):
        with pytest.raises(ConfigError, match=f"cannot write log-file {place}: "):
            cli.config_of(PumpConfig, parser.parsed(["-log-file", str(place)]))


def test_settings_of_a_pump(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('node-id = "p9"\naddr = "127.0.0.1:1"\n')
    parser = cli.parser("pump", "")
    cli.add_settings(parser, PumpConfig)
    config = cli.config_of(PumpConfig, parser.parsed(["--config", str(tmp_path / "p.toml"), "--addr", "127.0.0.1:2"]))
    assert (config.node_id, config.addr) == ("p9", "127.0.0.1:2")


def test_a_wrong_setting_is_a_config_error() -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    with pytest.raises(ConfigError, match="flag --spark.parts: 'x' is not a whole number"):
        cli.config_of(DrainerConfig, parser.parsed(["--parts", "x"]))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("mysql://u:p@h:3307", TargetConfig(host="h", port=3307, user="u", password="p")),
        ("mysql://h", TargetConfig(host="h", user="root")),
        ("mariadb://u%40x:p%3A%2F@[::1]:1/", TargetConfig(host="::1", port=1, user="u@x", password="p:/")),
    ],
)
def test_target_urls(url: str, target: TargetConfig) -> None:
    assert cli.target_of(url) == target


@pytest.mark.parametrize("url", ["h:3306", "postgres://h", "mysql://", "mysql://u:secret@h:port", "mysql://u:secret@h/db"])
def test_a_wrong_target_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.target_of(url)
    assert "secret" not in str(refused.value)


def test_a_password_in_a_flag_is_warned_of_and_not_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parser = cli.parser("drainer", "")
    cli.add_settings(parser, DrainerConfig)
    assert cli.config_of(DrainerConfig, parser.parsed(["--syncer.to.password", "s3cret"])).target.password == "s3cret"
    assert cli.target_of("mysql://u:s3cret@h").password == "s3cret"
    first, second = capsys.readouterr().err.splitlines()
    assert "--syncer.to.password" in first and "--to" in second and "ps" in first
    assert all(line.endswith("put it in TIDB_BINLOG__SYNCER__TO__PASSWORD or in spark.password-file") for line in (first, second))
    assert "s3cret" not in first + second
    with pytest.raises(ConfigError, match="encrypted_password: the value is not base64"):
        cli.config_of(DrainerConfig, parser.parsed(["-syncer.to.checkpoint.type=mysql", "-syncer.to.checkpoint.encrypted_password=s3cret"]))
    (third,) = capsys.readouterr().err.splitlines()
    assert "--syncer.to.checkpoint.encrypted_password" in third and "s3cret" not in third
    assert third.endswith("put it in TIDB_BINLOG__SYNCER__TO__CHECKPOINT__ENCRYPTED_PASSWORD")
    cli.config_of(DrainerConfig, parser.parsed(["--spark.upstream.password", "s3cret"]))
    assert capsys.readouterr().err.endswith("put it in TIDB_BINLOG__SPARK__UPSTREAM__PASSWORD\n")
    monkeypatch.setenv("TIDB_BINLOG__SYNCER__TO__PASSWORD", "s3cret")
    assert cli.config_of(DrainerConfig, parser.parsed([])).target.password == "s3cret"
    assert cli.target_of("mysql://u@h").password == "s3cret"
    assert capsys.readouterr().err == ""


def test_a_password_does_not_come_with_the_settings_text() -> None:
    target = TargetConfig(password="s3cret")
    config = DrainerConfig(target=target)
    for text in (repr(target), str(config), f"{config}", repr([config]), repr(pickle.loads(pickle.dumps(config)))):
        assert "s3cret" not in text


@pytest.mark.parametrize(
    "url", ["mysql://u:s3c@ret/@h/db", "mysql://u:s3cret@h/db", "postgres://:s3cret@h", "mysql://u:s3c/ret@h:x", "mysql://u:s3c\nret@h/d"]
)
def test_a_target_that_is_refused_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cli.target_of(url)
    assert not any(part in str(refused.value) for part in ("s3c", "ret"))
    assert refused.value.__cause__ is None
