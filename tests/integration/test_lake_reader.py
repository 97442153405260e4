"""A lake's tables as DataFrames: what the upstream had, at the newest moment and at earlier ones."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.lake import lake_reader
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from tests.support.bank_states import TOTAL
from tests.support.golden_case import GOLDEN, load_case
from tests.support.golden_messages import replicate, spans_of
from tests.support.recorded_tables import comparable, recorded_rows

pytestmark = [pytest.mark.spark]


def live(lake: Path, case: str, upto: int, interval: float | None) -> None:
    """A life of a case's stream; ``interval`` None: mirrors stay as they are."""
    sink = LakeSink(LakeSettings(str(lake), 1, mirror_interval=interval))
    try:
        replicate(sink, case, spans_of(case, 12), upto)
    finally:
        sink.close()


def half_mirrored(lake: Path, case: str) -> int:
    """A lake with a whole case in the ledger and a part of it in the mirrors; returns up to where these go."""
    ends = [end for _, end in spans_of(case, 12)]
    half = ends[len(ends) // 2]
    live(lake, case, half, 0)
    live(lake, case, 1 << 62, None)
    return half


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


@pytest.mark.parametrize(("case", "few"), [("keys", 0), ("types", 1 << 30)], ids=["keys-executors", "types-here"])
def test_tables_are_what_the_upstream_had(
    case: str, few: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_reader, "_FEW_BYTES", few)
    history, half = load_case(case).history, half_mirrored(tmp_path, case)
    lake = Lake(spark, tmp_path)
    assert lake.snapshots().agg({"resolved_ts": "max"}).first() == (half,)
    for database, name in load(GOLDEN / case).tables:
        table = history.find(database, name, int(history.newest_version))
        assert table is not None
        assert rows_of(lake.table(f"{database}.{name}"), table.info) == recorded(case, f"{database}.{name}", table.info), name


def test_all_tables_are_of_one_moment(spark: SparkSession, tmp_path: Path) -> None:
    """The recorded bank moves money between its tables: at every moment they hold the same total."""
    half = half_mirrored(tmp_path, "bank")
    lake = Lake(spark, tmp_path)
    filled = load_case("bank").ddls[-1].commit_ts
    moments = [end for _, end in spans_of("bank", 12) if end > filled]
    for ts in moments[:3] + moments[-3:]:
        then = lake.at(ts)
        total = then.table("g_bank.checking").select("balance").unionAll(then.table("g_bank.savings").select("balance"))
        assert total.agg({"balance": "sum"}).first() == (TOTAL,), (ts, half)
