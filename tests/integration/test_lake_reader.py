"""A lake's tables as DataFrames: what the upstream had, at the newest moment and at earlier ones."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.lake import Lake
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake import lake_reader
from tests.support.bank_states import TOTAL
from tests.support.golden_case import GOLDEN, load_case
from tests.support.golden_messages import spans_of
from tests.support.lake_lives import replicate, sink_of
from tests.support.published_lake import publish
from tests.support.recorded_tables import comparable, recorded_rows

pytestmark = [pytest.mark.spark]


def filled(lake: Path, case: str) -> Path:
    """A lake with the whole ledger of a case."""
    sink = sink_of(lake)
    replicate(sink, case=case)
    sink.close()
    return lake


def times(case: str, count: int) -> list[int]:
    """Moments of a case, after its tables were made."""
    made = max(ddl.commit_ts for ddl in load_case(case).ddls)
    return [end for _, end in spans_of(case, count) if end > made]


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


@pytest.mark.parametrize("few", [1 << 30, 0], ids=["here", "executors"])
@pytest.mark.parametrize("case", ["keys", "types"])
def test_tables_are_what_the_upstream_had(
    case: str, few: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_reader, "_FEW_BYTES", few)
    history = load_case(case).history
    filled(tmp_path, case)
    moments = times(case, 12)
    publish(tmp_path, history, moments[len(moments) // 2])
    lake = Lake(spark, tmp_path)
    for database, name in load(GOLDEN / case).tables:
        table = history.find(database, name, int(history.newest_version))
        assert table is not None
        assert rows_of(lake.table(f"{database}.{name}"), table.info) == recorded_rows(GOLDEN / case, f"{database}.{name}", table.info), name
