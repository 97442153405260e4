"""Cells of a column whose type was changed, under the type that it had: the same value or an error."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.binlog_source.changes.typed_cells import fitted

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
        ("1e3", pa.string(), pa.float64(), 1000.0),
        ("-0", pa.string(), pa.float64(), -0.0),
        ("1.10", pa.string(), pa.float64(), 1.1),
        (12, pa.int32(), pa.string(), "12"),
    ],
)
def test_the_same_value_is_given(value: object, given: pa.DataType, wanted: pa.DataType, found: object) -> None:
    assert fitted(pa.array([None, value], given), wanted).to_pylist() == [None, found]
