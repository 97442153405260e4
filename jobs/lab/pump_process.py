"""A Pump as a separate process: the job ``pump`` with every setting as a flag.

Promises: those of ``ServerProcess``: ``start`` after ``kill`` or ``stop`` runs on the same data directory and the same port.
"""

import dataclasses
import sys

from pyspark_tidb_binlog.conf.load import flags_of
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs.lab.emulator.process import ServerProcess

PUMP = "pyspark_tidb_binlog.jobs.pump"


class PumpProcess(ServerProcess):
    """``jobs.pump`` with ``config``; a port of 0 is chosen at the first start and kept."""

    def __init__(self, config: PumpConfig, module: str = PUMP) -> None:
        """``module``: another one that takes the same flags."""
        self.config = config
        self._module = module
        super().__init__(f"Pump {config.node_id}", _command(module, config))

    def start(self) -> "PumpProcess":
        """See ``ServerProcess``."""
        super().start()
        self.config = dataclasses.replace(self.config, addr=self.address)
        self._command = _command(self._module, self.config)
        return self


def _command(module: str, config: PumpConfig) -> list[str]:
    return [sys.executable, "-m", module, *(f"--{path}={value}" for path, value in flags_of(config).items())]
