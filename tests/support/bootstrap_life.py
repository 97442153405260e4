"""One life of a Drainer that copies tables, in a process of its own, so that it can be killed: ``python -m tests.support.bootstrap_life FILE``.

FILE holds a pickled ``Life``. The process ends with 0 when the stream could begin.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.conf.model import DrainerConfig, TargetConfig
from pyspark_tidb_binlog.jobs.entry.drainer_options import BootstrapRequest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Life:
    """What the process needs."""

    config: DrainerConfig
    account: TargetConfig
    """Of the mirror."""
    history: Path
    after_ts: int
    request: BootstrapRequest


def run_life(life: Life, directory: Path, dies: str = "") -> int:
    """The exit code of a life that is killed at its failpoints ``dies``; -9 if it was."""
    file, out = directory / "life.pickle", directory / "life.txt"
    file.write_bytes(pickle.dumps(life))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDB_BINLOG")} | {"PYTHONPATH": str(ROOT)}
    if dies:
        environ |= {failpoints.DIE: dies, failpoints.DIE_LOG: str(directory / "dies.log")}
    shell = f'export {failpoints.DIE_PID}=$$; exec "$@"'
    command = ["/bin/sh", "-c", shell, "sh", sys.executable, "-m", "tests.support.bootstrap_life", str(file)]
    with out.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            code = process.wait(300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert code in (0, -signal.SIGKILL), out.read_text()[-4000:]
    return code


def main(file: str) -> int:
    """Copy what is to be copied."""
    from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
    from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
    from pyspark_tidb_binlog.sinks.mysql.password import ShippedTarget
    from tests.support.bootstrapped_stream import begun_stream
    from tests.support.mirrored_upstream import MariaSnapshots

    life: Life = pickle.loads(Path(file).read_bytes())
    spark = build_session("life", master="local[2]")
    reader = MariaSnapshots(ShippedTarget.of(life.account, spark.sparkContext.broadcast))
    sink, _ = begun_stream(
        spark, life.config, HistoryFeed(str(life.history), None, None), life.request, reader, life.after_ts, threading.Event()
    )
    sink.close()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
