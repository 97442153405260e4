"""``verify --follow`` beside a whole Drainer: what has changed is read from the Pumps and compared, whatever the key's type; a row that is spoiled is found."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.binlog_source.changes.change_options import source_options
from pyspark_tidb_binlog.binlog_source.changes.change_readers import changed_images
from pyspark_tidb_binlog.binlog_source.pump_client.client import PumpClient
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, PumpConfig, SourceConfig
from pyspark_tidb_binlog.jobs.check import verify_follow
from pyspark_tidb_binlog.jobs.check.node_report import rest
from pyspark_tidb_binlog.jobs.check.verify_follow import Follow
from pyspark_tidb_binlog.jobs.check.verify_run import VerifyRun
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.lab.pump_process import PumpProcess
from pyspark_tidb_binlog.jobs.lab.registry.cluster_service import ClusterService
from pyspark_tidb_binlog.jobs.lab.registry.oracle import Oracle
from pyspark_tidb_binlog.jobs.stream.replication import Replication
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.sinks.mysql.password import Here
from pyspark_tidb_binlog.sinks.verify import standing
from pyspark_tidb_binlog.sinks.verify.verification import RoundDone, Verification, VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import VerificationTable, verified_at
from tests.support.beside import Beside
from tests.support.eventually import eventually
from tests.support.mirrored_upstream import MirroredUpstream
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.grpc, pytest.mark.mysql, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CLUSTER_ID = 29
MARKS = "follow_marks"
KEYS = {
    "item": ("bigint unsigned",),
    "texts": ("varchar(20)", "int"),
    "moments": ("datetime(3)", "date"),
    "bytes": ("varbinary(9)",),
    "amounts": ("decimal(20,4)", "time"),
}
LOG = Table("log", (Column("a", "int"), Column("b", "varchar(10)")))


def tables() -> Iterator[Table]:
    for name, kinds in KEYS.items():
        columns = tuple(Column(f"k{n}", kind) for n, kind in enumerate(kinds))
        yield Table(name, (*columns, Column("v", "int"), Column("w", "varchar(20)")), tuple(c.name for c in columns))


def key_of(number: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    values = {
        "bigint unsigned": 2**63 + number,
        "varchar(20)": f"it's \\ {'äÄ'[number % 2]}{number // 2}",
        "int": -number,
        "datetime(3)": f"2024-02-29 12:{number // 60 % 60:02d}:{number % 60:02d}.{number % 1000:03d}",
        "date": f"2024-03-{1 + number % 28:02d}",
        "varbinary(9)": bytes([0, 0x27, 0x5C, number % 256, number // 256]),
        "decimal(20,4)": f"-{number}.{number % 10000:04d}",
        "time": f"-{number % 800:03d}:00:01",
    }
    return {f"k{n}": values[kind] for n, kind in enumerate(kinds)}


class Shown:
    """What a verification shows."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.tables: list[VerifiedTable] = []

    def say(self, words: str) -> None:
        self.said.append(words)

    def round(self, found: RoundDone) -> None:
        pass

    def table(self, found: VerifiedTable, words: Sequence[str], result: object = None) -> None:
        self.tables.append(found)

    def end(self, total: object) -> None:
        raise AssertionError("it has no end")

    def changed(self) -> int:
        """How many changed rows were equal."""
        return sum(int(words.split(": ")[1].split()[0].replace(",", "")) for words in self.said if "had changed: equal" in words)


