"""Every type of a column has its place on the whole way: cells, the target's SQL, files and topics. What a new type needs is in CONTRIBUTING.md."""

import datetime

import pytest

from pyspark_tidb_binlog.schemas.arrowtypes import image_schema, kind_of, zero_value
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.table_sql import column_type
from pyspark_tidb_binlog.sinks.translate.column_values import missing_datum, mysql_type, text_of
from tests.support.ddl_jobs import column
from tests.support.ddl_jobs import table as table_of

NO_COLUMN = {ColumnType.UNSPECIFIED, ColumnType.NULL}
"""Types of expressions."""
NO_TIDB = {ColumnType.GEOMETRY}
"""Which TiDB has no column of."""


def made(tp: ColumnType) -> ColumnInfo:
    """A column of the type, as TiDB's table info has it."""
    form = {"Tp": int(tp), "Flag": 129, "Flen": 8, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": ["a", "b"]}
    info = TableInfo.from_json(table_of(10, "t", [column(1, "v", form)], pk_is_handle=False))
    return info.columns[0]


@pytest.mark.parametrize("tp", [one for one in ColumnType if one not in NO_COLUMN], ids=lambda tp: tp.name)
def test_a_type_is_known_all_the_way(tp: ColumnType) -> None:
    one = made(tp)
    assert image_schema([one]).field("v").type == kind_of(one).arrow
    assert zero_value(one) is not None, "a NOT NULL column without a value"
    assert callable(text_of(one, datetime.UTC)) and missing_datum(one, None, datetime.UTC) is not None
    if tp is not ColumnType.NEWDATE:
        assert mysql_type(one), "its name in files and topics"
    if tp not in NO_TIDB:
        assert column_type(one), "its SQL at the target"
