"""The project's packages as one archive, for executors on other machines."""

import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import CODE, PACKAGE

_KINDS = (".py", ".toml", ".properties", ".options")


def write_zip(file: Path) -> None:
    """Replace ``file`` by it, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _sources():
            archive.write(path, path.relative_to(CODE))
    aside.replace(file)


def _sources() -> Iterable[Path]:
    """Every file that executors need, sorted."""
    walked = (Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names)
    return [PACKAGE / "py.typed", *sorted(path for path in walked if path.suffix in _KINDS)]
