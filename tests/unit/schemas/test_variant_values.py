"""Rows as VARIANT, read back by PySpark's own reader of the encoding."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells
from pyspark_tidb_binlog.schemas.changes.variant_values import VARIANT, VariantColumn, no_rows, rows_as_variants, spread


def read(rows: pa.StructArray) -> list[Any]:
    from pyspark.sql.types import VariantVal

    return [None if row is None else VariantVal(row["value"], row["metadata"]).toPython() for row in rows.to_pylist()]


def column(name: str, cells: pa.Array, odd: pa.Array | None = None) -> VariantColumn:
    return VariantColumn(name, TypedCells(cells, odd))


def test_every_kind_of_value() -> None:
    moment = datetime.datetime(2026, 11, 20, 1, 2, 3, 456789)
    columns = {
        "int": pa.array([-(2**63), 2**63 - 1]),
        "small": pa.array([-128, 127], pa.int8()),
        "big": pa.array([Decimal(2**64 - 1), Decimal(7)], pa.decimal128(20, 0)),
        "dec": pa.array([Decimal("-9999999999999999999999.999"), Decimal("0.001")], pa.decimal128(38, 3)),
        "float": pa.array([0.1, -3.4e38], pa.float32()),
        "double": pa.array([0.1, -1e308]),
        "yes": pa.array([True, False]),
        "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "at": pa.array([moment, moment], pa.timestamp("us")),
        "instant": pa.array([moment, moment], pa.timestamp("us", tz="UTC")),
        "text": pa.array(["", "é🎉" * 100]),
        "bytes": pa.array([b"", b"\x00\xff" * 5000]),
    }
    rows = read(rows_as_variants([column(name, cells) for name, cells in columns.items()], 2))
    for place, row in enumerate(rows):
        wanted = {name: cells[place].as_py() for name, cells in columns.items()}
        assert {n: v for n, v in row.items() if n != "instant"} == {n: v for n, v in wanted.items() if n != "instant"}
        assert row["instant"] == wanted["instant"]


def test_null_odd_dates_and_slices() -> None:
    cells = pa.array([None, datetime.date(2026, 1, 1), None])
    rows = [column("d", cells, pa.array(["0000-00-00", None, None])), column("n", pa.array([9, 1, None, 3]).slice(1))]
    assert read(rows_as_variants(rows, 3)) == [
        {"d": "0000-00-00", "n": 1},
        {"d": datetime.date(2026, 1, 1), "n": None},
        {"d": None, "n": 3},
    ]


def test_json_is_nested_and_its_keys_need_not_be_columns() -> None:
    texts = ['{"z": 1, "a": [1, {"q": null, "j": true}], "": 2.5}', None, "18446744073709551615", '"text"', "[]", "not json", "{}"]
    columns = [VariantColumn("j", TypedCells(pa.array(texts)), True), column("a", pa.array(range(len(texts))))]
    wanted = [{"z": 1, "a": [1, {"q": None, "j": True}], "": 2.5}, None, Decimal(2**64 - 1), "text", [], "not json", {}]
    assert read(rows_as_variants(columns, len(texts))) == [{"a": n, "j": value} for n, value in enumerate(wanted)]


def test_null_of_json_may_leave_the_field_out() -> None:
    texts = pa.array([None, "null", '{"a": null}', None])
    columns = [column("a", pa.array([1, None, 3, 4])), VariantColumn("j", TypedCells(texts), is_json=True)]
    assert read(rows_as_variants(columns, 4, json_nulls=True)) == [{"a": 1}, {"a": None, "j": None}, {"a": 3, "j": {"a": None}}, {"a": 4}]
    assert read(rows_as_variants(columns, 4)) == [{"a": n, "j": j} for n, j in ((1, None), (None, None), (3, {"a": None}), (4, None))]


def test_more_columns_than_a_byte_counts() -> None:
    from pyspark.sql.types import VariantVal

    names = [f"column_{n}" for n in range(700)]
    row = rows_as_variants([column(name, pa.array([n])) for n, name in enumerate(names)], 1)
    assert read(row) == [{name: n for n, name in enumerate(names)}]
    (parts,) = row.to_pylist()
    assert VariantVal(parts["value"], parts["metadata"]).toJson().startswith('{"column_0":0,')
    assert read(rows_as_variants([VariantColumn("j", TypedCells(pa.array([str(list(range(300)))])), True)], 1)) == [{"j": list(range(300))}]


def test_a_rows_bytes_do_not_depend_on_its_neighbours() -> None:
    def made(texts: list[str]) -> pa.StructArray:
        return rows_as_variants(
            [column("t", pa.array(texts)), VariantColumn("j", TypedCells(pa.array(['{"k":1}'] * len(texts))), True)], len(texts)
        )

    assert made(["a", "b" * 100_000])[0] == made(["a"])[0]


def test_rows_are_spread_and_nulls_have_empty_parts() -> None:
    rows = rows_as_variants([column("n", pa.array([1, 2]))], 2)
    found = spread(rows, np.array([0, 0, 1]), np.array([True, False, True]))
    assert read(found) == [{"n": 1}, None, {"n": 2}] and found.type == VARIANT
    assert found.field(0).null_count == 0
    assert no_rows(2).to_pylist() == [None, None] and rows_as_variants([], 2).to_pylist()[0]["value"][:1] != b""
