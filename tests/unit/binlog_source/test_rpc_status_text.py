"""``grpc-message``: percent-encoded where gRPC asks for it, and nowhere else."""

from urllib.parse import unquote_to_bytes

from pyspark_tidb_binlog.binlog_source.rpc.frames import percent


def test_every_byte_is_encoded_as_grpc_asks() -> None:
    for number in range(0x100):
        encoded = percent(chr(number))
        raw = chr(number).encode()
        plain = 0x20 <= number <= 0x7E and chr(number) != "%"
        assert encoded == (raw if plain else b"".join(b"%%%02X" % byte for byte in raw)), number


def test_any_text_comes_back() -> None:
    text = "".join(map(chr, (*range(0x180), 0x4E2D, 0x1F600)))
    encoded = percent(text)
    assert unquote_to_bytes(encoded) == text.encode() and all(0x20 <= byte <= 0x7E for byte in encoded)
