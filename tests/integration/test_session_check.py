"""A session that a program has made itself: what the stream sets in it, and where the source cannot run."""

import sys

import pytest
from pyspark.sql import SparkSession

import pyspark_tidb_binlog
from pyspark_tidb_binlog.binlog_source.source.refused_source import RefusedSource, reason
from pyspark_tidb_binlog.jobs.entry.versions import DELTA, EXACT_DELTA
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import delta_version
from pyspark_tidb_binlog.jobs.spark.spark_session import STATE_STORE, require_session
from pyspark_tidb_binlog.schemas.errors import ConfigError

pytestmark = pytest.mark.spark
SOURCE = "pyspark_tidb_binlog.binlog_source.spark_format"


def test_state_is_kept_in_rocksdb_whatever_the_session_had(spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(STATE_STORE[0], "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    require_session(other, delta=True)
    assert other.conf.get(STATE_STORE[0]) == STATE_STORE[1]
    assert delta_version(other) == EXACT_DELTA and EXACT_DELTA.startswith(".".join(map(str, DELTA)))


def test_threads_of_python_must_have_threads_of_their_own_in_the_jvm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver says of the job that collects a batch is a property of its thread."""
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(ConfigError, match=r"PYSPARK_PIN_THREAD is not true.*Unset"):
        require_session(spark, delta=False)


def test_where_the_source_cannot_be_imported_its_name_is_found_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while Spark looks for sources would keep it from finding those of others."""
    assert pyspark_tidb_binlog.DefaultSource is not RefusedSource
    monkeypatch.setitem(sys.modules, SOURCE, None)
    refused = pyspark_tidb_binlog.DefaultSource
    assert refused is RefusedSource and refused.name() == "tidb_binlog"
    with pytest.raises(ConfigError, match=r"cannot be used with Spark 4\.2\.\d+ .*spark_format.*docs/supported\.md"):
        RefusedSource({}).schema()
    monkeypatch.undo()
    assert "start the session again" in reason()
