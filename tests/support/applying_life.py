"""A process that applies a ``VersionedHistory`` batch by batch, to be killed: ``python -m tests.support.applying_life FILE``."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_tidb_binlog.conf.model import DrainerConfig

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ApplyingLife:
    """What the process needs."""

    config: DrainerConfig
    history: Path
    """``VersionedHistory.written_to``."""
    pause: float = 0.1
    """Seconds between two batches, at most."""


@dataclass
class Applying:
    """One that runs."""

    process: "subprocess.Popen[bytes]"
    out: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def batches(self) -> int:
        return self.out.read_text().count("\napplied ")

    def kill(self) -> None:
        """``kill -9`` of it and of all it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def applying(life: ApplyingLife, directory: Path) -> Iterator[Applying]:
    """Run it in the block; it is killed afterwards."""
    file, out = directory / "life.pickle", directory / "life.txt"
    file.write_bytes(pickle.dumps(life))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDB_BINLOG")} | {"PYTHONPATH": str(ROOT)}
    with out.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.applying_life", str(file)],
            env=environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    made = Applying(process, out)
    try:
        yield made
    finally:
        if made.running:
            made.kill()


def main(file: str) -> None:
    """Apply everything."""
    import pyarrow as pa

    from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
    from pyspark_tidb_binlog.jobs.stream.targets import sink_of
    from pyspark_tidb_binlog.schemas.events import ControlType
    from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
    from pyspark_tidb_binlog.schemas.packed import packed
    from pyspark_tidb_binlog.schemas.stages import TRANSACTION
    from pyspark_tidb_binlog.sinks.apply import BatchApplier

    life: ApplyingLife = pickle.loads(Path(file).read_bytes())
    begin_ts, commits, ends = pickle.loads(life.history.read_bytes())
    spark = build_session("life", master="local[2]")

    def frame(after_ts: int, upto_ts: int) -> Any:
        rows: list[dict[str, Any]] = [{"control": int(ControlType.RESOLVED), "start_ts": after_ts, "commit_ts": upto_ts}]
        rows += [{"start_ts": s, "commit_ts": c, "payload": p} for s, c, p in commits if after_ts < c <= upto_ts]
        value = packed(pa.Table.from_pylist(rows, schema=TRANSACTION))
        return spark.createDataFrame(pa.table({"transactions": pa.array([value], pa.binary())}))

    sink = sink_of(life.config, life.config.source.cluster_id, time.sleep, lambda: ends[-1])
    applier = BatchApplier(spark, life.config, sink, HistoryFeed(str(life.history.with_suffix(".jobs")), None, None), lambda report: None)
    found = applier.open(lambda target, commit_ts: begin_ts if commit_ts is None else commit_ts)
    if (span := found.unfinished) is not None:
        applier.replay(span, frame(span.after_ts, span.upto_ts))
    print("\nopened", flush=True)
    for number, end in enumerate(ends):
        if end > sink.commit_ts:
            applier(frame(sink.commit_ts, end), number)
            print(f"\napplied {end}", flush=True)
            time.sleep(random.uniform(0, life.pause))
    sink.close()


if __name__ == "__main__":
    main(sys.argv[1])