@pytest.fixture
def site(tmp_path: Path, mariadb: PrivateMariaDB) -> Iterator[tuple[MirroredUpstream, DrainerConfig]]:
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(RealMariaDB())
        service = ClusterService(Oracle(), CLUSTER_ID).start()
        stack.callback(service.stop)
        begin = service.oracle.next()
        pumps = [
            PumpProcess(
                PumpConfig(
                    f"pump-{number}",
                    "127.0.0.1:0",
                    data_dir=str(tmp_path / f"pump-{number}"),
                    registry=service.url,
                    cluster_id=CLUSTER_ID,
                    fake_binlog_interval=0.2,
                )
            )
            for number in (1, 2)
        ]
        addresses = [stack.enter_context(pump).address for pump in pumps]
        upstream = stack.enter_context(Upstream(PumpClient.fixed(addresses, CLUSTER_ID), oracle=service.oracle))
        service.servers = {"the-mirror": {"ip": "10.0.0.1", "listening_port": 4000}}
        service.history, service.mvcc = upstream.jobs, upstream.mvcc.look_up
        mirror = MirroredUpstream(upstream, source)
        stack.callback(mirror.close)
        config = DrainerConfig(
            source=SourceConfig(pumps=service.url, cluster_id=CLUSTER_ID, tidb_status=service.url, starting_commit_ts=begin),
            target=mariadb.target(),
            apply=ApplyConfig(checkpoint_schema=MARKS, on_finding="stop", replicate_do_db=("shop",)),
            checkpoint_dir=str(tmp_path / "spark"),
            delta_dir=str(tmp_path / "delta"),
            addr="127.0.0.1:0",
        )
        mirror.create_database("shop")
        for table in (*tables(), LOG):
            mirror.create_table("shop", table)
        yield mirror, config
        for name in ("shop", MARKS):
            run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")


class Writing(Beside):
    """Rows come, change and go in each table."""

    def __init__(self, mirror: MirroredUpstream) -> None:
        super().__init__()
        self._mirror, self._chance, self._number = mirror, random.Random(3), 0
        self.there: dict[str, dict[int, Any]] = {name: {} for name in KEYS}

    def work(self) -> None:
        self._number += 1
        self._mirror.change(partial(self._work, number=self._number, chance=self._chance))

    def _work(self, txn: Any, number: int, chance: random.Random) -> None:
        for name, kinds in KEYS.items():
            rows, key = self.there[name], key_of(number, kinds)
            txn.insert(f"shop.{name}", key | {"v": number, "w": "new"})
            rows[number] = key["k0"] if name == "item" else tuple(key.values())
            if number - 3 in rows:
                txn.update(f"shop.{name}", rows[number - 3], {"v": -number})
            if number % 4 == 0:
                txn.delete(f"shop.{name}", rows.pop(number - 2))
        txn.insert("shop.log", {"a": chance.randrange(5), "b": "x"})


@contextlib.contextmanager
def following(mirror: MirroredUpstream, config: DrainerConfig) -> Iterator[tuple[Shown, Verification]]:
    run, flavour = verification(config, mirror.reader(Here), rate=100_000)
    shown, stop = Shown(), threading.Event()
    record = VerificationTable(config.verification_dir, 3600.0, flavour, "all tables of the target")
    failed = list[BaseException]()

    def until_stop() -> None:
        try:
            Follow(config, run, VerifyRun(shown, record, lambda found: []), record).until(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=until_stop)
    thread.start()
    try:
        yield shown, run
    finally:
        stop.set()
        thread.join()
        run.close()
    assert not failed and not record.trouble


