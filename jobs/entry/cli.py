"""The command lines of all jobs: settings as flags, errors, exit codes.

Promises: an operator sees one message that says what happened, where and what to do; Python and Java traces go to the log file.

Exit codes: 0 done; 1 the replication failed and a later start may succeed, or a comparison found a difference; 2 a setting or option is wrong;
70 a defect of this program; 130 ended at once by a second signal; 141 nobody reads what it prints any more (``| head``).
"""

import argparse
import dataclasses
import logging
import os
import platform
import re
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_tidb_binlog.conf.entry import IN_CHECKOUT, PROGRAM
from pyspark_tidb_binlog.conf.load import NO_VALUES, PASSWORD, Say, load, variable_of
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, SecurityConfig, TargetConfig
from pyspark_tidb_binlog.conf.reference import default_of, help_of
from pyspark_tidb_binlog.conf.setting import SWITCHES, Program, did_you_mean, settings_of
from pyspark_tidb_binlog.conf.version import VERSION
from pyspark_tidb_binlog.jobs.entry.logs import log_file, log_to_file, move_log, set_format, set_level
from pyspark_tidb_binlog.jobs.entry.signals import EXIT_INTERRUPTED, ended_by_pipe, has_no_reader
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet, ReplicationError, Stopped
from pyspark_tidb_binlog.schemas.tls import TlsSettings

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DEFECT = 70

_FLAG = "setting "
_OTHERWISE = "otherwise "
SWITCH = "[=BOOL]"
"""The shown value of a switch, which needs no value."""

_FIRST: Mapping[type[Program], str] = {
    DrainerConfig: "pd-urls addr data-dir initial-commit-ts syncer.db-type syncer.to.host syncer.to.port syncer.to.user syncer.to.dir "
    "syncer.replicate-do-db log-file",
    PumpConfig: "pd-urls spark.registry addr advertise-addr socket node-id data-dir gc log-file",
}
"""The settings that ``--help`` lists, of programs with too many for a screen; ``--help-all`` lists each."""

C = typing.TypeVar("C", bound=Program)


