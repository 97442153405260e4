"""Reparo: replays what a file sink wrote, a real Drainer's or ours: ``./spark-submit.sh replay -data-dir DIR -dest-type print``.

Options as Reparo's: ``-data-dir``, a range by ``-start-tso``/``-stop-tso`` or ``-start-datetime``/``-stop-datetime`` (local time, both inclusive,
a datetime wins), ``-dest-type``; filters stand in the file of ``-config``, as Reparo's TOML. Options win over the file.

Promises: reads only; binlogs come in the order of commit_ts. Nothing is skipped silently: a damaged file ends the replay. No JVM is started.
"""

import argparse
import datetime
import logging
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pyspark_tidb_binlog.jobs.cli import JobParser, parser, run_job
from pyspark_tidb_binlog.jobs.logs import set_level
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.file.replayed import ReplayRange, binlogs_in, kept, printed
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter

_log = logging.getLogger(__name__)

_DATETIME = "%Y-%m-%d %H:%M:%S"
_TABLES = ("replicate-do-table", "replicate-ignore-table")
_FILTERS = ("replicate-do-db", "replicate-ignore-db", *_TABLES)
_SETTINGS: Mapping[str, Any] = {
    "data-dir": "",
    "start-datetime": "",
    "stop-datetime": "",
    "start-tso": 0,
    "stop-tso": 0,
    "txn-batch": 20,
    "worker-count": 16,
    "dest-type": "print",
    "dest-db": {},
    "replicate-do-db": [],
    "replicate-do-table": [],
    "replicate-ignore-db": [],
    "replicate-ignore-table": [],
    "log-file": "",
    "log-level": "info",
    "safe-mode": False,
}
"""Every key of Reparo's file with its default."""


class ReplayTarget(Protocol):
    """Where binlogs go."""

    def take(self, binlog: pb.Binlog) -> None:
        """Apply one binlog; they come in the order of commit_ts."""
        ...

    def close(self) -> None:
        """Everything taken is applied when it returns."""
        ...


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What is replayed, and where to."""

    directory: Path
    wanted: ReplayRange
    rules: TableFilter
    dest_type: str


class Printer(ReplayTarget):
    """Prints binlogs as Reparo does."""

    def __init__(self, to: BinaryIO) -> None:
        self._to = to

    def take(self, binlog: pb.Binlog) -> None:
        """Print its DDL, or its row changes."""
        self._to.write(b"".join(line + b"\n" for line in printed(binlog)))

    def close(self) -> None:
        """Nothing is held back."""
        self._to.flush()


def _printer() -> ReplayTarget:
    return Printer(sys.stdout.buffer)


TARGETS: Mapping[str, Callable[[], ReplayTarget]] = {"print": _printer}
"""By ``dest-type``."""


def main(argv: Sequence[str]) -> int:
    """Replay and end."""
    settings = settings_of_replay(_options().parsed(argv))
    target = TARGETS[settings.dest_type]()
    try:
        count = replay(settings, target)
    finally:
        target.close()
    _log.info("%d binlogs of %s were replayed", count, settings.directory)
    return 0


def replay(settings: ReplaySettings, target: ReplayTarget) -> int:
    """Give ``target`` what the range and the filters leave; how many binlogs that were."""
    count = 0
    for binlog in binlogs_in(settings.directory, settings.wanted):
        found = kept(binlog, settings.rules)
        if found is not None:
            target.take(found)
            count += 1
    return count


def settings_of_replay(given: argparse.Namespace) -> ReplaySettings:
    """The settings from the options and the file that they name.

    Raises:
        ConfigError: one is wrong, unknown or missing.
    """
    values = dict(_SETTINGS) | (_from_file(given.config) if given.config else {})
    values |= {name: value for name, value in vars(given).items() if name in _SETTINGS and value is not None}
    if not values["data-dir"]:
        raise ConfigError("data-dir is not set: name the directory that a Drainer's file sink wrote (-data-dir DIR)")
    directory = Path(values["data-dir"])
    if not directory.is_dir():
        raise ConfigError(f"data-dir {directory} is not a directory")
    if values["dest-type"] not in TARGETS:
        raise ConfigError(f"dest-type is {values['dest-type']!r}; this release can replay to: {', '.join(TARGETS)}")
    set_level(values["log-level"])
    start, stop = (_moment(values[f"{end}-datetime"]) or values[f"{end}-tso"] for end in ("start", "stop"))
    tables = {name: tuple((t["db-name"], t["tbl-name"]) for t in values[name]) for name in _TABLES}
    try:
        rules = TableFilter(
            tuple(values["replicate-do-db"]),
            tuple(values["replicate-ignore-db"]),
            tables["replicate-do-table"],
            tables["replicate-ignore-table"],
        )
    except ConfigError as error:
        # It names the Drainer's settings, two of which have other names here.
        raise ConfigError(f"one of {', '.join(_FILTERS)}: {str(error).partition(': ')[2]}") from error
    return ReplaySettings(directory, ReplayRange(start, stop), rules, values["dest-type"])


def _options() -> JobParser:
    options = parser("replay", "Reparo: replays the files that a Drainer's file sink wrote.")
    options.add_argument("-config", "--config", type=Path, metavar="FILE", help="settings in TOML, as Reparo's")
    helps = {
        "data-dir": "the directory with the binlog files",
        "start-datetime": "replay from here on, 'YYYY-MM-DD hh:mm:ss' in local time",
        "stop-datetime": "replay up to here, inclusive",
        "start-tso": "as -start-datetime, a commit_ts",
        "stop-tso": "as -stop-datetime, a commit_ts",
        "dest-type": f"one of: {', '.join(TARGETS)}",
    }
    for name, words in helps.items():
        kind = type(_SETTINGS[name])
        options.add_argument(f"-{name}", f"--{name}", dest=name, type=kind, metavar="VALUE", help=words)
    options.add_argument("-L", "--log-level", dest="log-level", metavar="LEVEL", help="debug, info, warn or error")
    return options


def _from_file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for name, value in found.items():
        if name not in _SETTINGS:
            near = get_close_matches(name, _SETTINGS, 1)
            raise ConfigError(f"{path}: {name!r} is not a setting of a replay" + (f"; did you mean {near[0]!r}?" if near else ""))
        if type(value) is not type(_SETTINGS[name]):
            raise ConfigError(f"{path}: {name} is {value!r}, where a {type(_SETTINGS[name]).__name__} is expected")
    for name in _TABLES:
        if any(set(table) != {"db-name", "tbl-name"} for table in found.get(name, ())):
            raise ConfigError(f"{path}: each [[{name}]] has db-name and tbl-name, and nothing else")
    return found


def _moment(text: str) -> int:
    """The TSO of a local time; 0 for an empty text."""
    if not text:
        return 0
    try:
        return tso(int(datetime.datetime.strptime(text, _DATETIME).timestamp()) * 1000)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not of the form YYYY-MM-DD hh:mm:ss") from error


if __name__ == "__main__":
    raise SystemExit(run_job(main))
