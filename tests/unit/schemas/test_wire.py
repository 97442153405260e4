"""Varints: one decoder for protobuf's messages and TiDB's datums, and what it refuses."""

import pytest

from pyspark_tidb_binlog.schemas.codec.number import Cursor, decode_uvarint, encode_uvarint
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.wire import int64_of, varint

NUMBERS = (0, 1, 127, 128, 300, (1 << 32) + 5, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_come_back(value: int) -> None:
    encoded = encode_uvarint(value)
    assert decode_uvarint(b"xx" + encoded + b"y", 2) == (value, 2 + len(encoded))
    assert decode_uvarint(memoryview(encoded), 0) == (value, len(encoded))
    assert Cursor(encoded).uvarint() == value


@pytest.mark.parametrize("value", [0, 1, -1, 470604668048769025, (1 << 63) - 1, -(1 << 63)])
def test_int64_come_back(value: int) -> None:
    assert int64_of(varint(value)) == value


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"", "ends at byte 0, where one more byte is needed"),
        (b"\xff" * 9, "ends at byte 9, where one more byte is needed"),
        (b"\xff" * 11, "ends at byte 10 has more than 10 bytes"),
    ],
)
def test_a_varint_that_does_not_end(encoded: bytes, text: str) -> None:
    with pytest.raises(Corruption, match=text):
        decode_uvarint(encoded, 0)
    with pytest.raises(Corruption, match=text):
        Cursor(encoded).uvarint()


def test_a_datum_has_at_most_64_bits() -> None:
    encoded = b"\xff" * 9 + b"\x7f"
    assert decode_uvarint(encoded, 0) == ((1 << 70) - 1, 10)
    assert int64_of(encoded) == -1, "protobuf keeps the low 64 bits"
    with pytest.raises(Corruption, match="exceeds 64 bits"):
        Cursor(encoded).uvarint()
