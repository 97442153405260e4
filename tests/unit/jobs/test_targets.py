"""Which sink the settings ask for, with which settings of its own, and what messages call it. Nothing is opened."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig, KafkaConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.jobs.stream import targets
from pyspark_tidb_binlog.schemas.binlogfile import BinlogWriter
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.sinks.mysql.mysql_sink import MySQLSink
from pyspark_tidb_binlog.sinks.translate.message_sink import MessageSink


def config(db_type: str = "mysql", **apply: Any) -> DrainerConfig:
    return DrainerConfig(
        SourceConfig(cluster_id=7),
        target=TargetConfig(host="db"),
        apply=ApplyConfig(db_type=db_type, **apply),
        data_dir="data",
        kafka=KafkaConfig(addrs="b:1"),
    )


@pytest.mark.shows("syncer.db-type")
@pytest.mark.parametrize(("db_type", "kind"), [("mysql", MySQLSink), ("tidb", MySQLSink), ("file", MessageSink), ("kafka", MessageSink)])
def test_each_type_has_its_sink(db_type: str, kind: type) -> None:
    assert type(targets.sink_of(config(db_type), 7, lambda seconds: None)) is kind


@pytest.mark.shows("syncer.to.kafka-client-id")
def test_settings_of_a_topic() -> None:
    found = targets.broker_settings(config("kafka", retry_seconds=9.0), 7)
    assert (found.topic, found.addrs, found.client_id, found.retry_seconds) == ("7_obinlog", "b:1", "tidb_binlog", 9.0)
    named = dataclasses.replace(config("kafka"), kafka=KafkaConfig("b:1", "2.0", 9, 99, "me", "t"))
    found = targets.broker_settings(named, 7)
    assert (found.topic, found.client_id, found.max_messages, found.max_message_bytes) == ("t", "me", 9, 99)


def test_what_messages_call_a_target() -> None:
    assert targets.words_for(config()).where == "db:3306"
    assert targets.words_for(config("file")).where == "data"
    files = dataclasses.replace(config("file"), files=FileConfig(str(Path("binlogs"))))
    words = targets.words_for(files)
    assert (words.where, words.home) == ("binlogs", "record in data")
    assert words.by_hand == "write the lines consistent = true and commitTS = TS into data/savepoint"
    assert targets.words_for(config("kafka")).where == "topic 7_obinlog at b:1"


def test_jobs_that_compare_need_a_server() -> None:
    assert targets.require_server(config("tidb")) == config("tidb")
    with pytest.raises(ConfigError, match="syncer.db-type = 'file': this job compares tables"):
        targets.require_server(config("file"))


def test_a_topic_needs_kafkas_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with_options = dataclasses.replace(config("kafka"), kafka=KafkaConfig(addrs="b:1", options=(("security.protocol", "SSL"),)))
    assert targets.broker_settings(with_options, 7).options == (("security.protocol", "SSL"),)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "pyspark_tidb_binlog.sinks.kafka.confluent_topic", raising=False)
    with pytest.raises(ConfigError, match='syncer.db-type = "kafka": .*confluent_kafka.* Install the wheel\'s extra kafka'):
        targets.sink_of(with_options, 7, lambda seconds: None)


@pytest.mark.shows("start without a savepoint")
def test_a_stream_that_would_begin_now_needs_an_empty_target(tmp_path: Path) -> None:
    writer = BinlogWriter(tmp_path)
    writer.append([pb.Binlog(tp=pb.DDL, commit_ts=9, ddl_query=b"x").SerializeToString()])
    writer.close()
    files = dataclasses.replace(config("file"), files=FileConfig(str(tmp_path)), data_dir=str(tmp_path / "data"))
    for starting, refused in (
        (-1, pytest.raises(ApplyError, match="up to commit_ts 9 .* would begin now")),
        (20, contextlib.nullcontext()),
    ):
        source = dataclasses.replace(files.source, starting_commit_ts=starting)
        sink = targets.sink_of(dataclasses.replace(files, source=source), 7, lambda seconds: None)
        with contextlib.closing(sink), refused:
            sink.open(lambda _, at: 20, SchemaHistory)
