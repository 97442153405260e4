"""Which transactions came back in a ring: marks are found by name, version and channel, in any image."""

from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.choice import LeftOut, MarkTables, looped
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.ddl_jobs import INT, column, database, history, job, table
from tests.support.plan_samples import row_event

COLUMNS = [column(1, "id", {**INT, "Flag": 4099}), column(2, "Channel_ID", INT), column(3, "val", INT)]
HISTORY: SchemaHistory = history(
    database(1, "RETL"),
    job(2, 3, table(10, "_Drainer_Repl_Mark", COLUMNS), query="CREATE", schema_name="RETL"),
    job(3, 14, table(10, "old_marks", COLUMNS), query="RENAME", schema_name="RETL", table_id=10),
    job(4, 3, table(11, "_drainer_repl_mark", COLUMNS), query="CREATE", schema_name="RETL"),
)


def event(commit_ts: int, version: int, old: tuple[int, int] | None, new: tuple[int, int] | None, table_id: int = 10) -> dict[str, Any]:
    before, after = (dict(zip((1, 2, 3), (*image, 1), strict=True)) if image else None for image in (old, new))
    return row_event(HISTORY.table_at(table_id, version), commit_ts, 0, before, after, version=version)


def found(*events: dict[str, Any], channel: int = 7) -> set[int]:
    marks, _ = MarkTables.of(HISTORY).apart(pa.Table.from_pylist(list(events), schema=ROW_EVENT))
    return set(looped(marks, HISTORY, channel))


@pytest.mark.parametrize(
    ("old", "new", "ours"),
    [
        (None, (1, 7), True),
        ((1, 7), (1, 7), True),
        ((1, 7), None, True),
        ((1, 8), (1, 7), True),
        ((1, 7), (1, 8), True),
        ((1, 8), (1, 8), False),
        ((7, 8), None, False),
    ],
)
def test_one_image_with_our_channel_is_enough(old: tuple[int, int] | None, new: tuple[int, int] | None, ours: bool) -> None:
    assert found(event(100, 2, old, new)) == ({100} if ours else set())


def test_the_table_goes_by_its_name_at_the_rows_version() -> None:
    ours = (1, 7), (1, 7)
    assert found(event(100, 2, *ours), event(101, 3, *ours), event(102, 4, *ours), event(103, 4, *ours, table_id=11)) == {100, 103}


def test_marks_are_read_although_they_are_never_replicated() -> None:
    rows = pa.Table.from_pylist([event(100, 2, None, (1, 7)), event(103, 4, None, (1, 8), table_id=11)], schema=ROW_EVENT)
    selection = Selection.of(ApplyConfig())
    assert LeftOut.of(HISTORY, selection).read(rows).num_rows == 0
    left_out = LeftOut.of(HISTORY, selection, MarkTables.of(HISTORY))
    marks, others = left_out.marks.apart(left_out.read(rows))
    assert (marks.num_rows, others.num_rows) == (2, 0)


@pytest.mark.parametrize("schema", ["retl", "RETL", "tidb_binlog", "my_Marks"])
def test_what_is_a_drainers_own_is_never_replicated(schema: str) -> None:
    selection = Selection.of(ApplyConfig(checkpoint_schema="My_marks", replicate_do_db=("~.*",)))
    assert not selection.tables.keeps(schema, "t")
    assert not selection.tables.keeps(schema)
    assert selection.tables.keeps("retl2", "t")


def test_a_span_that_an_older_release_has_begun_has_the_same_filters() -> None:
    assert '"own"' not in Selection.of(ApplyConfig()).text
