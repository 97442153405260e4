"""Every job's command line: each flag has its line in ``--help``, and what is wrong is one line that names what was meant."""

import argparse
import ast
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import ctl, pump
from pyspark_tidb_binlog.jobs.entry.cli import JobParser
from pyspark_tidb_binlog.jobs.lab import recorded_cases
from pyspark_tidb_binlog.jobs.lab.recorded_cases import require_case
from pyspark_tidb_binlog.schemas.errors import ConfigError

JOBS = Path(__file__).parents[3] / "jobs"
OF_THEIR_OWN = {"command", "launch", "setup"}
"""They start jobs, and run before anything is installed."""


def _has_main(path: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in ast.parse(path.read_text()).body)


COMMANDS = [
    (path.stem, *command)
    for path in sorted(JOBS.glob("*.py"))
    if _has_main(path) and path.stem not in OF_THEIR_OWN
    for command in ([], *([name] for name in {"pump": pump._COMMANDS, "ctl": ctl.COMMANDS}.get(path.stem, ())))
]


class _Found(Exception):
    """Carries a parser out of a job's ``main``."""


def parser_of(command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> JobParser:
    def found(self: JobParser, argv: Sequence[str]) -> argparse.Namespace:
        raise _Found(self)

    with monkeypatch.context() as patched, pytest.raises(_Found) as caught:
        patched.setattr(JobParser, "parsed", found)
        import_module(f"pyspark_tidb_binlog.jobs.{command[0]}").main(command[1:])
    parser = caught.value.args[0]
    assert isinstance(parser, JobParser)
    return parser


def test_every_job_is_looked_at() -> None:
    assert {command[0] for command in COMMANDS} >= {"ctl", "demo", "drainer", "pump", "rehearse", "replay"}
    assert ("pump", "inspect") in COMMANDS and ("pump", "settle") in COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_flag_has_its_line(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(command, monkeypatch)
    for action, line in parser.hidden.items():
        action.help = line
    page = parser.format_help()
    for action in parser._actions:
        name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
        assert action.help and action.help != argparse.SUPPRESS, f"{name} has no line"
        assert name in page and " ".join(action.help.replace("%%", "%").split())[:20] in " ".join(page.split()), name
        if action.option_strings and action.nargs != 0:
            assert action.metavar, f"{name}: what its value is"
    assert {"-h", "--help", "-V", "--version"} <= set(parser._option_string_actions)
    assert re.match(rf"usage: spark-submit\.sh (?:{'|'.join((command[0], 'drainer'))})\b", page)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_fits_a_screen(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    most = 36 if command[0] in ("demo", "rehearse", "playground") else 70
    assert len(parser_of(command, monkeypatch).format_help().splitlines()) <= most


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_flag_is_one_line_with_the_nearest(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(command, monkeypatch)
    known = {option.lstrip("-") for option in parser._option_string_actions}
    for name in sorted(one for one in known if len(one) > 6):
        wrong = name[:-2] + name[-1]
        if wrong in known:
            continue
        with pytest.raises(ConfigError) as refused:
            parser.parsed([f"--{wrong}=1"])
        text = str(refused.value)
        assert "\n" not in text and text.startswith(f"unknown flag --{wrong}; did you mean --"), text
    with pytest.raises(ConfigError, match="has no flag --qqqqqqqq; (.* --help-all lists )?its flags"):
        parser.parsed(["--qqqqqqqq"])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("ctl", "pmps"), "spark-submit.sh ctl has no command 'pmps'; did you mean pumps?"),
        (("ctl", "-cmd", "pause_pump"), "spark-submit.sh ctl has no command 'pause_pump'; did you mean pause-pump?"),
        (("ctl", "qqqq"), "spark-submit.sh ctl has no command 'qqqq'; spark-submit.sh ctl --help lists them"),
        (("ctl", "findings", "-limit", "x"), "argument -limit/--limit: invalid int value: 'x'; spark-submit.sh ctl findings --help lists the options"),
        (("ctl", "status", "-limit", "3"), "spark-submit.sh ctl status has no flag -limit; its flags: --help, --version, --node-id, --addr, --json, "),
        (("ctl", "findings", "-registry", "x"), "spark-submit.sh ctl findings has no flag -registry; its flags: --help, --version, --config, --limit"),
        (("drainer", "-qqqqqqqq"), "spark-submit.sh drainer has no flag -qqqqqqqq; spark-submit.sh drainer --help-all lists its flags"),
        (("ctl", "status", "--watch"), "status --watch needs a terminal, without -json"),
        (("demo", "--progress", "xml"), "argument --progress: invalid choice: 'xml'"),
        (("demo", "--rate=0"), "--rate 0: it must be above 0"),
        (("pump", "inspct", "x"), "spark-submit.sh pump has no command 'inspct'; did you mean inspect?"),
        (("pump", "inspect"), "the following arguments are required: DATA_DIR; spark-submit.sh pump inspect --help lists the options"),
        (("pump", "settle", "a", "b", "commit"), "argument START_TS: invalid int value: 'b'; spark-submit.sh pump settle --help lists the options"),
        (("demo", "--seconds", "x"), "argument --seconds: invalid float value: 'x'; spark-submit.sh demo --help lists the options"),
        (("rehearse",), "the following arguments are required: CASE; spark-submit.sh rehearse --help lists the options"),
        (("rehearse", "tpes"), "did you mean types? There are bank, bench, "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(command: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        import_module(f"pyspark_tidb_binlog.jobs.{command[0]}").main(command[1:])
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != ("pump", "settle")], ids=" ".join)
def test_every_switch_takes_a_value(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    parser = parser_of(command, monkeypatch)
    without = [a.dest for a in parser._actions if a.nargs == 0 and a.dest not in ("help", "help_all", "version")]
    assert without == []


def test_a_case_is_looked_for_before_spark_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require_case(["--to", "mysql://h:1", "--drop", "types"])
    require_case(["--help"])
    with pytest.raises(ConfigError, match="tpes is neither a folder.* did you mean types"):
        require_case(["--to", "mysql://h:1", "tpes"])
    monkeypatch.setattr(recorded_cases, "RECORDINGS", tmp_path)
    with pytest.raises(ConfigError, match="types is not a folder, and an installation has no recorded cases"):
        require_case(["types"])
    require_case([str(tmp_path)])


@pytest.mark.shows("ctl --help")
def test_every_command_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "82")
    lines = parser_of(("ctl",), monkeypatch).format_help().splitlines()
    for name, command in ctl.COMMANDS.items():
        assert any(line.split() == [name, *command.what.split()] for line in lines), name
        assert command.what[1:] in " ".join(parser_of(("ctl", name), monkeypatch).format_help().split()), name
    lines = parser_of(("pump",), monkeypatch).format_help().splitlines()
    assert {"inspect", "settle"} <= {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
