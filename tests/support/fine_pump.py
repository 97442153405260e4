"""A Pump whose log is cut finer than an operator needs: in this process (``fine_store``), or as a process (``FinePump``)."""

import json
import os
import sys
from functools import partial
from typing import Any
from unittest import mock

from pyspark_tidb_binlog.binlog_source.pump import server
from pyspark_tidb_binlog.binlog_source.pump.storage.store import StoreSettings
from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.jobs import pump
from pyspark_tidb_binlog.jobs.entry.cli import run_job
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess

_LIMITS = "FINE_PUMP"


def fine_store(**limits: int) -> Any:
    """For the block, Pumps that start in this process have these ``StoreSettings``, such as ``max_file_size`` and ``span``, in bytes."""
    return mock.patch.object(server, "StoreSettings", partial(StoreSettings, **limits))


class FinePump(PumpProcess):
    """``PumpProcess`` with these ``StoreSettings``."""

    def __init__(self, config: PumpConfig, **limits: int) -> None:
        super().__init__(config, "tests.support.fine_pump")
        self._limits = json.dumps(limits)

    def start(self) -> "FinePump":
        """See ``ServerProcess``."""
        with mock.patch.dict(os.environ, {_LIMITS: self._limits}):
            super().start()
        return self


if __name__ == "__main__":
    with fine_store(**json.loads(os.environ[_LIMITS])):
        sys.exit(run_job(pump.main))
