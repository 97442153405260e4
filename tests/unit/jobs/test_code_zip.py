"""The code for executors on other machines."""

import zipfile
from pathlib import Path

from pyspark_tidb_binlog.jobs.spark.code_zip import write_zip


def test_it_holds_every_package(tmp_path: Path) -> None:
    write_zip(tmp_path / "sub" / "code.zip")
    names = set(zipfile.ZipFile(tmp_path / "sub" / "code.zip").namelist())
    wanted = {"__init__.py", "jobs/entry/cli.py", "schemas/errors.py", "schemas/proto/binlog_pb2.py", "conf/drainer.toml", "py.typed"}
    assert {f"pyspark_tidb_binlog/{name}" for name in wanted} <= names
    assert all(name.startswith("pyspark_tidb_binlog/") and "__pycache__" not in name for name in names)
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["code.zip"]
