"""The reference decoder on the worked examples of rows.md 10, on missing columns, and on rows that do not fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.row_encoder import encode_delete, encode_insert, encode_update
from pyspark_tidb_binlog.schemas import decoder, reference_decoder
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import Op
from pyspark_tidb_binlog.schemas.history import TableAt
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag, ColumnInfo, ColumnType, TableInfo
from tests.support.drawn_rows import NEWEST, NOT_NULL, OLDEST, at, column, table

PK = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
UTF8 = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}


def decode(half: str, where: TableAt, op: Op, row: bytes | str, version: int = NEWEST) -> list[Any]:
    """One row by both decoders, which must agree."""
    raw = bytes.fromhex(row.replace(" ", "")) if isinstance(row, str) else row
    args = (where, np.array([op], np.int32), pa.array([raw], pa.binary()), np.array([version], np.int64))
    slow = getattr(reference_decoder, half)(*args)
    assert getattr(decoder, half)(*args).equals(slow)
    return list(slow.to_pylist()[0].values())


def keys(info: TableInfo, events: Sequence[tuple[Op, bytes]]) -> list[bytes]:
    """The identity of each event's row by both decoders."""
    args = (at(info), np.array([op for op, _ in events], np.int32), pa.array([row for _, row in events], pa.binary()))
    slow = reference_decoder.row_keys(*args)
    assert decoder.row_keys(*args).equals(slow)
    return [bytes(k) for k in slow.to_pylist()]


def example_a() -> TableInfo:
    typed = [(ColumnType.BIGINT, PK, {}), (ColumnType.VARCHAR, 0, UTF8), (ColumnType.INT, 0, {})]
    typed += [(ColumnType.DECIMAL, 0, {"flen": 10, "decimal": 2}), (ColumnType.DATETIME, 0, {"decimal": 3})]
    typed += [(ColumnType.TIMESTAMP, 0, {"decimal": 6}), (ColumnType.TIME, 0, {"decimal": 2})]
    return table(tuple(column(i + 1, tp, flag, **more) for i, (tp, flag, more) in enumerate(typed)), pk_is_handle=True)


TAIL_A = "08 08 06 0a 02 80 00 00 7b 2d 08 0a 09 f8b0b6b8988ae2d719 08 0c 09 c0c487b8988ae2d719 08 0e 08 ff89d1eeddd801"
ROW_A = [7, b"hi", -3, "123.45", "2023-03-04 05:06:07.891", "2023-03-04 05:06:07.123456", "-01:02:03.45"]


def test_example_a_insert_update_delete() -> None:
    info = example_a()
    old, new = f"08 02 08 0e 08 04 02 04 68 69 08 06 08 05 {TAIL_A}", f"08 02 08 0e 08 04 02 04 68 69 08 06 08 08 {TAIL_A}"
    insert = f"08 0e 08 04 02 04 68 69 08 06 08 05 {TAIL_A}"
    assert decode("new_images", at(info), Op.INSERT, insert) == ROW_A
    assert decode("old_images", at(info), Op.UPDATE, old + new) == ROW_A
    assert decode("new_images", at(info), Op.UPDATE, old + new) == [7, b"hi", 4, *ROW_A[3:]]
    assert decode("old_images", at(info), Op.DELETE, new) == [7, b"hi", 4, *ROW_A[3:]]
    row = dict(
        zip(range(1, 8), [7, "hi", -3, "123.45", "2023-03-04 05:06:07.891", "2023-03-04 05:06:07.123456", "-01:02:03.45"], strict=True)
    )
    assert encode_insert(info, row) == bytes.fromhex(insert.replace(" ", ""))
    assert encode_update(info, row, row | {3: 4}) == bytes.fromhex((old + new).replace(" ", ""))
    assert encode_delete(info, row) == bytes.fromhex(old.replace(" ", ""))


