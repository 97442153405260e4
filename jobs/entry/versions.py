"""The versions of Spark, Delta and Java that this project supports; docs/supported.md has the whole table. Pure, except ``java_of`` and ``spark_home``.

Promises: an unsupported version is one error: the version present, the version needed, and what to do. A newer patch version is never refused.
"""

import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import document
from pyspark_tidb_binlog.schemas.errors import ConfigError

SPARK = (4, 2)
EXACT_DELTA = "4.4.0"
"""With which this release is tested."""
DELTA = tuple(map(int, EXACT_DELTA.split(".")[:2]))
JAVA = 17
DELTA_PACKAGE = f"io.delta:delta-spark_{SPARK[0]}.{SPARK[1]}_2.13:{EXACT_DELTA}"
"""Delta's jar as Maven knows it."""
LOCAL_FILES_PACKAGE = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"
"""A class for local files as Maven knows it (``pyspark_insides.LOCAL_FILES``)."""


def require_spark(version: str) -> None:
    """Raise ConfigError if Spark ``version`` is not one of 4.2."""
    if _first_two(version) != SPARK:
        raise ConfigError(
            f"this release needs Spark {_said(SPARK)}, but Spark {version} is installed: pip install 'pyspark>=4.2.1,<4.3', "
            f"or on a cluster choose one with Spark {_said(SPARK)} ({document('supported')})"
        )


def require_delta(version: str) -> None:
    """Raise ConfigError if Delta ``version`` is not one of 4.4."""
    if _first_two(version) != DELTA:
        raise ConfigError(
            f"this release needs Delta {_said(DELTA)}, but Delta {version} is loaded: use {DELTA_PACKAGE} ({document('supported')})"
        )


def require_java(found: Path | None, version: int | None) -> None:
    """Raise ConfigError without a program ``java``, or if its feature release is known and too old."""
    advice = f"install Java {JAVA} (Debian: apt-get install openjdk-{JAVA}-jre-headless), and unset JAVA_HOME or set it to that Java"
    if found is None:
        raise ConfigError(f"Spark needs Java {JAVA} or later, but {_no_java()}: {advice}")
    if version is not None and version < JAVA:
        raise ConfigError(f"Spark needs Java {JAVA} or later, but {found} is Java {version}: {advice}")


def java_of(environ: Mapping[str, str]) -> tuple[Path | None, int | None]:
    """The program that Spark would start, and its feature release, if the file ``release`` of its directory has it."""
    home = environ.get("JAVA_HOME")
    named = Path(home) / "bin" / "java" if home else Path(shutil.which("java", path=environ.get("PATH")) or "/nonexistent")
    if not os.access(named, os.X_OK):
        return None, None
    try:
        told = (named.resolve().parents[1] / "release").read_text(errors="replace")
    except OSError:
        return named, None
    return named, java_release(told)


def spark_home(environ: Mapping[str, str]) -> Path:
    """The Spark that PySpark belongs to: inside the package if pip installed it, else around it.

    Raises:
        ConfigError: it comes without Spark, or is not of 4.2.
    """
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent.resolve()
    for place in (package, package.parents[1], Path(environ.get("SPARK_HOME") or package)):
        if (place / "bin" / "spark-submit").is_file() and (place / "jars").is_dir():
            break
    else:
        raise ConfigError(
            f"PySpark in {package} comes without Spark: pip install 'pyspark>=4.2.1,<4.3', or let SPARK_HOME name a Spark 4.2"
        )
    version = re.search(r"^__version__[^=]*= *['\"]([^'\"]+)", (package / "version.py").read_text(), re.M)
    require_spark(version[1] if version else "")
    return place


def java_release(text: str) -> int | None:
    """``openjdk version "17.0.15" …`` or ``JAVA_VERSION="17.0.15"`` as 17; ``1.8.0`` as 8."""
    match = re.search(r'(?:version |JAVA_VERSION=)"(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _no_java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"JAVA_HOME ({home}) has no Java" if home else "no java is on PATH"


def _first_two(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _said(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
