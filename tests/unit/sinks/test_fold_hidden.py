"""Rows that a condition hides: which events are marked, and what is left of their net changes."""

import pickle

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine.fold import AFTER, BEFORE, HIDDEN, HiddenRows, fold, marked

INS, U, D = Op.INSERT, Op.UPDATE, Op.DELETE
Image = tuple[int, int, int]
"""commit_ts, seq, half."""


def rows(*events: tuple[int, int, Op]) -> pa.Table:
    """(commit_ts, seq, operation) of one row."""
    made = [{"commit_ts": ts, "seq": seq, "op": int(op), "table_id": 1, "schema_version": 1, "row": b""} for ts, seq, op in events]
    return pa.Table.from_pylist(made, schema=ROW_EVENT)


def hidden(*images: Image) -> HiddenRows:
    return HiddenRows.of(pa.Table.from_pylist([dict(zip(HIDDEN.names, image, strict=True)) for image in images], schema=HIDDEN))


def test_events_are_marked_by_commit_ts_and_place() -> None:
    events = rows((10, 0, U), (10, 1, U), (20, 0, U), (20, 1, U), (30, 0, U))
    for one in (
        hidden((10, 1, 0), (20, 0, 1), (20, 0, 0), (99, 0, 0)),
        pickle.loads(pickle.dumps(hidden((10, 1, 0), (20, 0, 1), (20, 0, 0)))),
    ):
        found = marked(events, one)
        assert found.column(BEFORE).to_pylist() == [False, True, True, False, False]
        assert found.column(AFTER).to_pylist() == [False, False, True, False, False]
    assert marked(events, hidden()).column(BEFORE).to_pylist() == [False] * 5


@pytest.mark.parametrize(
    ("events", "images", "change"),
    [
        ([(1, 0, INS)], [(1, 0, 1)], ""),
        ([(1, 0, INS)], [], "added"),
        ([(1, 0, D)], [(1, 0, 0)], ""),
        ([(1, 0, D)], [], "removed"),
        ([(1, 0, U)], [], "after"),
        ([(1, 0, U)], [(1, 0, 0)], "added"),
        ([(1, 0, U)], [(1, 0, 1)], "removed"),
        ([(1, 0, U)], [(1, 0, 0), (1, 0, 1)], ""),
        ([(1, 0, U), (2, 0, U)], [(1, 0, 1), (2, 0, 0)], "after"),  # away and back
        ([(1, 0, U), (2, 0, D)], [(1, 0, 1), (2, 0, 0)], "removed"),
        ([(1, 0, INS), (2, 0, U)], [(2, 0, 1)], ""),
        ([(1, 0, D), (1, 1, INS)], [(1, 0, 0)], "added"),
        ([(1, 0, D), (1, 1, INS)], [(1, 1, 1)], "removed"),
    ],
)
def test_a_hidden_row_is_one_that_does_not_exist(events: list[tuple[int, int, Op]], images: list[Image], change: str) -> None:
    table = marked(rows(*events), hidden(*images)).append_column("key", pa.array([b"k"] * len(events), pa.binary()))
    (found,) = fold(table)
    assert [name for name in ("removed", "after", "added") if len(getattr(found, name))] == ([change] if change else [])
