"""The pure parts of setting up."""

import zipfile
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs import setup


def test_where_apt_is_not_allowed_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_NO_APT", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(setup.SetupError, match="no Java was found: run `apt-get install .*openjdk-17-jre-headless` as root"):
        setup.apt_install(["openjdk-17-jre-headless"], "no Java was found")


def test_elsewhere_than_on_debian_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(setup.SetupError, match="install what Debian calls mariadb-server"):
        setup.apt_install(["mariadb-server"], "no server")


def test_etcd_is_installed_only_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDB_BINLOG_NO_APT", "1")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    setup.ensure_etcd()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "etcd" else f"/usr/bin/{name}")
    with pytest.raises(setup.SetupError, match="etcd was not found: run `apt-get install .*etcd-server` as root"):
        setup.ensure_etcd()


def test_the_archive_for_executors_holds_every_package(tmp_path: Path) -> None:
    setup.write_zip(tmp_path / "sub" / "code.zip")
    names = set(zipfile.ZipFile(tmp_path / "sub" / "code.zip").namelist())
    wanted = {"__init__.py", "jobs/cli.py", "schemas/errors.py", "schemas/proto/binlog_pb2.py", "conf/drainer.toml", "py.typed"}
    assert {f"pyspark_tidb_binlog/{name}" for name in wanted} <= names
    assert all(name.startswith("pyspark_tidb_binlog/") and "__pycache__" not in name for name in names)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["code.zip"]
