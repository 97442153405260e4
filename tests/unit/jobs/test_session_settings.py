"""Settings of the session: pure text, no JVM."""

import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.jobs.spark import pyspark_insides
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive
from pyspark_tidb_binlog.jobs.spark.fetched_jars import COMPLETE, DELTA_JARS
from pyspark_tidb_binlog.jobs.spark.jvm import local_cores
from pyspark_tidb_binlog.jobs.spark.jvm_settings import jvm_options
from pyspark_tidb_binlog.jobs.spark.pyspark_insides import LOCAL_FILES
from pyspark_tidb_binlog.jobs.spark.spark_session import _jars, _launch_settings, additions, build_session, configured, session_settings
from pyspark_tidb_binlog.schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("spark://h:7077", None), ("local-cluster[2,1,1024]", None), ("yarn", None)],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_all_cores() -> None:
    assert (local_cores("local[*]") or 0) >= 1


def test_a_cluster_keeps_its_own_addresses_and_has_a_partition_per_pairing_bucket() -> None:
    assert "spark.driver.host" not in session_settings(None)
    assert session_settings(None)["spark.sql.shuffle.partitions"] == "8"
    assert session_settings(3)["spark.sql.shuffle.partitions"] == "3"


def test_delta_is_optional() -> None:
    assert not any("delta" in key or "delta" in value for key, value in session_settings(2, delta=False).items())


def test_what_only_suits_one_machine_stays_off_a_cluster() -> None:
    assert "spark.authenticate" not in session_settings(None), "there Spark makes no secret by itself"
    assert not {"spark.shuffle.compress", "spark.sql.streaming.checkpointFileManagerClass"} & set(session_settings(None))
    assert "FileSystemBased" in session_settings(2)["spark.sql.streaming.checkpointFileManagerClass"]


def test_the_small_jvm_is_for_local_masters_without_a_collector_of_their_own() -> None:
    assert "-XX:+UseSerialGC" in jvm_options(None, local=True, given="-Dx=y")
    assert "-XX:" not in jvm_options(None, local=False, given="")
    assert "SerialGC" not in jvm_options(None, local=True, given="--conf spark.driver.extraJavaOptions=-XX:+UseG1GC")


def test_spark_keeps_no_name_of_a_socket_file_per_task() -> None:
    """Over unix sockets it registers one for each task and each collected frame, to be deleted at its exit: memory grows for days."""
    assert not any("unix.domain" in name for cores in (2, None) for name in session_settings(cores))


def test_the_jvm_does_not_collect_everything_because_classes_were_loaded() -> None:
    assert "-XX:MetaspaceSize=256m" in jvm_options(None, local=True, given="")


def test_what_a_person_has_set_stays_and_lists_are_added_to() -> None:
    wanted = {
        "spark.sql.extensions": "io.Delta",
        "spark.jars.packages": "io:delta:4",
        "spark.state": "RocksDB",
        "spark.catalog": "DeltaCatalog",
    }
    assert additions({}, wanted) == wanted
    given = {"spark.sql.extensions": "a.B", "spark.jars.packages": "c:d:1,io:delta:4", "spark.state": "theirs", "spark.catalog": ""}
    assert additions(given, wanted) == {"spark.sql.extensions": "a.B,io.Delta", "spark.catalog": "DeltaCatalog"}
    assert additions({"spark.driver.extraClassPath": "/a.jar"}, {"spark.driver.extraClassPath": "/d.jar"}) == {
        "spark.driver.extraClassPath": "/a.jar:/d.jar"
    }


def test_a_session_of_ones_own_says_which_java_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark only says that the JVM exited before it sent its port number."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.13"\n')
    monkeypatch.setattr(pyspark_insides, "has_jvm", lambda: False)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    for home, words in ((tmp_path, "is Java 11"), (tmp_path / "gone", r"JAVA_HOME \(.*\) has no Java")):
        monkeypatch.setenv("JAVA_HOME", str(home))
        with pytest.raises(ConfigError, match=f"Spark needs Java 17 or later, but .*{words}"):
            configured(SparkSession.builder)
        with pytest.raises(ConfigError, match=f"Spark needs Java 17 or later, but .*{words}"):
            build_session("none")
    assert configured(SparkSession.Builder().remote("sc://elsewhere"), delta=False) is not None
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    assert configured(SparkSession.Builder(), delta=False) is not None


def test_the_archive_of_classes_is_used_through_a_link_to_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark starts the JVM from the path behind the links, which is what the JVM compares."""
    environment, link = tmp_path / "environment", tmp_path / "link"
    jars, java = environment / DELTA_JARS.folder, tmp_path / "java" / "bin" / "java"
    for place in (jars, environment / "pyspark" / "jars", java.parent):
        place.mkdir(parents=True)
    (jars / COMPLETE).write_text(DELTA_JARS.package)
    java.touch(0o755)
    link.symlink_to(environment)
    archive = ClassArchive(jars, environment / "pyspark", java)
    archive.file.write_text("made")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(link))
    monkeypatch.setattr(pyspark, "__path__", [str(link / "pyspark")])
    assert f"-XX:SharedArchiveFile={archive.file}" in _launch_settings("local[2]", delta=True)["spark.driver.extraJavaOptions"]


def test_local_files_need_no_process_where_our_jars_are_on_the_class_path(tmp_path: Path) -> None:
    assert LOCAL_FILES[0] in _jars(tmp_path, local=True)
    assert LOCAL_FILES[0] not in _jars(tmp_path, local=False) | _jars(None, local=True)
