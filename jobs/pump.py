"""A Pump server until it is told to stop: ``./spark-submit.sh pump --config conf/pump.toml``; or a look into a data directory without one:
``./spark-submit.sh pump inspect DATA_DIR``.

Promises: prints ``serving HOST:PORT`` on stdout once it accepts calls; Ctrl-C and SIGTERM pause it, ``PUT /state/…/close`` ends it when every Drainer
has everything. ``inspect`` changes nothing and needs no lock; its exit code is 1 when it finds damage. No JVM is started.
"""

from collections.abc import Sequence
from pathlib import Path

from binlog_source.pump.log_report import inspect, line_of, value_directory
from binlog_source.pump.server import EmbeddedPump
from binlog_source.pump.storage.record import parse
from conf.model import PumpConfig
from jobs.cli import EXIT_FAILED, add_settings, parser, pump_config, run_job, stop_on_signals


def main(argv: Sequence[str]) -> int:
    """Serve until stopped, or inspect."""
    if argv and argv[0] == "inspect":
        return _inspect(argv[1:])
    options = parser(
        "pump", "A Pump server: a durable log of binlogs that a Drainer reads. 'pump inspect DATA_DIR' looks into one offline."
    )
    add_settings(options, PumpConfig)
    config = pump_config(options.parse_args(argv))
    stop = stop_on_signals()
    pump = EmbeddedPump(config).start()
    print(f"serving {pump.address}", flush=True)
    while not pump.ended.is_set() and not stop.wait(0.2):
        pass
    pump.stop()
    return 0


def _inspect(argv: Sequence[str]) -> int:
    """Print what a value log holds."""
    options = parser("pump inspect", "What a Pump's value log holds. Reads only.")
    options.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="the Pump's data-dir, or its value directory")
    options.add_argument("--records", action="store_true", help="a line for each record")
    options.add_argument("--ts", type=int, help="only records whose start_ts or commit_ts is this one, with their content")
    given = options.parse_args(argv)
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


if __name__ == "__main__":
    raise SystemExit(run_job(main))
