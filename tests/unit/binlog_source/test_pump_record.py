"""Payload heads, completed Commits and hand-built answers against protobuf."""

import pytest

from pyspark_tidb_binlog.binlog_source.pump import messages
from pyspark_tidb_binlog.binlog_source.pump.storage.format import Pointer
from pyspark_tidb_binlog.binlog_source.pump.storage.record import RecordKind, canonical, completed, fake, head_varints, read
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.proto import binlog_pb2, pump_pb2
from pyspark_tidb_binlog.schemas.wire import varint

TS = 470604615021232129


def binlog(tp, start_ts, commit_ts, **more):
    return binlog_pb2.Binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=0, ddl_schema_state=0, **more).SerializeToString()


def test_fake_is_a_real_pumps():
    message = binlog_pb2.Binlog.FromString(fake(TS).payload)
    assert (message.tp, message.start_ts, message.commit_ts) == (2, TS, TS)
    assert fake(TS).payload == binlog(2, TS, TS)


@pytest.mark.parametrize(
    ("payload", "kind", "ts"),
    [
        (binlog(0, TS, 0, prewrite_key=b"k"), RecordKind.PREWRITE, TS),
        (binlog(1, TS, TS + 1), RecordKind.COMMIT, TS + 1),
        (binlog(2, TS, 0), RecordKind.ROLLBACK, 0),
        (binlog(2, TS, TS), RecordKind.FAKE, TS),
        (binlog_pb2.Binlog(commit_ts=9, tp=1).SerializeToString(), RecordKind.COMMIT, 9),
        (b"\x18\x09\x10\x05\x08\x01", RecordKind.COMMIT, 9),
    ],
)
def test_kind_and_ts(payload, kind, ts):
    for record in (read(payload), canonical(payload), read(canonical(payload).payload)):
        assert (record.kind, record.ts) == (kind, ts)


@pytest.mark.shows("wire gotcha 1")
def test_canonical_has_the_fields_that_are_always_there():
    assert canonical(b"\x10\x05").payload == binlog(0, 5, 0)
    assert canonical(b"").payload == bytes.fromhex("08001000180038004000")


def test_what_is_no_binlog_is_refused_in_the_words_of_a_real_pump():
    with pytest.raises(Corruption, match="unexpected EOF"):
        canonical(b"\x0a\x99")


@pytest.mark.parametrize("value", [0, 1, 127, 128, TS, (1 << 63) - 1, -1])
def test_varints(value):
    payload = binlog_pb2.Binlog(tp=1, start_ts=value, commit_ts=value).SerializeToString()
    assert head_varints(payload) == (varint(value), varint(value))
    assert read(payload).start_ts == value


@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 200])
@pytest.mark.parametrize(
    "content",
    [{}, {"prewrite_value": b"v" * 300}, {"prewrite_value": b""}, {"ddl_query": b"q", "ddl_job_id": 7, "ddl_schema_state": 5}],
)
def test_completed_is_what_protobuf_would_copy(key, content):
    keyed = {} if key is None else {"prewrite_key": key}
    prewrite = binlog_pb2.Binlog(tp=0, start_ts=TS, commit_ts=0, prewrite_key=b"p", **({"ddl_job_id": 0, "ddl_schema_state": 0} | content))
    commit = binlog_pb2.Binlog(tp=1, start_ts=TS, commit_ts=TS + 1, ddl_job_id=0, ddl_schema_state=0, **keyed)
    want = binlog_pb2.Binlog()
    want.CopyFrom(commit)
    for name in ("prewrite_value", "ddl_query", "ddl_job_id", "ddl_schema_state"):
        if prewrite.HasField(name):
            setattr(want, name, getattr(prewrite, name))
    assert completed(commit.SerializeToString(), prewrite.SerializeToString()) == want.SerializeToString()


def test_completed_with_fields_out_of_order_falls_back_to_protobuf():
    prewrite = b"\x10\x05\x08\x00\x2a\x01v"
    assert binlog_pb2.Binlog.FromString(completed(binlog(1, 5, 9), prewrite)).prewrite_value == b"v"


def test_message_is_the_fake_of_wire_md_5():
    payload = bytes.fromhex("0802108180c0a5bc8efbc306188180c0a5bc8efbc30638004000")
    want = bytes.fromhex("0a340a00121a") + payload + bytes.fromhex("2214088180c0a5bc8efbc306108180c0a5bc8efbc306")
    assert messages.message(payload, *head_varints(payload)) == want


@pytest.mark.parametrize("at", [Pointer(0, 0), Pointer(0, 17), Pointer(3, 0), Pointer(70000, 1 << 33)])
def test_messages_are_protobuf(at):
    payload = binlog(1, TS, TS + 1)
    entity = pump_pb2.PullBinlogResp.FromString(messages.message(payload, *head_varints(payload), messages.pos_field(at))).entity
    assert (entity.pos.suffix, entity.pos.offset) == (at.file_id, at.offset)
    assert (entity.payload, entity.meta.startTs, entity.meta.commitTs) == (payload, TS, TS + 1)
    tip = pump_pb2.PullBinlogResp.FromString(messages.tip(at, 5, 0)).entity
    assert (tip.pos.suffix, tip.pos.offset, tip.payload, tip.meta.startTs, tip.meta.commitTs) == (at.file_id, at.offset, b"", 5, 0)
    told = binlog_pb2.Binlog.FromString(pump_pb2.PullBinlogResp.FromString(messages.tip(at, 5, 0, TS)).entity.payload)
    assert (told.tp, told.start_ts, told.commit_ts) == (binlog_pb2.Rollback, TS, TS)


def test_messages_in_a_row_are_a_batch():
    batch = pump_pb2.PullBinlogBatch.FromString(messages.promise(5, Pointer(0, 9)) + messages.promise(6, Pointer(0, 9)))
    assert [entity.meta.commitTs for entity in batch.entity] == [5, 6]
