"""A Pump as a separate process: the job ``pump`` with every setting as a flag.

Promises: those of ``ServerProcess``: ``start`` after ``kill`` or ``stop`` runs on the same data directory and the same port.
"""

import dataclasses
import sys

from pyspark_tidb_binlog.binlog_source.emulator.process import ServerProcess
from pyspark_tidb_binlog.conf.model import PumpConfig


class PumpProcess(ServerProcess):
    """``jobs.pump`` with ``config``; a port of 0 is chosen at the first start and kept."""

    def __init__(self, config: PumpConfig) -> None:
        self.config = config
        super().__init__(f"Pump {config.node_id}", _command(config))

    def start(self) -> "PumpProcess":
        """See ``ServerProcess``."""
        super().start()
        self.config = dataclasses.replace(self.config, addr=self.address)
        self._command = _command(self.config)
        return self


def _command(config: PumpConfig) -> list[str]:
    flags = [f"--{f.name.replace('_', '-')}={_flag(getattr(config, f.name))}" for f in dataclasses.fields(config)]
    return [sys.executable, "-m", "pyspark_tidb_binlog.jobs.pump", *flags]


def _flag(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{name}={text}" for name, text in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
