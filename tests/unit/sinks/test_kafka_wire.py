"""Kafka's batches and answers: what is written can be read, what is damaged or cut off is noticed. A real broker: tests/integration/test_kafka_target.py."""

import gzip
import struct
import zlib

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import ConfigError, Corruption
from pyspark_tidb_binlog.sinks.kafka import kafka_wire as wire
from pyspark_tidb_binlog.sinks.kafka.record_batch import Producer, StoredRecord, record_batch, records_of
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings

MESSAGES = [b"", b"a", b"b" * 63, b"c" * 64, b"d" * 70_000, *(b"%d" % n for n in range(200))]


def at_offset(batch: bytes, offset: int) -> bytes:
    """As a broker stores it."""
    return struct.pack(">q", offset) + batch[8:]


def message(offset: int, magic: int, value: bytes, attributes: int = 0) -> bytes:
    """One of the older message sets."""
    body = struct.pack(">BB", magic, attributes) + (struct.pack(">q", 9) if magic else b"") + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_a_batch_can_be_read() -> None:
    batch = record_batch(MESSAGES, Producer(7, 1), 3, 1_700_000_000_000)
    data = at_offset(batch, 40) + at_offset(record_batch([b"x"], Producer(7, 1), 3, 1), 900)
    assert list(records_of(data)) == [*(StoredRecord(40 + n, m) for n, m in enumerate(MESSAGES)), StoredRecord(900, b"x")]


@pytest.mark.parametrize("cut", [1, 12, 30, 60, 80])
def test_a_batch_that_the_end_has_cut_off_is_left_out(cut: int) -> None:
    first, second = record_batch([b"x"], Producer(), 0, 1), record_batch([b"y" * 40], Producer(), 0, 1)
    assert list(records_of(first + second[:-cut])) == [StoredRecord(0, b"x")]


def test_a_damaged_batch_is_noticed() -> None:
    batch = bytearray(record_batch([b"abc"], Producer(), 0, 1))
    batch[-3] ^= 1
    with pytest.raises(Corruption, match="checksum of the batch of records at offset 0"):
        list(records_of(bytes(batch)))
    old = bytearray(message(5, 1, b"abc"))
    old[-3] ^= 1
    with pytest.raises(Corruption, match="checksum of the message at offset 5"):
        list(records_of(bytes(old)))


def test_control_records_are_no_messages() -> None:
    batch = record_batch([b"x"], Producer(), 0, 1)
    body = struct.pack(">h", 0x20) + batch[23:]
    import google_crc32c

    assert list(records_of(batch[:17] + struct.pack(">I", google_crc32c.value(body)) + body)) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_older_brokers(magic: int) -> None:
    data = message(5, magic, b"a") + message(6, magic, b"b" * 300)
    assert list(records_of(data)) == [StoredRecord(5, b"a"), StoredRecord(6, b"b" * 300)]
    inner = data if magic == 0 else message(0, 1, b"a") + message(1, 1, b"b" * 300)
    assert list(records_of(message(6, magic, gzip.compress(inner), attributes=1))) == list(records_of(data))


def test_snappy_as_java_frames_it() -> None:
    codec = pa.Codec("snappy")
    inner = message(0, 1, b"a" * 500) + message(1, 1, b"b" * 500)
    blocks = [codec.compress(inner[:700], asbytes=True), codec.compress(inner[700:], asbytes=True)]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    for value in (framed, codec.compress(inner, asbytes=True)):
        assert [r.value for r in records_of(message(6, 1, value, attributes=2))] == [b"a" * 500, b"b" * 500]
    with pytest.raises(Corruption, match="unknown codec, 7"):
        list(records_of(message(6, 1, b"", attributes=7)))


def test_an_answer_of_another_form_is_noticed() -> None:
    answer = struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">hqq", 0, -1, 77)
    assert wire.offset_in(answer) == (0, 77)
    with pytest.raises(Corruption, match="ends early"):
        wire.offset_in(answer[:-1])
    with pytest.raises(Corruption, match="2 bytes too long"):
        wire.offset_in(answer + b"ab")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"addrs": " , "}, "kafka-addrs is empty"),
        ({"addrs": "a"}, "'a' is not of the form host:port"),
        ({"addrs": "a:x"}, "'a:x' is not of the form host:port"),
        ({"max_messages": 0}, "kafka-max-messages and kafka-max-message-size must be at least 1"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerSettings(**{"addrs": "a:1", "topic": "t"} | settings)  # type: ignore[arg-type]
    assert BrokerSettings("a:1, [::1]:2", "t").addresses() == [("a", 1), ("::1", 2)]
