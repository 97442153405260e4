"""Header blocks against the ``hpack`` library, whose encoder plays the client: the table, its sizes, and blocks that are recognised."""

import hpack
import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import MAX_BLOCK, HeaderReader, ProtocolError, literal

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
