"""Which texts keep their charset because a key over them is too long in utf8mb4."""

from dataclasses import replace

import pytest

from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.ddl.target_dialect import too_long
from tests.support.plan_samples import column, index, table


def utf8(name: str, length: int) -> ColumnInfo:
    return column(name, ColumnType.VARCHAR, 0, length, 0, "utf8")


def kept(at: TableAt) -> list[str]:
    return [c.name for c in at.info.columns if too_long(c, at.info)]


@pytest.mark.parametrize(
    ("others", "kept_own"),
    [
        ([column("x", ColumnType.INT), column("y", ColumnType.INT)], False),
        ([column("x", ColumnType.BIGINT), column("y", ColumnType.INT)], False),
        ([column("x", ColumnType.BIGINT), column("y", ColumnType.INT), column("z", ColumnType.TINYINT)], True),
        ([column("x", ColumnType.DATETIME, 0, 19, 0), column("y", ColumnType.TIMESTAMP, 0, 26, 6)], False),
        ([column("x", ColumnType.DECIMAL, 0, 20, 2)], False),
        ([column("x", ColumnType.DECIMAL, 0, 30, 2)], True),
        ([replace(column("x", ColumnType.ENUM), elems=("a", "b")), column("y", ColumnType.DECIMAL, 0, 22, 4)], False),
    ],
)
def test_every_type_counts_as_the_server_counts_it(others: list[ColumnInfo], kept_own: bool) -> None:
    """Three texts of 255 characters have 3,060 of the 3,072 bytes."""
    texts = [utf8(name, 255) for name in "abc"]
    keyed = table([*texts, *others], [index("k", *((c.name, -1) for c in (*texts, *others)))])
    assert kept(keyed) == (["a", "b", "c"] if kept_own else [])


def test_a_text_of_a_shorter_unique_key_does_not_pad_because_of_a_long_one_that_is_not_unique() -> None:
    v, w = utf8("v", 200), utf8("w", 700)
    unique, plain = index("u", ("v", -1)), index("k", ("v", -1), ("w", -1), unique=False)
    assert kept(table([v, w], [unique, plain])) == ["w"]
    assert kept(table([v, replace(w, flen=800)], [unique, plain])) == ["v", "w"]  # 800 and 2,400 bytes
    assert kept(table([v, w], [unique, index("k", ("v", -1), ("w", -1))])) == ["v", "w"]


def test_a_prefix_counts_with_its_own_length() -> None:
    assert kept(table([utf8("v", 1000)], [index("k", ("v", 768))])) == []
    assert kept(table([utf8("v", 1000)], [index("k", ("v", 769))])) == ["v"]
