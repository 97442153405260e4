"""Rows of a result set, however their bytes arrive."""

import random

import pytest

from pyspark_tidb_binlog.sinks.mysql.row_packets import RowPackets

Row = tuple[bytes | None, ...]
END = b"\xfe\x00\x00\x22\x00"


def value_bytes(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return (b"\xfd" + size.to_bytes(3, "little") if size < 1 << 24 else b"\xfe" + size.to_bytes(8, "little")) + value


def packets(payload: bytes) -> bytes:
    """A payload of 16 MB and more is several packets; the last one is shorter, or empty."""
    parts = [payload[i : i + 0xFFFFFF] for i in range(0, len(payload) + 1, 0xFFFFFF)]
    return b"".join(len(part).to_bytes(3, "little") + bytes([i % 256]) + part for i, part in enumerate(parts))


def sent(rows: list[Row], end: bytes = END) -> bytes:
    return b"".join(packets(b"".join(map(value_bytes, row))) for row in rows) + packets(end)


def received(data: bytes, columns: int, pieces: random.Random | None = None, **sizes: int) -> tuple[list[Row], RowPackets]:
    reader, rows, at = RowPackets(columns, **sizes), list[Row](), 0
    while at < len(data):
        size = pieces.choice((1, 30, 5_000, 70_000)) if pieces else 1 << 18
        for block in reader.feed(data[at : at + size]):
            rows += list(zip(*(column.to_pylist() for column in block), strict=True))
            for column in block:
                column.validate(full=True)
        at += size
    return rows, reader


@pytest.mark.parametrize("seed", range(6))
def test_rows_in_any_pieces(seed: int) -> None:
    chance = random.Random(seed)
    sizes = (0, 1, 7, 250, 251, 252, 300, 65_535, 65_536)
    rows: list[Row] = [
        tuple(None if chance.random() < 0.3 else chance.randbytes(chance.choice(sizes)) for _ in range(3)) for _ in range(25)
    ]
    found, reader = received(sent(rows), 3, chance, block_bytes=chance.choice((1, 500, 1 << 20)), block_rows=chance.choice((1, 4, 2000)))
    assert found == rows and reader.ended and not reader.refused


def test_rows_of_several_packets() -> None:
    limit = 0xFFFFFF
    for size in (limit - 11, limit - 6, limit, 2 * limit + 5):
        rows: list[Row] = [(b"1", b"a"), (b"2", b"x" * size), (None, b"\xfe" * 300), (b"3", None)]
        found, reader = received(sent(rows), 2)
        assert found == rows and reader.ended, size


def test_a_block_is_small_also_where_rows_become_big() -> None:
    rows: list[Row] = [*[(b"x", None)] * 3000, *[(b"x" * 900_000, b"y")] * 7]
    data, reader, most = sent(rows), RowPackets(2), 0
    for at in range(0, len(data), 1 << 18):
        for block in reader.feed(data[at : at + (1 << 18)]):
            most = max(most, sum(column.nbytes for column in block))
    assert reader.ended and most < 2_000_000


def test_an_error_in_the_middle() -> None:
    found, reader = received(sent([(b"1",), (b"2",)], b"\xff\x55\x1f#HY000GC"), 1)
    assert found == [(b"1",), (b"2",)] and reader.ended and reader.refused == b"\xff\x55\x1f#HY000GC"


def test_no_rows_and_no_end() -> None:
    assert received(sent([]), 4)[0] == []
    found, reader = received(sent([(b"1",)])[:-3], 1)
    assert not reader.ended and found == []