def run_job(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run ``main(argv)`` and turn whatever it raises into one message on stderr, a trace in the log file and an exit code."""
    return ended_by_pipe(lambda: _reported(main, sys.argv[1:] if argv is None else argv))


def _reported(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    try:
        log_to_file()
    except OSError as error:
        _tell(f"error: cannot write a log: {error}; set TIDB_BINLOG_LOG to a writable file")
        return EXIT_FAILED
    before, threading.excepthook = threading.excepthook, _log_death
    try:
        return main(argv)
    except Stopped as stopped:
        logging.info("%s", stopped)
        return 0
    except KeyboardInterrupt:
        _tell("stopped")
        return EXIT_INTERRUPTED
    except NotUsableYet as error:
        logging.error("%s", error)
        _tell(f"error: {error}")
        return EXIT_FAILED
    except ConfigError as error:
        _tell(f"error: {error}")
        return EXIT_CONFIG
    except ReplicationError as error:
        logging.exception("the job failed")
        _tell(f"error: {error}")
        return EXIT_FAILED
    except Exception as error:  # the last resort: reported, logged in full, never swallowed
        trace = "".join(traceback.format_exception(error))
        if BrokenPipeError.__name__ in trace and has_no_reader():
            raise BrokenPipeError from error
        logging.exception("the job failed")
        found = replication_error_in(trace)
        if found is not None:
            _tell(f"error: {found}\n(the trace is in {log_file()})")
            return EXIT_FAILED
        if missing := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", trace):
            _tell(
                f"error: Spark's Python workers have no package {missing[1]}: install the packages of "
                f"{'requirements.txt' if IN_CHECKOUT else 'the wheel'} in the Python of PYSPARK_PYTHON (a path that every executor can read), or ship "
                f"them with --archives\n(the trace is in {log_file()})"
            )
            return EXIT_CONFIG
        _tell(f"internal error: {type(error).__name__}: {_first_line(str(error))}\n(the trace is in {log_file()})")
        return EXIT_DEFECT
    finally:
        threading.excepthook = before


def _log_death(dead: threading.ExceptHookArgs) -> None:
    """Log an unexpected death of a thread: Python reports it on stderr only."""
    name = dead.thread.name if dead.thread is not None else ""
    logging.critical("the thread %r died", name, exc_info=dead.exc_value or dead.exc_type())


def replication_error_in(trace: str) -> str | None:
    """The message of our own error inside a trace of Spark, Py4J and Python workers, or None if there is none.

    Spark passes errors of workers and of ``foreachBatch`` on as text inside its own exceptions. Of several, the last is the outermost.
    """
    names = "|".join(sorted(_names(ReplicationError), key=len, reverse=True))
    module = re.escape(ReplicationError.__module__)
    found = list(re.finditer(rf"\b{module}\.(?:{names}): (?P<text>[^\n]*(?:\n(?!{_TRACE_GOES_ON})[^\n]+)*)", trace))
    return found[-1]["text"].strip() if found else None


_TRACE_GOES_ON = r"\s*(?:at |Traceback|File \"|Caused by:|During handling|The above|Driver stack|JVM stack|SQLSTATE|==|\.\.\. \d+ more)"


class JobParser(argparse.ArgumentParser):
    """Takes flags as Go's programs do: one dash or two, ``-x=v`` or ``-x v``, a switch without a value; no abbreviations.

    A wrong command line raises a ``ConfigError`` of one line; the usage is not printed.
    """

    def __init__(self, **given: typing.Any) -> None:
        super().__init__(**given)
        self.hidden: dict[argparse.Action, str] = {}
        """The lines of options that only ``--help-all`` lists."""

    def parsed(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options in ``argv``.

        Raises:
            ConfigError: an option is unknown, or an argument is invalid.
        """
        return self.parse_args(list(self._normalised(argv)))

    def error(self, message: str) -> typing.NoReturn:
        """Raise what argparse reports: an invalid value, a missing argument, an argument too many."""
        raise ConfigError(f"{message}; {self.prog} --help lists the options")

    def _normalised(self, argv: Sequence[str]) -> Iterator[str]:
        """``argv`` with every flag as ``--name=value`` or ``--name``, which leaves argparse nothing to guess."""
        words = list(argv)
        while words:
            word = words.pop(0)
            if word == "--":
                yield from map(self._argument, words)
                return
            if not word.startswith("-") or word == "-":
                yield self._argument(word)
                continue
            name, equals, value = word.lstrip("-").partition("=")
            option = next((one for one in (f"--{name}", f"-{name}") if one in self._option_string_actions), "")
            if not option or word.startswith("---"):
                raise self._unknown(word.partition("=")[0], name)
            action = self._option_string_actions[option]
            if action.nargs == 0 and not equals:
                yield option
            elif equals or action.metavar == SWITCH:
                yield f"{option}={value if equals else 'true'}"
            elif words:
                yield f"{option}={words.pop(0)}"
            else:
                raise ConfigError(f"flag {word} needs a value")

    def _argument(self, word: str) -> str:
        if not self._get_positional_actions():
            raise ConfigError(f"{word!r} is not a flag (a switch takes its value as in -safe-mode=false)")
        return word

    def _unknown(self, flag: str, name: str) -> ConfigError:
        if meant := did_you_mean(name, (option.lstrip("-") for option in self._option_string_actions), "--{}"):
            return ConfigError(f"unknown flag {flag}{meant}")
        # A usage of its own is that of a parser with too many flags to list.
        own = ", ".join(action.option_strings[-1] for action in self._actions if action.option_strings) if self.usage is None else ""
        return ConfigError(
            f"{self.prog} has no flag {flag}; " + (f"its flags: {own}" if own else f"{self.prog} --help-all lists its flags")
        )


def parser(job: str, description: str, commands: Mapping[str, str] | None = None) -> JobParser:
    """The parser of ``./spark-submit.sh JOB``, or of an installed ``tidb-binlog JOB``, with ``-V``.

    ``commands``: by name of each of the job's commands, a line of what the command does.
    """
    width = max(map(len, commands or ("",)))
    listed = [f"  {name:<{width}}  {what}" for name, what in (commands or {}).items()]
    text = "\n".join([description, *(["", "commands:", *listed] if listed else [])])
    made = JobParser(
        prog=f"{PROGRAM} {job}",
        description=text.replace("%", "%%"),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-V", "--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    return made


def no_command(name: str, known: Iterable[str], of: str) -> ConfigError:
    """``name`` is no command of ``of``; the error names the nearest one."""
    return ConfigError(f"{of} has no command {name!r}{did_you_mean(name, known) or f'; {of} --help lists them'}")


def add_settings(to: JobParser, model: type[Program], otherwise: Mapping[str, object] = NO_VALUES) -> None:
    """Add ``--config FILE`` and each setting's flags: the real program's flag, the setting's path, and its name if unique.

    ``otherwise``: by path, the defaults of this job that are not the model's. Then ``--help`` lists these settings, else ``_FIRST``.
    """
    # not the list of all flags, which is what follows
    to.usage = " ".join([to.prog, *(str(action.metavar) for action in to._get_positional_actions()), "[FLAG ...]"])
    to.add_argument("--config", type=lambda text: Path(text) if text else None, metavar="FILE", help="settings file in TOML")
    to.add_argument("--help-all", action=_PrintAll, nargs=0, help="show each setting")
    group = to.add_argument_group("settings", "a flag wins over the environment and the file; one dash or two; a switch needs no value")
    settings = settings_of(model)
    names = [setting.name for setting in settings] + [setting.flag for setting in settings if setting.flag != setting.name]
    to.set_defaults(**{_OTHERWISE + path: value for path, value in otherwise.items()})
    first = otherwise or (_FIRST[model].split() if model in _FIRST else [setting.path for setting in settings])
    for setting in settings:
        if setting.path in otherwise:
            setting = dataclasses.replace(setting, default=otherwise[setting.path])
        flags = {f"-{setting.flag}" if len(setting.flag) == 1 else f"--{setting.flag}": None} if setting.flag else {}
        flags[f"--{setting.path}"] = None
        if names.count(setting.name) == 1 and f"--{setting.name}" not in to._option_string_actions:
            flags[f"--{setting.name}"] = None
        metavar = SWITCH if setting.kind is bool else "VALUE"
        shown = " ".join(one for one in (help_of(setting), f"[{default_of(setting)}]") if one != "[]").replace("%", "%%")
        added = group.add_argument(*flags, dest=_FLAG + setting.path, metavar=metavar, default=argparse.SUPPRESS, help=shown)
        if setting.path not in first:
            to.hidden[added], added.help = shown, argparse.SUPPRESS


def add_switch(to: JobParser, *flags: str, what: str) -> None:
    """Add a switch that is not a setting. The default is off; ``=false`` is allowed."""
    to.add_argument(*flags, type=switched, default=False, metavar=SWITCH, help=what)


def add_progress(to: JobParser, live: str = "a live panel") -> None:
    """``--progress``, which ``jobs/stream/reporter.py`` obeys; ``live``: what ``auto`` shows on a terminal."""
    what = (
        f"auto: {live} on a terminal, elsewhere a line of text every 30 s and when the state changes; line: the line on a terminal too; "
        "json: one JSON object a line, with each change; none: nothing (default: auto)"
    )
    to.add_argument("--progress", choices=("auto", "line", "json", "none"), default="auto", metavar="FORM", help=what)


def switched(text: str) -> bool:
    """A switch's value, as Go's programs take it."""
    if text.lower() not in SWITCHES:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return SWITCHES[text.lower()]


def add_security_flags(to: JobParser) -> None:
    """Binlogctl's flags for a cluster with TLS, which ``security_of`` reads."""
    to.add_argument("-ssl-ca", "--ssl-ca", default="", metavar="FILE", help="certificate authorities of the cluster, PEM; turns TLS on")
    to.add_argument("-ssl-cert", "--ssl-cert", default="", metavar="FILE", help="this side's certificate, PEM")
    to.add_argument("-ssl-key", "--ssl-key", default="", metavar="FILE", help="its key, PEM")


def security_of(given: argparse.Namespace) -> TlsSettings | None:
    """How a cluster's nodes are called, by the flags of ``add_security_flags``; None: without TLS."""
    return TlsSettings.of(SecurityConfig(given.ssl_ca, given.ssl_cert, given.ssl_key))


class _PrintVersion(argparse.Action):
    """``-V``: the version, in the form of the real programs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"Release Version: {VERSION}", f"Python Version: {platform.python_version()}", sep="\n")
        parser.exit()


class _PrintAll(argparse.Action):
    """``--help-all``: ``--help`` with each setting."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, JobParser)
        for action, line in parser.hidden.items():
            action.help = line
        parser.print_help()
        parser.exit()


def config_of(model: type[C], arguments: argparse.Namespace, tell: Say | None = None) -> C:
    """A program's settings from the parsed command line, the environment and the file it names. Lines about them go to the log that they configure.

    ``tell``: a job that only reads the settings passes it. It gets the lines about the settings, and ``log-file`` stays unused.
    """
    flags, notes = _named(arguments, _FLAG), list[str]()
    for setting in settings_of(model):
        if setting.secret and flags.get(setting.path):
            _warn_of_password(f"--{setting.path}", setting.path if model.HAS_OUR_VARIABLES else "")
    try:
        config = load(model, arguments.config, flags=flags, say=notes.append, otherwise=_named(arguments, _OTHERWISE))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    set_level(config.log_level)
    set_format(config.log_format)
    if config.log_file and tell is None:
        try:
            move_log(Path(config.log_file))
        except OSError as error:
            raise ConfigError(f"cannot write log-file {config.log_file}: {error.strerror}") from error
    for note in notes:
        (tell or logging.warning)(note)
    return config


def target_of(url: str) -> TargetConfig:
    """``mysql://user:password@host:port`` as a target; user, password and port may be left out, percent escapes are decoded.

    Without a password, the one in the environment is used.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        # the original message may contain what follows an unescaped slash in the password
        text = "its port is not a number up to 65535 (in a password, / and @ are written %2F and %40)"
        raise ConfigError(f"target {_without_password(url)!r}: {text}") from None
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"target {_without_password(url)!r} is not of the form mysql://user:password@host:port")
    if parts.password:
        _warn_of_password("--to", PASSWORD)
    password = unquote(parts.password or "") or os.environ.get(variable_of(PASSWORD), "")
    return TargetConfig(host=parts.hostname, port=port, user=unquote(parts.username or "root"), password=password)


def _warn_of_password(flag: str, path: str) -> None:
    """``path``: of the setting that has a variable; empty: it has none."""
    place = variable_of(path) if path else "the file of --config"
    file = " or in spark.password-file" if path == PASSWORD else ""
    _tell(f"warning: anyone who can run `ps` here can read the password in {flag}: put it in {place}{file}")


def _named(arguments: argparse.Namespace, prefix: str) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in vars(arguments).items() if name.startswith(prefix)}


def _names(root: type[Exception]) -> Iterator[str]:
    yield root.__name__
    for child in root.__subclasses__():
        yield from _names(child)


def _tell(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]


def _without_password(url: str) -> str:
    # up to the last @, so that a password with an unescaped @ is hidden as a whole
    return re.sub(r"(//[^:/@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
