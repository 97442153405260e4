"""Cells as Spark's types: dates against Python's calendar, unsigned integers, words, decimals, text that is none."""

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.changes.typed_cells import type_of, typed
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType

PLAIN = ColumnInfo(1, "c", 0, ColumnType.INT, 0, 11, 0, "utf8mb4", "", (), None, None, None, None, False, "", False, False, 5, "")


def column(tp: ColumnType, **more: Any) -> ColumnInfo:
    return replace(PLAIN, tp=tp, **more)


def test_every_day_of_the_calendar_and_none_that_is_not() -> None:
    days = [datetime.date.fromordinal(n) for n in (*range(1, 800), *range(146_000, 147_000), *range(719_000, 740_000, 7), 3_652_059)]
    wrong = [
        "0000-00-00",
        "0000-01-01",
        "2026-02-29",
        "1900-02-29",
        "2026-13-01",
        "2026-00-10",
        "2026-04-31",
        "2026-01-00",
        "some text!",
        "",
    ]
    cells = typed(column(ColumnType.DATE), pa.array([*map(str, days), *wrong, None]))
    assert cells.values.to_pylist() == [*days, *[None] * (len(wrong) + 1)]
    assert cells.odd is not None and cells.odd.to_pylist() == [*[None] * len(days), *wrong, None]


@pytest.mark.parametrize(
    ("fraction", "texts"),
    [(0, ["2026-11-20 12:34:56", "0001-01-01 00:00:00"]), (3, ["9999-12-31 23:59:59.999"]), (6, ["1969-12-31 23:59:59.999999"])],
)
def test_times_to_the_microsecond(fraction: int, texts: list[str]) -> None:
    plain = typed(column(ColumnType.DATETIME, decimal=fraction), pa.array([*texts, None]))
    assert plain.values.to_pylist() == [*map(datetime.datetime.fromisoformat, texts), None] and plain.odd is None
    instant = typed(column(ColumnType.TIMESTAMP, decimal=fraction), pa.array(texts))
    assert [str(t).removesuffix("+00:00") for t in instant.values.to_pylist()] == [str(t) for t in plain.values.to_pylist()[:-1]]


def test_a_slice_is_read_from_where_it_begins() -> None:
    cells = pa.array(["2026-01-01", "2026-01-02", "0000-00-00"])
    assert typed(column(ColumnType.DATE), cells.slice(1, 1)).values.to_pylist() == [datetime.date(2026, 1, 2)]


def test_unsigned_integers_keep_every_bit() -> None:
    numbers = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, None]
    for cells in (pa.array(numbers, pa.uint64()), pa.array([7, *numbers], pa.uint64()).slice(1)):
        found = typed(column(ColumnType.BIGINT, flag=32), cells).values
        assert found.to_pylist() == [None if n is None else Decimal(n) for n in numbers] and found.type == pa.decimal128(20, 0)
    assert typed(column(ColumnType.BIT, flen=64), pa.array(numbers, pa.uint64())).values.to_pylist()[4] == Decimal(2**64 - 1)
    assert typed(column(ColumnType.BIT, flen=1), pa.array([0, 1, None], pa.uint64())).values.to_pylist() == [False, True, None]


def test_words() -> None:
    assert typed(column(ColumnType.ENUM, elems=("a", "b")), pa.array([1, 2, 0, None, 9], pa.uint64())).values.to_pylist() == [
        "a",
        "b",
        "",
        None,
        "",
    ]
    assert typed(column(ColumnType.SET, elems=("r", "g", "b")), pa.array([5, 0, None], pa.uint64())).values.to_pylist() == ["r,b", "", None]
    wide = typed(column(ColumnType.SET, elems=tuple(f"e{n}" for n in range(64))), pa.array([1 << 63 | 1], pa.uint64()))
    assert wide.values.to_pylist() == ["e0,e63"]


def test_decimals_and_text() -> None:
    short, long = column(ColumnType.DECIMAL, flen=38, decimal=2), column(ColumnType.DECIMAL, flen=39, decimal=2)
    assert typed(short, pa.array(["-1.50", None])).values.to_pylist() == [Decimal("-1.50"), None]
    assert typed(long, pa.array(["9" * 37 + ".25"])).values.to_pylist() == ["9" * 37 + ".25"]
    cells = pa.array([b"\xc3\xa9", b"\xff", None], pa.binary())
    assert typed(column(ColumnType.VARCHAR), cells).values.to_pylist() == ["é", "\ufffd", None]
    assert typed(column(ColumnType.VARCHAR, charset="binary"), cells).values.to_pylist() == [b"\xc3\xa9", b"\xff", None]


@pytest.mark.parametrize(
    ("tp", "signed", "unsigned"),
    [
        (ColumnType.TINYINT, pa.int8(), pa.int16()),
        (ColumnType.SMALLINT, pa.int16(), pa.int32()),
        (ColumnType.MEDIUMINT, pa.int32(), pa.int32()),
        (ColumnType.INT, pa.int32(), pa.int64()),
        (ColumnType.BIGINT, pa.int64(), pa.decimal128(20, 0)),
        (ColumnType.YEAR, pa.int32(), pa.int32()),
    ],
)
def test_an_integer_has_room(tp: ColumnType, signed: pa.DataType, unsigned: pa.DataType) -> None:
    assert (type_of(column(tp)), type_of(column(tp, flag=32))) == (signed, unsigned)
