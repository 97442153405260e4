"""Hashes of a mirror's rows: other cells, other places of them and other numbers of rows have other sums; equal values are equal."""

import random
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table, parsed, table_json
from pyspark_tidb_binlog.schemas.changes.typed_cells import TypedCells
from pyspark_tidb_binlog.schemas.changes.variant_cells import cells_of
from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT, VariantColumn, laid_out, rows_as_variants
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake.net_changes import mirror_cells
from pyspark_tidb_binlog.sinks.verify.hash_sums import LONG as LONG_CELL
from pyspark_tidb_binlog.sinks.verify.hash_sums import Buckets
from pyspark_tidb_binlog.sinks.verify.row_hashes import RowShape

TEXTS = Table("t", (Column("id", "bigint"), Column("a", "varchar(30)"), Column("b", "longtext")), ("id",))
OTHERS = Table("t", (Column("a", "int"), Column("f", "double"), Column("j", "json")))


def info_of(table: Table) -> TableInfo:
    return parsed(table_json(table, 7))


def summed(table: Table, rows: dict[str, Any], size: int = 1 << 20) -> Buckets:
    shape, found = RowShape.of(info_of(table)), Buckets()
    cells = [rows[f.name] if isinstance(rows[f.name], pa.Array) else pa.array(rows[f.name], f.type) for f in shape.schema]
    for batch in pa.Table.from_arrays(cells, names=shape.names).to_batches(max_chunksize=size):
        found.add(*shape.hashes(shape.bytes_of(batch)))
    return found


LONG = "x" * (3 * LONG_CELL)
ROWS: dict[str, Any] = {"id": [1, 2, 3, 4], "a": ["", None, "a", "é" * 9], "b": ["b", LONG, None, ""]}
CHANGES: dict[str, dict[str, Any]] = {
    "a bit of a number": {"id": [1, 2, 3, 4 | 1 << 62]},
    "NULL for an empty text": {"a": [None, None, "a", "é" * 9]},
    "an empty text for NULL": {"a": ["", "", "a", "é" * 9]},
    "a blank behind a text": {"a": ["", None, "a ", "é" * 9]},
    "a zero byte behind a text": {"a": ["", None, "a\0", "é" * 9]},
    "an upper case": {"a": ["", None, "A", "é" * 9]},
    "the end of a long text": {"b": ["b", LONG[:-1] + "y", None, ""]},
    "the length of a long text": {"b": ["b", LONG + "x", None, ""]},
    "two columns of a row": {"a": ["b", None, "a", "é" * 9], "b": ["", LONG, None, ""]},
    "cells of two rows": {"b": [LONG, "b", None, ""]},
    "a row that is there twice": {name: [*cells, cells[2]] for name, cells in ROWS.items()},
    "a row less": {name: cells[1:] for name, cells in ROWS.items()},
    "one row for another one": {name: [*cells[1:], cells[1]] for name, cells in ROWS.items()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_another_sum(change: str) -> None:
    assert len(summed(TEXTS, ROWS).unlike(summed(TEXTS, ROWS | CHANGES[change])))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_neither_order_nor_batches_count(size: int) -> None:
    order = random.Random(size).sample(range(4), 4)
    other = summed(TEXTS, {name: [cells[i] for i in order] for name, cells in ROWS.items()}, size)
    assert not len(summed(TEXTS, ROWS).unlike(other)) and other.rows == 4


def documents(*texts: str | None) -> pa.Array:
    """As a first load has them."""
    column = next(c for c in info_of(OTHERS).columns if c.name == "j")
    return laid_out(mirror_cells(column, TypedCells(pa.array(texts, pa.string()))), STORED_VARIANT)


def in_images(*texts: str) -> pa.Array:
    """As the ledger has them: beside other columns, whose names a document's keys are numbered behind."""
    columns = [VariantColumn("z", TypedCells(pa.array(["z"] * len(texts)))), VariantColumn("j", TypedCells(pa.array(texts)), is_json=True)]
    return cells_of(rows_as_variants(columns, len(texts)), [c for c in info_of(OTHERS).columns if c.name == "j"])[0]


def test_documents_and_numbers_are_equal_by_their_values() -> None:
    same = [
        summed(OTHERS, {"_tidb_rowid": [1], "a": [1], "f": [zero], "j": j})
        for zero in (0.0, -0.0)
        for j in (documents('{"z": 1, "a": [1, "x"]}'), documents('{"a": [1.0, "x"], "z": 1.0}'), in_images('{"a": [1, "x"], "z": 1}'))
    ]
    assert not any(len(same[0].unlike(other)) for other in same)
    others = [documents(text) for text in ('{"z": 1, "a": [1, "X"]}', '{"z": 1, "a": ["x", 1]}', "null", None)]
    sums = [*same[:1], *(summed(OTHERS, {"_tidb_rowid": [1], "a": [1], "f": [0.0], "j": j}) for j in others)]
    assert all(len(one.unlike(other)) for number, one in enumerate(sums) for other in sums[:number])


def test_parts_are_put_together() -> None:
    whole, parts = summed(TEXTS, ROWS), Buckets()
    for number in range(4):
        parts.include(summed(TEXTS, {name: cells[number : number + 1] for name, cells in ROWS.items()}))
    assert not len(whole.unlike(parts))
