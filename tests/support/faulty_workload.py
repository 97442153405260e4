"""The process of the workload, whose Pump client loses Commits, delays them and writes Prewrites twice."""

import sys
from typing import Any, Self

from pyspark_tidb_binlog.jobs.lab.emulator import workload_process
from tests.support.faulty_client import Faults, FaultyClient


class Client(FaultyClient):
    @classmethod
    def from_registry(cls, *given: Any) -> Self:
        return super().from_registry(*given).inject(Faults(lost_commits=0.003, late_commits=0.02, duplicates=0.02))


if __name__ == "__main__":
    workload_process.PumpClient = Client  # type: ignore[misc]
    sys.exit(workload_process.main(sys.argv[1:]))
