"""A Pump server until it is told to stop: ``./spark-submit.sh pump --config conf/pump.toml``.

Promises: prints ``serving HOST:PORT`` on stdout once it accepts calls; Ctrl-C and SIGTERM end it cleanly. No JVM is started.
"""

from collections.abc import Sequence

from binlog_source.pump.server import EmbeddedPump
from conf.model import PumpConfig
from jobs.cli import add_settings, parser, pump_config, run_job, stop_on_signals


def main(argv: Sequence[str]) -> int:
    """Serve until stopped."""
    options = parser("pump", "A Pump server: a durable log of binlogs that a Drainer reads.")
    add_settings(options, PumpConfig)
    config = pump_config(options.parse_args(argv))
    stop = stop_on_signals()
    pump = EmbeddedPump(config).start()
    print(f"serving {pump.address}", flush=True)
    stop.wait()
    pump.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(run_job(main))
