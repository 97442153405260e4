"""Byte code inside an archive: used by Python, added once, and nothing that was there is moved."""

import subprocess
import sys
import zipfile

from pyspark_tidb_binlog.jobs.bytecode import add_bytecode


def made(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("thing/__init__.py", "from thing.part import VALUE\n")
        archive.writestr("thing/part.py", "VALUE = 7\n")
        archive.writestr("thing/data.txt", "text")
    return path


def test_python_imports_the_byte_code(tmp_path):
    archive = made(tmp_path / "things.zip")
    assert add_bytecode(archive) == 2
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import thing.part; print(thing.VALUE, thing.part.__file__)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["7", f"{archive}/thing/part.pyc"]


def test_a_second_run_adds_nothing_and_entries_stay_where_they_were(tmp_path):
    archive = made(tmp_path / "things.zip")
    places = {info.filename: info.header_offset for info in zipfile.ZipFile(archive).infolist()}
    assert add_bytecode(archive) == 2
    assert add_bytecode(archive) == 0
    after = {info.filename: info.header_offset for info in zipfile.ZipFile(archive).infolist()}
    assert after.items() >= places.items()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["things.zip"]
