"""``kill -9`` of a real Pump at every named point of its storage, under gRPC writers: the next life has all that was acknowledged, once."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from pyspark_tidb_binlog.binlog_source.pump_client.writer import PumpWriter
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import BinlogType, tso
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.binlogs import payload
from tests.support.eventually import eventually
from tests.support.fine_pump import FinePump
from tests.support.pump_pulls import BATCH, CLUSTER, RAW, Pull, config

pytestmark = pytest.mark.grpc

WRITERS = 6
OLD_TXNS = 600
HOUR_MS = 3_600_000
SLOW = pytest.mark.slow
WHILE_WRITING = [
    *[("vlog-before-write", 1), ("vlog-written", 40), ("vlog-synced", 1), ("store-answered", 40)],
    *[("vlog-finished", 5), ("vlog-created", 2), ("index-before-write", 40), ("index-written", 3)],
    *[pytest.param(point, 40, marks=SLOW) for point in ("vlog-before-write", "vlog-synced", "index-written")],
    *[pytest.param(point, 1, marks=SLOW) for point in ("vlog-written", "store-answered")],
    *[pytest.param(*which, marks=SLOW) for which in (("vlog-finished", 2), ("vlog-created", 5), ("index-before-write", 3))],
]
"""Each point early or late in ``make test``, and both in ``make slow``."""
WHILE_COLLECTING = [
    ("gc-noted", 1),
    ("vlog-before-drop", 2),
    pytest.param("vlog-dropped", 1, marks=SLOW),
    ("vlog-dropped", 3),
    ("gc-keys", 1),
]


class Clock:
    """Timestamps of the real clock, each once; ``ago_ms`` earlier."""

    def __init__(self, ago_ms=0):
        self._ago_ms = ago_ms
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            self._last = max(self._last + 1, tso(time.time_ns() // 1_000_000 - self._ago_ms))
            return self._last


class Answered:
    """What a Pump acknowledged of the transactions that began after ``begun``: their start_ts; and the commit_ts by start_ts."""

    def __init__(self):
        self.clock = Clock()
        self.begun = self.clock()
        """Not the lowest start_ts of ``prewritten``: what was stored and never answered may have begun before all that was answered."""
        self.prewritten, self.committed = set(), {}


class Load(Answered):
    """Writers that run transactions, one after the other, until the Pump is gone."""

    def __init__(self, address):
        super().__init__()
        self._address = address
        self._threads = [threading.Thread(target=self._run) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        writer = PumpWriter(self._address, CLUSTER, tls=None)
        try:
            while True:
                start_ts = self.clock()
                writer.write(payload(0, start_ts, prewrite_key=b"k", prewrite_value=b"v" * 100))
                self.prewritten.add(start_ts)
                commit_ts = self.clock()
                writer.write(payload(1, start_ts, commit_ts, prewrite_key=b"k"))
                self.committed[start_ts] = commit_ts
        except PumpUnavailable:
            writer.close()

    def join(self):
        for thread in self._threads:
            thread.join()


@pytest.fixture
def pump(tmp_path):
    process = FinePump(config(tmp_path, gc="1h"), max_file_size=20_000, span=2_000)
    yield process
    process.kill()


def start(pump, monkeypatch, point, passes):
    """Start it so that it dies at the ``passes``-th pass of ``point``."""
    monkeypatch.setenv(failpoints.DIE, f"{point}:{passes}")
    pump.start()
    monkeypatch.delenv(failpoints.DIE)


def await_death(pump, meanwhile=lambda: None):
    eventually(lambda: not pump.running or meanwhile(), what="the point is passed", pause=0.02)
    assert pump._process.returncode == -signal.SIGKILL
    pump.kill()


@pytest.mark.parametrize(("point", "passes"), WHILE_WRITING)
def test_death_while_writing(pump, monkeypatch, point, passes):
    start(pump, monkeypatch, point, passes)
    load = Load(pump.address)
    await_death(pump)
    load.join()
    pump.start()
    assert_all_there(pump, load)


def test_a_prewrite_that_began_first_was_stored_last_and_never_answered(pump, monkeypatch):
    start(pump, monkeypatch, "vlog-synced", 2)
    load = Answered()
    early, late = load.clock(), load.clock()
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    writer.write(payload(0, late, prewrite_key=b"k", prewrite_value=b"v" * 100))
    load.prewritten.add(late)
    with pytest.raises(PumpUnavailable):
        writer.write(payload(0, early, prewrite_key=b"k", prewrite_value=b"v" * 100))
    writer.close()
    await_death(pump)
    pump.start()
    assert_all_there(pump, load)


@pytest.mark.parametrize(("point", "passes"), WHILE_COLLECTING)
def test_death_while_collecting(pump, monkeypatch, point, passes):
    start(pump, monkeypatch, point, passes)
    write_old_transactions(pump.address)
    load = Load(pump.address)
    await_death(pump, meanwhile=lambda: trigger_gc(pump))
    load.join()
    pump.start()
    with Pull(pump.address) as pull:
        assert int(dict(pull.call.initial_metadata())["tidb-binlog-gc-ts"]) > tso(time.time_ns() // 1_000_000 - 2 * HOUR_MS)
    assert_all_there(pump, load)
    collected_in_the_end(pump)
    assert_all_there(pump, load)


def write_old_transactions(address):
    """Several files of transactions that a gc of one hour removes."""
    clock = Clock(3 * HOUR_MS)
    writer = PumpWriter(address, CLUSTER, tls=None)
    for _ in range(OLD_TXNS // 50):
        txns = [(clock(), clock()) for _ in range(50)]
        writer.start_many(
            [p for start_ts, commit_ts in txns for p in (payload(0, start_ts, prewrite_value=b"o" * 60), payload(1, start_ts, commit_ts))]
        ).result()
    writer.close()


def trigger_gc(pump):
    """As an operator does; the Pump may die of it."""
    connection = http.client.HTTPConnection(*pump.address.split(":"), timeout=5)
    try:
        connection.request("POST", "/debug/gc/trigger")
        assert connection.getresponse().read() in (b"trigger gc success\n", b"gc is working\n")
    except (http.client.HTTPException, OSError):
        pass
    finally:
        connection.close()


def collected_in_the_end(pump):
    """A later collection finishes what the dead one began. It needs a gc_ts above the first one's, so a moment must have gone."""
    third = Path(pump.config.data_dir, "value", "000002.vlog")
    eventually(lambda: not third.exists() or trigger_gc(pump), pause=0.02)


