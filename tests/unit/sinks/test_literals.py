"""SQL literals of whole columns, byte for byte."""

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, ColumnType
from pyspark_tidb_binlog.sinks.mysql.literals import Cells, LiteralForm, deeper, form_of, join_cells, literals, text_of


def column(tp: int, charset: str = "binary") -> ColumnInfo:
    return ColumnInfo(1, "c", 0, tp, 0, -1, -1, charset, charset, (), None, None, None, None, False, "", False, False, 5, "")


def one_by_one(values: pa.Array, form: LiteralForm) -> list[bytes]:
    return [row[:-1] for row in join_cells(b"", [literals(values, form)], [], b",").to_pylist()]


@pytest.mark.parametrize(
    ("values", "form", "expected"),
    [
        (pa.array([0, -(2**63), 2**63 - 1]), LiteralForm.BARE, [b"0", b"-9223372036854775808", b"9223372036854775807"]),
        (pa.array([2**64 - 1, None], pa.uint64()), LiteralForm.BARE, [b"18446744073709551615", b"NULL"]),
        (pa.array([0.1, 1e300, 5e-324, 1.0]), LiteralForm.BARE, [b"0.1", b"1e+300", b"5e-324", b"1"]),
        (pa.array([0.1], pa.float32()), LiteralForm.BARE, [b"0.10000000149011612"]),
        (pa.array(["-0.50", None]), LiteralForm.BARE, [b"-0.50", b"NULL"]),
        (pa.array(["2026-00-00"]), LiteralForm.QUOTED, [b"'2026-00-00'"]),
        (pa.array(["2026-01-01", None]), LiteralForm.QUOTED, [b"'2026-01-01'", b"NULL"]),
        (pa.array([b"it's", b"a\\b", b"", None], pa.binary()), LiteralForm.TEXT, [b"'it''s'", b"'a\\\\b'", b"''", b"NULL"]),
        (pa.array([b"\\'"], pa.binary()), LiteralForm.TEXT, [b"'\\\\'''"]),
        (pa.array(['{"a": "\\"\'"}']), LiteralForm.TEXT, [b"""'{"a": "\\\\"''"}'"""]),
        (pa.array([b"\0\xff'", None], pa.binary()), LiteralForm.BYTES, [b"_binary'\\0\xff'''", b"NULL"]),
        (pa.array([b"\xe6"], pa.binary()), LiteralForm.BYTES, [b"_binary'\xe6'"]),
        (pa.array([None, None], pa.binary()), LiteralForm.TEXT, [b"NULL", b"NULL"]),
        (pa.array([], pa.binary()), LiteralForm.TEXT, []),
    ],
)
def test_literals(values: pa.Array, form: LiteralForm, expected: list[bytes]) -> None:
    assert one_by_one(values, form) == expected


@pytest.mark.parametrize("form", [LiteralForm.TEXT, LiteralForm.BYTES])
def test_a_sliced_column(form: LiteralForm) -> None:
    whole = pa.array([b"it's", b"plain", None, b"x\\"], pa.binary())
    assert one_by_one(whole.slice(1), form) == one_by_one(whole, form)[1:]
    assert one_by_one(whole.slice(0, 2), form) == one_by_one(whole, form)[:2]


@pytest.mark.parametrize(
    ("tp", "charset", "kind", "form"),
    [
        (ColumnType.BIGINT, "binary", pa.int64(), LiteralForm.BARE),
        (ColumnType.ENUM, "utf8mb4", pa.uint64(), LiteralForm.BARE),
        (ColumnType.FLOAT, "binary", pa.float32(), LiteralForm.BARE),
        (ColumnType.DECIMAL, "binary", pa.string(), LiteralForm.BARE),
        (ColumnType.DATETIME, "binary", pa.string(), LiteralForm.QUOTED),
        (ColumnType.TIME, "binary", pa.string(), LiteralForm.QUOTED),
        (ColumnType.JSON, "binary", pa.string(), LiteralForm.TEXT),
        (ColumnType.VARCHAR, "utf8mb4", pa.binary(), LiteralForm.TEXT),
        (ColumnType.STRING, "binary", pa.binary(), LiteralForm.BYTES),
        (ColumnType.BLOB, "latin1", pa.binary(), LiteralForm.TEXT),
    ],
)
def test_form_of_column(tp: int, charset: str, kind: pa.DataType, form: LiteralForm) -> None:
    assert form_of(column(tp, charset), kind) is form


def test_rows_lie_side_by_side() -> None:
    cells = [literals(pa.array([1, 2, None]), LiteralForm.BARE), literals(pa.array([b"a", b"b", b"c"], pa.binary()), LiteralForm.TEXT)]
    rows = join_cells(b"(", cells, [b","], b"),")
    assert rows.to_pylist() == [b"(1,'a'),", b"(2,'b'),", b"(NULL,'c'),"]
    assert bytes(text_of(rows)) == b"(1,'a'),(2,'b'),(NULL,'c'),"
    assert bytes(text_of(rows.slice(1, 1))) == b"(2,'b'),"


def test_quotes_stay_outside_of_null() -> None:
    assert join_cells(b"", [Cells(pa.array([b"x"], pa.binary()), b"'", b"'")], [], b";").to_pylist() == [b"'x';"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_how_deep_documents_are_nested(kind: pa.DataType) -> None:
    texts = [
        "[[]]",
        "[[[]]]",
        '{"a": {"b": [1]}}',
        '[["]", "\\\\", "[", "\\"[["]]',
        "[[], [], [], []]",
        "1",
        '{"\\"{": {"[[": "\\\\"}}',
        None,
    ]
    assert deeper(pa.array(texts, kind), 2).tolist() == [False, True, True, False, False, False, False, False]
    assert deeper(pa.array([None, *texts], kind).slice(1), 1).tolist() == [True, True, True, True, True, False, True, False]
    assert deeper(pa.array([], kind), 2).tolist() == []
