"""The wheel: everything of the product under one name, whatever lies in the working directory."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import pkgutil, sys
import pyspark_tidb_binlog
assert not {name for name in sys.modules if name.startswith("pyspark.")}, "the Pump needs no PySpark"
found = list(pkgutil.walk_packages(pyspark_tidb_binlog.__path__, "pyspark_tidb_binlog."))
modules = {info.name for info in found}
for name in ("jobs.drainer", "binlog_source.pump.server", "sinks.mysql.mysql_sink", "schemas.decoder", "conf.load"):
    assert f"pyspark_tidb_binlog.{name}" in modules, name
    __import__(f"pyspark_tidb_binlog.{name}")
print(pyspark_tidb_binlog.DefaultSource.name(), pyspark_tidb_binlog.__file__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, because setuptools writes into the directory that it builds from.
    left_out = shutil.ignore_patterns(".*", "var", "tests", "build", "dist", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_nothing_but_the_one_name_is_installed(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")} == {"pyspark_tidb_binlog"}
    assert not [path for path in installed.rglob("*") if path.is_symlink()]


def test_folders_of_the_same_names_in_the_working_directory_do_no_harm(installed: Path, tmp_path: Path) -> None:
    for name in ("conf", "jobs", "schemas", "sinks", "binlog_source"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not the product')\n")
    environ = {"PYTHONPATH": str(installed), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tidb_binlog", str(installed / "pyspark_tidb_binlog" / "__init__.py")]
