"""The recorded cases of a real TiDB, which ``rehearse`` replicates. A checkout has them in ``tests/golden``; a wheel has none.

Promises: reads names only, so a missing case is reported before Spark starts.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import HOME
from pyspark_tidb_binlog.conf.setting import did_you_mean
from pyspark_tidb_binlog.schemas.errors import ConfigError

RECORDINGS = HOME / "tests" / "golden"


def case_of(wanted: Path) -> Path:
    """The folder that ``wanted`` names: itself, or the case of that name among the recordings of this checkout.

    Raises:
        ConfigError: there is neither.
    """
    if wanted.exists():
        return wanted
    recorded = _recorded()
    if not recorded:
        raise ConfigError(
            f"{wanted} is not a folder, and an installation has no recorded cases: give the folder of a case, such as tests/golden/{wanted.name} of the repository"
        )
    if len(wanted.parts) != 1 or wanted.name not in recorded:
        meant = did_you_mean(wanted.name, recorded) or "."
        raise ConfigError(f"{wanted} is neither a folder nor a case of {RECORDINGS}{meant} There are {', '.join(recorded)}")
    return recorded[wanted.name]


def require_case(options: Sequence[str]) -> None:
    """Check that one of a job's options is a case.

    Raises:
        ConfigError: no option is a case; the error is about the likeliest option.
    """
    recorded = _recorded()
    words = [(before, word) for before, word in zip(("", *options), options, strict=False) if not word.startswith("-")]
    if not words or any(word in recorded or Path(word).exists() for _, word in words):
        return
    # A value stands behind its flag.
    case_of(Path(next((word for before, word in words if not before.startswith("-") or "=" in before), words[0][1])))


def _recorded() -> dict[str, Path]:
    return {folder.parent.name: folder.parent for folder in sorted(RECORDINGS.glob("*/case.json"))}
