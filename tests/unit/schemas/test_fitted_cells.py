"""Cells of a column whose type was changed, under the type that it had: the same value or an error."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, table_json
from pyspark_tidb_binlog.schemas.arrowtypes import image_schema
from pyspark_tidb_binlog.schemas.changes.former_types import as_former, fitted
from pyspark_tidb_binlog.schemas.changes.typed_cells import is_date, type_of
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo

DAY, NOON = datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 12)


@pytest.mark.parametrize(
    ("value", "given", "wanted"),
    [
        (1e300, pa.float64(), pa.float32()),
        (0.1, pa.float64(), pa.float32()),
        (1.26, pa.float64(), pa.decimal128(10, 1)),
        (7, pa.int8(), pa.bool_()),
        (NOON, pa.timestamp("us"), pa.date32()),
        (20200102, pa.int32(), pa.date32()),
        (20200102120000, pa.int64(), pa.timestamp("us")),
        (DAY, pa.date32(), pa.int32()),
        (NOON, pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        ("x", pa.string(), pa.int32()),
        ("0x10", pa.string(), pa.int32()),
        ("nan", pa.string(), pa.float64()),
        ("9007199254740993", pa.string(), pa.float64()),
        ("16777217", pa.string(), pa.float32()),
        ("1e400", pa.string(), pa.float64()),
        ("1.567", pa.string(), pa.decimal128(10, 2)),
        ("7\n", pa.string(), pa.int32()),
        ("007", pa.string(), pa.int32()),
        ("-0", pa.string(), pa.int32()),
        ("1e2", pa.string(), pa.decimal128(10, 2)),
        ("1.5", pa.string(), pa.decimal128(10, 2)),
        ("1e3", pa.string(), pa.float64()),
        ("1.10", pa.string(), pa.float64()),
        ("true", pa.string(), pa.bool_()),
        (True, pa.bool_(), pa.string()),
        (b"\xff", pa.binary(), pa.string()),
    ],
)
def test_a_value_that_is_not_the_same_is_refused(value: object, given: pa.DataType, wanted: pa.DataType) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        fitted(pa.array([None, value], given), wanted)


@pytest.mark.parametrize(
    ("value", "given", "wanted", "found"),
    [
        (1.5, pa.float64(), pa.float32(), 1.5),
        (7, pa.int64(), pa.int8(), 7),
        (DAY, pa.date32(), pa.timestamp("us"), datetime.datetime(2020, 1, 2)),
        (datetime.datetime(2020, 1, 2), pa.timestamp("us"), pa.date32(), DAY),
        (True, pa.bool_(), pa.int32(), 1),
        ("12", pa.string(), pa.int32(), 12),
        ("-1.50", pa.string(), pa.decimal128(10, 2), Decimal("-1.5")),
        ("1000", pa.string(), pa.float64(), 1000.0),
        ("100000000000000000000", pa.string(), pa.float64(), 1e20),
        ("0.0000000", pa.string(), pa.decimal128(10, 7), Decimal(0)),
        ("0.1", pa.string(), pa.float32(), float(np.float32(0.1))),
        (1e20, pa.float64(), pa.string(), "100000000000000000000"),
        (0.1, pa.float32(), pa.string(), "0.1"),
        (Decimal("0E-7"), pa.decimal128(10, 7), pa.string(), "0.0000000"),
        (12, pa.int32(), pa.string(), "12"),
    ],
)
def test_the_same_value_is_given(value: object, given: pa.DataType, wanted: pa.DataType, found: object) -> None:
    assert fitted(pa.array([None, value], given), wanted).to_pylist() == [None, found]


def of_type(kind: str) -> ColumnInfo:
    return TableInfo.from_json(table_json(Table("t", (Column("c", kind),)), 1)).columns[0]


def under(former: str, text: bool, given: str, value: Any) -> Any:
    """A cell of a column of type ``given`` under the type that it had; ``text``: with invalidDates = string."""
    wanted, column = of_type(former), of_type(given)
    kind = pa.string() if text and is_date(wanted) else type_of(wanted)
    return as_former(wanted, kind, column, pa.array([None, value], image_schema([column]).field(0).type)).to_pylist()[1]


@pytest.mark.parametrize(
    ("former", "text", "given", "value", "found"),
    [
        ("datetime", True, "datetime(3)", "2026-01-01 08:00:00.000", "2026-01-01 08:00:00"),
        ("datetime(3)", True, "datetime", "0000-00-00 00:00:00", "0000-00-00 00:00:00.000"),
        ("date", True, "datetime(1)", "2026-01-01 00:00:00.0", "2026-01-01"),
        ("datetime(2)", True, "date", "2026-02-31", "2026-02-31 00:00:00.00"),
        ("timestamp(1)", True, "timestamp(6)", "2026-01-01 08:00:00.500000", "2026-01-01 08:00:00.5"),
        ("date", False, "varchar(20)", b"2026-01-01", DAY.replace(year=2026, day=1)),
        ("date", True, "varchar(20)", b"0000-00-00", "0000-00-00"),
        ("datetime(3)", False, "varchar(30)", b"2020-01-02 12:00:00.500", NOON.replace(microsecond=500000)),
        ("varchar(20)", False, "date", "0000-00-00", "0000-00-00"),
        ("varchar(20)", False, "datetime", "2026-01-01 08:00:00", "2026-01-01 08:00:00"),
        ("varchar(20)", False, "enum('a','b')", 2, "b"),
        ("int", False, "bit(8)", 65, 65),
        ("varchar(20)", False, "double", 0.1, "0.1"),
    ],
)
def test_a_column_under_the_type_that_it_had(former: str, text: bool, given: str, value: object, found: object) -> None:
    assert under(former, text, given, value) == found


@pytest.mark.parametrize(
    ("former", "text", "given", "value"),
    [
        *(("datetime", text, "timestamp", "2026-01-01 00:00:00") for text in (False, True)),
        *(("timestamp", text, "datetime", "2026-01-01 00:00:00") for text in (False, True)),
        *(("timestamp", text, "varchar(30)", b"2026-01-01 08:00:00Z") for text in (False, True)),
        *(("datetime", text, "varchar(30)", b"2026-01-01 08:00:00.0") for text in (False, True)),
        *(("date", text, "datetime", "2026-01-01 08:00:00") for text in (False, True)),
        *(("date", text, "varchar(20)", b"2026-1-1") for text in (False, True)),
        *(("date", text, "int", 20260101) for text in (False, True)),
        ("datetime(1)", True, "datetime(3)", "2026-01-01 08:00:00.001"),
        ("varchar(20)", False, "timestamp", "2026-01-01 08:00:00"),
        ("varchar(20)", False, "bit(8)", 65),
        ("bit(8)", False, "varchar(20)", b"65"),
        ("enum('2','1')", False, "int", 2),
        ("time", False, "int", 80000),
    ],
)
def test_a_column_that_never_is_the_type_that_it_had(former: str, text: bool, given: str, value: object) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        under(former, text, given, value)
