"""Lag as seen by a client of the target: from a probe row's commit upstream until it is visible on another connection.

Promises: ``lags`` and ``percentile`` are pure; ``ServerWatch`` and ``LakeWatch`` are the thin shells that look at the target. Both sides read
CLOCK_MONOTONIC, which all processes of a machine share.
"""

import bisect
import contextlib
import json
import select
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.session import Session, connect

_UNKNOWN_DATABASE, _UNKNOWN_TABLE = 1049, 1146
_RETRY_SECONDS = 0.2


Probes = Sequence[tuple[int, int]]
"""(id, monotonic nanoseconds at which its commit returned), ascending."""
Sightings = Sequence[tuple[int, int]]
"""(largest id visible, monotonic nanoseconds), ascending."""


def lags(probes: Probes, sightings: Sightings) -> list[float]:
    """Seconds that each probe row took; rows that were never seen are left out."""
    largest = [number for number, _ in sightings]
    places = ((bisect.bisect_left(largest, number), at) for number, at in probes)
    return [(sightings[place][1] - at) / 1e9 for place, at in places if place < len(sightings)]


def start_up_end(probes: Probes, sightings: Sightings) -> int | None:
    """When the start-up ended: at the first visible row that was committed after the first row became visible. None: it did not end.

    Rows committed earlier wait for the first batches, which are slow: the JVM and the Python workers are cold.
    """
    committed = dict(probes)
    return next((at for largest, at in sightings if committed.get(largest, 0) > sightings[0][1]), None)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a ``share`` (0 to 1) of ``values`` does not exceed; 0.0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class ProbeWatch(ABC):
    """Watches the largest id of the probe table for the duration of the ``with`` block."""

    def __init__(self, interval: float) -> None:
        """``interval``: seconds between two looks."""
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe watch", daemon=True)
        self.sightings: list[tuple[int, int]] = []
        """(largest id visible, monotonic nanoseconds), only where the id grew."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Look until ``_stop`` is set."""

    def _sees(self, number: int, at_ns: int) -> None:
        if number > (self.sightings[-1][0] if self.sightings else 0):
            self.sightings.append((number, at_ns))


class ServerWatch(ProbeWatch):
    """Polls a server on a connection of its own."""

    def __init__(self, target: TargetConfig, apply: ApplyConfig, table: str, interval: float = 0.005) -> None:
        """``table`` as ``db.table``, with an integer column ``id``; it may appear later."""
        super().__init__(interval)
        self._target, self._settings = target, apply
        self._sql = f"SELECT MAX(id) FROM {table}"
        self.failure: ApplyError | None = None
        """The error that ended the polling early."""

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._target, self._settings) as session:
                    # each query is its own transaction and holds no metadata lock against DDLs
                    session.execute("SET SESSION autocommit = 1")
                    self._look(session)
            except RetryableApplyError:
                self._stop.wait(_RETRY_SECONDS)
            except ApplyError as error:
                self.failure = error
                return

    def _look(self, session: Session) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._sees(session.query(self._sql)[0][0] or 0, time.monotonic_ns())
            except ApplyError as error:
                if error.errno not in (_UNKNOWN_DATABASE, _UNKNOWN_TABLE):
                    raise
                self._stop.wait(_RETRY_SECONDS)


class LakeWatch(ProbeWatch):
    """Follows the ledger from a process of its own, as its readers do: in the stream's it would wait for Python's lock, and make the stream wait."""

    def __init__(self, lake: Path, table: str, interval: float = 0.005) -> None:
        """``table`` as ``db.table``, with a clustered bigint key; the lake may appear later."""
        super().__init__(interval)
        self._command = [sys.executable, "-c", f"from {__name__} import follow; follow({str(lake)!r}, {table!r}, {interval!r})"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        super().__exit__(kind, error, trace)
        self._process.wait()

    def _run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                number, at_ns = line.split()
                self._sees(int(number), int(at_ns))


def follow(lake: str, table: str, interval: float) -> None:
    """Print the largest id of each new version of a ledger on this machine, and when it was read, until stdin ends."""
    changes, (database, _, name) = Path(lake) / "changes", table.partition(".")
    wanted = (pc.field("database") == database) & (pc.field("table") == name) & (pc.field("op") == "insert")
    version = 0
    while not select.select([sys.stdin], [], [], interval)[0]:
        with contextlib.suppress(FileNotFoundError):
            while True:
                actions = (changes / "_delta_log" / f"{version:020}.json").read_text().splitlines()
                # A compaction adds no rows.
                for added in (a["add"] for a in map(json.loads, actions) if a.get("add", {}).get("dataChange")):
                    # By this thread: a file of some hundred rows is read before others have woken up.
                    rows = (
                        pq.ParquetFile(changes / added["path"])
                        .read(["database", "table", "op", "row_key"], use_threads=False)
                        .filter(wanted)
                    )
                    largest = max((int.from_bytes(key, "big") for key in rows["row_key"].to_pylist()), default=0)
                    print(largest, time.monotonic_ns(), flush=True)
                version += 1
