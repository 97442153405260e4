"""The watermark of the pairing query: a silent Pump holds it, a fake moves it, no row is ever late for it, and timers find orphans by it.

And what a batch of a stateful operator leaves behind: nothing.
"""

import contextlib
import datetime
import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_tidb_binlog.binlog_source.pairing import processor
from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.jobs.entry.logs import spark_log_file
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.engine.spark_jvm import jvm_of
from tests.support.pump_writes import commit, fake, prewrite, send
from tests.support.spark_queries import Taken, end, run, source_of_pumps, until

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def watermark_ms(query: StreamingQuery) -> int:
    """As the query's progress shows it."""
    progress = query.lastProgress
    text = progress.eventTime.get("watermark") if progress is not None else None
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000) if text else 0


def left_open(spark: SparkSession) -> int:
    """Sockets of the JVM whose other side has closed them, and its unix sockets, of which a kernel does not tell that."""
    jvm = jvm_of(spark)
    process = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}")
    inodes = set()
    for file in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    sockets = [line.split() for name in ("tcp", "tcp6") for line in (process / "net" / name).read_text().splitlines()[1:]]
    closed = {fields[9] for fields in sockets if fields[3] == "08"}
    local = {line.split()[6] for line in (process / "net" / "unix").read_text().splitlines()[1:]}
    return len((closed | local) & inodes)


def test_a_silent_pump_holds_the_watermark_and_a_fake_moves_it(spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]) -> None:
    log = spark_log_file()
    begun = log.stat().st_size if log.exists() else 0
    taken = Taken()
    for pump in pumps:
        send(pump, fake(tso(1000)))
    source = source_of_pumps(pumps, delivery="raw", max_bytes_per_trigger=100)  # so much unread is a batch
    query = run(spark, source, taken, tmp_path)
    until(query, lambda: taken.resolved >= tso(1000))
    for ms in range(2000, 6000, 1000):  # the second Pump is silent
        send(pumps[0], prewrite(tso(ms)), commit(tso(ms), tso(ms + 1)), prewrite(tso(ms + 400)), fake(tso(ms + 300)))
        count = len(taken.batches)
        until(query, lambda count=count: len(taken.batches) > count)  # type: ignore[misc]
    assert watermark_ms(query) <= 1000 and taken.resolved == tso(1000)
    send(pumps[0], *(commit(tso(ms + 400), tso(ms + 450)) for ms in range(2000, 6000, 1000)))
    send(pumps[1], fake(tso(4700)))
    until(query, lambda: taken.resolved >= tso(4700))
    send(pumps[1], fake(tso(4800)))  # what a batch shows, the next one knows
    until(query, lambda: watermark_ms(query) == 4700)
    end(query, tmp_path / "stop")
    assert sorted(taken.payloads) == [tso(ms + more) for ms in range(2000, 5000, 1000) for more in (1, 450)]
    with log.open("rb") as lines:
        lines.seek(begun)
        assert b"doesn't contain a value" not in lines.read()


def test_no_row_is_late_however_far_the_watermark_is(spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]) -> None:
    """A Prewrite holds R at 2 s while both Pumps go on to 9 s. Its Commit of 2 s comes then, and must be seen."""
    taken = Taken()
    for pump in pumps:
        send(pump, fake(tso(1000)))
    send(pumps[0], prewrite(tso(2000)))
    query = run(spark, source_of_pumps(pumps, delivery="raw"), taken, tmp_path)
    at = 3000
    while watermark_ms(query) < 9000:
        at += 1500
        for pump in pumps:
            send(pump, fake(tso(at)))
        time.sleep(0.5)
        assert query.exception() is None
    assert taken.resolved == tso(2000) - 1
    send(pumps[0], commit(tso(2000), tso(2001)))
    until(query, lambda: taken.resolved >= tso(9000))
    end(query, tmp_path / "stop")
    assert sorted(taken.payloads) == [tso(2001)]


def test_a_batch_leaves_no_socket_behind(spark: SparkSession, tmp_path: Path, pumps: list[PumpServer]) -> None:
    """Spark 4.2.0 leaves one for each task of a stateful operator (SPARK-58932): after days of batches the process may open no more files."""
    taken, before = Taken(), 0
    query = run(spark, source_of_pumps(pumps, delivery="raw"), taken, tmp_path)
    for ms in range(1000, 7000, 1000):
        before = left_open(spark) if ms == 3000 else before  # the first batches start workers, whose sockets stay
        for pump in pumps:
            send(pump, fake(tso(ms)))
        until(query, lambda ms=ms: taken.resolved >= tso(ms))  # type: ignore[misc]
    end(query, tmp_path / "stop")
    assert len(taken.batches) >= 6
    assert left_open(spark) <= before + 2


def test_the_state_has_the_types_that_its_checkpoints_were_made_with(spark: SparkSession) -> None:
    """Spark compares them with those in the checkpoint, and refuses to start with others."""
    texts = {"_VALUE": "value BINARY", "_PIECE": "start_ts BIGINT, first_seq INT", "_CHUNK_PIECE": "number BIGINT, piece INT"}
    for name, text in texts.items():
        assert getattr(processor, name).json() == StructType.fromDDL(text).json()
