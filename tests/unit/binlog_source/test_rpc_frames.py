"""Header blocks against the ``hpack`` library, gRPC's messages with gzip and its limits, and the texts of refusals."""

import gzip
import struct
import tracemalloc
from urllib.parse import unquote_to_bytes

import hpack
import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ENCODING,
    INTERNAL,
    MAX_BLOCK,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    HeaderReader,
    ProtocolError,
    Refusal,
    announced,
    literal,
    message_of,
    percent,
    prefixed,
    prefixed_gzip,
)

USUAL = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/binlog.Pump/WriteBinlog"), (b"te", b"trailers")]


def check(encoder, reader, fields, **how):
    assert reader.read(encoder.encode(fields, **how)) == dict(fields)


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 256, 16_382, 16_383, 16_384, 20_000])
def test_literals_of_any_length(length):
    fields = [(b"name", b"v" * length), (b"n" * max(length, 1), b"value")]
    assert HeaderReader().read(literal(fields)) == dict(fields)
    assert hpack.Decoder().decode(literal(fields), raw=True) == fields


def test_a_literal_with_a_known_name():
    assert HeaderReader().read(b"\x04\x02/x" + b"\x0f\x10\x04gzip") == {b":path": b"/x", b"content-type": b"gzip"}
    assert HeaderReader().read(b"\x10\x01a\x01b") == {b"a": b"b"}, "never indexed"


def test_of_a_field_that_comes_twice_the_last_counts():
    assert HeaderReader().read(literal([(b"a", b"1"), (b"a", b"2")])) == {b"a": b"2"}


@pytest.mark.parametrize("huffman", [True, False])
def test_calls_of_a_client_that_enters_each_deadline(huffman):
    encoder, reader = hpack.Encoder(), HeaderReader()
    for deadline in range(300):
        check(encoder, reader, [*USUAL, (b"grpc-timeout", b"%du" % (14_999_000 - deadline)), (b"x-last", b"same")], huffman=huffman)


def test_the_same_block_means_something_else_after_the_table_changed():
    encoder, reader = hpack.Encoder(), HeaderReader()
    for round_ in range(3):
        for fields in ([*USUAL], [*USUAL], [*USUAL, (b"round", b"%d" % round_)], [*USUAL, (b"round", b"%d" % round_)]):
            check(encoder, reader, fields)
    assert reader.read(b"\xbe") == {b"round": b"2"}
    reader.read(b"\x40\x03new\x05entry")
    assert reader.read(b"\xbe") == {b"new": b"entry"}


@pytest.mark.parametrize("sizes", [(0, 4096), (100, 4096), (2000, 4096), (4096, 0), (60, 2000, 60)])
def test_the_table_may_be_resized_between_blocks(sizes):
    encoder, reader = hpack.Encoder(), HeaderReader()
    entered = [(b"key-%d" % n, b"value-%d" % n) for n in range(20)]
    check(encoder, reader, USUAL + entered)
    for size in sizes:
        encoder.header_table_size = size
        check(encoder, reader, USUAL + entered[:3])
        check(encoder, reader, USUAL + entered)
        check(encoder, reader, USUAL)
        check(encoder, reader, USUAL)


def test_a_recognised_block_does_not_skip_a_change_of_size():
    reader = HeaderReader()
    small, large, entry = b"\x3f\x29" + literal(USUAL), b"\x3f\xe1\x1f" + literal(USUAL), b"\x40\x04" + b"name" + b"\x10" + b"v" * 16
    reader.read(small)
    reader.read(large)
    reader.read(small)  # 72 bytes from here on: one entry of 52
    reader.read(entry)
    reader.read(entry.replace(b"name", b"mane"))
    assert reader.read(b"\xbe") == {b"mane": b"v" * 16}
    with pytest.raises(ProtocolError):
        reader.read(b"\xbf")


def test_sizes_small_then_large_in_one_block_empty_the_table():
    reader = HeaderReader()
    reader.read(b"\x40\x01a\x01b")
    assert reader.read(b"\x20\x3f\xe1\x1f" + literal(USUAL)) == dict(USUAL)
    with pytest.raises(ProtocolError):
        reader.read(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an entry that is not there
        b"\x7f\xff\xff\xff\xff\xff\x01",  # a number without end
        b"\xff",  # a number cut off
        b"\x00\x05nam",  # a name cut off
        b"\x00\x04name",  # no value
        b"\x00\x04name\x05valu",  # a value cut off
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x88\x20",  # a table's size after a field
        b"\x00\x81\xff\x01a",  # bad Huffman code
    ],
)
def test_what_cannot_be_read(block):
    with pytest.raises(ProtocolError):
        HeaderReader().read(block)
    with pytest.raises(hpack.HPACKError):
        hpack.Decoder().decode(block, raw=True)


