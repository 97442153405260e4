"""What is decided once per table version: the parts of a row's key, and the cells of its images."""

import pyarrow as pa

from pyspark_tidb_binlog.schemas.arrowtypes import CellKind
from pyspark_tidb_binlog.schemas.row_layout import ROWID, CellType, KeyPart, image_layout, key_layout
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnType
from tests.support.drawn_rows import column, table

PK = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
AMOUNT = column(1, ColumnType.DECIMAL, flen=10, decimal=2)
ID = column(2, ColumnType.BIGINT, PK)


def test_a_row_without_a_handle_column_has_its_rowid() -> None:
    key = key_layout(table((AMOUNT,)))
    assert key.parts == (KeyPart(ROWID, CellType(CellKind.INT, 0)),)
    assert key.by_handle and key.ids == {ROWID} and key.parts[0].whole


def test_an_integer_handle_is_one_part() -> None:
    key = key_layout(table((AMOUNT, ID), pk_is_handle=True))
    assert [part.id for part in key.parts] == [2] and key.by_handle


def test_images_have_the_target_columns() -> None:
    layout = image_layout(table((AMOUNT, ID), pk_is_handle=True))
    assert layout.cells == (CellType(CellKind.DECIMAL, 2), CellType(CellKind.INT, 0))
    assert layout.slots == {1: 0, 2: 1} and [part.id for part in layout.handle] == [2]
    assert layout.schema.types == [CellKind.DECIMAL.arrow, pa.int64()]
