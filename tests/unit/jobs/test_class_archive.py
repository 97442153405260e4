"""When the archive of Spark's classes is used: only with what it was made for."""

import os
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.spark import class_archive
from pyspark_tidb_binlog.jobs.spark.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    for file in ("java/bin/java", "java/lib/modules", "spark/jars/core.jar", "delta/delta.jar", "made"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    archive = ClassArchive(tmp_path / "delta", tmp_path / "spark", tmp_path / "java" / "bin" / "java")
    assert not archive.fits()
    archive.file.write_text("made")
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


def test_it_is_made_anew_where_it_does_not_fit(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a killed run has left goes; what another process makes at this moment stays."""
    ran: list[str] = []

    def warm_up(command: list[str], what: str, environ: dict[str, str]) -> None:
        ran.append(what)
        Path(environ["SPARK_SUBMIT_OPTS"].partition("=")[2]).write_text("made")

    monkeypatch.setattr(class_archive, "run_once", warm_up)
    archive.make({})
    assert ran == []
    (archive.jars / "delta.jar").write_text("of another release")
    for left in (99999999, os.getppid()):
        (archive.jars / f"{left}.jsa").write_text("")
    archive.make({})
    assert (len(ran), archive.fits(), archive.file.read_text()) == (1, True, "made")
    assert sorted(path.name for path in archive.jars.glob("*.jsa")) == sorted([archive.file.name, f"{os.getppid()}.jsa"])


def test_a_java_that_makes_none_is_not_asked_at_every_start(archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(class_archive, "run_once", lambda command, what, environ: ran.append(what))
    archive.file.unlink()
    archive.make({})
    archive.make({})
    assert len(ran) == 1 and not archive.fits()
    os.utime(tmp_path / "java" / "lib" / "modules", ns=(0, 0))
    archive.make({})
    assert len(ran) == 2