def test_a_small_block_cannot_grow_large():
    reader = HeaderReader()
    reader.read(b"\x40\x01n\x7f\xf9\x16" + b"v" * 3064)
    with pytest.raises(ProtocolError, match=f"more than {MAX_BLOCK} bytes"):
        reader.read(b"\xbe" * 1000)


def test_what_is_recognised_is_bounded():
    reader = HeaderReader()
    for n in range(10_000):
        reader.read(literal([(b"x", b"%d" % n)]))
    reader.read(literal([(b"large", b"y" * 10_000)]))
    assert len(reader._known) <= 64 and max(map(len, reader._known)) <= 1024


ZIPPED = {ENCODING: b"gzip"}


def compressed(data, flag=1):
    return struct.pack(">BI", flag, len(data)) + data


def refusal(body, headers, limit=1000):
    with pytest.raises(Refusal) as raised:
        message_of(body, headers, limit)
    return raised.value


@pytest.mark.parametrize("message", [b"", b"x", b"hello" * 100])
def test_there_and_back(message):
    assert message_of(prefixed(message), {}, 1000) == message
    assert message_of(prefixed(message), {ENCODING: b"identity"}, 1000) == message
    assert message_of(prefixed(message), ZIPPED, 1000) == message, "a client need not compress what gains nothing"
    assert message_of(prefixed_gzip(message), ZIPPED, 1000) == message
    assert announced(prefixed(message)) == len(message)


def test_what_is_compressed_says_so():
    packed = prefixed_gzip(b"x" * 1000)
    assert packed[0] == 1 and announced(packed) == len(packed) - 5 < 100
    assert gzip.decompress(packed[5:]) == b"x" * 1000


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0\0\0\0\x02x", b"\0\0\0\0\x01xy", prefixed(b"a") + prefixed(b"b")])
def test_a_body_is_one_message(body):
    assert refusal(body, {}).status == INTERNAL
    assert announced(body[:4]) == 0


@pytest.mark.parametrize("body", [prefixed(b"small"), compressed(b"whatever")])
def test_an_unknown_compressor_is_refused_in_a_real_pumps_words(body):
    expected = Refusal(UNIMPLEMENTED, 'grpc: Decompressor is not installed for grpc-encoding "deflate"')
    assert refusal(body, {ENCODING: b"deflate"}) == expected


def test_the_flag_and_the_header_must_agree():
    body = compressed(gzip.compress(b"x"))
    for headers in ({}, {ENCODING: b"identity"}):
        assert refusal(body, headers) == Refusal(INTERNAL, "grpc: compressed flag set with identity or empty encoding")
    assert refusal(compressed(b"x", flag=2), ZIPPED) == Refusal(INTERNAL, "grpc: received unexpected payload format 2")


def test_the_limit_counts_what_was_compressed():
    assert message_of(prefixed_gzip(b"x" * 1000), ZIPPED, 1000) == b"x" * 1000
    assert refusal(prefixed_gzip(b"x" * 1001), ZIPPED) == Refusal(
        RESOURCE_EXHAUSTED, "grpc: received message larger than max (1001 vs. 1000)"
    )


def test_a_bomb_is_refused_without_being_blown_up():
    bomb = prefixed_gzip(b"\0" * (64 << 20))
    tracemalloc.start()
    try:
        assert refusal(bomb, ZIPPED, 1 << 20).status == RESOURCE_EXHAUSTED
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no gzip", "incorrect header check"),
        (b"", "unexpected EOF"),
        (gzip.compress(b"x" * 500, mtime=0)[:-1], "unexpected EOF"),
        (gzip.compress(b"x" * 500, mtime=0)[:-5] + b"\0" * 5, "incorrect"),
        (gzip.compress(b"x", mtime=0) + b"more", "4 trailing bytes"),
    ],
)
def test_damaged_gzip(data, why):
    refused = refusal(compressed(data), ZIPPED)
    assert refused.status == INTERNAL
    assert refused.text.startswith("grpc: failed to decompress the received message: ") and why in refused.text


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
