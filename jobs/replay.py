"""Reparo: replays the files of a file sink, a real Drainer's or ours: ``./spark-submit.sh replay -data-dir DIR -dest-type print``.

The options are Reparo's: ``-data-dir``, ``-dest-type`` print or mysql, ``-txn-batch``, ``-c`` (``-worker-count``), ``-safe-mode``. ``-start-tso``/``-stop-tso``
or ``-start-datetime``/``-stop-datetime`` give a range: local time, both inclusive, a datetime wins. Filters and ``[dest-db]`` are in the file of
``-config``, which is Reparo's TOML. Options win over variables (``Reparo_DATA_DIR``, ``Reparo_C``), variables over the file.

Promises: files are only read, and binlogs keep the order of the files. A damaged file ends the replay. Exit code 1 also reports findings: rows of the
target differed from the files. No JVM is started.
"""

import argparse
import datetime
import logging
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pyspark_tidb_binlog.conf.load import PASSWORD, variable_of
from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, SWITCH, JobParser, parser, run_job, switched
from pyspark_tidb_binlog.jobs.entry.logs import move_log, set_level
from pyspark_tidb_binlog.schemas.binlogfile import files_in
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.file.replayed import ReplayRange, binlogs_in, kept, printed
from pyspark_tidb_binlog.sinks.replay.file_replay import Replayed
from pyspark_tidb_binlog.sinks.replay.mysql_replay import MySQLReplay
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.translate.column_values import ReadBack, process_zone

_log = logging.getLogger(__name__)

_MOST_WORKERS = 1024
_RETRY_SECONDS = 60.0
"""How often, and how long, a transaction is retried at least after a transient error."""
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
_DEST_TYPES = ("print", "mysql")
_HELPS: Mapping[str, str] = {
    "data-dir": "the directory with the binlog files",
    "start-datetime": "first commit time to replay, 'YYYY-MM-DD hh:mm:ss' in local time",
    "stop-datetime": "last commit time to replay, in the same form",
    "start-tso": "first commit_ts to replay; -start-datetime wins",
    "stop-tso": "last commit_ts to replay; -stop-datetime wins",
    "dest-type": f"one of: {', '.join(_DEST_TYPES)}; mysql needs [dest-db] in the file of -config",
    "txn-batch": "with worker-count: a transaction at the target has at most txn-batch * worker-count row operations, as net changes",
    "worker-count": "factor of txn-batch; all transactions are on one connection",
    "safe-mode": "for rows that may already be in the target: REPLACE for INSERT, and a DELETE may match no row",
    "log-file": "the log",
}
"""Options by the name of their setting."""
_VARIABLE = "Reparo_"
"""The prefix of variables that replace options (drainer.md 14)."""
_DESTINATION: Mapping[str, Any] = {"host": "127.0.0.1", "port": 3306, "user": "root", "password": "", "socket": ""}
"""Every key of ``[dest-db]`` with its default; ``socket`` is ours."""


class ReplayTarget(Protocol):
    """Where binlogs go."""

    def take_all(self, binlogs: Iterable[pb.Binlog]) -> None:
        """Apply binlogs in their order; all are applied when it returns."""

    @property
    def standing(self) -> str:
        """Where a failed replay stopped, and how to continue; empty: there is nothing to add."""

    def close(self) -> None:
        """Release what it holds; safe to call twice."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What is replayed, and where to."""

    directory: Path
    wanted: ReplayRange
    rules: TableFilter
    dest_type: str
    destination: TargetConfig | None = None
    """Set for ``mysql``."""
    apply: ApplyConfig = field(default_factory=ApplyConfig)


class Printer(ReplayTarget):
    """Prints binlogs as Reparo does."""

    def __init__(self, to: BinaryIO) -> None:
        self._to = to

    def take_all(self, binlogs: Iterable[pb.Binlog]) -> None:
        """Print of each its DDL, or its row changes."""
        for binlog in binlogs:
            self._to.write(b"".join(line + b"\n" for line in printed(binlog)))

    @property
    def standing(self) -> str:
        """What was printed says it."""
        return ""

    def close(self) -> None:
        """Nothing is held back."""
        self._to.flush()


def _printer(_: ReplaySettings) -> ReplayTarget:
    return Printer(sys.stdout.buffer)


def _database(settings: ReplaySettings) -> MySQLReplay:
    assert settings.destination is not None
    return MySQLReplay(settings.destination, settings.apply, max(settings.wanted.start_ts - 1, 0), ReadBack(process_zone()))


TARGETS: Mapping[str, Callable[[ReplaySettings], ReplayTarget]] = dict(zip(_DEST_TYPES, (_printer, _database), strict=True))
"""By ``dest-type``."""


