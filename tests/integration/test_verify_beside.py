"""Equal tables are equal while a real stream writes them, by every way of applying; a row that is spoiled meanwhile is found, and no other."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.online import add_index
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.values import EVERY_TYPE, value_for
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.verify import verification
from pyspark_tidb_binlog.sinks.mysql.password import Here
from pyspark_tidb_binlog.sinks.verify.repair import Kind
from pyspark_tidb_binlog.sinks.verify.repairing import Repairing
from pyspark_tidb_binlog.sinks.verify.standing import Readers
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from tests.support.beside import Beside
from tests.support.bootstrapped_stream import BootstrappedStream
from tests.support.eventually import eventually
from tests.support.private_mysql import RealMariaDB
from tests.support.target_rows import run_sql
from tests.support.verify_site import tables_of

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "verify_beside_marks"
ITEM = Table("item", (Column("id", "bigint unsigned"), Column("v", "int"), Column("f", "float"), Column("t", "varchar(20)")), ("id",))
KEYLESS = Table("log", (Column("a", "int"), Column("b", "varchar(10)")))
NAMED = Table("named", (Column("k", "varchar(20)"), Column("n", "int"), Column("v", "varbinary(9)")), ("k", "n"))
TYPES = Table("types", (Column("id", "bigint"), *(Column(f"c{i}", kind) for i, kind in enumerate(EVERY_TYPE) if kind != "json")), ("id",))
"""A MariaDB, which stands for the upstream, has JSON as a text."""
MODES: dict[str, dict[str, Any]] = {
    "driver": {},
    "parts": {"atomic_rows": 1, "parts": 2},
    "rows": {"net_change": False, "worker_count": 2, "txn_batch": 2},
}


@pytest.fixture(scope="module")
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


@pytest.fixture(params=MODES)
def stream(
    spark: SparkSession, mariadb: PrivateMariaDB, source: PrivateMariaDB, request: pytest.FixtureRequest
) -> Iterator[BootstrappedStream]:
    apply = ApplyConfig(checkpoint_schema=MARKS, on_finding="stop", replicate_do_db=("shop",), **MODES[request.param])
    made = BootstrappedStream(spark, DrainerConfig(target=mariadb.target(), apply=apply), source)
    yield made
    made.restart()
    made.mirror.close()
    for name in ("shop", MARKS):
        run_sql(mariadb, f"DROP DATABASE IF EXISTS {name}")


class Workload(Beside):
    """Transactions of every kind, each applied at once."""

    pause = 0.0

    def __init__(self, stream: BootstrappedStream, seed: int) -> None:
        super().__init__()
        self._stream, self._chance = stream, random.Random(seed)
        self.batches = 0

    def work(self) -> None:
        for _ in range(3):
            self._stream.change(lambda txn: self._work(txn, self._chance))
        self._stream.apply()
        self.batches += 1

    def _work(self, txn: Any, chance: random.Random) -> None:
        rows = {name: sorted(self._stream.upstream.rows(f"shop.{name}")) for name in ("item", "log", "named")}
        txn.insert("shop.item", {"id": chance.getrandbits(64), "v": None, "f": chance.random(), "t": "it's"})
        txn.update("shop.item", chance.choice(rows["item"]), {"v": chance.getrandbits(31)})
        txn.delete("shop.item", rows["item"][0])
        txn.insert("shop.log", {"a": chance.randrange(5), "b": "x"})
        txn.delete("shop.log", chance.choice(rows["log"]))
        txn.update("shop.named", chance.choice(rows["named"]), {"v": chance.randbytes(9)})


class Ticks(Beside):
    """The upstream's clock goes on while the stream waits for a repair."""

    pause = 0.05

    def __init__(self, stream: BootstrappedStream) -> None:
        super().__init__()
        self._stream = stream

    def work(self) -> None:
        self._stream.mirror.tick()


def verified(stream: BootstrappedStream) -> dict[str, VerifiedTable]:
    stream.mirror.tick()  # S may be younger than the last transaction
    run, _ = verification(stream._config, stream.mirror.reader(Here))
    run.pace.size = 20
    return {table.name.removeprefix("shop."): table for table in tables_of(run)}


def test_equal_while_it_is_written(stream: BootstrappedStream, mariadb: PrivateMariaDB) -> None:
    stream.mirror.create_database("shop")
    for table in (ITEM, KEYLESS, NAMED, TYPES):
        stream.mirror.create_table("shop", table)
    history = stream.history()
    types = history.find("shop", "types", history.newest_version)
    assert types is not None

    def fill(txn: Any) -> None:
        chance = random.Random(5)
        for number in range(1, 200):
            txn.insert("shop.item", {"id": number, "v": number, "f": 0.1 * number, "t": f"it's {number}\\"})
            txn.insert("shop.log", {"a": number % 5, "b": "x"})
            txn.insert("shop.named", {"k": f"k{number % 3}", "n": number, "v": bytes([0, number, 0x27, 0x5C])})
            txn.insert("shop.types", {c.name: value_for(c, chance) for c in types.info.target_columns()} | {"id": number})

    stream.change(fill)
    stream.apply()
    seen = set[int]()
    with Workload(stream, 7) as work:
        for number in range(8):
            found = verified(stream)
            assert {name: t.tally.differing for name, t in found.items()} == {"item": 0, "log": 0, "named": 0, "types": 0}
            assert all(t.tally.rows > 100 for t in found.values())
            # The mirror's own column stands for TiDB's hidden handle.
            assert {one.words for t in found.values() for one in t.left_out} == {"column _tidb_rowid missing"}
            seen |= {t.ts for t in found.values()}
            if number == 4:
                with stream.mirror._lock:
                    stream.upstream.ddl.alter("shop.item", add_index("by_v", "v"))
    assert len(seen) > 3 and work.batches > 3
    run_sql(mariadb, "UPDATE shop.types SET c3 = COALESCE(c3, 0) ^ 1 WHERE id = 77")
    run_sql(mariadb, "DELETE FROM shop.log WHERE a = 3 LIMIT 1")
    run_sql(mariadb, "INSERT INTO shop.named VALUES ('K1', 1000, NULL)")
    spoiled = verified(stream)
    assert {name: [d.kind for d in t.tally.listed] for name, t in spoiled.items()} == {
        "item": [],
        "log": [Kind.MISSING],
        "named": [Kind.EXTRA],
        "types": [Kind.CHANGED],
    }
    repairing = Repairing(Readers(stream._config, stream.upstream.cluster_id, stream.mirror.reader(Here), 1))
    with Workload(stream, 8) as work, Ticks(stream):
        batches = work.batches
        for table in (spoiled[name] for name in ("log", "named", "types")):
            eventually(lambda batches=batches: work.batches > batches)
            done, batches = repairing.repair(table), work.batches
            assert (len(done.repaired), done.left, done.ts > table.ts) == (len(table.tally.listed), [], True)
        assert {name: t.tally.differing for name, t in verified(stream).items()} == {"item": 0, "log": 0, "named": 0, "types": 0}