def test_what_changes_is_compared(
    site: tuple[MirroredUpstream, DrainerConfig], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, config = site
    monkeypatch.setattr(verify_follow, "LOOK_SECONDS", 1.0)
    monkeypatch.setattr(verify_follow, "PASS_SECONDS", 5.0)
    with Replication(spark, config) as replication, Writing(mirror) as writing:
        eventually(lambda: len(writing.there["item"]) > 20, seconds=60)
        ts = mirror.tick()
        eventually(lambda: replication.reached(ts), seconds=60)
        with following(mirror, config) as (shown, _):
            eventually(lambda: shown.changed() > 200, seconds=180, what="200 changed rows compared", seen=lambda: shown.said)
            eventually(
                lambda: {table.name for table in shown.tables} == {f"shop.{name}" for name in (*KEYS, "log")}, seconds=60, what="a pass"
            )
            assert not [table for table in shown.tables if table.tally is None or table.tally.differing], [
                words for words in shown.said if "DIFFER" in words
            ]


def test_what_changed_while_it_was_away_is_compared(
    site: tuple[MirroredUpstream, DrainerConfig], spark: SparkSession, mariadb: PrivateMariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, config = site
    monkeypatch.setattr(verify_follow, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(verify_follow, "PASS_SECONDS", 5.0)
    monkeypatch.setattr(standing, "SETTLE_SECONDS", 1.0)

    def until(condition: Callable[[], bool], what: str = "") -> None:
        """The mirror's clock goes on meanwhile."""
        eventually(lambda: mirror.tick() and condition(), seconds=60, what=what, pause=0.1)

    with Replication(spark, config) as replication:
        ts = mirror.tick()
        until(lambda: replication.reached(ts))
        with following(mirror, config) as (shown, _):
            until(lambda: len(shown.tables) == len(KEYS) + 1, "a pass")
            ts = mirror.change(lambda txn: txn.insert("shop.log", {"a": 1, "b": "x"}))
            until(lambda: "0 rows had changed: equal" in " ".join(shown.said))
        ts = mirror.change(lambda txn: [txn.insert("shop.item", key_of(n, KEYS["item"]) | {"v": n, "w": "x"}) for n in range(300)])
        until(lambda: replication.reached(ts))
        with following(mirror, config) as (shown, _):
            until(lambda: shown.changed() == 300, "the rows of the time between")

            def spoiled() -> bool:
                """A row has changed, and is spoiled before the next look."""
                ts, looks = mirror.change(lambda txn: txn.update("shop.item", 2**63 + 7, {"v": random.getrandbits(31)})), len(shown.said)
                until(lambda: replication.reached(ts))
                run_sql(mariadb, f"UPDATE shop.item SET w = 'X' WHERE k0 = {2**63 + 7}")
                until(lambda: len(shown.said) > looks + 1)
                return any(table.tally and table.tally.differing for table in shown.tables)

            until(spoiled, "a spoiled row found")
            where = config.verification_dir
            until(lambda: (found := verified_at(where)) is not None and "shop.item" in found.differing, "it is recorded")
            assert not any(table.tally and table.tally.differing for table in shown.tables if table.name != "shop.item")
            run_sql(mariadb, f"UPDATE shop.item SET w = 'x' WHERE k0 = {2**63 + 7}")
            until(lambda: (found := verified_at(where)) is not None and "shop.item" not in found.differing, "well again")
    changes = changed_images(source_options(config), config.source.starting_commit_ts, ts)
    assert sorted(len(images) for found in changes for images in found.values()) == [1, 300]


def test_a_table_that_is_renamed_is_compared_at_the_next_look(
    site: tuple[MirroredUpstream, DrainerConfig], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes before have its old name. The mirror, whose names have no versions, follows the target."""
    mirror, config = site
    monkeypatch.setattr(verify_follow, "LOOK_SECONDS", 0.5)
    with Replication(spark, config) as replication:
        ts = mirror.change(lambda txn: txn.insert("shop.log", {"a": 1, "b": "x"}))
        eventually(lambda: replication.reached(ts), seconds=60)
        with following(mirror, config) as (shown, _):
            eventually(lambda: mirror.tick() and len(shown.tables) == len(KEYS) + 1, seconds=60, pause=0.1, what="a pass")
            mirror.upstream.ddl.rename("shop.log", "shop.diary")
            ts = mirror.tick()
            eventually(lambda: mirror.tick() and replication.reached(ts), seconds=60, pause=0.1)
            mirror.sql("RENAME TABLE shop.log TO shop.diary")
            mirror.alter("shop.diary", "COMMENT ''")
            eventually(lambda: mirror.tick() and shown.tables[-1].name == "shop.diary", seconds=60, pause=0.1, seen=lambda: shown.said)
            assert (shown.tables[-1].tally.rows, shown.tables[-1].tally.differing) == (1, 0)


def test_a_drainer_rests_between_two_batches_and_goes_on(site: tuple[MirroredUpstream, DrainerConfig], spark: SparkSession) -> None:
    mirror, config = site
    with Replication(spark, config) as replication:
        ts = mirror.tick()
        eventually(lambda: replication.reached(ts), seconds=60)
        assert rest(config, 3.0) == ""
        begun = time.monotonic()
        ts = mirror.change(lambda txn: txn.insert("shop.log", {"a": 1, "b": "x"}))
        eventually(lambda: replication.reached(ts), seconds=60)
        assert time.monotonic() - begun > 2.0
        assert rest(config, 60.0) == ""
        ts = mirror.change(lambda txn: txn.insert("shop.log", {"a": 1, "b": "x"}))
        time.sleep(1.0)
        assert not replication.reached(ts) and rest(config, 0.0) == ""
        eventually(lambda: replication.reached(ts), seconds=30)
    assert "is registered" in rest(config, 1.0) or "does not answer" in rest(config, 1.0) or "where it is" in rest(config, 1.0)
