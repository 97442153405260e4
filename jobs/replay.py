"""Reparo: replays the files of a file sink, a real Drainer's or ours: ``./spark-submit.sh replay -data-dir DIR -dest-type print``.

The options are Reparo's: ``-data-dir``, ``-dest-type`` print or mysql, ``-txn-batch``, ``-c`` (``-worker-count``), ``-safe-mode``. ``-start-tso``/``-stop-tso``
or ``-start-datetime``/``-stop-datetime`` give a range: local time, both inclusive, a datetime wins. Filters and ``[dest-db]`` are in the file of
``-config``, which is Reparo's TOML. Options win over variables (``Reparo_DATA_DIR``, ``Reparo_C``), variables over the file.

Promises: files are only read, and binlogs keep the order of the files. A damaged file ends the replay. Exit code 1 also reports findings: rows of the
target differed from the files. No JVM is started.
"""

import contextlib
import datetime
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar

from pyspark_tidb_binlog.conf.load import PASSWORD, variable_of
from pyspark_tidb_binlog.conf.model import ApplyConfig, TableName, TargetConfig, require, require_logging
from pyspark_tidb_binlog.conf.setting import LEVEL, Program, Values, nested, ours, setting
from pyspark_tidb_binlog.jobs.entry.cli import EXIT_FAILED, add_settings, config_of, parser, run_job
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

_RETRY_SECONDS = 60.0
"""How often, and how long, a transaction is retried at least after a transient error."""
_DATETIME = "%Y-%m-%d %H:%M:%S"
_FILTERS = ("replicate-do-db", "replicate-ignore-db", "replicate-do-table", "replicate-ignore-table")
_DEST_TYPES = ("print", "mysql")
_CONFIG_VARIABLE = "Reparo_CONFIG"


@dataclass(frozen=True, slots=True)
class DestinationConfig:
    """The server that binlogs are applied to. TOML table ``[dest-db]``."""

    host: str = setting("", "the server's host; empty = 127.0.0.1")
    port: int = setting(3306, "its port")
    user: str = setting("root", "the account that writes")
    password: str = setting("", "its password", secret=True)
    socket: str = setting("", "the server's Unix socket (ours); wins over host and port")

    def __post_init__(self) -> None:
        require(0 < self.port < 1 << 16, f"dest-db.port: {self.port} is not a port, 1 to 65535")


@dataclass(frozen=True, slots=True)
class ReplayConfig(Program):
    """What is replayed, and where to: Reparo's settings."""

    PREFIX: ClassVar[str] = "Reparo_"
    HAS_OUR_VARIABLES: ClassVar[bool] = False
    data_dir: str = setting("", "the directory with the binlog files", flag="data-dir")
    start_datetime: str = setting("", "first commit time to replay, 'YYYY-MM-DD hh:mm:ss' in local time", flag="start-datetime")
    stop_datetime: str = setting("", "last commit time to replay, in the same form", flag="stop-datetime")
    start_tso: int = setting(0, "first commit_ts to replay; -start-datetime wins", flag="start-tso")
    stop_tso: int = setting(0, "last commit_ts to replay; -stop-datetime wins", flag="stop-tso")
    dest_type: str = setting("print", f"one of: {', '.join(_DEST_TYPES)}; mysql needs [dest-db]", flag="dest-type")
    to: DestinationConfig = nested("dest-db", DestinationConfig)
    txn_batch: int = setting(
        20, "with worker-count: a transaction has at most txn-batch * worker-count row operations, as net changes", flag="txn-batch"
    )
    worker_count: int = setting(16, "factor of txn-batch, at most 1024; all transactions are on one connection", flag="c")
    safe_mode: bool = setting(
        False, "for rows that may already be in the target: REPLACE for INSERT, and a DELETE may match no row", flag="safe-mode"
    )
    replicate_do_db: tuple[str, ...] = setting((), "if set, only these databases and replicate-do-table")
    replicate_do_table: tuple[TableName, ...] = setting((), "if set, only these tables and replicate-do-db")
    replicate_ignore_db: tuple[str, ...] = setting((), "databases to leave out")
    replicate_ignore_table: tuple[TableName, ...] = setting((), "tables to leave out")
    log_file: str = setting("", "the log", flag="log-file")
    log_level: str = setting("info", "debug, info, warn, error or fatal", flag="L", kind=LEVEL)
    log_format: str = ours("text", "text: lines as TiDB's tools write them, or json: one object per line")

    def __post_init__(self) -> None:
        require_logging(self.log_level, self.log_format)
        for name, tables in (("replicate-do-table", self.replicate_do_table), ("replicate-ignore-table", self.replicate_ignore_table)):
            require(all(one.db_name and one.tbl_name for one in tables), f"give each [[{name}]] a db-name and a tbl-name")
        require(bool(self.data_dir), "data-dir is not set: give the directory of a Drainer's file sink (-data-dir DIR)")
        require(self.dest_type in _DEST_TYPES, f"dest-type is {self.dest_type!r}; this release can replay to: {', '.join(_DEST_TYPES)}")
        require(self.txn_batch >= 1, "txn-batch must be at least 1")
        require(1 <= self.worker_count <= 1024, "worker-count must be 1 to 1024")

    @staticmethod
    def fill(values: Values, environ: Mapping[str, str]) -> None:
        """Refuse ``mysql`` without a server; without a password of its own, that of the Drainer's target counts."""
        require(
            values.get("dest-type") != "mysql" or any(path.startswith("dest-db.") for path in values),
            "dest-type is 'mysql', but the file of -config has no [dest-db]: add it, with host, port, user and password",
        )
        values["dest-db.password"] = values.get("dest-db.password") or environ.get(variable_of(PASSWORD), "")

    @property
    def wanted(self) -> ReplayRange:
        """The commit_ts to replay."""
        return ReplayRange(_moment(self.start_datetime) or self.start_tso, _moment(self.stop_datetime) or self.stop_tso)

    @property
    def rules(self) -> TableFilter:
        """The tables to replay."""
        wanted, ignored = (
            tuple((one.db_name, one.tbl_name) for one in named) for named in (self.replicate_do_table, self.replicate_ignore_table)
        )
        try:
            return TableFilter(self.replicate_do_db, self.replicate_ignore_db, wanted, ignored)
        except ConfigError as error:
            # It names the Drainer's settings, two of which have other names here.
            raise ConfigError(f"one of {', '.join(_FILTERS)}: {str(error).partition(': ')[2]}") from error

    @property
    def destination(self) -> TargetConfig:
        """The server."""
        return TargetConfig(self.to.host or "127.0.0.1", self.to.port, self.to.user, self.to.password, socket=self.to.socket)

    @property
    def apply(self) -> ApplyConfig:
        """How binlogs are applied to the server."""
        return ApplyConfig(
            drainer="replay",
            txn_batch=self.txn_batch,
            worker_count=self.worker_count,
            safe_mode=self.safe_mode,
            retry_seconds=_RETRY_SECONDS,
        )


