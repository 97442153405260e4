"""The recorded cases of a real TiDB, which ``rehearse`` replicates: in a checkout ``tests/golden`` has them, a wheel has none.

Promises: reads names only, so that a case that is not there is known before Spark starts.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark_tidb_binlog.conf.entry import HOME
from pyspark_tidb_binlog.conf.kinds import nearest
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
            f"{wanted} is no folder. An installation has no recorded cases: name the folder of one, such as tests/golden/{wanted.name} in the repository"
        )
    if len(wanted.parts) != 1 or wanted.name not in recorded:
        near = nearest(wanted.name, recorded)
        meant = f"did you mean {near[0]}? There are" if near else "there are"
        raise ConfigError(f"{wanted} is no folder, and no case of {RECORDINGS}; {meant} {', '.join(recorded)}")
    return recorded[wanted.name]


def require_case(options: Sequence[str]) -> None:
    """One of a job's options is a case.

    Raises:
        ConfigError: none of them can be; the error is about the one that was probably meant.
    """
    recorded = _recorded()
    words = [(before, word) for before, word in zip(("", *options), options, strict=False) if not word.startswith("-")]
    if not words or any(word in recorded or Path(word).exists() for _, word in words):
        return
    # A value stands behind its flag.
    case_of(Path(next((word for before, word in words if not before.startswith("-") or "=" in before), words[0][1])))


def _recorded() -> dict[str, Path]:
    return {folder.parent.name: folder.parent for folder in sorted(RECORDINGS.glob("*/case.json"))}
