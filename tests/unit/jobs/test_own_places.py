"""Where logs and downloads go when there is no checkout, no HOME, and nothing that may be written."""

import os
from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry import own_places
from pyspark_tidb_binlog.schemas.errors import ConfigError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_places, "IN_CHECKOUT", False)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def test_the_users_directories_are_taken_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert own_places.logs() == tmp_path / "home/.local/state/tidb-binlog/log"
    assert own_places.downloads() == tmp_path / "home/.cache/tidb-binlog/cache"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert own_places.logs() == tmp_path / "state/tidb-binlog/log"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert own_places.logs() == tmp_path / "home/.local/state/tidb-binlog/log"


def test_without_a_home_a_directory_of_this_user_alone_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    place = own_places.logs()
    assert place == tmp_path / f"tidb-binlog-{os.getuid()}" / "log"
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert own_places.logs() == place


@pytest.mark.parametrize("trap", ["open", "link"])
def test_a_directory_that_others_can_write_to_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trap: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    guessed = tmp_path / f"tidb-binlog-{os.getuid()}"
    if trap == "open":
        guessed.mkdir()
        guessed.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir(mode=0o700)
        guessed.symlink_to(tmp_path / "theirs")
    assert not own_places.logs().is_relative_to(guessed)


def test_where_nothing_can_be_written_it_says_which_variables_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_places, "_writable", lambda place: False)
    with pytest.raises(ConfigError, match=rf"no directory for the log is writable: {tmp_path}/home.*XDG_STATE_HOME or TMPDIR"):
        own_places.logs()


def test_a_directory_of_all_users_is_taken_only_if_nobody_else_made_what_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME may be /tmp: jars are loaded from there."""
    everyones = tmp_path / "everyones"
    everyones.mkdir()
    everyones.chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(everyones))
    assert own_places.downloads() == everyones / "tidb-binlog/cache"
    home = tmp_path / "home/.cache/tidb-binlog/cache"
    for made in (everyones / "tidb-binlog/cache", everyones / "tidb-binlog"):
        made.chmod(0o777)
        assert own_places.downloads() == home
        made.chmod(0o755)
    everyones.chmod(0o777)
    assert own_places.downloads() == home
