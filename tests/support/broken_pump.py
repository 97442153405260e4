"""The job ``pump`` whose index, or value log, has no memory from its n-th write on: ``BROKEN_PUMP=index:3``."""

import os
import sys
from typing import Any

from pyspark_tidb_binlog.binlog_source.pump.storage import store
from pyspark_tidb_binlog.jobs import pump
from pyspark_tidb_binlog.jobs.entry.cli import run_job

BROKEN = "BROKEN_PUMP"


def main() -> int:
    """Run the job with the fault that the environment names."""
    what, _, number = os.environ[BROKEN].partition(":")
    owner, name = {"index": (store.KeyIndex, "apply"), "log": (store.ValueLog, "append")}[what]
    real, left = getattr(owner, name), [int(number)]

    def failing(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError
        return real(*given)

    setattr(owner, name, failing)
    return run_job(pump.main)


if __name__ == "__main__":
    sys.exit(main())
