"""A disk that is full whenever a test says so: a tmpfs of its own, which only root can mount."""

import contextlib
import os
import subprocess
from pathlib import Path
from types import TracebackType

import pytest

_PAGE = 4096


class SmallDisk:
    """A mount of ``size`` bytes at ``path``, from the beginning of the ``with`` block to its end. Skips the test where nothing can be mounted."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._filler = path / "filler"

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir()
        if os.geteuid() != 0:
            pytest.skip("only root can mount the small disk that is to be full")
        found = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.path)], capture_output=True, text=True
        )
        if found.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {found.stderr.strip()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Unmount it, also while somebody has a file there."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def fill(self, but: int = 0) -> None:
        """Leave room for ``but`` bytes, in whole pages."""
        self.free()
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        left = os.statvfs(self.path)
        os.truncate(self._filler, max(0, self._filler.stat().st_size + left.f_bavail * left.f_frsize - but) // _PAGE * _PAGE)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)
