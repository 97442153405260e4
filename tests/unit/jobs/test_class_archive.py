"""When the archive of Spark's classes is used: only with what it was made for."""

import os
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import setup
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    for file in ("java/bin/java", "java/lib/modules", "spark/jars/core.jar", "delta/delta.jar", "delta/made"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    archive = ClassArchive(tmp_path / "delta", tmp_path / "spark", tmp_path / "java" / "bin" / "java")
    assert not archive.fits()
    archive.replaced_by(tmp_path / "delta" / "made")
    assert archive.fits()
    return archive


@pytest.mark.parametrize("changed", ["java/lib/modules", "spark/jars/core.jar", "delta/delta.jar"])
def test_it_does_not_fit_another_java_or_another_jar(archive: ClassArchive, tmp_path: Path, changed: str) -> None:
    found = (tmp_path / changed).stat()
    os.utime(tmp_path / changed, ns=(found.st_atime_ns, found.st_mtime_ns + 10**9))
    assert not archive.fits()


def test_it_does_not_fit_at_another_place(archive: ClassArchive, tmp_path: Path) -> None:
    (tmp_path / "delta").rename(tmp_path / "moved")
    assert not ClassArchive(tmp_path / "moved", archive.spark_home, archive.java).fits()
    (tmp_path / "moved").rename(tmp_path / "delta")
    assert archive.fits()


def test_it_is_made_anew_where_it_does_not_fit(archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a killed run has left goes."""
    ran: list[str] = []

    def warm_up(command: list[str], what: str, env: dict[str, str], deaf: bool) -> None:
        ran.append(what)
        Path(env["SPARK_SUBMIT_OPTS"].partition("=")[2]).write_text("made")

    monkeypatch.setattr(setup, "run", warm_up)
    spark = setup.SparkOfMachine(Path("python"), archive.spark_home, {"JAVA_HOME": str(tmp_path / "java")})
    os.chmod(archive.java, 0o755)
    setup.ensure_archive(archive.jars, spark)
    assert ran == []
    (archive.jars / "delta.jar").write_text("of another release")
    (archive.jars / "99999999.jsa").write_text("")
    setup.ensure_archive(archive.jars, spark)
    assert (len(ran), archive.fits(), archive.file.read_text()) == (1, True, "made")
    assert sorted(path.name for path in archive.jars.glob("*.jsa")) == ["spark.jsa"]


def test_a_java_that_makes_none_is_not_asked_at_every_start(archive: ClassArchive, tmp_path: Path) -> None:
    archive.remove()
    assert not archive.tried()
    archive.replaced_by(tmp_path / "none")
    assert archive.tried() and not archive.fits()
    os.utime(tmp_path / "java" / "lib" / "modules", ns=(0, 0))
    assert not archive.tried()