def main(argv: Sequence[str]) -> int:
    """Replay and end; SIGTERM ends it as Ctrl-C does, so that it says where the next one goes on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = settings_of_replay(given_to_replay(argv, os.environ))
    target = TARGETS[settings.dest_type](settings)
    try:
        count = replay(settings, target)
    except BaseException:
        if target.standing:
            print(target.standing, file=sys.stderr)
        raise
    finally:
        target.close()
    _log.info("%d binlogs of %s were replayed", count, settings.directory)
    return _told(target.done) if isinstance(target, MySQLReplay) else 0


def replay(settings: ReplaySettings, target: ReplayTarget) -> int:
    """Give ``target`` the binlogs that pass the range and the filters; returns their number.

    Raises:
        ConfigError: there are no binlogs at all.
    """
    count = 0
    if not files_in(settings.directory):
        raise ConfigError(
            f"data-dir {settings.directory} holds no binlog files (binlog-…): name the directory of the Drainer's setting syncer.to.dir"
        )

    def chosen() -> Iterator[pb.Binlog]:
        nonlocal count
        for binlog in binlogs_in(settings.directory, settings.wanted):
            found = kept(binlog, settings.rules)
            if found is not None:
                yield found
                count += 1

    target.take_all(chosen())
    return count


def _told(done: Replayed) -> int:
    """Print what was applied and the findings; returns the exit code."""
    print(
        f"replayed: {done.transactions} transactions with {done.operations} row operations, {done.ddls} DDLs ({done.so_already} were already in effect)"
    )
    if done.passed_over:
        print(f"skipped {done.passed_over} binlogs that the Drainer had written twice")
    if done.left_out:
        told = "; ".join(f"{table}: {', '.join(sorted(columns))}" for table, columns in sorted(done.left_out.items()))
        print(f"error: values were left out: the target lacks these columns of the files: {told}", file=sys.stderr)
    if done.findings:
        told = ", ".join(f"{table or 'no single table'}: {count}" for table, count in sorted(done.findings.items()))
        print(
            f"error: rows of the target differed from the files; the replay corrected them. Findings (details in the log): {told}",
            file=sys.stderr,
        )
    return EXIT_FAILED if done.findings or done.left_out else 0


def given_to_replay(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The options; a variable replaces an option that is not given."""
    set_by = ((name, environ.get(_VARIABLE + name.upper().replace("-", "_"), "")) for name in ("config", "c", "L", "log-level", *_HELPS))
    return _options().parsed([*(f"-{name}={value}" for name, value in set_by if value), *argv])


def settings_of_replay(given: argparse.Namespace) -> ReplaySettings:
    """The settings from the options and the file that they name.

    Raises:
        ConfigError: one is wrong, unknown or missing.
    """
    values = dict(_SETTINGS) | (_from_file(given.config) if given.config else {})
    values |= {name: value for name, value in vars(given).items() if name in _SETTINGS and value is not None}
    if not values["data-dir"]:
        raise ConfigError("data-dir is not set: give the directory of a Drainer's file sink (-data-dir DIR)")
    directory = Path(values["data-dir"])
    if not directory.is_dir():
        raise ConfigError(f"data-dir {directory} is not a directory")
    if values["dest-type"] not in TARGETS:
        raise ConfigError(f"dest-type is {values['dest-type']!r}; this release can replay to: {', '.join(TARGETS)}")
    destination, apply = _destination(values), _apply_settings(values)
    set_level(values["log-level"])
    if values["log-file"]:
        try:
            move_log(Path(values["log-file"]))
        except OSError as error:
            raise ConfigError(f"cannot write log-file {values['log-file']}: {error.strerror}") from error
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
    return ReplaySettings(directory, ReplayRange(start, stop), rules, values["dest-type"], destination, apply)


def _destination(values: Mapping[str, Any]) -> TargetConfig | None:
    if values["dest-type"] != "mysql":
        return None
    given = values["dest-db"]
    if not given:
        raise ConfigError("dest-type is 'mysql', but the file of -config has no [dest-db]: add it, with host, port, user and password")
    for name, value in given.items():
        _known(f"[dest-db] {name}", name, value, _DESTINATION, "a replay's [dest-db]")
    found = dict(_DESTINATION) | given
    if not 0 < found["port"] < 1 << 16:
        raise ConfigError(f"[dest-db] port is {found['port']}: give a port, 1 to 65535")
    password = found["password"] or os.environ.get(variable_of(PASSWORD), "")
    return TargetConfig(host=found["host"], port=found["port"], user=found["user"], password=password, socket=found["socket"])


def _apply_settings(values: Mapping[str, Any]) -> ApplyConfig:
    batch, workers = values["txn-batch"], values["worker-count"]
    if batch < 1:
        raise ConfigError("txn-batch must be at least 1")
    if not 1 <= workers <= _MOST_WORKERS:
        raise ConfigError(f"worker-count must be 1 to {_MOST_WORKERS}")
    return ApplyConfig(
        drainer="replay",
        txn_batch=batch,
        worker_count=workers,
        safe_mode=values["safe-mode"],
        retry_seconds=_RETRY_SECONDS,
    )


def _known(where: str, name: str, value: object, known: Mapping[str, Any], of: str) -> None:
    """``ConfigError`` for a key that does not exist, or a value of another type than its default."""
    if name not in known:
        near = get_close_matches(name, known, 1)
        raise ConfigError(f"{where} is not a setting of {of}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if type(value) is not type(known[name]):
        shown = "the given value" if name == "password" else repr(value)
        raise ConfigError(f"{where} is {shown}: give a value of type {type(known[name]).__name__}")


def _options() -> JobParser:
    options = parser("replay", "Reparo: replays the files that a Drainer's file sink wrote.")
    options.add_argument("-config", "--config", type=Path, metavar="FILE", help="settings in TOML, as Reparo's")
    for name, words in _HELPS.items():
        kind = type(_SETTINGS[name])
        flags = [f"-{name}", f"--{name}", *(["-c"] if name == "worker-count" else [])]
        if kind is bool:
            options.add_argument(*flags, dest=name, type=switched, metavar=SWITCH, help=words)
        else:
            options.add_argument(*flags, dest=name, type=kind, metavar="VALUE", help=words)
    options.add_argument("-L", "--log-level", dest="log-level", metavar="LEVEL", help="debug, info, warn or error (default: info)")
    return options


def _from_file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for name, value in found.items():
        _known(f"{path}: {name}", name, value, _SETTINGS, "a replay")
    for name in _TABLES:
        if any(set(table) != {"db-name", "tbl-name"} for table in found.get(name, ())):
            raise ConfigError(f"{path}: give each [[{name}]] a db-name and a tbl-name, and no other key")
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
