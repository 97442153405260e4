"""Where settings are loaded in these tests."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import unset


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of a known name, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unset, "first_ipv4", lambda: "10.0.0.9")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
