"""The tables of a lake at its published moments, compared with the recorded ones of a case."""

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo
from pyspark_tidb_binlog.sinks.lake.moments import MIRRORED, MirrorState, _state_of
from tests.support.golden_case import GOLDEN
from tests.support.recorded_tables import comparable, recorded_rows

Read = Callable[[Path | str, MirrorState], list[dict[str, Any]]]


def published(lake: Path | str, upto_ts: int = 1 << 62) -> dict[str, MirrorState]:
    """What each table of the lake is at a moment, by ``database.table``; a dropped one hides nothing."""
    rows = pa.table(DeltaTable(f"{lake}/snapshots").to_pyarrow_table()).sort_by("number").to_pylist()
    newest = {row["table_id"]: _state_of(row) for row in rows if row["resolved_ts"] <= upto_ts}
    return {f"{s.database}.{s.table}": s for s in newest.values() if s.state != "dropped"}


def moments(lake: Path | str) -> list[int]:
    """The ts of all published rows."""
    return sorted({row["resolved_ts"] for row in DeltaTable(f"{lake}/snapshots").to_pyarrow_table().to_pylist()})


def by_delta(lake: Path | str, state: MirrorState) -> list[dict[str, Any]]:
    table = DeltaTable(f"{lake}/{state.path}", version=state.version)
    return [row for batch in QueryBuilder().register("t", table).execute("SELECT * FROM t") for row in pa.record_batch(batch).to_pylist()]


def by_spark(spark: SparkSession) -> Read:
    def read(lake: Path | str, state: MirrorState) -> list[dict[str, Any]]:
        rows = spark.read.format("delta").option("versionAsOf", str(state.version)).load(f"{lake}/{state.path}")
        return [row.asDict() for row in rows.collect()]

    return read


def assert_mirrored(name: str, lake: Path | str, read: Read = by_delta, stale: frozenset[str] = frozenset()) -> None:
    """Each table of a case, but for those ``stale``, is mirrored, and equals the recorded one."""
    found = published(lake)
    for database, of in load(GOLDEN / name).tables:
        state = found[f"{database}.{of}"]
        if of in stale:
            assert state.state == "stale" and state.why, state
            continue
        assert (state.state, state.why) == (MIRRORED, None), of
        assert state.info is not None
        columns = state.info.target_columns()
        rows = [tuple(comparable(c, _text(c, row[c.name])) for c in columns) for row in read(lake, state)]
        wanted = [tuple(map(_date, columns, row)) for row in recorded_rows(GOLDEN / name, f"{database}.{of}", state.info)]
        assert sorted(rows, key=repr) == sorted(wanted, key=repr), of


def _date(column: ColumnInfo, value: Any) -> Any:
    """A recorded cell as a mirror has it: no impossible date."""
    if not is_date(column) or value is None:
        return value
    date = value if isinstance(value, str) else value[0]
    return value if _is_real(date) else None


def _is_real(date: str) -> bool:
    try:
        return bool(datetime.date.fromisoformat(date[:10]))
    except ValueError:
        return False


def _text(column: ColumnInfo, value: Any) -> Any:
    if kind_of(column) is not CellKind.JSON or value is None:
        return value
    if isinstance(value, str):
        return json.dumps(json.loads(value))
    return json.dumps((value if isinstance(value, VariantVal) else VariantVal(value["value"], value["metadata"])).toPython(), default=int)


def image_of(value: Any) -> Any:
    """A cell as Python has it: of a VARIANT what it says."""
    return VariantVal(value["value"], value["metadata"]).toPython() if isinstance(value, dict) else value


def totals(lake: Path | str, read: Read = by_delta) -> Iterator[int]:
    """Of ``bank``: the sum of all balances at each published moment since both tables were filled."""
    for ts in moments(lake):
        states = [s for s in published(lake, ts).values() if s.database == "g_bank"]
        yield sum(row["balance"] for state in states if state.path for row in read(lake, state))