def main(argv: Sequence[str]) -> int:
    """Replay and end; SIGTERM ends it as Ctrl-C does, so that it says where the next one goes on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = replay_config(argv)
    if config.dest_type == "print":
        replay(config, partial(print_all, sys.stdout.buffer))
        return 0
    with contextlib.closing(
        MySQLReplay(config.destination, config.apply, max(config.wanted.start_ts - 1, 0), ReadBack(process_zone()))
    ) as target:
        try:
            replay(config, target.take_all)
        except BaseException:
            if target.standing:
                print(target.standing, file=sys.stderr)
            raise
    return _outcome(target.done)


def print_all(to: BinaryIO, binlogs: Iterable[pb.Binlog]) -> None:
    """Print of each binlog its DDL, or its row changes, as Reparo does."""
    for binlog in binlogs:
        to.write(b"".join(line + b"\n" for line in printed(binlog)))
    to.flush()


def replay_config(argv: Sequence[str]) -> ReplayConfig:
    """The settings from the command line, the variables and the file.

    Raises:
        ConfigError: one is wrong, unknown or missing.
    """
    options = parser("replay", "Reparo: replays the files that a Drainer's file sink wrote.")
    add_settings(options, ReplayConfig)
    given = options.parsed(argv)
    given.config = given.config or (Path(os.environ[_CONFIG_VARIABLE]) if os.environ.get(_CONFIG_VARIABLE) else None)
    return config_of(ReplayConfig, given)


def replay(config: ReplayConfig, take_all: Callable[[Iterable[pb.Binlog]], None]) -> None:
    """Give ``take_all`` the binlogs that pass the range and the filters, in their order.

    Raises:
        ConfigError: there are no binlogs at all.
    """
    count, directory = 0, Path(config.data_dir)
    wanted, rules = config.wanted, config.rules
    if not directory.is_dir():
        raise ConfigError(f"data-dir {directory} is not a directory")
    if not files_in(directory):
        raise ConfigError(
            f"data-dir {directory} holds no binlog files (binlog-…): name the directory of the Drainer's setting syncer.to.dir"
        )

    def chosen() -> Iterator[pb.Binlog]:
        nonlocal count
        for binlog in binlogs_in(directory, wanted):
            found = kept(binlog, rules)
            if found is not None:
                yield found
                count += 1

    take_all(chosen())
    _log.info("%d binlogs of %s were replayed", count, directory)


def _outcome(done: Replayed) -> int:
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
