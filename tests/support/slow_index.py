"""An index that takes its time, and writers beside it; also as a process that can be killed: ``python -m tests.support.slow_index DIRECTORY``.

Promises: the process prints the start_ts of each Prewrite that is durable, and ``on`` once the slow chaser is on; it runs until it is killed.
"""

import sys
import threading
import time
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.pump.storage.chaser import ChaserSettings
from pyspark_tidb_binlog.binlog_source.pump.storage.index import KeyIndex
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.pump.storage.store import Store, StoreSettings
from tests.support.eventually import eventually
from tests.support.store_model import commit, prewrite

WRITERS = 16
QUICK = ChaserSettings(threshold=0.05, poll=0.02, quick_pass=0.1, recovery_interval=0.3, recovery_timeout=0.1)


class SlowIndex(KeyIndex):
    """Sleeps ``delay`` seconds before each batch, and remembers what it was given."""

    delay = 0.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.given: list[tuple[int, tuple[int, int]]] = []
        """ts and position of each entry, as they came."""

    def apply(self, entries, checkpoints, head):
        """See ``KeyIndex``."""
        time.sleep(self.delay)
        self.given += [(entry.ts, entry.at) for entry in entries]
        super().apply(entries, checkpoints, head)


def opened(directory: Path, chaser: ChaserSettings, backlog: int) -> Store:
    """A store over such an index."""
    return Store(directory, StoreSettings(max_file_size=1 << 20, backlog=backlog, chaser=chaser), open_index=SlowIndex)


class Writers:
    """Sixteen threads that write transactions until stopped, and how long each write took."""

    def __init__(self, store: Store, said=lambda start_ts: None) -> None:
        self.seconds: list[float] = []
        self._store = store
        self._said = said
        self._lock = threading.Lock()
        self._last = store.written_max_ts
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _ts(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    def _timed(self, record) -> None:
        begun = time.perf_counter()
        self._store.write([record])
        self.seconds.append(time.perf_counter() - begun)

    def _run(self) -> None:
        while not self._stopped.is_set():
            start_ts = self._ts()
            self._timed(prewrite(start_ts))
            self._said(start_ts)
            self._timed(commit(start_ts, self._ts()))

    def stop(self) -> None:
        """Stop; everything begun is ended."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._store.write([fake(self._ts())])


def main() -> None:
    """Write beside an index that hardly moves, until killed."""
    store = opened(Path(sys.argv[1]), QUICK, backlog=16)
    store._index.delay = 0.5
    lock = threading.Lock()

    def say(word: object) -> None:
        with lock:
            print(word, flush=True)

    Writers(store, said=say)
    eventually(lambda: store.chaser.on)
    say("on")
    threading.Event().wait()


if __name__ == "__main__":
    main()
