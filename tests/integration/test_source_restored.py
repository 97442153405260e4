"""A Pump whose log is another one than was read, under the same name: restored from a backup, or begun anew; told of, never a gap in silence."""

import dataclasses
import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.binlog_source.pump.server import PumpServer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import fake
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset, PumpMark, from_json
from pyspark_tidb_binlog.binlog_source.source.options import StreamOptions, options_of
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.source.tails import Tails
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.conf.model import PumpConfig, SourceConfig
from pyspark_tidb_binlog.schemas.errors import DamagedLog
from pyspark_tidb_binlog.schemas.events import ControlType, Delivery
from tests.support.eventually import eventually
from tests.support.fakes.scripted_pump import Asked, ScriptedPump, message
from tests.support.store_model import commit, prewrite
from tests.support.stream_reader import next_offset

pytestmark = [pytest.mark.grpc, pytest.mark.spark]

TRIES = 50
"""Each try waits up to 0.2 s inside ``latestOffset``."""


@dataclasses.dataclass
class World:
    """One Pump with a data directory that can be replaced, and a stream of it."""

    directory: Path
    delivery: Delivery
    strict: bool

    def __post_init__(self) -> None:
        self.config = PumpConfig(
            "p1", "127.0.0.1:0", data_dir=str(self.directory / "p"), cluster_id=7, fake_binlog_interval=0, stop_write_at_available_space=""
        )
        self.pump = PumpServer(self.config).start()
        self.config = dataclasses.replace(self.config, addr=self.pump.address)
        self.ts = 100
        self.source = SourceConfig(self.pump.address, 7, str(self.delivery), 1, fail_on_data_loss=self.strict)
        self.rows: list[tuple[int, int]] = []
        self.begin_stream()
        self.at = self.reader.initialOffset()

    def begin_stream(self) -> None:
        self.reader = BinlogStreamReader(options_of(self.source, StreamOptions(patience=3.0, read_patience=3.0)))

    def write(self, count: int, size: int = 10) -> list[int]:
        """So many transactions; their commit_ts."""
        commits = []
        for _ in range(count):
            self.ts += 10
            self.pump.service.store.write([prewrite(self.ts, b"v" * size), commit(self.ts, self.ts + 5)])
            commits.append(self.ts + 5)
        self.pump.service.store.catch_up()
        return commits

    def batch(self, end: dict[str, Any]) -> None:
        for partition in self.reader.partitions(self.at, end):
            for rows in self.reader.read(partition):
                self.rows += [(row["control"] or row["tp"], row["commit_ts"]) for row in rows.to_pylist()]
        self.at = end

    def plan(self) -> dict[str, Any]:
        return self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())

    def read(self, upto: int) -> None:
        for _ in range(TRIES):
            end = self.plan()
            if end != self.at:
                self.batch(end)
            if from_json(self.at).resolved_ts >= upto:
                return
        raise AssertionError(f"R is {from_json(self.at).resolved_ts} and does not come to {upto}")

    def of(self, tp: int) -> list[int]:
        return [ts for kind, ts in self.rows if kind == tp]

    def back_up(self) -> None:
        self.pump.stop()
        shutil.copytree(self.directory / "p", self.directory / "backup")
        self.pump = PumpServer(self.config).start()

    def restore(self, how: str) -> None:
        self.pump.stop()
        shutil.rmtree(self.directory / "p")
        if how == "backup":
            shutil.copytree(self.directory / "backup", self.directory / "p")
        self.pump = PumpServer(self.config).start()

    def stop(self) -> None:
        self.reader.stop()
        self.pump.stop()


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Five transactions are in a backup, twenty more are read."""
    made = World(tmp_path, *request.param)
    made.write(5)
    made.back_up()
    made.read(made.write(20)[-1])
    yield made
    made.stop()


STRICT = [(delivery, True) for delivery in Delivery]
LOSSY = [(delivery, False) for delivery in Delivery]


def combinations(worlds: list[tuple[Delivery, bool]], *grown: int) -> list[Any]:
    """Each world, by each way of a restore, with each growth and either life of the drainer; any two of them meet in the half that is not slow."""
    ways = list(itertools.product(enumerate(worlds), enumerate(("backup", "empty")), grown, enumerate(("goes on", "restarts"))))
    return [
        pytest.param(world, how, more, drainer, id=f"{world[0]}-{how}-{more}-{drainer}", marks=pytest.mark.slow if (a + b + c) % 2 else ())
        for (a, world), (b, how), more, (c, drainer) in ways
    ]


WORDS = (
    r"Pump \S+ has a different log from the one that was read .*commit_ts 355 .*its log now ends at 000000.vlog:\d+ .*failOnDataLoss=false"
)


@pytest.mark.parametrize(("world", "how", "grown", "drainer"), combinations(STRICT, 0, 10, 60), indirect=["world"])
def test_another_log_is_one_clear_error(world: World, how: str, grown: int, drainer: str) -> None:
    if drainer == "restarts":
        world.reader.stop()
    world.restore(how)
    world.write(grown, size=17)
    if drainer == "restarts":
        world.begin_stream()
    with pytest.raises(DamagedLog, match=WORDS):
        for _ in range(TRIES):
            world.plan()


@pytest.mark.parametrize(("world", "how", "grown", "drainer"), combinations(LOSSY, 1, 60), indirect=["world"])
def test_or_a_finding_and_all_that_it_has_arrives(world: World, how: str, grown: int, drainer: str) -> None:
    if drainer == "restarts":
        world.reader.stop()
    world.restore(how)
    new = world.write(grown, size=17)
    if drainer == "restarts":
        world.begin_stream()
    world.read(new[-1])
    assert set(new) <= set(world.of(1)) and len(world.of(ControlType.LOST)) == 1
    more = world.write(3)
    world.read(more[-1])
    assert world.of(1)[-3:] == more and len(world.of(ControlType.LOST)) == 1, "that is its log from now on"


@pytest.mark.parametrize("world", STRICT + LOSSY, indirect=True, ids=str)
def test_a_batch_that_was_planned_before_is_not_read_from_another_log(world: World) -> None:
    world.write(3)
    end = next_offset(world.reader, world.at)
    world.restore("backup")
    world.write(60, size=17)
    if world.strict:
        with pytest.raises(DamagedLog, match="Pump .* has a different log"):
            world.batch(end)
    else:
        world.batch(end)
        assert len(world.of(ControlType.LOST)) == 1


@pytest.mark.parametrize("world", STRICT, indirect=True, ids=str)
def test_what_was_told_and_not_read_counts_too(world: World) -> None:
    """The stream stands still before the place where the backup ends; the driver knows of more."""
    at = world.at
    world.write(3)
    eventually(lambda: world.plan() != at)
    world.pump.stop()
    world.directory.joinpath("late").mkdir()
    shutil.copytree(world.directory / "p", world.directory / "late" / "p")
    world.pump = PumpServer(world.config).start()
    world.write(3)
    eventually(lambda: from_json(world.plan()).resolved_ts == world.ts + 5, pause=0.1)
    shutil.rmtree(world.directory / "backup")
    shutil.move(world.directory / "late" / "p", world.directory / "backup")
    world.restore("backup")
    with pytest.raises(DamagedLog, match="Pump .* has a different log"):
        for _ in range(TRIES):
            world.plan()
            time.sleep(0.1)


@pytest.mark.parametrize("world", STRICT, indirect=True, ids=str)
def test_a_pump_that_comes_back_with_its_log_is_the_same(world: World) -> None:
    for rebuilt in (False, True):
        world.pump.stop()
        if rebuilt:
            shutil.rmtree(world.directory / "p" / "index")
        world.pump = PumpServer(world.config).start()
        world.read(world.write(2)[-1])
    world.reader.stop()
    world.begin_stream()
    world.pump.service.store.write([fake(world.ts + 100)])
    world.read(world.ts + 100)
    assert not world.of(ControlType.LOST)


def test_an_old_checkpoint_knows_its_position_alone(tmp_path: Path) -> None:
    made = World(tmp_path, Delivery.RAW, True)
    end = made.pump.service.store.write([fake(105)]) or made.pump.service.store.catch_up().at
    made.reader.stop()
    made.begin_stream()
    old = BinlogOffset(Delivery.RAW, 105, 1, {made.pump.address: PumpMark(Position(*end))}, 105)
    made.at = old.to_json()
    made.read(made.write(1)[-1])
    made.reader.stop()
    made.begin_stream()
    made.at = dataclasses.replace(old, pumps={made.pump.address: PumpMark(Position(0, 9999))}).to_json()
    with pytest.raises(DamagedLog, match=r"read up to 000000.vlog:9999: its log now ends at 000000.vlog:\d+ "):
        for _ in range(TRIES):
            made.plan()
    made.stop()


class RealLog:
    """A real Pump's log of fakes, sorted; a pull ends when ``over``."""

    def __init__(self, *stamps: int) -> None:
        self.stamps = stamps
        self.over = threading.Event()

    def __call__(self, asked: Asked) -> Iterator[bytes]:
        for ts in self.stamps:
            if ts > asked.offset:
                yield message(2, ts, ts)
        self.over.wait(10)
        self.over.clear()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_real_pump_must_give_its_last_binlog_again(strict: bool, restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.binlog_source.source.tails.kept_by_real", lambda endpoint, ts, newest_ts=0: 0)
    tails = Tails(strict)
    start = BinlogOffset(Delivery.SORTED, 20, 10, {"p": PumpMark(Position(0, 20), seen_ts=20)})
    log = RealLog(10, 20, 30)
    with ScriptedPump(log) as pump:
        endpoints = {"p": Endpoint("p", pump.address, 1)}

        def promise(upto: int) -> bool:
            views = tails.views(start)
            return views is not None and bool(views["p"].steps) and views["p"].steps[-1].sorted_promise == upto

        if not restarts:
            tails.follow(endpoints, 20, start)
            assert tails.wait(lambda: promise(30), 5)
        log.stamps = (10, 20, 30, 40)
        log.over.set()
        tails.follow(endpoints, 20, start)
        assert tails.wait(lambda: promise(40), 5), "the same log goes on"
        log.stamps = (10, 50)
        log.over.set()
        if strict:
            with pytest.raises(DamagedLog, match="Pump p has a different log from the one that was read in order, commit_ts 40 "):
                tails.wait(lambda: promise(50), 5)
        else:
            assert tails.wait(lambda: promise(50), 5)
            views = tails.views(start)
            assert views is not None and views["p"].anew
        log.over.set()
        tails.stop()
        log.over.set()


def test_binlogs_of_a_real_pump_between_its_last_step_and_r_are_no_fault() -> None:
    """Steps are joined, so the last whole one up to R may end before it; the pull that checks the log starts there."""
    tails = Tails(True)
    start = BinlogOffset(Delivery.SORTED, 25, 10, {"p": PumpMark(Position(0, 25), seen_ts=20)})
    log = RealLog(10, 20, 22, 25, 30)
    with ScriptedPump(log) as pump:
        tails.follow({"p": Endpoint("p", pump.address, 1)}, 25, start)

        def promise() -> int:
            views = tails.views(start)
            return views["p"].steps[-1].sorted_promise if views is not None and views["p"].steps else 0

        assert tails.wait(lambda: promise() == 30, 5)
        views = tails.views(start)
        assert views is not None and [step.sorted_promise for step in views["p"].steps] == [30]
        tails.stop()
        log.over.set()
