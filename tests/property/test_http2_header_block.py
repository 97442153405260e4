"""Our reading of header blocks against the ``hpack`` library's, for what a client says and for any bytes."""

import hpack
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.rpc.frames import HeaderReader, ProtocolError, literal
from tests.support.examples import examples

NAMES = st.sampled_from([b":path", b":method", b"te", b"grpc-timeout", b"x-a", b"x-b", b"x-longer-name"])
FIELDS = st.lists(st.tuples(NAMES, st.one_of(st.sampled_from([b"POST", b"", b"/a"]), st.binary(max_size=40))), max_size=8)
SIZES = st.sampled_from([0, 60, 200, 4096])


@examples(200)
@given(st.lists(st.one_of(st.tuples(FIELDS, st.booleans()), SIZES), max_size=20))
def test_what_a_client_says(steps):
    encoder, reader = hpack.Encoder(), HeaderReader()
    for step in steps:
        if isinstance(step, int):
            # the library's encoder forgets to tell a size that it is given twice
            if step != encoder.header_table_size:
                encoder.header_table_size = step
        else:
            fields, huffman = step
            assert reader.read(encoder.encode(fields, huffman=huffman)) == dict(fields)


# Pieces that often make sense together: indexes into both tables, literals of every kind, sizes.
PIECES = st.one_of(
    st.sampled_from(
        [b"\x82", b"\xbe", b"\xbf", b"\xc0", b"\x40\x01a\x01b", b"\x00\x01a\x01c", b"\x10\x01n\x01v", b"\x44\x02/x", b"\x7e\x01z"]
    ),
    st.sampled_from(
        [b"\x20", b"\x3f\x09", b"\x3f\x45", b"\x3f\xe1\x1f", b"\x3f\xe2\x1f", b"\x04\x82\x63\xff", b"\xff\x80\x80", b"\x7f\x00"]
    ),
    st.binary(min_size=1, max_size=4),
)


@examples(500)
@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=8))
def test_any_bytes_mean_what_the_library_says(blocks):
    decoder, reader = hpack.Decoder(), HeaderReader()
    for block in blocks:
        try:
            meant = dict(decoder.decode(block, raw=True))
        except hpack.HPACKError:
            meant = None
        try:
            found = dict(reader.read(block))
        except ProtocolError:
            found = None
        assert found == meant
        if meant is None:
            return


@given(FIELDS)
def test_our_blocks_are_read_by_the_library(fields):
    assert hpack.Decoder().decode(literal(fields), raw=True) == fields
