"""gRPC's message layer: prefixes, gzip and its limits, and the texts of a real Pump's refusals."""

import gzip
import struct
import tracemalloc

import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import (
    ENCODING,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Refusal,
    announced,
    message_of,
    prefixed,
    prefixed_gzip,
)

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
