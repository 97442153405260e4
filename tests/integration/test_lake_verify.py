"""Mirrors against a server that stands at their moment: equal as streams make them, and each difference found; mirrors against the ledger; the command."""

import itertools
import json
import random
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig
from pyspark_tidb_binlog.jobs import lake as command
from pyspark_tidb_binlog.jobs.lab.emulator.online import drop_column, rename_column
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column
from pyspark_tidb_binlog.jobs.lab.emulator.values import value_for
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ConfigError, SnapshotCollected
from pyspark_tidb_binlog.sinks.bootstrap import mirror_rows
from pyspark_tidb_binlog.sinks.lake import mirrors
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSink
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned
from pyspark_tidb_binlog.sinks.lake.moments import DROPPED, MIRRORED, Snapshots
from pyspark_tidb_binlog.sinks.verify import hash_sums, lake_comparison, table_comparison
from pyspark_tidb_binlog.sinks.verify.lake_comparison import LakeComparison
from pyspark_tidb_binlog.sinks.verify.repair import Kind
from pyspark_tidb_binlog.sinks.verify.verification import VerifiedTable
from pyspark_tidb_binlog.sinks.verify.verification_table import verified_at
from tests.integration.test_bootstrap import ALL, ITEM, KEYLESS, LOOSE, NAMED, TYPES, filled, more_changes, shop
from tests.support.bootstrap_life import ROOT
from tests.support.bootstrapped_stream import BootstrappedStream
from tests.support.eventually import eventually
from tests.support.mirror_rows import published
from tests.support.private_mysql import RealMariaDB
from tests.support.tampered_mirror import rows_in, tampered, with_cell, without

pytestmark = [pytest.mark.spark, pytest.mark.mysql, pytest.mark.mariadb]


@pytest.fixture(scope="module")
def source() -> Iterator[PrivateMariaDB]:
    with RealMariaDB() as server:
        yield server


class Verified(BootstrappedStream):
    """A stream into a lake, compared with its upstream."""

    lake: Path

    def followed(self) -> int:
        """Apply everything, and wait until it is published; the moment."""
        self.apply()
        changes = scanned(f"{self.lake}/changes", ["commit_ts"], "true")
        assert changes is not None
        upto, snapshots = max(changes.read_all()["commit_ts"].to_pylist()), Snapshots(str(self.lake))
        eventually(lambda: (moment := snapshots.load()) is not None and moment.resolved_ts >= upto, seconds=60, pause=0.1)
        self.mirror.tick()
        return snapshots.load().resolved_ts

    def comparison(self, *patterns: str) -> LakeComparison:
        reader = self.mirror.reader(self._spark.sparkContext.broadcast)
        return LakeComparison(str(self.lake), reader, self._config.apply, patterns, pause=lambda seconds: None)

    def verified(self, *patterns: str) -> dict[str, VerifiedTable]:
        found = (one for one in self.comparison(*patterns).run() if isinstance(one, VerifiedTable))
        return {table.name.removeprefix("shop."): table for table in found}

    def same(self, *names: str) -> None:
        """These tables are all that there are, and equal."""
        found = self.verified()
        assert found.keys() == set(names)
        for name, table in found.items():
            assert not table.differs and table.tally is not None, (name, table)
            assert table.tally.rows == len(self.upstream.rows(f"shop.{name}")), name


@pytest.fixture
def run(spark: SparkSession, source: PrivateMariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Verified]:
    """A stream of small tables into a lake."""
    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.1)
    apply = ApplyConfig(db_type="lake", lake_interval=0.0, mirror_interval=0.0, lease_timeout=2.0, replicate_do_db=("shop",))
    made = Verified(spark, DrainerConfig(apply=apply, files=FileConfig(dir=str(tmp_path / "lake"))), source)
    made.lake = tmp_path / "lake"
    shop(made, ITEM, KEYLESS, NAMED)
    filled(made)
    yield made
    made.restart()
    made.mirror.close()


def closed(run: Verified) -> Verified:
    """The stream's sink is closed, so that a test can write to its lake."""
    run.followed()
    run.restart()
    return run


def listed(table: VerifiedTable) -> list[tuple[Kind, str, str, int]]:
    assert table.tally is not None
    return [(d.kind, "/".join(d.key.values()), ",".join(d.changed) if d.kind is Kind.CHANGED else "", d.times) for d in table.tally.listed]