def test_example_c_varchar_in_a_clustered_key_stands_twice() -> None:
    varchar = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "flen": 10}
    info = table(
        (column(1, ColumnType.VARCHAR, PK, **varchar), column(2, ColumnType.INT, PK), column(3, ColumnType.INT)), ((0, -1), (1, -1))
    )
    insert, delete = bytes.fromhex("02024b0804080202024b08060806"), bytes.fromhex("080202024b0804080408060812")
    assert decode("new_images", at(info), Op.INSERT, insert) == [b"K", 2, 3]
    assert decode("old_images", at(info), Op.DELETE, delete) == [b"K", 2, 9]
    assert encode_insert(info, {1: "K", 2: 2, 3: 3}) == insert
    first, second = keys(info, [(Op.INSERT, insert), (Op.DELETE, delete)])
    assert first == second


def test_example_c_hidden_rowid() -> None:
    info = table((column(1, ColumnType.INT), column(2, ColumnType.INT)))
    insert, delete = bytes.fromhex("08020802080a0804080c"), bytes.fromhex("0802080a0804080c08010802")
    update = bytes.fromhex("0802080a0804080c080108020802080a0804080e08010802")
    assert decode("new_images", at(info), Op.INSERT, insert) == [5, 6]
    assert decode("old_images", at(info), Op.UPDATE, update) == [5, 6]
    assert decode("new_images", at(info), Op.UPDATE, update) == [5, 7]
    assert encode_update(info, {1: 5, 2: 6}, {1: 5, 2: 7}, rowid=1) == update
    assert set(keys(info, [(Op.INSERT, insert), (Op.UPDATE, update), (Op.DELETE, delete)])) == {(1).to_bytes(8, "big")}


def test_example_c_generated_columns_stand_in_deletes_only() -> None:
    virtual, stored = (
        replace(column(2, ColumnType.INT), generated_expr="a+1"),
        replace(column(3, ColumnType.INT), generated_expr="a+2", generated_stored=True),
    )
    info = table((column(1, ColumnType.INT, PK), virtual, stored), pk_is_handle=True)
    assert decode("new_images", at(info), Op.INSERT, "0802 08060806") == [1]
    assert decode("old_images", at(info), Op.DELETE, "08020802 08040804 08060806") == [1]
    assert encode_delete(info, {1: 1, 2: 2, 3: 3}) == bytes.fromhex("080208020804080408060806")


def test_example_d_handle_of_many_types() -> None:
    typed: list[tuple[int, dict[str, Any]]] = [
        (ColumnType.DATETIME, {}),
        (ColumnType.DECIMAL, {"flen": 6, "decimal": 2}),
        (ColumnType.TIME, {}),
    ]
    typed += [(ColumnType.INT, {}), (ColumnType.ENUM, {"elems": ("p", "q")}), (ColumnType.TIMESTAMP, {})]
    parts = [column(i + 1, tp, PK | (ColumnFlag.UNSIGNED if tp == ColumnType.INT else 0), **more) for i, (tp, more) in enumerate(typed)]
    info = table((*parts, column(7, ColumnType.INT)), tuple((i, -1) for i in range(6)))
    row = "09 808080a8908691d919 06 06 02 7ff3cd 07 8000034630b8a000 09 07 09 02 09 8080808080c0a0d419 08 0e 08 02"
    values = ["2024-01-02 03:04:05", "-12.50", "01:00:00", 7, 2, "2021-01-01 00:00:00", 1]
    assert decode("new_images", at(info), Op.INSERT, row) == values
    written = dict(enumerate(values, 1))
    assert encode_insert(info, written) == bytes.fromhex(row.replace(" ", ""))
    found = keys(info, [(Op.INSERT, encode_insert(info, written)), (Op.DELETE, encode_delete(info, written))])
    assert found[0] == found[1]


def test_unsigned_handle_is_signed_in_inserts_and_unsigned_elsewhere() -> None:
    info = table((column(1, ColumnType.BIGINT, PK | ColumnFlag.UNSIGNED),), pk_is_handle=True)
    assert decode("new_images", at(info), Op.INSERT, "0801 00") == [2**64 - 1]
    assert decode("old_images", at(info), Op.DELETE, "0802 09ffffffffffffffffff01") == [2**64 - 1]
    assert keys(info, [(Op.INSERT, b"\x08\x01\x00"), (Op.DELETE, bytes.fromhex("080209ffffffffffffffffff01"))]) == [b"\xff" * 8] * 2


def test_the_rows_value_wins_over_the_handles_sort_key() -> None:
    ci = column(1, ColumnType.VARCHAR, PK, charset="utf8mb4", collate="utf8mb4_general_ci")
    insert = encode_insert(table((ci,), ((0, -1),)), {1: "Kk"})
    assert insert == bytes.fromhex("0208004b004b" + "080202044b6b")
    assert decode("new_images", at(table((ci,), ((0, -1),))), Op.INSERT, insert) == [b"Kk"]


def test_a_prefix_key_is_the_prefix_of_the_rows_value() -> None:
    text = column(1, ColumnType.VARCHAR, PK, charset="utf8mb4", collate="utf8mb4_bin")
    info = table((text,), ((0, 2),))
    insert, moved = encode_insert(info, {1: "日本語"}), encode_update(info, {1: "日本語"}, {1: "日本x"})
    assert decode("new_images", at(info), Op.INSERT, insert) == ["日本語".encode()]
    assert keys(info, [(Op.INSERT, insert), (Op.UPDATE, moved)]) == [b"\0\0\0\x06" + "日本".encode()] * 2


def test_unknown_columns_are_not_looked_at() -> None:
    info = table((column(1, ColumnType.INT, PK),), pk_is_handle=True)
    assert decode("old_images", at(info), Op.DELETE, "08020804 086c060a02ffffffffff") == [2]


DEFAULTS = [
    (column(2, ColumnType.INT, origin_default="5"), 5),
    (column(2, ColumnType.INT), None),
    (column(2, ColumnType.INT, NOT_NULL), 0),
    (column(2, ColumnType.BIGINT, ColumnFlag.UNSIGNED, origin_default="18446744073709551615"), 2**64 - 1),
    (column(2, ColumnType.DOUBLE, NOT_NULL, origin_default="7"), 7.0),
    (column(2, ColumnType.FLOAT, origin_default=1.5), 1.5),
    (column(2, ColumnType.DECIMAL, flen=10, decimal=3, origin_default="1.5"), "1.500"),
    (column(2, ColumnType.DECIMAL, NOT_NULL, flen=10, decimal=2), "0.00"),
    (column(2, ColumnType.TIMESTAMP, decimal=3, origin_default="2020-01-01 00:00:00"), "2020-01-01 00:00:00.000"),
    (column(2, ColumnType.DATETIME, origin_default="odd"), "odd"),
    (column(2, ColumnType.DATE, NOT_NULL), "0000-00-00"),
    (column(2, ColumnType.TIME, NOT_NULL, decimal=1), "00:00:00.0"),
    (column(2, ColumnType.ENUM, elems=("aa", "bb"), origin_default="bb"), 2),
    (column(2, ColumnType.ENUM, NOT_NULL, elems=("aa", "bb")), 1),
    (column(2, ColumnType.SET, elems=("a", "b", "c"), origin_default="a,c"), 5),
    (column(2, ColumnType.SET, NOT_NULL, elems=("a",)), 0),
    (column(2, ColumnType.BIT, flen=9, origin_default="\x01\x01", origin_default_bit=b"\x01\x01"), 257),
    *(
        (column(2, ColumnType.DECIMAL, flen=10, decimal=2, origin_default=d), n)
        for d, n in (("1.235", "1.24"), ("-0.005", "-0.01"), ("1e1", "10.00"))
    ),
    (column(2, ColumnType.DECIMAL, flen=65, decimal=30, origin_default="9" * 35), "9" * 35 + "." + "0" * 30),
    (column(2, ColumnType.DECIMAL, flen=10, decimal=0, origin_default="-0.4"), "0"),
    *((column(2, ColumnType.YEAR, origin_default=d), n) for d, n in (("2020", 2020), ("70", 1970), ("99", 1999), ("1", 2001), (69, 2069))),
    *((column(2, ColumnType.YEAR, origin_default=d), n) for d, n in (("0", 2000), ("0000", 0), (0, 0))),
    (column(2, ColumnType.VARCHAR, origin_default="dflt", **UTF8), b"dflt"),
    (column(2, ColumnType.STRING, NOT_NULL, flen=3), b"\0\0\0"),
    (column(2, ColumnType.JSON, NOT_NULL), "null"),
]


@pytest.mark.parametrize(("missing", "cell"), DEFAULTS)
def test_missing_columns_are_completed(missing: ColumnInfo, cell: Any) -> None:
    info = table((column(1, ColumnType.INT, PK), missing), pk_is_handle=True)
    assert decode("new_images", at(info), Op.INSERT, "0802 00", OLDEST) == [1, cell]
    assert decode("old_images", at(info), Op.DELETE, "08020802", OLDEST) == [1, cell]
    assert decode("new_images", at(info), Op.UPDATE, "08020802 08020802", OLDEST) == [1, cell]


def test_an_old_image_says_what_it_lacks() -> None:
    info = table(tuple(column(i, ColumnType.INT) for i in range(1, 11)))
    whole = encode_delete(info, {}, 1)
    assert decode("old_rows", at(info), Op.DELETE, whole) == [*[None] * 10, b""]
    part = encode_delete(replace(info, columns=info.columns[1:9]), {}, 1)
    assert decode("old_rows", at(info), Op.DELETE, part, OLDEST) == [*[None] * 10, b"\x01\x02"]


def test_the_default_of_the_rows_own_time_counts() -> None:
    then = table((column(1, ColumnType.INT, PK), column(2, ColumnType.INT, origin_default="5")), pk_is_handle=True)
    now = table((column(1, ColumnType.INT, PK), column(2, ColumnType.INT, origin_default="6")), pk_is_handle=True)
    where = at(now, (OLDEST, then))
    assert decode("new_images", where, Op.INSERT, "0802 00", OLDEST) == [1, 5]
    assert decode("new_images", where, Op.INSERT, "0802 00", NEWEST) == [1, 6]


def test_an_update_may_lack_columns_only_around_a_ddl() -> None:
    info = table((column(1, ColumnType.INT, PK), column(2, ColumnType.INT)), pk_is_handle=True)
    with pytest.raises(Corruption, match=r"table db\.t \(id 7.*column c2 \(id 2\) is missing in an update of schema version 10"):
        decode("new_images", at(info), Op.UPDATE, "08020802 08020802")
    assert decode("new_images", at(info, dropping=True), Op.UPDATE, "08020802 08020802") == [1, None]


@pytest.mark.parametrize(
    ("op", "row", "words"),
    [
        (Op.UPDATE, "08020802 08040804 08020802", "column c2 .* only one half of the update"),
        (Op.UPDATE, "08020802 08020802 08020802", "column id 1 occurs 3 times"),
        (Op.DELETE, "08020802 08020802", "column id 1 occurs 2 times"),
        (Op.DELETE, "", "no columns"),
        (Op.DELETE, "80000100", "column id with flag 0x80"),
        (Op.DELETE, "0802 02046869", "column c1 .*flag 0x02 where an integer is expected"),
        (Op.INSERT, "0802", "no columns"),
        (Op.DELETE, "0802 08", "one more byte"),
    ],
)
def test_rows_that_do_not_fit_say_why(op: Op, row: str, words: str) -> None:
    info = table((column(1, ColumnType.INT, PK), column(2, ColumnType.INT)), pk_is_handle=True)
    half = "new_images" if op == Op.INSERT else "old_images"
    raw = pa.array([bytes.fromhex(row.replace(" ", ""))], pa.binary())
    for module in (decoder, reference_decoder):
        with pytest.raises(Corruption, match=words):
            getattr(module, half)(at(info), np.array([op], np.int32), raw, np.array([NEWEST], np.int64))


def test_asking_for_a_half_that_an_event_lacks_is_a_mistake() -> None:
    info = at(table((column(1, ColumnType.INT, PK),), pk_is_handle=True))
    raw, version = pa.array([b"\x08\x02\x00"], pa.binary()), np.array([NEWEST], np.int64)
    for module, words in ((decoder, "INSERT events have no old row"), (reference_decoder, "not in tuple")):
        with pytest.raises(ValueError, match=words):
            module.old_images(info, np.array([Op.INSERT], np.int32), raw, version)
    with pytest.raises(ValueError, match="events have rows"):
        decoder.row_keys(info, np.array([100], np.int32), raw)
