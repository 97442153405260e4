"""The programs of a private MariaDB."""

import stat
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import programs
from pyspark_tidb_binlog.schemas.errors import ConfigError


def test_a_program_beside_path_is_found_and_a_missing_one_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "_NOT_ON_EVERY_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"mariadbd is not installed: .*`apt-get install mariadb-server`.*--to mysql://"):
        programs.server_program("mariadbd")
    (tmp_path / "mariadbd").touch()
    (tmp_path / "mariadbd").chmod(stat.S_IRWXU)
    assert programs.server_program("mariadbd") == str(tmp_path / "mariadbd")
