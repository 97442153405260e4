"""A Pump server until it is told to stop: ``./spark-submit.sh pump --config conf/pump.toml``; or a look into a data directory without one:
``./spark-submit.sh pump inspect DATA_DIR``.

Promises: prints ``serving HOST:PORT`` on stdout once it accepts calls; Ctrl-C and SIGTERM pause it, ``PUT /state/…/close`` ends it when every Drainer
has everything. ``inspect`` changes nothing and needs no lock. No JVM is started.
"""

from collections.abc import Sequence

from binlog_source.pump.server import EmbeddedPump
from conf.model import PumpConfig
from jobs import inspect_log
from jobs.cli import add_settings, parser, pump_config, run_job, stop_on_signals


def main(argv: Sequence[str]) -> int:
    """Serve until stopped, or inspect."""
    if argv and argv[0] == "inspect":
        return inspect_log.main(argv[1:])
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


if __name__ == "__main__":
    raise SystemExit(run_job(main))
