"""Rows that were made a VARIANT are read again: every column type, any values, in any mixture of images."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind, kind_of
from pyspark_tidb_binlog.schemas.changes.change_rows import columns_of
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates, TypedCells, is_date
from pyspark_tidb_binlog.schemas.changes.variant_cells import STORED_VARIANT, cell_type, cells_of
from pyspark_tidb_binlog.schemas.changes.variant_values import VariantColumn, rows_as_variants, spread
from pyspark_tidb_binlog.schemas.errors import Corruption, SchemaMismatch
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from tests.support.drawn_rows import KEYS, NOT_NULL, column, table, typed_columns
from tests.support.examples import examples

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large]
Columns = list[tuple[ColumnInfo, TypedCells]]


def stored(columns: Columns, count: int, there: npt.NDArray[np.bool_] | None = None) -> pa.StructArray:
    """Rows as the ledger holds them, null where they are not ``there``."""
    fields = [VariantColumn(c.name, cells, kind_of(c) is CellKind.JSON) for c, cells in columns]
    rows = rows_as_variants(fields, count, json_nulls=True)
    if there is not None:
        rows = spread(rows, np.arange(count), there)
    return pa.StructArray.from_arrays([rows.field("metadata"), rows.field("value")], fields=list(STORED_VARIANT), mask=rows.is_null())


def documents(cells: pa.StructArray) -> list[Any]:
    """JSON cells in words; NULL is told apart from JSON's null."""
    return ["NULL" if c is None else json.loads(VariantVal(c["value"], c["metadata"]).toJson()) for c in cells.to_pylist()]


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Columns, int]:
    """Columns of any types with as many cells each; BIT(1), and names that keys of documents have too."""
    count = draw(st.integers(0, 9))
    columns: list[tuple[ColumnInfo, list[Any]]] = []
    for number in range(draw(st.integers(1, 6))):
        info, values = draw(typed_columns(number + 1))
        if info.tp == ColumnType.BIT and draw(st.booleans()):
            info, values = replace(info, flen=1), values.map(lambda v: replace(v, cell=v.cell & 1))
        name = draw(KEYS) if draw(st.booleans()) else info.name
        cells = [draw(values).cell if info.not_null or draw(st.booleans()) else None for _ in range(count)]
        columns.append((replace(info, name=name), cells))
    if len({c.name for c, _ in columns}) < len(columns):
        columns = columns[:1]
    images = pa.RecordBatch.from_arrays([pa.array(cells, kind_of(c).arrow) for c, cells in columns], [c.name for c, _ in columns])
    return columns_of(table(tuple(c for c, _ in columns)), images), count


@examples(300, suppress_health_check=SLOW_DRAWS)
@given(drawn(), st.data())
def test_cells_are_those_that_were_written(rows: tuple[Columns, int], data: st.DataObject) -> None:
    columns, count = rows
    there = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    images = stored(columns, count, there)
    at = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=12)) if count else [], np.int64)
    begin = data.draw(st.integers(0, len(at)))
    wanted = data.draw(st.permutations(columns))
    found = cells_of(images.take(pa.array(at)).slice(begin), [c for c, _ in wanted])
    places = pa.array(at[begin:], mask=~there[at[begin:]])
    for (info, written), cells in zip(wanted, found, strict=True):
        cells.validate(full=True)
        assert cells.type == cell_type(info)
        if kind_of(info) is CellKind.JSON:
            texts = written.values.take(places)
            (again,) = cells_of(stored([(info, TypedCells(texts))], len(texts)), [info])
            assert documents(cells) == documents(again)
            assert cells.is_null().equals(texts.is_null())
        else:
            assert cells.equals(written.values.take(places))


@examples(100, suppress_health_check=SLOW_DRAWS)
@given(drawn())
def test_dates_that_no_calendar_has(rows: tuple[Columns, int]) -> None:
    columns, count = rows
    columns = [(c, cells) for c, cells in columns if is_date(c)]
    images, infos = stored(columns, count), [c for c, _ in columns]
    assert [c.type for c in cells_of(images, infos, InvalidDates.STRING)] == [pa.string()] * len(infos)
    for info, cells in columns:
        if cells.odd is not None:
            with pytest.raises(SchemaMismatch, match="not a date of Spark"):
                cells_of(images, [info], InvalidDates.FAIL)
        else:
            assert cells_of(images, [info], InvalidDates.FAIL)[0].equals(cells.values)