def with_types(run: Verified, count: int = 60) -> None:
    """A table with a column of every type; its first row has NULLs only."""
    run.mirror.create_table("shop", TYPES)
    history, chance = run.history(), random.Random(7)
    table = history.find("shop", "types", history.newest_version)
    assert table is not None

    def insert(txn: Any) -> None:
        for number in range(count):
            values = {c.name: value_for(c, chance) if number else None for c in table.info.target_columns()}
            txn.insert("shop.types", values | {"id": number})

    run.change(insert)


def test_each_table_is_equal_as_the_stream_goes_on(run: Verified) -> None:
    """In every type, without a key, with a key of texts, and across DDLs."""
    with_types(run)
    run.mirror.create_table("shop", LOOSE)
    run.change(lambda txn: [txn.insert("shop.loose", {"id": n, "v": n}) for n in range(9)])
    first = run.followed()
    run.same("item", "log", "named", "types", "loose")
    for number in range(4):
        more_changes(run, number)
    run.upstream.ddl.alter("shop.item", rename_column("t", "text"))
    run.mirror.alter("shop.item", "RENAME COLUMN t TO text")
    run.mirror.add_column("shop.log", Column("more", "int", default="5"))
    run.upstream.ddl.alter("shop.named", drop_column("v"))
    run.mirror.alter("shop.named", "DROP COLUMN v")
    run.change(lambda txn: txn.insert("shop.log", {"a": 1, "b": "y", "more": 7}))
    run.followed()
    run.same("item", "log", "named", "types", "loose")
    assert len(run.upstream.rows("shop.item")) != 40 or first < run.sink.commit_ts


def test_a_table_that_was_loaded_is_equal_and_so_is_what_came_behind(run: Verified) -> None:
    """Documents are written otherwise in the ledger than by a load."""
    with_types(run)
    run.begin(ALL)
    eventually(lambda: all(s.state == MIRRORED for s in published(run.lake).values()) and run.mirror.tick(), seconds=60, pause=0.1)
    first = {name: s.upto_ts for name, s in published(run.lake).items()}
    run.same("item", "log", "named", "types")
    history, chance = run.history(), random.Random(8)
    table = history.find("shop", "types", history.newest_version)
    assert table is not None
    for number in range(0, 60, 3):
        fresh = {c.name: value_for(c, chance) for c in table.info.target_columns()} | {"id": number}
        run.change(lambda txn, number=number, fresh=fresh: txn.update("shop.types", number, fresh))
    assert run.followed() > first["shop.types"]
    run.same("item", "log", "named", "types")


