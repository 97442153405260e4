"""``schemas.packed``: rows that come in parts are gathered in order, up to a limit."""

import sys

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.packed import gathered, packed, unpacked

NUMBERS = pa.schema([pa.field("n", pa.int64())])


def part(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers}, NUMBERS)


@pytest.mark.parametrize(
    ("sizes", "most_bytes", "most_rows", "lists"),
    [
        ([], 16, 9, []),
        ([0, 0], 16, 9, [[0, 0]]),
        ([1, 1, 1], 16, sys.maxsize, [[1, 1], [1]]),
        ([5, 1], 16, sys.maxsize, [[5], [1]]),
        ([2, 2, 2], sys.maxsize, 4, [[2, 2], [2]]),
        ([2, 2], sys.maxsize, 4, [[2, 2]]),
    ],
)
def test_the_part_that_reaches_a_limit_ends_its_list(sizes: list[int], most_bytes: int, most_rows: int, lists: list[list[int]]) -> None:
    parts = [part(*range(begin * 100, begin * 100 + size)) for begin, size in enumerate(sizes)]
    seen = list[pa.Table]()
    for run in gathered(iter(parts), most_bytes, most_rows):
        assert [len(one) for one in run] == lists.pop(0)
        seen += run
        run.clear()  # whoever takes a list may do so
    assert seen == parts
    assert not lists


def test_values_come_back_in_order() -> None:
    values = [pa.scalar(packed(part(*numbers)), pa.binary()) for numbers in ((1, 2), (), (3,))]
    assert unpacked(values, NUMBERS) == part(1, 2, 3)
    assert unpacked([], NUMBERS) == part()
