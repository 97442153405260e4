"""Data directories of private MariaDBs: the first of a process is installed, the others are copies of it.

Promises: a copy is what ``mariadb-install-db`` makes with the same options, for a tenth of its time. The original goes with the process.
"""

import atexit
import shutil
import subprocess
import tempfile
from pathlib import Path

from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB

_install = PrivateMariaDB._install
_originals: dict[tuple[str, ...], Path] = {}


def install(server: PrivateMariaDB) -> None:
    """In the place of ``PrivateMariaDB._install``."""
    options = tuple(word for word in server._installing() if not word.startswith("--datadir="))
    if options in _originals:
        _copy(_originals[options], server.data_dir)
        return
    _install(server)
    place = Path(tempfile.mkdtemp(prefix="tbs-db-original-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    _copy(server.data_dir, place)
    _originals[options] = place


def _copy(whole: Path, to: Path) -> None:
    # Most of its redo log is zeros.
    subprocess.run(["cp", "-a", "--sparse=always", f"{whole}/.", str(to)], check=True)
