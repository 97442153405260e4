"""How long each file of tests took when it was measured: the longest begin first, so that no process is left with one at the end.

make durations      writes ``tests/durations.txt`` from the report of the last ``make test``
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

RECORD = Path(__file__).parents[1] / "durations.txt"
_LEAST = 2
"""Seconds; what takes less can begin whenever it likes."""


def recorded(record: Path = RECORD) -> dict[str, int]:
    """Seconds by file, as ``tests/unit/test_x.py``."""
    lines = (line.split() for line in record.read_text().splitlines()) if record.exists() else ()
    return {file: int(seconds) for seconds, file in lines}


def measured(report: Path) -> dict[str, int]:
    """The same, of a run whose JUnit report this is."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        words = case.attrib["classname"].split(".")
        # a class is written behind its module
        module = next(i for i, word in enumerate(words) if word.startswith("test_")) + 1
        seconds["/".join(words[:module]) + ".py"] += float(case.attrib["time"])
    return {file: round(spent) for file, spent in seconds.items() if spent >= _LEAST}


def written(seconds: dict[str, int]) -> str:
    """The text of the record, the longest first."""
    return "".join(f"{spent:4d} {file}\n" for file, spent in sorted(seconds.items(), key=lambda one: (-one[1], one[0])))


def in_shard(place: int, which: str) -> bool:
    """Whether the test at ``place`` belongs to the shard ``which``, as ``2/6``, the second of six; empty: each does."""
    number, _, of = (which or "1/1").partition("/")
    return place % int(of) == int(number) - 1


if __name__ == "__main__":
    RECORD.write_text(written(measured(Path(sys.argv[1]))))
