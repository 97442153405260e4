"""The wheel, built from a copy of the sources and installed into an environment of its own, outside the checkout."""

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
JARS = Path(sys.prefix) / "spark-jars"
NOT_FROM_OUTSIDE = ("TIDB_BINLOG", "PYTHON", "PYSPARK", "SPARK", "XDG_", "VIRTUAL_ENV")


def built(folder: Path) -> Path:
    """The wheel's file. A copy, because setuptools writes into the directory that it builds from."""
    left_out = shutil.ignore_patterns(".*", "var", "tests", "build", "dist", "__pycache__")
    source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    home: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.home / "bin" / "python")

    @property
    def command(self) -> str:
        """The command that the wheel brings."""
        return str(self.home / "bin" / "tidb-binlog")

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (found,) = self.home.glob("lib/python3*/site-packages")
        return found

    def install(self, wheel: Path) -> None:
        """Only the wheel, without a network."""
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index", str(wheel))

    def files(self) -> set[str]:
        """Every file of the installed product, but for byte code."""
        found = (path for path in (self.packages / "pyspark_tidb_binlog").rglob("*") if "__pycache__" not in path.parts)
        return {str(path) for path in found}


def environment(home: Path, without: Collection[str] = ()) -> Environment:
    """A new one that sees the packages of the one that runs this, but those that begin with one of ``without``."""
    run(sys.executable, "-m", "venv", "--without-pip", str(home))
    made = Environment(home)
    for path in Path(site.getsitepackages()[0]).iterdir():
        if not path.name.startswith(tuple(without)) and path.suffix != ".pth" and path.name != "__pycache__":
            (made.packages / path.name).symlink_to(path)
    if JARS.exists():
        (home / "spark-jars").symlink_to(JARS)
    return made


def from_the_index(home: Path, wheel: Path, *more: str) -> Environment:
    """A new one with the wheel's extra ``demo``, and ``more`` packages, from the package index; for every user, if the system's own Python will do."""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) and _is_new_enough("/usr/bin/python3") else sys.executable
    run(python, "-m", "venv", "--without-pip", str(home))
    made = Environment(home)
    run(sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet", f"{wheel}[demo]", *more)
    return made


def _is_new_enough(python: str) -> bool:
    asked = subprocess.run(
        [python, "-c", "import sys, venv; print(sys.version_info >= (3, 11))"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() == "True"


def bare_environ(home: Path) -> dict[str, str]:
    """The variables of a person who has activated nothing; ``home``: where everything of theirs goes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FROM_OUTSIDE)}
    return kept | {"HOME": str(home), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def run(*command: str) -> None:
    """Run a step that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