def assert_all_there(pump, load):
    """Every acknowledged record once in raw delivery, every complete transaction once and in order in sorted delivery."""
    clock = Clock()
    writer = PumpWriter(pump.address, CLUSTER, tls=None)
    before = list(until_mark(pump, writer, clock(), RAW))
    seen = Counter((entity.payload[1], entity.meta.startTs) for entity in before if entity.meta.startTs >= load.begun)
    assert all(seen[BinlogType.PREWRITE, start_ts] == 1 for start_ts in load.prewritten)
    assert all(seen[BinlogType.COMMIT, start_ts] == 1 for start_ts in load.committed)
    assert [key for key, times in seen.items() if times > 1] == []
    # what was under way at the death is settled as TiDB would
    for tp, start_ts in seen:
        if tp == BinlogType.PREWRITE and not seen[BinlogType.COMMIT, start_ts] + seen[BinlogType.ROLLBACK, start_ts]:
            writer.write(payload(2, start_ts))
    delivered = [entity for entity in until_mark(pump, writer, clock(), ()) if entity.meta.startTs >= load.begun]
    complete = [entity for entity in delivered if entity.payload[1] == BinlogType.COMMIT]
    assert {e.meta.startTs: e.meta.commitTs for e in complete}.items() >= load.committed.items()
    assert Counter(e.meta.startTs for e in complete) == Counter(start_ts for tp, start_ts in seen if tp == BinlogType.COMMIT)
    assert [e.meta.commitTs for e in delivered] == sorted(e.meta.commitTs for e in delivered)
    assert all(binlog_pb2.Binlog.FromString(e.payload).prewrite_value == b"v" * 100 for e in complete)
    writer.close()


def until_mark(pump, writer, ts, delivery):
    """The records of a delivery from its beginning up to a fake binlog that is written now."""
    writer.write(payload(2, ts, ts))
    before = None
    with Pull(pump.address, delivery + BATCH) as pull:
        for entity in pull:
            if entity.meta.startTs == ts and entity.payload[1] == BinlogType.ROLLBACK:
                return
            # a promise of raw delivery is no record: it stands where the record before it ended
            if delivery != RAW or entity.pos != before:
                yield entity
            before = entity.pos


_PARENT = """
import sys, time
from pathlib import Path
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from tests.support.pump_pulls import config

print(PumpProcess(config(Path(sys.argv[1]))).start().pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="without it a process outlives its parent")
def test_a_pump_of_the_demo_ends_with_a_parent_that_is_killed(tmp_path):
    root = Path(__file__).parents[2]
    environ = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], cwd=root, env=environ, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), what="the Pump has ended")
