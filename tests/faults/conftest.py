"""A directory in memory: power failures are simulated here, so that waiting for a real disk would show nothing."""

import tempfile
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path():
    """As pytest's own, but in memory where the system offers that."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        yield Path(directory)
