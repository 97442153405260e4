"""The value log's bytes against a record of a real Pump (wire.md 4), and reading past every kind of damage."""

import pytest

from pyspark_tidb_binlog.binlog_source.pump.storage.format import (
    HEADER,
    Pointer,
    decode_footer,
    decode_record,
    encode_footer,
    encode_record,
    file_id_of,
    file_name,
    split_records,
)
from pyspark_tidb_binlog.schemas.errors import Corruption

REAL_RECORD = bytes.fromhex("e8563a821a00000000000000b482bb08080210828080fec984fbc30618828080fec984fbc30638004000")
REAL_PAYLOAD = REAL_RECORD[16:]


@pytest.mark.shows("wire gotcha 6")
def test_record_of_a_real_pump():
    assert encode_record(REAL_PAYLOAD) == REAL_RECORD
    assert decode_record(REAL_RECORD, Pointer(0, 0)) == REAL_PAYLOAD


def test_footer():
    footer = encode_footer(470604615021232129)
    assert len(footer) == 12 and footer[8:] == bytes.fromhex("22b93a12")
    assert decode_footer(footer) == 470604615021232129
    assert decode_footer(b"\0" * 12) is None
    assert decode_footer(b"") is None


def test_file_names():
    assert file_name(0) == "000000.vlog" and file_name(1234567) == "1234567.vlog"
    assert [file_id_of(n) for n in ("000007.vlog", "1234567.vlog", "7.vlog", "000007.vlog.gz", "x000007.vlog")] == [
        7,
        1234567,
        None,
        None,
        None,
    ]


def test_pointer_bytes_and_order():
    pointer = Pointer(3, 1 << 33)
    assert pointer.pack() == bytes.fromhex("03000000") + (1 << 33).to_bytes(8, "little")
    assert Pointer.unpack(pointer.pack()) == pointer
    assert Pointer(1, 99) < Pointer(2, 0) < Pointer(2, 1)


@pytest.mark.parametrize("change", [(0, 1), (4, 1), (12, 1), (20, 1)], ids=["magic", "length", "crc", "payload"])
def test_damaged_record_is_refused(change):
    at, mask = change
    damaged = bytearray(REAL_RECORD)
    damaged[at] ^= mask
    with pytest.raises(Corruption, match="7:99"):
        decode_record(bytes(damaged), Pointer(7, 99))


def test_records_are_split():
    log = b"".join(map(encode_record, [b"a", b"", b"ccc"]))
    split = split_records(log, len(log))
    assert (split.payloads, split.offsets) == ([b"a", b"", b"ccc"], [0, 17, 33])
    assert (split.consumed, split.skipped, split.missing) == (len(log), 0, 0)


def test_a_piece_that_ends_inside_a_record_says_what_it_misses():
    log = encode_record(b"a") + encode_record(b"b" * 100)
    split = split_records(log[:40], len(log))
    assert (split.payloads, split.consumed, split.missing) == ([b"a"], 17, HEADER.size + 100)
    split = split_records(log[:20], len(log))
    assert (split.payloads, split.consumed, split.missing) == ([b"a"], 17, HEADER.size)


@pytest.mark.parametrize("junk", [b"x", b"\xe8\x56\x3a\x82", b"\xe8\x56\x3a\x82" + b"\xff" * 30, encode_record(b"torn")[:-1]])
def test_damage_in_the_middle_is_skipped(junk):
    log = encode_record(b"a") + junk + encode_record(b"b")
    split = split_records(log, len(log))
    assert split.payloads == [b"a", b"b"]
    assert split.skipped == len(junk)


def test_a_torn_tail_is_no_record():
    log = encode_record(b"a") + encode_record(b"b")
    for cut in range(17, len(log)):
        split = split_records(log[:cut], cut)
        assert split.payloads == [b"a"] and split.consumed == cut and split.skipped == cut - 17 and split.missing == 0


def test_a_magic_across_two_pieces_is_found():
    log = b"junkjunkjunkjunkjunk" + encode_record(b"b")
    for cut in range(16, len(log)):
        first = split_records(log[:cut], len(log))
        rest = split_records(log[first.consumed :], len(log) - first.consumed)
        assert first.payloads + rest.payloads == [b"b"], cut
