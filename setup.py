"""Builds the wheel that ``setup.cfg`` describes, and puts the documents beside the code, where ``conf/entry.py`` finds them once it is installed."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BESIDE_THE_CODE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/images/*",
    "notebooks/replicate.*",
    "deploy/*",
)


class BuildWithDocuments(build_py):
    """The code, and these files in the places that they have in a checkout."""

    def run(self) -> None:
        """Copy both to where the wheel is packed from."""
        super().run()
        for pattern in BESIDE_THE_CODE:
            for file in Path().glob(pattern):
                to = Path(self.build_lib, "pyspark_tidb_binlog", file)
                self.mkpath(str(to.parent))
                self.copy_file(str(file), str(to))


setup(cmdclass={"build_py": BuildWithDocuments})
