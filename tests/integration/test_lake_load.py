"""Tables that a lake loads from a server beside its stream: its mirrors are what the same rows are by binlogs, in every type, whatever is written meanwhile."""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig
from pyspark_tidb_binlog.jobs.entry.drainer_options import NO_BOOTSTRAP, BootstrapRequest
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column
from pyspark_tidb_binlog.jobs.lab.emulator.values import value_for
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.jobs.stream.table_loader import StreamStand, TableLoader
from pyspark_tidb_binlog.jobs.stream.targets import sink_of
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.column_pairs import visible
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.sinks.bootstrap import lake_load, mirror_rows
from pyspark_tidb_binlog.sinks.bootstrap.bootstrap import unless_stopped
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import Handle, Key
from pyspark_tidb_binlog.sinks.bootstrap.lake_load import LakeLoad
from pyspark_tidb_binlog.sinks.bootstrap.snapshot_source import SnapshotSource
from pyspark_tidb_binlog.sinks.lake import mirrors
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
from pyspark_tidb_binlog.sinks.lake.moments import LOADING, MIRRORED
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.mysql.password import Here, ShippedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session
from tests.integration.test_bootstrap import ALL, ITEM, KEYLESS, NAMED, TYPES, filled, more_changes, shop
from tests.support.bootstrapped_stream import BootstrappedStream
from tests.support.eventually import eventually
from tests.support.golden_case import load_case
from tests.support.golden_messages import replicate, spans_of
from tests.support.mirror_rows import assert_mirrored, by_delta, by_spark, image_of, published
from tests.support.mirrored_upstream import _GONE
from tests.support.private_mysql import RealMariaDB
from tests.support.recorded_upstream import STEPS, RecordedUpstream, begin_of, spans_from
from tests.support.target_rows import run_sql

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


@pytest.fixture
def run(spark: SparkSession, source: PrivateMariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BootstrappedStream]:
    """A stream of small tables into a lake."""
    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.1)
    apply = ApplyConfig(db_type="lake", lake_interval=0.0, mirror_interval=0.0, lease_timeout=2.0)
    made = BootstrappedStream(spark, DrainerConfig(apply=apply, files=FileConfig(dir=str(tmp_path / "lake"))), source)
    shop(made, ITEM, KEYLESS, NAMED)
    filled(made)
    yield made
    made.restart()
    made.mirror.close()


def loaded(lake: Path) -> bool:
    return all(s.state != LOADING for s in published(lake).values())


def loaded_anew(lake: Path, name: str, before: str) -> bool:
    """By one look: a table that is to be loaded has no path."""
    found = published(lake)
    return all(s.state != LOADING for s in found.values()) and found[name].path != before


def await_loads(run: BootstrappedStream, condition: Callable[[], bool]) -> None:
    """The upstream goes on meanwhile: only then it can be read at any moment of the lake."""

    def met() -> bool:
        run.mirror.tick()
        return condition()

    eventually(met, seconds=60, pause=0.1)


def rows(lake: Path) -> dict[str, list[dict[str, Any]]]:
    """All tables, which are mirrored."""
    found = published(lake)
    assert {s.state for s in found.values()} == {MIRRORED}, found
    return {n: sorted(({c: image_of(v) for c, v in row.items()} for row in by_delta(lake, s)), key=repr) for n, s in found.items()}


def assert_whole(run: BootstrappedStream, place: Path) -> None:
    """The lake is what another one has, in which everything came by binlogs."""
    run.request = NO_BOOTSTRAP
    run.restart(replace(run._config, files=FileConfig(dir=str(place / "whole"))))
    run.apply()
    run.restart()
    assert rows(place / "lake") == rows(place / "whole")


@pytest.mark.shows("drainer --bootstrap-all")
@pytest.mark.parametrize("few", [1 << 30, 0], ids=["here", "executors"])
def test_a_first_load_and_the_stream_are_what_binlogs_make(
    few: int, run: BootstrappedStream, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_rows, "FEW_ROWS", few)
    jobs: list[object] = []
    monkeypatch.setattr(lake_load, "unless_stopped", lambda *given: jobs.append(given) or unless_stopped(*given))
    lake, chance = tmp_path / "lake", random.Random(7)
    run.mirror.create_table("shop", TYPES)
    history = run.history()
    table = history.find("shop", "types", history.newest_version)
    assert table is not None
    for number in range(40):
        values = {c.name: value_for(c, chance) for c in table.info.target_columns()} | {"id": number}
        run.change(lambda txn, values=values: txn.insert("shop.types", values))
    run.begin(ALL)
    for number in range(6):
        more_changes(run, number)
        run.apply()
    await_loads(run, lambda: loaded(lake))
    assert_whole(run, tmp_path)
    assert bool(jobs) is (not few)
    assert len(rows(lake)) == 4 and len(rows(lake)["shop.types"]) == 40
    if not few:
        state = published(lake)["shop.types"]
        wanted, found = by_delta(lake, state), by_spark(spark)(lake, state)
        assert sorted(row["id"] for row in found) == sorted(row["id"] for row in wanted)
        assert all(row.keys() == wanted[0].keys() for row in found)


