"""Where the jars are that Spark is given, and who needs none."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import command
from pyspark_tidb_binlog.jobs.command import Given
from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.jobs.spark.fetched_jars import COMPLETE, DELTA_JARS, FetchedJars, jars_in
from pyspark_tidb_binlog.schemas.errors import ConfigError


def filled(place: Path, jars: FetchedJars, *names: str) -> Path:
    place.mkdir(parents=True)
    for name in names:
        (place / name).touch()
    (place / COMPLETE).write_text(jars.package)
    return place


def test_jars_in_the_environment_need_no_place_for_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused() -> Path:
        raise ConfigError("no directory for the cache can be written")

    monkeypatch.setattr(own_places, "downloads", refused)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigError):
        DELTA_JARS.place()
    there = filled(tmp_path / DELTA_JARS.folder, DELTA_JARS)
    assert DELTA_JARS.place() == there


def test_jars_of_another_version_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_places, "downloads", lambda: tmp_path / "cache")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    filled(tmp_path / DELTA_JARS.folder, replace(DELTA_JARS, package=DELTA_JARS.package + "1"))
    assert DELTA_JARS.place() is None
    fetched = DELTA_JARS.place_to_fetch()
    assert fetched.name == f"{DELTA_JARS.folder}-{DELTA_JARS.package.rpartition(':')[2]}"
    filled(fetched, DELTA_JARS)
    assert DELTA_JARS.place() == fetched


def test_the_command_takes_its_own_unless_spark_or_the_caller_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    place = filled(tmp_path / "environment" / DELTA_JARS.folder, DELTA_JARS, "b.jar", "a.jar")
    spark_home = tmp_path / "spark"
    assert command._jars(Given("drainer"), spark_home, {}) == place
    assert jars_in(place) == [str(place / "a.jar"), str(place / "b.jar")]
    assert command._jars(Given("drainer", [], ["--packages", DELTA_JARS.package]), spark_home, {}) is None
    (spark_home / "jars").mkdir(parents=True)
    (spark_home / "jars" / f"{DELTA_JARS.package.split(':')[-2]}-9.jar").touch()
    assert command._jars(Given("drainer"), spark_home, {}) is None
