"""A lake's tables as DataFrames: what the upstream had, at the newest moment and at earlier ones."""

import datetime
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.jobs import lake as command
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.lake import lake_reader, lake_table, upkeep
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger
from pyspark_tidb_binlog.sinks.lake.tables_at import TablesAt
from tests.support.bank_states import TOTAL, bank_changes, states_at
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN, load_case
from tests.support.golden_messages import replicate, spans_of
from tests.support.lake_lives import FollowedSink
from tests.support.recorded_tables import comparable, recorded_rows

pytestmark = [pytest.mark.spark]


def live(lake: Path, case: str, upto: int, interval: float | None) -> None:
    """A life of a case's stream; ``interval`` None: mirrors stay as they are."""
    sink = LakeSink(LakeSettings(str(lake), 1, mirror_interval=interval))
    try:
        replicate(sink, case, spans_of(case, 12), upto)
    finally:
        sink.close()


def partly_mirrored(lake: Path, case: str) -> None:
    """A lake with a whole case in the ledger, and in the mirrors all DDLs, but not all rows."""
    made = load_case(case).ddls[-1].commit_ts
    ends = [end for _, end in spans_of(case, 12) if end > made]
    live(lake, case, ends[len(ends) // 2], 0)
    live(lake, case, 1 << 62, None)


def rows_of(table: DataFrame, info: TableInfo) -> list[tuple[Any, ...]]:
    columns = info.target_columns()
    assert table.columns == [c.name for c in columns]
    json = [c.name for c in columns if kind_of(c) is CellKind.JSON]
    made = table.selectExpr(
        *(
            f"to_json(`{c}`) as `{c}`" if c in json else f"cast(`{c}` as string) as `{c}`" if kind_of(i) is CellKind.DATETIME else f"`{c}`"
            for c, i in zip(table.columns, columns, strict=True)
        )
    )
    return sorted((tuple(comparable(c, cell) for c, cell in zip(columns, row, strict=True)) for row in made.collect()), key=repr)


def plain_rows(lake: Path, name: str, info: TableInfo) -> list[tuple[Any, ...]]:
    """Without Spark."""
    rows = TablesAt.newest(lake).rows(name).read_all().to_pylist()

    def cell(column: ColumnInfo, value: Any) -> Any:
        return comparable(column, json.dumps(json.loads(value)) if kind_of(column) is CellKind.JSON and value is not None else value)

    return sorted((tuple(cell(c, row[c.name]) for c in info.target_columns()) for row in rows), key=repr)


def recorded(case: str, name: str, info: TableInfo) -> list[tuple[Any, ...]]:
    """The recorded rows, with nulls for dates that no calendar has."""

    def known(column: ColumnInfo, cell: Any) -> Any:
        day = cell[0] if isinstance(cell, tuple) else cell
        try:
            return cell if not is_date(column) or day is None or datetime.datetime.fromisoformat(day) else None
        except ValueError:
            return None

    rows = recorded_rows(GOLDEN / case, name, info)
    return sorted((tuple(map(known, info.target_columns(), row)) for row in rows), key=repr)


SOME_KEYS = ("int_pk", "no_pk", "uniq_null", "comp_nonclustered", "str_ci", "prefix_key")
"""Tables with every kind of identity."""


@pytest.mark.parametrize(
    ("case", "few", "some"),
    [
        pytest.param("keys", 0, SOME_KEYS, id="keys-executors"),
        pytest.param("keys", 0, (), id="all-keys-executors", marks=pytest.mark.slow),
        pytest.param("types", 1 << 30, (), id="types-here"),
    ],
)
def test_tables_are_what_the_upstream_had(
    case: str, few: int, some: Sequence[str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, _ = lake_reader._IN_PLAN
    monkeypatch.setattr(lake_reader, "_FEW_BYTES", few)
    monkeypatch.setattr(lake_reader, "_IN_PLAN", (setting, "0"))  # as for many changes; other tests have few
    theirs = spark.conf.get(setting)
    partly_mirrored(tmp_path, case)
    history, lake = load_case(case).history, Lake(spark, tmp_path)
    tables = [(database, name) for database, name in load(GOLDEN / case).tables if name in some or not some]
    assert len(tables) >= len(some)
    for database, name in tables:
        table = history.find(database, name, int(history.newest_version))
        assert table is not None
        wanted = recorded(case, f"{database}.{name}", table.info)
        assert rows_of(lake.table(f"{database}.{name}"), table.info) == wanted, name
        assert plain_rows(tmp_path, f"{database}.{name}", table.info) == wanted, name
    assert spark.conf.get(setting) == theirs != "0"


def test_all_tables_are_of_one_moment(spark: SparkSession, tmp_path: Path) -> None:
    """The recorded bank, which moves money between its tables: each moment is one that the upstream had. Most are older than ``KEPT_HOURS``."""
    partly_mirrored(tmp_path, "bank")
    aged = time.time() - (lake_table.KEPT_HOURS + 1) * 3600
    for commit in tmp_path.glob("tables/*/_delta_log/*.json"):
        os.utime(commit, (aged, aged))
    lake, changes = Lake(spark, tmp_path), bank_changes(load(GOLDEN / "bank"), load_case("bank").history)
    times = sorted({change.commit_ts for change in changes})
    moments = [*times[len(times) // 4 :: len(times) // 2], lake.commit_ts]
    for then, wanted in zip([*map(lake.at, moments[:-1]), lake], states_at(changes, moments), strict=True):
        rows = {name: then.table(f"g_bank.{name}").select("id", "balance").collect() for name in ("checking", "savings")}
        assert {(name, row["id"]): row["balance"] for name, found in rows.items() for row in found} == wanted, then
        for version in then.versions().where("database is not null").collect():
            assert version["complete_ts"] <= then.commit_ts
            own = states_at(changes, [version["complete_ts"]])
            found = DeltaTable(version["path"], version=version["version"]).to_pyarrow_table().to_pylist()
            assert {(version["table"], row["id"]): row["balance"] for row in found}.items() <= next(iter(own)).items(), version
    assert sum(wanted.values()) == TOTAL
    ends = {row["database"]: row["complete_ts"] for row in lake.versions().collect()}
    assert ends == {"g_bank": lake._lake.published.followed_ts, None: lake.commit_ts}
    assert lake.views("G_BANK") == ["checking", "savings"]
    (total,) = spark.sql("SELECT sum(balance) AS total FROM (SELECT balance FROM checking UNION ALL SELECT balance FROM savings)").collect()
    assert total["total"] == TOTAL
    with pytest.raises(ConfigError, match="no table of a database shop at .*; lake.tables"):
        lake.views("shop")
    then = lake.at(times[len(times) // 2])
    rows_then = then.changes("g_bank.checking")
    assert (
        rows_then.where(f"commit_ts > {then.commit_ts} or `table` <> 'checking'").count() == 0 < rows_then.count() < lake.changes().count()
    )
    assert {row["table"] for row in lake.tables().where("state = 'mirrored'").collect()} == {"checking", "savings"}
    assert lake.snapshots().where("state = 'mirrored'").count() > 2


def test_kept_moments_can_be_read_when_old_versions_have_gone(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the versions that are kept the mirrors' logs have gaps, and of the ledger older changes have gone. A second stands for an hour."""
    for name, value in {
        "PASS_SECONDS": 0.0,
        "LOOK_SECONDS": 1e9,
        "YOUNG_HOURS": 0,
        "KEPT_HOURS": 0,
        "HOUR_MS": 1000,
        "DAY_MS": 100,
    }.items():
        monkeypatch.setattr(upkeep, name, value)
    monkeypatch.setattr(lake_table, "LOG_SECONDS", 0.0)
    sink = FollowedSink(LakeSettings(str(tmp_path), 1, mirror_interval=0.0, retention=3.0, days=1))
    replicate(sink, "bank", spans_of("bank", 16))
    assert sink._mirrors is not None
    kept_ts = sink._mirrors._snapshots.moment.kept_ts

    def begins() -> bool:
        sink._upkeep._wake.set()
        return (Ledger(str(tmp_path)).load() or LakeState("", 1)).begin_ts > kept_ts - tso(1000)

    eventually(begins)
    sink.close()
    for _ in range(3):
        sink._mirrors._old_versions.look()
    lake, changes = Lake(spark, tmp_path), bank_changes(load(GOLDEN / "bank"), load_case("bank").history)
    kept_ts = lake._lake.published.kept_ts
    rows = lake.snapshots().where("path <> '' and `table` = 'checking'").collect()
    assert 3 <= len(rows) <= 6, rows
    versions = sorted(row["version"] for row in rows)
    log = {int(path.stem) for path in (tmp_path / rows[0]["path"] / "_delta_log").glob("*.json")}
    assert set(versions) <= log < set(range(versions[0], max(log) + 1))
    then = lake.at(kept_ts).table("g_bank.checking")
    sink._mirrors._old_versions.look()
    moments = sorted({kept_ts, kept_ts + (1 << 17), *(row["resolved_ts"] for row in rows if row["resolved_ts"] > kept_ts)})
    for ts, wanted in zip(moments, states_at(changes, moments), strict=True):
        table = then if ts == kept_ts else lake.at(ts).table("g_bank.checking")
        found = {row["id"]: row["balance"] for row in table.collect()}
        assert found == {row_id: balance for (of, row_id), balance in wanted.items() if of == "checking"}, ts
    with pytest.raises(ConfigError, match=r"keeps its tables from .* on, so there are none at"):
        lake.at(kept_ts - 1)
    assert lake._delta("changes").where(f"op <> 'ddl' AND commit_ts < {lake.begin_ts}").count() < len(changes) / 10


def test_what_cannot_be_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no lake: there is no ledger in"):
        Lake(spark, tmp_path)
    made = [ddl.commit_ts for ddl in load_case("types").ddls]
    live(tmp_path, "types", made[3], None)
    with pytest.raises(ConfigError, match="no table of the lake .* was published yet"):
        Lake(spark, tmp_path)
    live(tmp_path, "types", made[3], 0)
    live(tmp_path, "types", 1 << 62, None)
    lake = Lake(spark, tmp_path)
    assert lake.commit_ts == made[next(n for n, ts in enumerate(made) if ts > lake._lake.published.followed_ts)] - 1
    for name, words in {
        "g_types.ints": "",
        "g_types.int": "did you mean g_types.ints?",
        "g_types.enums": "there is no table g_types.enums at .*; lake.tables",
        "ints": "the table is 'ints': give one as db.table",
    }.items():
        if words:
            with pytest.raises(ConfigError, match=words):
                lake.table(name)
        else:
            assert lake.table(name).columns[0] == "id"
    with pytest.raises(ConfigError, match="has no tables before"):
        lake.at("2026-01-01T00:00:00")
    with pytest.raises(ConfigError, match=r"is not known; lake.refresh\(\) reads on"):
        lake.at(datetime.datetime(2999, 1, 1))
    with pytest.raises(ConfigError, match="option at is 'soon'"):
        lake.at("soon")
    live(tmp_path, "types", 1 << 62, 0)
    lake.refresh()
    assert lake.table("g_types.enums").count() > 0


@pytest.mark.shows("lake")
def test_the_command_prints_tables_and_rows(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live(tmp_path, "txn", 1 << 62, 0)

    def said(*argv: str) -> str:
        assert command.main([*argv, "--dir", str(tmp_path)]) == 0
        return capsys.readouterr().out

    lake = Lake(spark, tmp_path)
    tables = said("tables")
    assert tables.splitlines()[0] == f"at {lake.time:%Y-%m-%d %H:%M:%S}.{lake.time.microsecond // 1000:03} UTC ({lake.commit_ts})"
    assert re.search(r"\|g_txn +\|a +\|\d+ +\|mirrored\|NULL\|", tables)
    assert re.search(r"\|\d+\|[\d .:-]+\|\d+ +\|g_txn +\|a ", said("snapshots"))
    named = json.loads(said("versions", "--json"))
    assert (named["commit_ts"], [row["table"] for row in named["tables"]]) == (lake.commit_ts, ["a", "b", None])
    shown = said("show", "g_txn.a", "--limit", "2")
    assert "|id |k" in shown and "only showing top 2 rows" in shown
    made = load_case("txn").ddls[-1].commit_ts
    assert said("show", "g_txn.b", "--at", str(made)).count("|") == 4, "a header, and no row"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["table"], "lake has no command 'table'; did you mean tables?"),
        (["show"], "write it so: lake show DB.TABLE"),
        (["tables", "shop.orders"], "tables takes no shop.orders"),
        (["tables"], "--dir names no lake"),
        (["tables", "--dir", "x", "--limit", "-1"], "--limit is -1"),
        (["life", "d.t", "id=1", "--at", "5"], "life takes no --at"),
        (["diff", "d.t", "--from", "5", "--to", "6", "--where", "id = 1"], "diff takes no --where"),
        (["undo", "5", "--limit", "1"], "undo takes no --limit"),
        (["life", "shop.item"], "write it so: lake life DB.TABLE COLUMN=VALUE ..."),
        (["undo"], "undo needs --from and --to, or a commit_ts"),
        (["diff", "shop.item"], "diff needs --from and --to"),
        (["undo", "5", "--from", "4", "--to", "6"], "undo takes a commit_ts, or --from and --to, not both"),
        (["undo", "5", "--tables", ","], "--tables is empty"),
        (["undo", "5", "--where", ""], "--where is empty"),
    ],
)
def test_a_wrong_command_line_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        command.main(argv)
