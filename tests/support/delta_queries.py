"""Queries of changes into Delta tables, as people write them, in a process of their own that can be killed: ``python -m tests.support.delta_queries FILE``.

FILE holds a ``DeltaQueries`` as JSON. Without ``ends`` the process runs until it is killed, else until everything is read that is promised, and ends with 0.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
QUERIES = {"all plain": "", "one plain": "shop.item", "all batch": "", "one batch": "shop.item"}
"""By name: the one table that is read, or all. ``plain`` is ``writeStream.format("delta")``, ``batch`` an idempotent write in ``foreachBatch``."""
_SECONDS = 600.0
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # a commit of a table is followed by a checkpoint of it: time to be killed in
    "spark.databricks.delta.properties.defaults.checkpointInterval": "1",
}


@dataclass(frozen=True)
class DeltaQueries:
    """What the process runs: each query with its table and checkpoint below ``directory``."""

    directory: str
    options: dict[str, str]
    ends: bool = False
    dies: str = ""
    """The query that waits in its batch to be killed."""
    written: bool = False
    """Whether it waits behind its write, or in front of it."""
    after: int = 0
    """The batch behind which it does: the last one that an earlier life has begun."""

    def table(self, name: str) -> Path:
        """Where a query writes."""
        return Path(self.directory) / name.replace(" ", "-")

    def checkpoint(self, name: str) -> Path:
        return Path(self.directory) / (name.replace(" ", "-") + "-checkpoint")

    def batches(self, name: str, kind: str) -> list[int]:
        """The numbers of the batches that have a file of this ``kind``: ``offsets`` or ``commits``."""
        place = self.checkpoint(name) / kind
        return sorted(int(p.name) for p in place.iterdir() if p.name.isdigit()) if place.is_dir() else []

    def commits_of_table(self, name: str) -> list[int]:
        """The batches that are in the Delta table."""
        log = self.table(name) / "_delta_log"
        lines = [json.loads(line) for file in log.glob("*.json") for line in file.read_text().splitlines()] if log.is_dir() else []
        return sorted(line["txn"]["version"] for line in lines if "txn" in line)

    @property
    def hangs(self) -> bool:
        """Whether a batch of ``dies`` is between its offset file and its commit file, and its write is as far as ``written`` says."""
        begun = [n for n in self.batches(self.dies, "offsets") if n > self.after and n not in self.batches(self.dies, "commits")]
        return bool(begun) and (begun[0] in self.commits_of_table(self.dies)) == self.written

    def run(self) -> int:
        """In the process."""
        from pyspark.sql import SparkSession

        from pyspark_tidb_binlog import configured

        builder = SparkSession.builder.master("local[2]")
        for name, value in _SETTINGS.items():
            builder = builder.config(name, value)
        spark = configured(builder).getOrCreate()
        running = []
        for name, table in QUERIES.items():
            more = {"table": table} if table else {}
            frame = spark.readStream.format("tidb_binlog").options(**self.options, **more).load()
            writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint(name)))
            writer = writer.trigger(availableNow=True) if self.ends else writer
            if name.endswith("plain"):
                running.append(writer.format("delta").start(str(self.table(name))))
            else:
                running.append(writer.foreachBatch(self._appending(name)).start())
        for query in running:
            query.awaitTermination()
        return 0

    def _appending(self, name: str) -> Any:
        def append(batch: Any, batch_id: int) -> None:
            hangs = name == self.dies and batch_id > self.after
            if hangs and not self.written:
                time.sleep(_SECONDS)
            options = {"txnAppId": name, "txnVersion": str(batch_id)}
            batch.write.format("delta").mode("append").options(**options).save(str(self.table(name)))
            if hangs:
                time.sleep(_SECONDS)

        return append

    @contextmanager
    def _process(self) -> Iterator["subprocess.Popen[bytes]"]:
        file, out = Path(self.directory) / "queries.json", Path(self.directory) / "queries.txt"
        file.write_text(json.dumps(asdict(self)))
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDB_BINLOG")} | {"PYTHONPATH": str(ROOT)}
        with out.open("wb") as stream:
            command = [sys.executable, "-m", "tests.support.delta_queries", str(file)]
            process = subprocess.Popen(
                command, env=environ, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def killed_at(self, dies: str, *, written: bool) -> None:
        """A life that is killed while a batch of the query ``dies`` is between its offset file and its commit file."""
        dying = replace(self, dies=dies, written=written, after=max(self.batches(dies, "offsets"), default=0))
        with dying._process() as process:

            def caught() -> bool:
                assert process.poll() is None, self.output()
                if not dying.hangs:
                    return False
                os.killpg(process.pid, signal.SIGSTOP)
                if dying.hangs:
                    return True
                os.killpg(process.pid, signal.SIGCONT)
                return False

            eventually(caught, seconds=_SECONDS, what=f"a batch of {dies} in its write", seen=self.output, pause=0.001)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert dying.hangs

    def finish(self) -> None:
        """A life that reads everything that is promised."""
        ending = replace(self, ends=True)
        with ending._process() as process:
            assert process.wait(_SECONDS) == 0, self.output()

    def output(self) -> str:
        """The last of what the process printed."""
        return (Path(self.directory) / "queries.txt").read_text(errors="replace")[-4000:]


if __name__ == "__main__":
    sys.exit(DeltaQueries(**json.loads(Path(sys.argv[1]).read_text())).run())
