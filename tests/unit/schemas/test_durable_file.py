"""A small file after a crash, and after a write that fails: the old content or the new one, whole."""

import errno
import os
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.durable_file import replace_file

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "name"
    replace_file(file, "one", 0o600)
    assert file.read_text() == "one" and file.stat().st_mode & 0o777 == 0o600
    replace_file(file, "ä")
    assert file.read_bytes() == "ä".encode() and [path.name for path in tmp_path.iterdir()] == ["name"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    file = tmp_path / "name"

    def fails(*_: object) -> None:
        raise FULL

    for before in ("", "one"):
        if before:
            replace_file(file, before)
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, fails)
            patch.setattr(Path, "replace", fails if failing == "replace" else Path.replace)
            with pytest.raises(OSError, match="No space left"):
                replace_file(file, "two")
        assert [path.name for path in tmp_path.iterdir()] == (["name"] if before else [])
        assert not before or file.read_text() == before


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        done.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else Path(os.readlink(f"/proc/self/fd/{fd}")).read_text())
        fsync(fd)

    def renamed(self: Path, to: Path) -> Path:
        done.append("rename")
        return replace(self, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    replace_file(tmp_path / "name", "one")
    assert done == ["one", "rename", "directory"]


def test_what_a_crash_has_left_beside_it_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".name.tmp").write_text("half")
    replace_file(tmp_path / "name", "one")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
