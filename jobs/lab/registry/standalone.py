"""Registry and oracle, optionally with a recorded DDL history, as a separate process: for Pumps and Drainers without a PD.

    python -m pyspark_tidb_binlog.jobs.lab.registry.standalone --cluster-id 7 --data-dir var/registry [--history ddl_history.json.gz] [--floor TS]

Promises: prints ``serving HOST:PORT`` once it answers. SIGTERM and Ctrl-C end it. Timestamps and node states survive a restart on the
same directory.
"""

import argparse
import gzip
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

from pyspark_tidb_binlog.binlog_source.rpc.http1 import BadRequest
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle

_LOOK_EVERY = 0.05


def recorded_history(path: Path) -> list[dict[str, Any]]:
    """The jobs of a recorded ``/ddl/history``, ``.json`` or ``.json.gz``."""
    data = path.read_bytes()
    jobs: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return jobs


def _not_served() -> NoReturn:
    raise BadRequest(
        "this registry serves no DDL history: start the registry with --history, or name TiDB's status port", HTTPStatus.NOT_FOUND
    )


def until_signalled() -> Callable[[], None]:
    """Handle SIGTERM and SIGINT; the returned function waits for one. The handler takes no lock: the thread it interrupts may hold it."""
    heard: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: heard.append(number))

    def wait() -> None:
        while not heard:
            time.sleep(_LOOK_EVERY)

    return wait


def main(argv: Sequence[str]) -> int:
    """Serve until stopped."""
    options = argparse.ArgumentParser(description="Registry and oracle for Pumps and Drainers without a PD.", allow_abbrev=False)
    options.add_argument(
        "--addr", default="127.0.0.1:0", metavar="HOST:PORT", help="host:port to listen on; port 0 = a free port (default: 127.0.0.1:0)"
    )
    options.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="directory for the node states and timestamps")
    options.add_argument("--cluster-id", type=int, required=True, metavar="ID", help="id of the cluster")
    options.add_argument("--history", type=Path, help="recorded /ddl/history to serve")
    options.add_argument("--floor", type=int, default=0, help="every timestamp will be above this one")
    given = options.parse_args(argv)
    jobs = recorded_history(given.history) if given.history else None
    wait = until_signalled()
    oracle = Oracle(given.data_dir / "oracle", given.floor)
    history = _not_served if jobs is None else lambda: jobs
    service = ClusterService(oracle, given.cluster_id, addr=given.addr, data_dir=given.data_dir, history=history).start()
    print(f"serving {service.address}", flush=True)
    wait()
    service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
