"""Files beside a checkpoint, by path and by URI, on the local file system and on another that Hadoop knows."""

import os
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.model import DrainerConfig, SourceConfig
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import hadoop_configuration
from pyspark_tidb_binlog.jobs.stream.spark_checkpoint import CheckpointFiles, SparkCheckpoint
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import CheckpointRow, DeltaCheckpoint, DeltaRows, places

pytestmark = pytest.mark.spark


@pytest.fixture(params=["plain", "relative", "file:", "file://", "viewfs://"])
def uri(request, tmp_path, spark):
    """Ways to name ``tmp_path / "at"``. ``viewfs`` is a file system of another scheme, which Python could only take for a folder's name."""
    path = f"{tmp_path}/at"
    if request.param == "relative":
        return os.path.relpath(path)
    if request.param == "viewfs://":
        conf = hadoop_configuration(spark)
        conf.set("fs.viewfs.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystem")
        conf.set("fs.AbstractFileSystem.viewfs.impl", "org.apache.hadoop.fs.viewfs.ViewFs")
        conf.set("fs.viewfs.mounttable.elsewhere.link./data", f"file://{tmp_path}")
        return "viewfs://elsewhere/data/at"
    return {"plain": path, "file:": f"file:{path}", "file://": f"file://{path}"}[request.param]


def test_a_file_is_kept_and_replaced(spark, uri, tmp_path):
    place = CheckpointFiles(spark, uri)
    assert place.read("x.json") is None
    assert not (tmp_path / "at").exists(), "to look makes nothing"
    place.write("x.json", "one")
    place.write("x.json", "zwei ü")
    assert CheckpointFiles(spark, uri).read("x.json") == "zwei ü"
    assert (tmp_path / "at" / "x.json").read_text() == "zwei ü"
    assert [entry.name for entry in (tmp_path / "at").iterdir() if not entry.name.startswith(".")] == ["x.json"]
    assert not list(Path().glob("*:*")), "no folder that is named like a URI"


@pytest.mark.shows("spark.checkpoint-dir")
def test_a_checkpoint_that_cannot_be_written_is_a_config_error(spark, tmp_path):
    (tmp_path / "file").touch()
    config = DrainerConfig(source=SourceConfig("p:1", delivery="sorted"), checkpoint_dir=str(tmp_path / "file" / "spark"))
    with pytest.raises(ConfigError, match=f"cannot write to spark.checkpoint-dir {tmp_path}/file/spark: .*not a directory"):
        SparkCheckpoint(spark, config).keep("target")


def test_a_file_of_an_earlier_version_is_read(spark, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    assert CheckpointFiles(spark, str(tmp_path)).read("x.json") == "{}"


def test_the_delta_table_is_found_by_any_name(uri, tmp_path):
    if uri.startswith("viewfs:"):
        pytest.skip("delta-rs reads such names from a file of Hadoop's configuration")
    assert places(uri, "target") == (None, None)
    writer = DeltaCheckpoint(DeltaRows(uri, "query", "target", 3600.0))
    writer.record(CheckpointRow(0, 1, 2))
    writer.close()
    assert places(uri, "target") == places(str(tmp_path / "at"), "target") == (2, None)
    assert not list(Path().glob("*:*")), "no folder that is named like a URI"