DATES = [
    (column(1, ColumnType.DATE), ["2026-11-20", "0001-01-01", "9999-12-31", "0000-00-00", "2026-02-31", None]),
    (
        column(1, ColumnType.DATETIME, decimal=0),
        ["2026-11-20 01:02:03", "0001-01-01 00:00:00", "1969-12-31 23:59:59", "0000-00-00 00:00:00"],
    ),
    (column(1, ColumnType.DATETIME, decimal=3), ["9999-12-31 23:59:59.999", "2026-01-01 00:00:00.000", "2026-00-10 01:02:03.004", None]),
    (
        column(1, ColumnType.TIMESTAMP, decimal=6),
        ["1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000000", "0000-00-00 00:00:00.000000"],
    ),
]


@pytest.mark.parametrize(("info", "texts"), DATES, ids=lambda value: value.decimal if isinstance(value, ColumnInfo) else "")
def test_dates_as_text_are_the_upstreams(info: ColumnInfo, texts: list[str | None]) -> None:
    columns = columns_of(table((info,)), pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["c1"]))
    assert cells_of(stored(columns, len(texts)), [info], InvalidDates.STRING)[0].to_pylist() == texts


def test_json_null_is_not_null() -> None:
    info = column(1, ColumnType.JSON)
    texts = pa.array([None, "null", '{"c1": {"c2": null}, "c2": 1}', "[]", '"c1"', None])
    other = (column(2, ColumnType.INT), TypedCells(pa.array(range(6), pa.int32())))
    found, numbers = cells_of(stored([(info, TypedCells(texts)), other], 6), [info, other[0]])
    assert documents(found) == ["NULL", None, {"c1": {"c2": None}, "c2": 1}, [], "c1", "NULL"]
    assert numbers.to_pylist() == list(range(6))


def test_rows_of_several_definitions_and_many_columns() -> None:
    """Fields are found by name. As many columns as here need two bytes for an id, and four for their number."""
    many = [(replace(column(n + 1, ColumnType.BIGINT), name=f"n{n}"), TypedCells(pa.array([n, None, -n]))) for n in range(300)]
    few = [
        *reversed(many[:7]),
        (replace(column(9, ColumnType.VARCHAR, charset="utf8mb4"), name="n299"), TypedCells(pa.array(["a", "", None]))),
    ]
    both = pa.concat_arrays([stored(many, 3), stored(few, 3)])
    found = cells_of(both, [c for c, _ in many[:7]])
    assert [cells.to_pylist() for cells in found] == [[n, None, -n] * 2 for n in range(7)]
    assert [cells.to_pylist() for cells in cells_of(stored(many, 3), [c for c, _ in many])] == [[n, None, -n] for n in range(300)]
    with pytest.raises(SchemaMismatch, match="no column n8, it has n0, n1"):
        cells_of(both, [many[8][0]])
    with pytest.raises(Corruption, match="column n299, int64, has a cell of kind 64 and 6 bytes"):
        cells_of(both, [many[299][0]])


@examples(300)
@given(st.data())
def test_damage_is_refused_or_read_as_a_value(data: st.DataObject) -> None:
    """Whatever the bytes are, nothing but the two errors is raised."""
    info = [column(1, ColumnType.BIGINT, NOT_NULL), column(2, ColumnType.DECIMAL, flen=20, decimal=0), column(3, ColumnType.JSON)]
    info.append(column(4, ColumnType.VARCHAR, charset="utf8mb4"))
    cells = [pa.array([1, 2]), pa.array([None, 10**19], pa.decimal128(20, 0)), pa.array(['{"c1": 1}', None]), pa.array(["é", None])]
    images = stored([(c, TypedCells(a)) for c, a in zip(info, cells, strict=True)], 2).to_pylist()
    row = data.draw(st.integers(0, 1))
    part = data.draw(st.sampled_from(["metadata", "value"]))
    raw = bytearray(images[row][part])
    at = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "longer"])):
        case "flip":
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del raw[at:]
        case _:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    images[row] = images[row] | {part: bytes(raw)}
    try:
        found = cells_of(pa.array(images, STORED_VARIANT), info)
    except (Corruption, SchemaMismatch):
        return
    assert all(len(a) == 2 for a in found) and pc.sum(found[0]) is not None
