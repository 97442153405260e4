"""Adds byte code to an archive of Python sources, in place: ``bytecode.py pyspark.zip``. Run once by ``jobs/setup.py``.

Spark's workers import PySpark from ``pyspark.zip``, which holds sources only, and Python caches no byte code for archives: every worker
would compile a hundred modules again, 1.4 s of CPU instead of 0.3, and a stream starts half a dozen workers.

Promises: stdlib only. Existing entries keep their offsets, so processes that have the archive open are not disturbed; the archive is
replaced atomically. A Python of another version ignores the byte code and uses the sources.
"""

import importlib.util
import marshal
import os
import shutil
import sys
import zipfile
from pathlib import Path

UNCHECKED = 0b01
"""Flag of byte code that is used without checking the source's time or hash."""


def compiled(source: bytes, name: str) -> bytes:
    """The content of the ``.pyc`` of ``source``."""
    code = compile(source, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def add_bytecode(archive: Path) -> int:
    """Add the byte code of every source that has none; returns how many were added."""
    aside = archive.with_name(f"{archive.name}.{os.getpid()}")
    shutil.copy(archive, aside)
    with zipfile.ZipFile(aside, "a", zipfile.ZIP_STORED) as members:
        there = set(members.namelist())
        missing = sorted(name for name in there if name.endswith(".py") and f"{name}c" not in there)
        for name in missing:
            members.writestr(f"{name}c", compiled(members.read(name), f"{archive}/{name}"))
    aside.replace(archive)
    return len(missing)


if __name__ == "__main__":
    add_bytecode(Path(sys.argv[1]))
