"""A Pump server, and two commands on its data. No JVM is started.

  pump --config conf/pump.toml                                      serves until it is stopped
  pump inspect DATA_DIR                                             shows a data directory, offline
  pump settle DATA_DIR|http://HOST:PORT START_TS commit COMMIT_TS   records the outcome of a transaction; also ``START_TS rollback``
                                                                    with TLS: ``https://`` and ``-ssl-ca``

Promises: prints ``serving HOST:PORT`` on stdout when it accepts calls. Ctrl-C and SIGTERM pause the Pump. ``PUT /state/…/close`` ends it when every
Drainer has read everything. If a thread of the store dies (no memory, a defect), the process ends at once with exit code 70: clients turn to other
Pumps, and a supervisor restarts it. ``inspect`` changes nothing and needs no lock; exit code 1 reports damage. ``settle`` writes one record, only for a
waiting Prewrite.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import now_by_pumps
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import outcome_payload, require_past
from pyspark_tidb_binlog.binlog_source.pump.data_dir import require_owner
from pyspark_tidb_binlog.binlog_source.pump.log_report import inspect, line_of, value_directory
from pyspark_tidb_binlog.binlog_source.pump.orphans import near_present, settle
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import parse
from pyspark_tidb_binlog.binlog_source.pump.storage.store import THREADS, Store, StoreSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import write_binlog
from pyspark_tidb_binlog.conf.entry import COMMAND, PROGRAM
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.entry.cli import (
    EXIT_DEFECT,
    EXIT_FAILED,
    add_security_flags,
    add_settings,
    add_switch,
    config_of,
    no_command,
    parser,
    run_job,
    security_of,
)
from pyspark_tidb_binlog.jobs.entry.signals import stop_on_signals
from pyspark_tidb_binlog.schemas.errors import ConfigError, PumpUnavailable
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

_SETTLE_TIMEOUT = 30.0


def main(argv: Sequence[str]) -> int:
    """Serve until stopped, or run ``inspect`` or ``settle``."""
    if argv and argv[0] in _COMMANDS:
        return _COMMANDS[argv[0]][0](argv[1:])
    if argv and not argv[0].startswith("-"):
        raise no_command(argv[0], _COMMANDS, f"{PROGRAM} pump")
    what = {name: words for name, (_, words) in _COMMANDS.items()}
    options = parser("pump", "A Pump server: a durable log of binlogs that a Drainer reads.", what)
    add_settings(options, PumpConfig)
    config = config_of(PumpConfig, options.parsed(argv))
    stop = stop_on_signals()
    threading.excepthook = _end_with_the_store
    pump = PumpServer(config).start()
    print(f"serving {pump.address}", flush=True)
    while not pump.ended.is_set() and not stop.wait(0.2):
        pass
    pump.stop()
    return 0


def _end_with_the_store(dead: threading.ExceptHookArgs) -> None:
    """Log why a thread died; end the process if the store needs that thread."""
    name = dead.thread.name if dead.thread is not None else ""
    cause = dead.exc_value or dead.exc_type()
    logging.critical("the thread %r died", name, exc_info=cause)
    if name in THREADS:
        os._exit(EXIT_DEFECT)


def _inspect(argv: Sequence[str]) -> int:
    """Print the content of a value log."""
    options = parser("pump inspect", "Shows the content of a Pump's value log. Read-only.")
    options.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="the Pump's data-dir, or its value directory")
    add_switch(options, "--records", what="a line for each record")
    options.add_argument("--ts", type=int, metavar="TS", help="only the records with this start_ts or commit_ts, with their content")
    given = options.parsed(argv)
    damaged = False
    for report, records in inspect(value_directory(given.data_dir)):
        for at, record in records:
            if given.ts in (record.start_ts, record.commit_ts):
                print(line_of(report.file_id, at, record), parse(record.payload), sep="\n")
            elif given.records and given.ts is None:
                print(line_of(report.file_id, at, record))
        print(report)
        damaged = damaged or bool(report.skipped)
    return EXIT_FAILED if damaged else 0


def _settle(argv: Sequence[str]) -> int:
    """Record the outcome of one transaction in a Pump, running or stopped."""
    options = parser("pump settle", "Record in a Pump the outcome of a waiting Prewrite that the upstream can no longer report.")
    options.add_argument("pump", metavar="DATA_DIR|URL", help="the data-dir of a stopped Pump, or http(s)://host:port of a running Pump")
    options.add_argument("start_ts", type=int, metavar="START_TS", help="the transaction's start_ts")
    options.add_argument("outcome", choices=("commit", "rollback"), metavar="commit|rollback", help="how it ended")
    options.add_argument("commit_ts", type=int, nargs="?", default=0, metavar="COMMIT_TS", help="with commit: the transaction's commit_ts")
    options.add_argument("--cluster-id", type=int, default=0, metavar="ID", help="the cluster's id; only a real Pump needs it")
    add_security_flags(options)
    given = options.parsed(argv)
    if (given.outcome == "commit") != (given.commit_ts > 0):
        raise ConfigError("give 'commit COMMIT_TS', or 'rollback' without a ts")
    if "://" in given.pump:
        print(_settled_by(given.pump, given.start_ts, given.commit_ts, given.cluster_id, security_of(given)))
        return 0
    value_directory(Path(given.pump))
    require_owner(Path(given.pump), f"{COMMAND} pump settle {' '.join(argv)}")
    with contextlib.closing(Store(Path(given.pump), StoreSettings())) as store:
        print(settle(store, given.start_ts, given.commit_ts, partial(near_present, store)))
    return 0


def _settled_by(url: str, start_ts: int, commit_ts: int, cluster_id: int, tls: TlsSettings | None) -> str:
    """The answer of the Pump at ``url``. A real Pump has no page for it and gets the record by WriteBinlog."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ConfigError(f"{url!r} is not of the form http://host:port or https://host:port")
    if (parts.scheme == "https") != (tls is not None):
        raise ConfigError(f"{url!r}: give https:// and -ssl-ca together, or neither")
    if cluster_id:
        if commit_ts:
            require_past(start_ts, commit_ts, now_by_pumps([parts.netloc], tls))
        write_binlog(parts.netloc, cluster_id, outcome_payload(start_ts, commit_ts), tls=tls)
        return f"the Pump at {parts.netloc} has recorded the outcome of start_ts {start_ts}"
    try:
        with HttpConnection(parts.hostname, parts.port, _SETTLE_TIMEOUT, tls=tls or False) as connection:
            answer = connection.request("PUT", f"/orphans/{start_ts}/commit/{commit_ts}" if commit_ts else f"/orphans/{start_ts}/rollback")
    except FAILURES as error:
        raise PumpUnavailable(f"the Pump at {url} does not answer ({error}); if it is stopped, pass its data-dir") from error
    if answer.status == HTTPStatus.NOT_FOUND:
        raise ConfigError(f"the Pump at {url} is a real Pump of TiDB Binlog: also pass the cluster's id, --cluster-id")
    if not answer.ok:
        raise ConfigError(f"the Pump at {url} refuses: {answer.text.strip()}")
    return answer.text.strip()


_COMMANDS = {
    "inspect": (_inspect, "shows the content of a value log, offline (pump inspect DATA_DIR)"),
    "settle": (
        _settle,
        "records the outcome of a transaction that the upstream can no longer report (pump settle DATA_DIR|URL START_TS commit COMMIT_TS)",
    ),
}
"""By name: the function, and its help text."""


if __name__ == "__main__":
    raise SystemExit(run_job(main))
