"""The archive of Spark's classes that lets the JVM start in half the time. Imports neither Spark nor any package.

Promises: an archive is used only with its own Java, Spark and jars, at the same paths. With others a JVM would silently load every class anew, after it
has mapped the archive for nothing.
"""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

_STAMP = ".archive"
_NONE = "none\n"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The class-data archive beside Delta's jars."""

    jars: Path
    """The directory of Delta's jars, with which the class path begins."""
    spark_home: Path
    java: Path
    """The program that is started, or a link to it."""

    @property
    def file(self) -> Path:
        """Where it is."""
        return self.jars / "spark.jsa"

    def fits(self) -> bool:
        """Whether it is there and was made for exactly this."""
        return self._stamp() == self.made_for() and self.file.exists()

    def tried(self) -> bool:
        """Whether the archive fits, or this Java could not make one: some lack the base archive of their own classes."""
        return self.fits() or self._stamp() == self.made_for() + _NONE

    def replaced_by(self, made: Path) -> None:
        """``made`` becomes the archive; if the JVM has not written it, that is noted. A JVM that uses the one before is not disturbed."""
        stamp = self.jars / _STAMP
        stamp.unlink(missing_ok=True)
        there = made.exists()
        if there:
            made.replace(self.file)
        stamp.write_text(self.made_for() + ("" if there else _NONE))

    def _stamp(self) -> str:
        try:
            return (self.jars / _STAMP).read_text()
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove it, and what runs that were killed have left of theirs."""
        (self.jars / _STAMP).unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        for left in self.jars.glob("*.jsa"):
            if left.stem.isdigit() and not Path("/proc", left.stem).exists():
                left.unlink(missing_ok=True)

    def made_for(self) -> str:
        """What a JVM compares when it maps an archive: its own build, and the path, size and time of each jar."""
        program = self.java.resolve()
        modules = program.parents[1] / "lib" / "modules"
        java = f"{program} {_size_and_time(modules if modules.exists() else program)}"
        jars = [f"{directory} {_listed(directory):08x}" for directory in (self.jars, self.spark_home / "jars")]
        return "\n".join([java, *jars, ""])


def _listed(directory: Path) -> int:
    with os.scandir(directory) as entries:
        listed = sorted((entry.name, _size_and_time(entry.path)) for entry in entries if entry.name.endswith(".jar"))
    return zlib.crc32(repr(listed).encode())


def _size_and_time(path: Path | str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns
