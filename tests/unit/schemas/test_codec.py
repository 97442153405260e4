"""Each encoding against bytes taken from a live cluster (rows.md 4, 5, 10) and against its own inverse."""

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_tidb_binlog.jobs.lab.emulator.datum_encoder import (
    JsonDuration,
    JsonNull,
    JsonOpaque,
    JsonTime,
    encode_comparable_int,
    encode_decimal,
    encode_json,
    json_datum,
)
from pyspark_tidb_binlog.schemas.codec import datum, json_binary, number, temporal
from pyspark_tidb_binlog.schemas.codec.decimal import decode_decimal, size_of
from pyspark_tidb_binlog.schemas.codec.json_binary import JsonType, json_text
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.errors import Corruption


def read(raw: str | bytes) -> datum.Datum:
    cursor = Cursor(bytes.fromhex(raw) if isinstance(raw, str) else raw)
    found = datum.take_datum(cursor)
    assert cursor.pos == cursor.end
    return found


@pytest.mark.parametrize(
    ("raw", "cast", "value"),
    [
        ("08ff01", datum.as_integer, -128),
        ("09ffffffffffffffffff01", datum.as_integer, 2**64 - 1),
        ("088080ebbfc9cc14", datum.as_integer, 45296 * 10**9),
        ("078000034630b8a000", datum.as_integer, 3600 * 10**9),
        ("037fffffffffffffff", datum.as_integer, -1),
        ("0400000000000000ff", datum.as_integer, 255),
        ("05bff8000000000000", datum.as_float, 1.5),
        ("053ffdffffffffffff", datum.as_float, -2.25),
        ("02046869", datum.as_bytes, b"hi"),
        ("014b00000000000000f8", datum.as_bytes, b"K"),
        ("0161626364656667" + "68ff0000000000000000f7", datum.as_bytes, b"abcdefgh"),
    ],
)
def test_live_datums(raw: str, cast: Callable[[datum.Datum], Any], value: Any) -> None:
    assert cast(read(raw)) == value


@pytest.mark.parametrize(
    ("value", "precision", "scale", "raw"),
    [
        ("1234567890.1234", 14, 4, "0e04810dfb38d204d2"),
        ("-1234567890.1234", 14, 4, "0e047ef204c72dfb2d"),
        ("123.45", 10, 2, "0a028000007b2d"),
        ("-1234567890.123400", 20, 6, "14067ffffef204c72dfe1df7"),
        ("-12.50", 6, 2, "06027ff3cd"),
        ("0.99999", 5, 5, "050581869f"),
        ("0", 1, 0, "010080"),
    ],
)
def test_decimals(value: str, precision: int, scale: int, raw: str) -> None:
    assert encode_decimal(value, precision, scale).hex() == raw
    assert decode_decimal(bytes.fromhex(raw), scale) == value


def test_decimal_text_has_the_columns_scale_and_no_negative_zero() -> None:
    assert decode_decimal(encode_decimal("1.5", 5, 1), 3) == "1.500"
    negative_zero = bytes((3, 1)) + bytes((0x7F, 0xFF, 0xFF)[: size_of(3, 1)])
    assert decode_decimal(negative_zero, 1) == "0.0"
    with pytest.raises(ValueError, match="does not fit"):
        encode_decimal("1000", 3, 0)


@pytest.mark.parametrize("raw", ["0602038000", "06000080", "06420080", "0603018fff", "06090080"])
def test_damaged_decimals_are_refused(raw: str) -> None:
    with pytest.raises(Corruption):
        datum.as_decimal(datum.take_datum(Cursor(bytes.fromhex(raw))), 0)


@pytest.mark.parametrize(
    ("packed", "fsp", "text"),
    [
        (1850847855612106872, 3, "2023-03-04 05:06:07.891"),
        (1850847855611339328, 6, "2023-03-04 05:06:07.123456"),
        (0, 2, "0000-00-00 00:00:00.00"),
    ],
)
def test_packed_times(packed: int, fsp: int, text: str) -> None:
    assert temporal.datetime_text(packed, fsp) == text
    assert temporal.pack_datetime(text) == packed


def test_partial_dates_and_odd_texts() -> None:
    assert temporal.date_text(temporal.pack_datetime("2026-00-00")) == "2026-00-00"
    for text in ("", "x", "2026-13-01", "2026-01-01 25:00:00", "0"):
        with pytest.raises(ValueError, match="is not a date"):
            temporal.pack_datetime(text)
    with pytest.raises(Corruption, match="out of range"):
        temporal.datetime_text(61 << 24, 0)


@pytest.mark.parametrize("text", ["-838:59:59.000000", "838:59:59.000000", "00:00:00.000001", "-12:30:00.500000"])
def test_durations(text: str) -> None:
    assert temporal.time_text(temporal.parse_time(text), 6) == text


def test_durations_cut_off_what_is_finer_and_know_no_negative_zero() -> None:
    assert temporal.time_text(-1, 6) == "00:00:00.000000"
    assert temporal.time_text(-1_999_999, 3) == "-00:00:00.001"
    with pytest.raises(Corruption, match="exceeds 838"):
        temporal.time_text(-(1 << 63), 0)


LIVE_JSON = (
    "01040000005800000034000000010035000000010036000000010037000000010"
    "00f380000000b400000000d48000000114c00000064666f7400241efb7ebba01f000000000000f03ffd0261620052e82b9dfcffff06000000"
)


def test_live_json() -> None:
    text = '{"d": "2024-02-29 23:59:59.123456", "f": 1, "o": "base64:type253:YWI=", "t": "-01:02:03.000000"}'
    assert json_text(bytes.fromhex(LIVE_JSON)) == text
    time = JsonTime(JsonType.DATETIME, "2024-02-29 23:59:59.123456")
    assert json_text(encode_json({"o": JsonOpaque(253, b"ab"), "f": 1.0, "t": JsonDuration(-3723 * 10**9), "d": time})) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (JsonNull(), "null"),
        ([None, True, False, []], "[null, true, false, []]"),
        ({"b": {}, "a": {"": -1}}, '{"a": {"": -1}, "b": {}}'),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
        (1.5e10, "15000000000"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (-1.25e-7, "-1.25e-7"),
        (1e-6, "0.000001"),
        (-0.0, "-0"),
        ('"\\\n\r\t\x01\u2028é🎉/<', '"\\"\\\\\\n\\r\\t\\u0001\\u2028é🎉/<"'),
        (JsonTime(JsonType.DATE, "2026-11-20"), '"2026-11-20"'),
    ],
)
def test_json_text(value: Any, text: str) -> None:
    assert json_text(encode_json(value)) == text


def test_json_strings_that_are_no_utf8() -> None:
    assert json_text(bytes((JsonType.STRING, 3)) + b"a\xff\n") == '"a\\ufffd\\n"'
    assert json_text(encode_json("\ufffd")) == '"\ufffd"'


def deep(levels: int) -> bytes:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return encode_json(value)


def bomb() -> bytes:
    """Arrays whose elements all point at the same next array."""
    inner = encode_json([1])[1:]
    for _ in range(30):
        head = 8 + 5 * 9
        entries = b"".join(bytes((JsonType.ARRAY,)) + head.to_bytes(4, "little") for _ in range(9))
        inner = (9).to_bytes(4, "little") + (head + len(inner)).to_bytes(4, "little") + entries + inner
    return bytes((JsonType.ARRAY,)) + inner


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x02",
        b"\x04\x07",
        b"\x0b" + b"\xff" * 8,
        b"\x01" + b"\xff" * 8,
        b"\x03\x01\0\0\0\x0d\0\0\0\x09\x0d\0\0\0",
        deep(101),
        bomb(),
        b"\x0f" + (1_000_000 << 4).to_bytes(8, "little"),
    ],
)
def test_damaged_json_is_refused(raw: bytes) -> None:
    with pytest.raises(Corruption):
        json_text(raw)


def test_json_may_be_as_deep_as_tidb_allows() -> None:
    assert json_text(deep(100)) == "[" * 100 + "1" + "]" * 100


@pytest.mark.parametrize(
    "raw", ["", "0b", "fa", "02", "0201", "02ffffffffffffffffff01", "08", "08" + "ff" * 10, "09ffffffffffffffffff02", "05ff", "0a"]
)
def test_damaged_datums_are_refused(raw: str) -> None:
    with pytest.raises(Corruption):
        datum.take_datum(Cursor(bytes.fromhex(raw)))


def test_a_flag_of_another_kind_is_refused() -> None:
    value = read("0802")
    for cast in (datum.as_bytes, datum.as_float, datum.as_json):
        with pytest.raises(Corruption, match="flag 0x08"):
            cast(value)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 2**63 - 1, -(2**63)])
def test_signed_numbers_come_back(value: int) -> None:
    assert Cursor(number.encode_varint(value)).varint() == value
    assert number.decode_comparable_int(encode_comparable_int(value)) == value
    assert number.to_signed(number.to_unsigned(value)) == value


def test_json_datums_end_where_their_own_size_says() -> None:
    cursor = Cursor(json_datum({"a": [1]}) + json_datum("s") + json_datum(JsonOpaque(1, b"x")) + b"\x00")
    assert [datum.as_json(datum.take_datum(cursor)) for _ in range(3)] == ['{"a": [1]}', '"s"', '"base64:type1:eA=="']
    assert cursor.pos == cursor.end - 1
    assert json_binary.MAX_DEPTH == 100
