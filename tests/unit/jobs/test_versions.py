"""Which Spark, Delta and Java are taken: newer patches are, others get one line."""

from pathlib import Path

import pytest

from benchmarks.spark_next import written_for
from pyspark_tidb_binlog.jobs.entry import versions
from pyspark_tidb_binlog.jobs.entry.versions import DELTA_PACKAGE, java_of, java_release, require_delta, require_java, require_spark
from pyspark_tidb_binlog.jobs.spark.spark_session import missing_delta
from pyspark_tidb_binlog.schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\nJAVA_VERSION_DATE="2025-04-15"', 17),
        ("command not found", None),
    ],
)
def test_java_versions(text: str, release: int | None) -> None:
    assert java_release(text) == release


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.2.17", "4.2.3-SNAPSHOT", "4.2"])
def test_a_newer_patch_is_taken(version: str) -> None:
    require_spark(version)
    require_delta(version.replace("4.2", "4.4"))
    with pytest.raises(ConfigError, match=f"this release needs Spark 4.2, but Spark {version.replace('4.2', '4.3')} is installed: "):
        require_spark(version.replace("4.2", "4.3"))


@pytest.mark.parametrize("version", ["3.5.6", "4.1.2", "4.20.0", "5.0.0", ""])
def test_another_version_is_one_line_that_says_what_to_do(version: str) -> None:
    for require in (require_spark, require_delta):
        with pytest.raises(ConfigError, match=r"supported") as refused:
            require(version)
        assert "\n" not in str(refused.value)


def test_java_must_be_there_and_new_enough() -> None:
    java = Path("/opt/java/bin/java")
    require_java(java, 17)
    require_java(java, 25)
    require_java(java, None)
    with pytest.raises(ConfigError, match=r"needs Java 17 or later, but /opt/java/bin/java is Java 11: .*apt-get install"):
        require_java(java, 11)
    with pytest.raises(ConfigError, match=r"needs Java 17 or later, but .*apt-get install"):
        require_java(None, None)


def test_java_is_looked_for_as_spark_does(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    assert java_of({"JAVA_HOME": str(tmp_path), "PATH": ""}) == (tmp_path / "bin" / "java", None)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert java_of({"PATH": str(tmp_path / "bin")}) == (tmp_path / "bin" / "java", 11)
    assert java_of({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "bin")}) == (None, None), "JAVA_HOME counts alone"


def test_only_what_a_session_lacks_of_delta_is_named() -> None:
    extension, catalog = "io.delta.sql.DeltaSparkSessionExtension", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    assert missing_delta("4.4.0", f"a.B,{extension}", catalog) == []
    assert missing_delta("4.4.0", "a.B", catalog) == [("spark.sql.extensions", f"a.B,{extension}")]
    assert missing_delta("", "", "") == [
        ("spark.jars.packages", DELTA_PACKAGE),
        ("spark.sql.extensions", extension),
        ("spark.sql.catalog.spark_catalog", catalog),
    ]


def test_make_spark_next_is_written_for_another_spark_and_delta() -> None:
    text = Path(versions.__file__).read_text()
    names: dict[str, object] = {}
    exec(written_for(text, "5.0.1", "6.1.2"), names)
    assert (names["SPARK"], names["DELTA"], names["DELTA_PACKAGE"]) == ((5, 0), (6, 1), "io.delta:delta-spark_5.0_2.13:6.1.2")
    assert written_for(text, "4.2.9", versions.EXACT_DELTA) == text
