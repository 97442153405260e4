"""Runs the golden cases with the newest PySpark and Delta of the package index, to show what a port to the next Spark must fix.

    make spark-next                                          # pip chooses both, newest first, as far as they go together
    make spark-next SPARK_NEXT="pyspark==4.3.0" CASES=bank   # without delta-spark: the jar of the Delta that this release names

Promises: works in a copy of the project with a virtual environment of its own, in a temporary directory; ``.venv`` is not touched. The copy's
``jobs/entry/versions.py`` names the versions that pip chose, so that they are not refused. Exit code 0 only if every case comes out as recorded.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_OURS_TO_CHOOSE = ("pyspark", "py4j", "delta-spark", "importlib_metadata", "zipp")
"""Pins of ``requirements.txt`` that follow from the Spark and the Delta."""
_SHOWN = 25
"""Lines of what failed."""


class Broken(Exception):
    """A step failed; the message is what it printed."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("spark_next", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bank", help="names of golden cases")
    parser.add_argument("--seconds", type=float, default=900.0, help="limit of each step")
    parser.add_argument("packages", nargs="*", default=["pyspark", "delta-spark"], help="what pip installs")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="spark-next-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o711)  # started by root, MariaDB runs as another user
        project = copied(Path(place) / "project")
        broken = 0
        try:
            spark, delta = installed(project, given.packages, given.seconds)
            print(f"PySpark {spark}, Delta {delta}", flush=True)
            run(project, given.seconds, "./spark-submit.sh", "setup", "--java", "--mariadb")
        except Broken as error:
            print(error)
            return 1
        for case in given.cases.split():
            try:
                run(project, given.seconds, "./spark-submit.sh", "rehearse", f"tests/golden/{case}", "--pace", "0")
                print(f"{case}: as recorded", flush=True)
            except Broken as error:
                broken += 1
                print(f"{case}: BROKEN: {error}", flush=True)
    return min(broken, 1)


def copied(project: Path) -> Path:
    """The files of the project that git knows, as they are now."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(ROOT / name):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name, follow_symlinks=False)
    return project


def installed(project: Path, packages: Sequence[str], seconds: float) -> tuple[str, str]:
    """Install; the versions of Spark and Delta that the copy is written for from now on."""
    wanted, venv = project / "requirements.txt", project / ".venv"
    others = [line for line in wanted.read_text().splitlines() if line.partition("==")[0] not in _OURS_TO_CHOOSE]
    (project / "others.txt").write_text("\n".join(others))
    run(project, seconds, sys.executable, "-m", "venv", str(venv))
    run(project, seconds, f"{venv}/bin/python", "-m", "pip", "install", "--quiet", "--upgrade", "-r", "others.txt", *packages)
    # spark-submit.sh installs nothing again
    shutil.copy(wanted, venv / ".requirements.txt")
    frozen = run(project, seconds, f"{venv}/bin/python", "-m", "pip", "freeze")
    found = {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in frozen.splitlines())}
    versions = project / "jobs" / "entry" / "versions.py"
    text = versions.read_text()
    delta = found.get("delta-spark") or re.findall(r'^EXACT_DELTA = "(.*)"', text, re.M)[0]
    versions.write_text(written_for(text, found["pyspark"], delta))
    return found["pyspark"], delta


def written_for(text: str, spark: str, delta: str) -> str:
    """``versions.py`` with another Spark and Delta."""
    major, minor, *_ = spark.split(".")
    for name, value in (("SPARK", f"({major}, {minor})"), ("EXACT_DELTA", f'"{delta}"')):
        text, changed = re.subn(rf"^{name} = .*", f"{name} = {value}", text, flags=re.M)
        assert changed == 1, name
    return text


def run(project: Path, seconds: float, *command: str) -> str:
    """What a step prints; raises Broken if it fails or takes longer."""
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "SPARK_HOME", "PYTHON")}
    environ["TMPDIR"] = str(project.parent)  # what a step that is killed leaves goes with the rest
    try:
        done = subprocess.run(
            command, cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise Broken(f"`{' '.join(command)}` did not end within {seconds:.0f} s") from error
    if done.returncode:
        shown = "\n".join(done.stdout.strip().splitlines()[-_SHOWN:])
        raise Broken(f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{shown}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