@pytest.mark.shows("drainer --bootstrap")
def test_a_table_is_loaded_again_and_by_a_drainer_that_runs(run: BootstrappedStream, spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run.apply()
    eventually(lambda: len(published(lake)) == 3, pause=0.1)
    paths = {name: s.path for name, s in published(lake).items()}
    more_changes(run, 1)
    run.mirror.tick()
    run.begin(BootstrapRequest(tables=(("SHOP", "item"), ("shop", "LOG"))))
    more_changes(run, 2)
    run.apply()
    await_loads(run, lambda: loaded_anew(lake, "shop.log", paths["shop.log"]))
    assert {name for name, s in published(lake).items() if s.path != paths[name]} == {"shop.item", "shop.log"}
    loader = TableLoader(spark, run._config, NO_BOOTSTRAP, run.stop, run.mirror.reader(spark.sparkContext.broadcast))
    history = run.history()
    stand = StreamStand(run.sink.commit_ts, history.newest_version, history, {})
    run.sink.load(loader.named("shop.named", stand))
    more_changes(run, 3)
    run.apply()
    await_loads(run, lambda: loaded_anew(lake, "shop.named", paths["shop.named"]))
    assert_whole(run, tmp_path)
    for names, words in {
        "shop.ghost": r"reload-tables shop.ghost: no such table is replicated at the checkpoint",
        "mysql.user": "no such table is replicated",
        "item": "give tables as DB.TABLE",
    }.items():
        with pytest.raises((BootstrapRefused, ConfigError), match=words):
            loader.named(names, stand)
    with pytest.raises(ConfigError, match=r"spark\.upstream\.host is empty"):
        TableLoader(spark, run._config, NO_BOOTSTRAP, run.stop).named("shop.item", stand)
    with pytest.raises(ConfigError, match="its target is no lake"):
        TableLoader(spark, DrainerConfig(), NO_BOOTSTRAP, run.stop).named("shop.item", stand)
    with pytest.raises(ConfigError, match="--bootstrap-restart: a lake loads each table from its beginning"):
        TableLoader(spark, run._config, BootstrapRequest(restart=True), run.stop)


def test_a_table_that_was_set_aside_is_loaded_by_itself(run: BootstrappedStream, tmp_path: Path) -> None:
    """After a conversion that only TiDB computes."""
    lake = tmp_path / "lake"
    run._config = replace(run._config, upstream=replace(run._config.upstream, host="127.0.0.1"))
    run.begin()
    run.apply()
    eventually(lambda: len(published(lake)) == 3, pause=0.1)
    path = published(lake)["shop.item"].path
    run.upstream.ddl.modify_column("shop.item", Column("t", "varbinary(20)"), convert=lambda text: text)
    run.mirror.alter("shop.item", "MODIFY t VARBINARY(20)")
    more_changes(run, 1)
    run.apply()
    await_loads(run, lambda: published(lake)["shop.item"].state == MIRRORED and loaded_anew(lake, "shop.item", path))
    more_changes(run, 2)
    run.apply()
    run.restart()
    found = sorted((int(row["id"]), row["v"], row["t"]) for row in rows(lake)["shop.item"])
    assert found == run.mirror.sql("SELECT id, v, t FROM shop.item ORDER BY id") and len(found) == 40


def test_gc_that_has_passed_is_waited_out_and_while_a_table_is_read_sets_it_aside(
    run: BootstrappedStream, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, real, left = tmp_path / "lake", lake_load._Mirror.written, ["item"]

    def written(self: Any, session: Session, *given: Any) -> Any:
        if self.table.name in left:
            session.execute(_GONE)
        return real(self, session, *given)

    run.apply()
    eventually(lambda: len(published(lake)) == 3, pause=0.1)
    monkeypatch.setattr(lake_load._Mirror, "written", written)
    run.mirror.collect((1 << 63) - 1)
    run.mirror.tick()
    run.begin(BootstrapRequest(tables=(("shop", "*"),)))
    eventually(lambda: {s.state for s in published(lake).values()} == {LOADING}, pause=0.1)
    time.sleep(0.5)
    now = Lake(spark, lake)
    assert {row["state"] for row in now.tables().collect()} == {LOADING}
    with pytest.raises(ConfigError, match=r"shop.item is not loaded yet.*lake\.at\(\d+\)") as refused:
        now.table("shop.item")
    before = re.search(r"lake\.at\((\d+)\)", str(refused.value))
    assert before is not None and now.at(before[1]).table("shop.item").count() == 40
    run.mirror.collect(0)
    await_loads(run, lambda: loaded(lake))
    found = published(lake)
    assert {name: s.state for name, s in found.items()} == {"shop.item": "stale", "shop.log": MIRRORED, "shop.named": MIRRORED}
    assert "raise tidb_gc_life_time" in str(found["shop.item"].why)
    left.clear()
    run.begin(ALL)
    await_loads(run, lambda: published(lake)["shop.item"].state == MIRRORED)
    assert_whole(run, tmp_path)


@pytest.mark.parametrize("few", [1 << 30, 0], ids=["here", "executors"])
def test_a_stop_does_not_wait_for_the_upstream(
    few: int, run: BootstrappedStream, source: PrivateMariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_rows, "FEW_ROWS", few)
    monkeypatch.setattr(mirrors, "_PATIENCE", 1.0)
    lake = tmp_path / "lake"
    blocker: Callable[[str], Any] = run.mirror.sql
    blocker("LOCK TABLES shop.item WRITE, mirror.clock READ, mirror.commits READ, mirror.shapes READ")
    run.begin(ALL)
    waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'"
    eventually(lambda: run.mirror.sql(waiting)[0][0], seconds=60, pause=0.1)
    begun = time.monotonic()
    run.restart()
    assert time.monotonic() - begun < 20
    blocker("UNLOCK TABLES")
    assert published(lake)["shop.item"].state == LOADING
    run.begin()
    await_loads(run, lambda: loaded(lake))
    assert_whole(run, tmp_path)


class ServerThen(SnapshotSource):
    """A server that stands at one moment of a recorded case."""

    def table_ids(self, session: Session) -> dict[tuple[str, str], int]:
        return {}

    def columns(self, session: Session, table: TableAt) -> tuple[tuple[str, str], ...]:
        return tuple((c.name, column_type(c).lower()) for c in visible(table.info))

    def _stand_at(self, session: Session, ts: int) -> None:
        session.execute("SET SESSION autocommit = 1")

    def _boundaries(self, session: Session, table: TableAt, handle: Handle, partition: str) -> list[Key]:
        return []


@pytest.mark.parametrize("whole", [False, True], ids=["half", "whole"])
def test_recorded_types_from_a_server_and_then_from_binlogs(whole: bool, source: PrivateMariaDB, tmp_path: Path) -> None:
    """Half of the case, or all of it, is in the server, as our stream writes it there."""
    case, begin = "types", begin_of("types")
    begin = spans_from(case, begin)[-1][1] if whole else begin
    for database in load_case(case).info["databases"]:
        run_sql(source, f"DROP DATABASE IF EXISTS {database}")
    run_sql(source, "DROP DATABASE IF EXISTS tidb_binlog")
    target = sink_of(DrainerConfig(target=source.target()), 1, lambda seconds: None)
    replicate(target, case, [(start, min(end, begin)) for start, end in spans_of(case, STEPS) if start < begin])
    target.close()
    server = ServerThen(ShippedTarget.of(source.target(), Here))
    tables = RecordedUpstream(case, tmp_path / "upstream").tables
    loads = TableLoads(tables, LakeLoad(lambda: server, lambda ts: nullcontext()).at)
    lake = tmp_path / "lake"
    sink = LakeSink(LakeSettings(str(lake), 1, mirror_interval=0.0), loads=loads)
    replicate(sink, case, [], begin_ts=begin)
    eventually(lambda: loaded(lake), seconds=60, pause=0.1)
    assert {s.upto_ts for s in published(lake).values()} == {begin}
    sink.close()
    sink = LakeSink(LakeSettings(str(lake), 1, mirror_interval=0.0), loads=loads)
    replicate(sink, case, spans_from(case, begin))
    sink.close()
    assert_mirrored(case, lake)
