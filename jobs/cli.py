"""What the command lines of all jobs share: settings as flags, clear errors, exit codes.

Promises: an operator sees one message that says what happened, where and what to do; Python and Java traces go to the log file.

Exit codes: 0 done; 1 the replication failed or a comparison found a difference; 2 a setting or option is wrong;
70 a defect of this program; 130 ended at once by a second signal.
"""

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark_tidb_binlog.conf.load import ENVIRONMENT_PREFIX, PASSWORD, load_drainer, load_pump, settings_of
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, TargetConfig
from pyspark_tidb_binlog.jobs.logs import log_file, log_to_file, set_level
from pyspark_tidb_binlog.schemas.errors import ConfigError, ReplicationError, Stopped

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130

_FLAG = "setting "


def run_job(main: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run ``main(argv)`` and turn whatever it raises into one message on stderr, a trace in the log file and an exit code."""
    log_to_file()
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except Stopped as stopped:
        logging.info("%s", stopped)
        return 0
    except KeyboardInterrupt:
        _tell("stopped")
        return EXIT_INTERRUPTED
    except ConfigError as error:
        _tell(f"error: {error}")
        return EXIT_CONFIG
    except ReplicationError as error:
        logging.exception("the job failed")
        _tell(f"error: {error}")
        return EXIT_FAILED
    except Exception as error:  # the last resort: reported, logged in full, never swallowed
        logging.exception("the job failed")
        trace = "".join(traceback.format_exception(error))
        found = replication_error_in(trace)
        if found is not None:
            _tell(f"error: {found}\n(the trace is in {log_file()})")
            return EXIT_FAILED
        if missing := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", trace):
            _tell(
                f"error: Spark's Python workers have no package {missing[1]}: provide those of requirements.txt "
                f"by PYSPARK_PYTHON (a path that every executor can read) or --archives\n(the trace is in {log_file()})"
            )
            return EXIT_CONFIG
        _tell(f"internal error: {type(error).__name__}: {_first_line(str(error))}\n(the trace is in {log_file()})")
        return EXIT_DEFECT


def replication_error_in(trace: str) -> str | None:
    """The message of our own error inside a trace of Spark, Py4J and Python workers, or None if there is none.

    Spark passes errors of workers and of ``foreachBatch`` on as text inside its own exceptions. Of several, the last is the outermost.
    """
    names = "|".join(sorted(_names(ReplicationError), key=len, reverse=True))
    module = re.escape(ReplicationError.__module__)
    found = list(re.finditer(rf"\b{module}\.(?:{names}): (?P<text>[^\n]*(?:\n(?!{_TRACE_GOES_ON})[^\n]+)*)", trace))
    return found[-1]["text"].strip() if found else None


_TRACE_GOES_ON = r"\s*(?:at |Traceback|File \"|Caused by:|During handling|The above|Driver stack|JVM stack|SQLSTATE|==|\.\.\. \d+ more)"


def parser(job: str, description: str) -> argparse.ArgumentParser:
    """The parser of ``./spark-submit.sh JOB``. Long options cannot be abbreviated."""
    return argparse.ArgumentParser(prog=f"spark-submit.sh {job}", description=description, allow_abbrev=False)


def add_settings(to: argparse.ArgumentParser, model: type[DrainerConfig] | type[PumpConfig]) -> None:
    """``--config FILE`` and one flag per setting: by its path (``--syncer.atomic-rows``) and, where that is unique, by its name."""
    to.add_argument("--config", type=Path, metavar="FILE", help="settings file in TOML")
    group = to.add_argument_group("settings", "each wins over the environment and the file")
    settings = settings_of(model)
    names = [setting.name for setting in settings]
    for setting in settings:
        flags = {f"--{setting.path}": None}
        if names.count(setting.name) == 1:
            flags[f"--{setting.name}"] = None
        shown = "" if setting.default in ("", ()) else f"default: {setting.default}".replace("%", "%%")
        group.add_argument(*flags, dest=_FLAG + setting.path, metavar="VALUE", default=argparse.SUPPRESS, help=shown)


def drainer_config(arguments: argparse.Namespace) -> DrainerConfig:
    """The Drainer's settings from the parsed command line, the environment and the file it names."""
    flags = _flags(arguments)
    if flags.get(PASSWORD):
        _warn_of_password(f"--{PASSWORD}")
    try:
        config = load_drainer(arguments.config, flags=flags)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    set_level(config.log_level)
    return config


def pump_config(arguments: argparse.Namespace) -> PumpConfig:
    """A Pump's settings, from the same sources."""
    try:
        config = load_pump(arguments.config, flags=_flags(arguments))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    set_level(config.log_level)
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
        _warn_of_password("--to")
    password = unquote(parts.password or "") or os.environ.get(_PASSWORD_VARIABLE, "")
    return TargetConfig(host=parts.hostname, port=port, user=unquote(parts.username or "root"), password=password)


_PASSWORD_VARIABLE = ENVIRONMENT_PREFIX + PASSWORD.upper().replace(".", "__").replace("-", "_")


def _warn_of_password(flag: str) -> None:
    _tell(f"warning: anyone who can run `ps` here can read the password in {flag}: put it in {_PASSWORD_VARIABLE} or {PASSWORD}-file")


def _flags(arguments: argparse.Namespace) -> dict[str, object]:
    return {name.removeprefix(_FLAG): value for name, value in vars(arguments).items() if name.startswith(_FLAG)}


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
