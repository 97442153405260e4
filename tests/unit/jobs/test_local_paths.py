"""What a URI says about where a checkpoint lies; no JVM."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.jobs.entry.local_paths import local_path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("var/drainer/spark", Path("var/drainer/spark")),
        ("/a/b", Path("/a/b")),
        ("file:/a/b", Path("/a/b")),
        ("file:///a/b", Path("/a/b")),
        ("FILE:///a", Path("/a")),
        ("s3a://bucket/a", None),
        ("hdfs://host:8020/a", None),
        ("dbfs:/a", None),
    ],
)
def test_what_is_local(uri: str, path: Path | None) -> None:
    assert local_path(uri) == path