def test_a_moment_serves_several_tables_for_some_minutes(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    first, numbers = run.followed(), itertools.count()

    def moments() -> list[int]:
        found = list[int]()
        for table in (one for one in run.comparison().run() if isinstance(one, VerifiedTable)):
            assert not table.differs
            found.append(table.ts)
            more_changes(run, next(numbers))
            run.followed()
        return found

    assert moments() == [first] * 3
    monkeypatch.setattr(lake_comparison, "MOST_SECONDS", -1.0)
    assert len(set(moments())) == 3


def test_the_ledger_is_further_and_so_is_a_version_that_nobody_published(run: Verified) -> None:
    """What counts is the moment."""
    run.followed()
    run.begin(mirror_interval=3600.0)
    assert isinstance(sink := run.sink, LakeSink) and (following := sink._mirrors) is not None
    # A start looks at the ledger once.
    eventually(lambda: following._tables is not None and not following._changes)
    more_changes(run, 1)
    run.apply()
    run.mirror.tick()
    moment = Snapshots(str(run.lake)).load()
    assert moment is not None and moment.resolved_ts < run.sink.commit_ts
    found = run.verified()
    assert {t.ts for t in found.values()} == {moment.resolved_ts} and not any(t.differs for t in found.values())
    run.restart()
    tampered(run.lake, "shop.item", lambda rows: rows.slice(1), publish=False)
    run.same("item", "log", "named")


def test_a_cell_of_each_column_is_found(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_rows, "FEW_ROWS", 0)
    with_types(run)
    closed(run)
    rows, wanted = rows_in(run.lake, "shop.types"), []
    for place, name in enumerate(rows.schema.names[1:], 1):
        value = next(v for v in rows[name].slice(30) if v.is_valid and v.as_py() != rows[name][place].as_py())
        changed = with_cell(rows, place, name, value)
        # Where the row is NULL: not '', not 0.
        rows = (
            with_cell(changed, 31 + place % 25, name, pa.scalar(None, rows[name].type))
            if changed[name][31 + place % 25].is_valid
            else changed
        )
        wanted += [(place, name)] + ([(31 + place % 25, name)] if rows is not changed else [])
    tampered(run.lake, "shop.types", lambda _: rows)
    found = run.verified("shop.types")["types"]
    assert found.tally.rows == 60 and {kind for kind, *_ in listed(found)} == {Kind.CHANGED}
    assert {(int(key), name) for _, key, names, _ in listed(found) for name in names.split(",")} == set(wanted)
    assert len({name for _, name in wanted}) == len(rows.schema.names) - 1


@pytest.mark.parametrize("value", ["", "a ", "A", None])
def test_texts_are_bytes(run: Verified, value: str | None) -> None:
    run.change(lambda txn: [txn.insert("shop.item", {"id": 7000 + n, "v": 0, "f": 0, "t": t}) for n, t in enumerate(("", "a", None))])
    closed(run)
    places = [rows_in(run.lake, "shop.item")["id"].to_pylist().index(7000 + n) for n in range(3)]

    def change(rows: pa.Table) -> pa.Table:
        for place in places:
            rows = with_cell(rows, place, "t", pa.scalar(value, pa.string()))
        return rows

    tampered(run.lake, "shop.item", change)
    same = [n for n, text in enumerate(("", "a", None)) if text == value]
    found = listed(run.verified("shop.item")["item"])
    assert found == [(Kind.CHANGED, str(7000 + n), "t", 1) for n in range(3) if n not in same] and len(found) + len(same) == 3


@pytest.mark.parametrize("few", [True, False], ids=["one range", "ranges"])
@pytest.mark.parametrize("name", ["item", "log", "named"])
def test_rows_that_are_missing_or_more(run: Verified, name: str, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr(mirror_rows, "FEW_ROWS", 0)
    closed(run)
    rows = rows_in(run.lake, f"shop.{name}")
    doubled, gone, former = rows.slice(3, 1), rows.slice(7, 1), rows.slice(12, 1)
    key = rows.schema.names[0] if name != "named" else "n"
    fresh = with_cell(rows.slice(9, 1), 0, key, pa.scalar(77_777, rows.schema.field(key).type))
    value = {"item": pa.scalar(-7, pa.int32()), "log": pa.scalar("other"), "named": pa.scalar(b"other")}[name]
    another = with_cell(former, 0, "b" if name == "log" else "v", value)
    tampered(
        run.lake, f"shop.{name}", lambda _: pa.concat_tables([without(without(rows, 12), 7), doubled, doubled, fresh, another, another])
    )
    found = run.verified(f"shop.{name}")[name]
    assert (found.tally.rows, found.tally.differing, found.tally.equal) == (40, 7, 38)

    def key_of(row: pa.Table) -> str:
        names = ("k", "n") if name == "named" else (key,)
        return "/".join(f"'{v}'" if isinstance(v := row[n][0].as_py(), str) else str(v) for n in names)

    assert sorted(listed(found)) == sorted(
        [(Kind.EXTRA, key_of(doubled), "", 2), (Kind.EXTRA, key_of(fresh), "", 1), (Kind.MISSING, key_of(gone), "", 1)]
        + [(Kind.EXTRA, key_of(former), "", 2), (Kind.MISSING, key_of(former), "", 1)]
    )


def test_an_empty_mirror_is_listed_up_to_limits(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(run)
    tampered(run.lake, "shop.item", lambda rows: rows.slice(0, 0))
    monkeypatch.setattr(table_comparison, "MOST_LISTED", 10)
    found = run.verified("shop.item")["item"].tally
    assert (found.differing, len(found.listed), found.unlisted, found.equal) == (40, 10, 30, 0)
    monkeypatch.setattr(hash_sums, "MOST_ROWS", 5)
    found = run.verified("shop.item")["item"].tally
    assert (found.differing, len(found.listed), found.unlisted) == (40, 5, 35)


def test_a_mirror_with_deletion_vectors(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors

    made = LargeMirrors.__init__
    monkeypatch.setattr(LargeMirrors, "__init__", lambda self, spark: made(self, spark, 0))
    run.followed()
    for number in range(2):
        more_changes(run, number)
        run.followed()
    assert list(run.lake.rglob("deletion_vector_*.bin"))
    run.same("item", "log", "named")


def test_a_table_that_the_lake_does_not_have_is_named(run: Verified) -> None:
    """It is older than the lake. One that the ledger has made, and the lake lacks, is an error."""
    run.followed()
    run.mirror.sql("CREATE TABLE shop.older (id INT PRIMARY KEY)")
    run.mirror.sql("CREATE VIEW shop.seen AS SELECT 1")
    found = run.verified()
    (named,) = found.pop("older").left_out
    assert (named.words, named.by_intent) == (
        "the lake does not have it; to load it: ctl reload-tables -config FILE -tables shop.older",
        True,
    )
    assert found.keys() == {"item", "log", "named"} and not any(t.differs for t in found.values())
    closed(run)
    snapshots, item = Snapshots(str(run.lake)), published(run.lake)["shop.item"]
    snapshots.take(1 << 40)
    ts = snapshots.moment.resolved_ts
    snapshots.publish(ts, snapshots.moment.jobs, [(ts, replace(item, state=DROPPED))])
    found = run.verified("shop.item")["item"]
    assert found.differs and found.left_out[0].words.startswith("the lake does not have it")


def test_a_table_that_is_set_aside_or_gone_or_not_the_same(run: Verified) -> None:
    run.followed()
    run.upstream.ddl.modify_column("shop.item", Column("t", "varbinary(20)"), convert=lambda text: text)
    run.mirror.alter("shop.item", "MODIFY t VARBINARY(20)")
    run.mirror.drop_table("shop.log")
    run.followed()
    run.mirror.sql("DROP TABLE shop.log")
    # As if a DDL ran that the lake does not have yet.
    run.mirror.alter("shop.named", "ADD COLUMN w INT")
    shape = run.mirror.sql("SELECT columns_json FROM mirror.shapes WHERE table_name = 'named' ORDER BY commit_ts DESC LIMIT 1")[0][0]
    run.mirror.sql(
        "UPDATE mirror.shapes SET columns_json = %s WHERE table_name = 'named'", [json.dumps([*json.loads(shape), ["w", "int(11)"]])]
    )
    found = run.verified()
    assert found.keys() == {"item", "named"}
    assert found["item"].left_out[0].words.startswith("it is set aside: ") and not found["item"].differs
    assert re.match(r"read 5 times in vain: shop.named has the columns k, n, v, w", found["named"].left_out[0].words)
    assert found["named"].differs


def test_gc_that_has_passed(run: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    run.followed()
    run.mirror.collect(1 << 62)
    words = r"TiDB at .* cannot be read at \d+ \(.*\) any more: GC has passed it. Verify when the lake is nearer .*raise tidb_gc_life_time"
    with pytest.raises(SnapshotCollected, match=words):
        run.verified()
    run.mirror.collect(0)
    real = lake_comparison.ranges_of

    def ranges(*given: Any) -> Any:
        run.mirror.collect(1 << 62)
        return real(*given)

    monkeypatch.setattr(lake_comparison, "ranges_of", ranges)
    monkeypatch.setattr("pyspark_tidb_binlog.sinks.mysql.session.KEPT_SECONDS", 0.0)
    found = run.verified("shop.item")["item"]
    assert found.differs and re.match(f"read 5 times in vain: {words}", found.left_out[0].words)


@pytest.mark.parametrize("gone", ["files", "directory"])
def test_a_mirror_that_cannot_be_read_is_named(run: Verified, gone: str) -> None:
    closed(run)
    place = run.lake / published(run.lake)["shop.item"].path
    for file in place.rglob("*.parquet") if gone == "files" else ():
        file.unlink()
    if gone == "directory":
        place.rename(run.lake / "elsewhere")
    found = run.verified()
    (why,) = found.pop("item").left_out
    assert why.words.startswith(f"version {published(run.lake)['shop.item'].version} of {place} cannot be read: ") and not why.by_intent
    assert not any(t.differs for t in found.values()) and len(found) == 2


# The command.


def settings(run: Verified, tmp_path: Path) -> list[str]:
    file = tmp_path / "drainer.toml"
    file.write_text(
        f'[syncer]\ndb-type = "lake"\nreplicate-do-db = ["shop"]\n[syncer.to]\ndir = "{run.lake}"\n[spark]\ndelta-dir = "{tmp_path}/delta"\n'
    )
    return ["--config", str(file)]


@pytest.mark.shows("lake verify")
def test_the_command_prints_what_differs(run: Verified, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = closed(run).mirror.reader(spark.sparkContext.broadcast)

    def said(*argv: str, code: int) -> str:
        assert command.main(["verify", *argv], reader) == code
        return capsys.readouterr().out

    by_upstream, by_ledger = settings(run, tmp_path), ["--dir", str(run.lake)]
    for argv in (by_upstream, by_ledger):
        out = said(*argv, code=0)
        assert "shop.item: 40 rows at " in out and out.endswith("3 tables, 120 rows: 120 equal, 0 differing; 0 tables not compared\n")
    tampered(run.lake, "shop.item", lambda rows: with_cell(rows, 4, "v", pa.scalar(-1, pa.int32())))
    out = said(*by_upstream, code=1)
    found = verified_at(DrainerConfig(delta_dir=str(tmp_path / "delta")).verification_dir)
    assert found is not None and (found.tables, found.rows, found.differing) == (3, 1, ("shop.item",))
    assert (
        "): 1 rows DIFFER\n  keep the lake as it is" in out
        and "\n  -- changed: id = 10 (v)\n     v: 10 upstream, -1 at the target\n" in out
    )
    assert out.endswith("3 tables, 120 rows: 119 equal, 1 differing; 0 tables not compared\n")
    table, total = map(json.loads, said(*by_upstream, "--json", "--tables", "shop.i*", code=1).splitlines())
    assert table["differences"] == [{"kind": "changed", "key": {"id": "10"}, "columns": ["v"], "times": 1, "sql": []}]
    assert table["explained"][0].endswith("ctl reload-tables -config FILE -tables shop.item") and total["differing"] == 1
    out = said(*by_ledger, code=1)
    assert "shop.item: NOT AS IT SHOULD BE: the mirror lacks 1 of the rows that the ledger makes, and has 1 others\n" in out
    assert out.endswith("3 tables, 120 rows: 119 equal, 1 differing; 0 tables not compared; 1 NOT AS THEY SHOULD BE\n")
    assert said(*by_ledger, "--tables", "shop.log", code=0).startswith("shop.log: 40 rows at ")


def test_beside_a_stream_nothing_differs(run: Verified) -> None:
    """A moment is published, and thinned out, while tables are read."""
    ends, found = threading.Event(), list[VerifiedTable]()

    def read() -> None:
        while not ends.is_set():
            found.extend(run.verified().values())

    run.followed()
    reading = threading.Thread(target=read)
    reading.start()
    for number in range(25):
        more_changes(run, number)
        run.apply()
        run.mirror.tick()
    ends.set()
    reading.join(60)
    assert len(found) >= 9 and not [t for t in found if t.differs] and len({t.ts for t in found}) > 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--at", "5", "--dir", "x"], "verify takes no --at"),
        (["--limit", "5", "--dir", "x"], "verify takes no --limit"),
        (["shop.item", "--dir", "x"], "verify takes no shop.item"),
        (["CONFIG", "--dir", "x"], "give one of them"),
        (["CONFIG"], r"spark\.upstream\.host is empty"),
    ],
)
def test_wrong_options(argv: list[str], words: str, tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text('[syncer]\ndb-type = "lake"\n[syncer.to]\ndir = "x"\n')
    argv = [part for one in argv for part in (["--config", str(file)] if one == "CONFIG" else [one])]
    with pytest.raises(ConfigError, match=words):
        command.main(["verify", *argv])
    with pytest.raises(ConfigError, match="show takes no --json"):
        command.main(["show", "shop.item", "--json", "--dir", "x"])


def test_the_command_with_settings_starts_no_jvm(run: Verified, tmp_path: Path) -> None:
    """It gets as far as the upstream, of which no TiDB is here."""
    options, server = settings(closed(run), tmp_path), run.mirror.account
    file = Path(options[1])
    file.write_text(f'{file.read_text()}[spark.upstream]\nhost = "{server.host}"\nport = {server.port}\nuser = "{server.user}"\n')
    done = subprocess.run(
        [str(ROOT / "spark-submit.sh"), "lake", "verify", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TIDB_BINLOG_LOG": str(tmp_path / "log"), "TIDB_BINLOG__SPARK__UPSTREAM__PASSWORD": server.password},
    )
    assert done.returncode == 1 and "tidb_snapshot" in done.stderr, (done.stdout, done.stderr)
    assert "java" not in done.stderr.lower()
