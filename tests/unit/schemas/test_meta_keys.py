"""The keys of TiDB's schema, against those that a real TiDB named in the Prewrites of its DDLs."""

import re

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.schemas.meta_keys import comparable, database_key, schema_diff_key, schema_version_key, table_key
from pyspark_tidb_binlog.schemas.proto import binlog_pb2
from tests.support.golden_case import GOLDEN


def test_the_keys_of_a_real_tidb() -> None:
    """``CREATE DATABASE `g_ddl``` and the ALTERs of its table, by hand."""
    assert database_key(285) == b"mDBs\0\0\0\0\0\xfa" + b"\0\0\0\0\0\0\0h" + b"DB:285\0\0\xfd"
    assert table_key(285, 287) == b"mDB:285\0\0\xfd" + b"\0\0\0\0\0\0\0h" + b"Table:28\xff7\0\0\0\0\0\0\0\xf8"


def test_every_database_and_table_that_a_recording_names() -> None:
    seen = 0
    for pump in load(GOLDEN / "ddl").pumps:
        for payload in pump:
            key = binlog_pb2.Binlog.FromString(payload).prewrite_key
            readable = key.replace(b"\0", b"").replace(b"\xff", b"").decode("latin-1")
            if found := re.fullmatch(r"mDB:(\d+).hTable:(\d+).", readable):
                assert table_key(int(found[1]), int(found[2])) == key
                seen += 1
            elif found := re.fullmatch(r"mDBs.hDB:(\d+).", readable):
                assert database_key(int(found[1])) == key
                seen += 1
    assert seen > 20


def test_strings_have_no_entry() -> None:
    assert schema_version_key() == b"mSchemaVe\xffrsionKey\xff" + bytes(8) + b"\xf7" + b"\0\0\0\0\0\0\0s"
    assert schema_diff_key(48) == b"mDiff:48\0\xfe" + b"\0\0\0\0\0\0\0s"


def test_groups_of_eight() -> None:
    """TiDB ``util/codec/bytes.go``: its own examples."""
    assert comparable(b"") == bytes([0, 0, 0, 0, 0, 0, 0, 0, 247])
    assert comparable(b"\1\2\3") == bytes([1, 2, 3, 0, 0, 0, 0, 0, 250])
    assert comparable(b"\1\2\3\0") == bytes([1, 2, 3, 0, 0, 0, 0, 0, 251])
    assert comparable(bytes(range(1, 9))) == bytes([1, 2, 3, 4, 5, 6, 7, 8, 255, 0, 0, 0, 0, 0, 0, 0, 0, 247])
