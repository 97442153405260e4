"""A loss of power takes files of the newest commits of a lake, or parts of them: the next start goes back to what is whole, and the end is exact."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog
from pyspark_tidb_binlog.sinks.lake.ledger import Ledger
from tests.support.golden_messages import spans_of
from tests.support.lake_lives import replicate, replicated, sink_of
from tests.support.lake_rows import ledger_of
from tests.support.mirror_rows import assert_mirrored

STEPS = 30


def logs_of(lake: Path) -> list[Path]:
    return sorted(path.parent for path in lake.glob("**/_delta_log") if "parts" not in path.parts)


def newest_files(lake: Path, commits: int) -> Iterator[Path]:
    """Of the newest commits of a lake: their entries, and what they have added."""
    entries = [entry for table in logs_of(lake) for entry in (table / "_delta_log").glob("*.json")]
    for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime_ns)[-commits:]:
        yield entry
        yield from (entry.parents[1] / path for path in re.findall(r'"add":{"path":"([^"]+)"', entry.read_text()))


def spoil(path: Path, chance: random.Random) -> None:
    """What a file system leaves of a file that nobody has forced to the disk."""
    match chance.choice(("gone", "empty", "half", "zeros")):
        case "gone":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "half":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "zeros":
            path.write_bytes(bytes(path.stat().st_size))


def changes_of(lake: Path) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("commit_ts", "seq", "table_id", "row_key", "op", "before", "after")) for row in ledger_of(lake)]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """The ledgers of lives without a loss."""
    found = {}
    for case in ("bank", "ddl"):
        lake = tmp_path_factory.mktemp("untroubled") / case
        replicated(lake, case=case)
        found[case] = changes_of(lake)
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", ["bank", "ddl"])
def test_what_is_whole_stays_and_the_rest_comes_again(case: str, seed: int, tmp_path: Path, wanted: dict[str, Any]) -> None:
    """Files of some of the newest eight commits to ledger, moments and mirrors."""
    chance, lake = random.Random(f"{case} {seed}"), tmp_path / "lake"
    for _ in range(2):
        spans = spans_of(case, STEPS)
        replicated(lake, STEPS, chance.choice(spans[3:-1])[1], case, mirrors=True)
        for path in sorted({path for path in newest_files(lake, chance.randint(1, 8)) if path.exists()}):
            if chance.random() < 0.4:
                spoil(path, chance)
        if chance.random() < 0.5 and (checkpoints := sorted(lake.glob("**/*.checkpoint.parquet"))):
            spoil(checkpoints[-1], chance)
    sink = sink_of(lake, mirrors=True)
    replicate(sink, STEPS, case=case)
    sink.close()
    assert changes_of(lake) == wanted[case]
    assert_mirrored(case, lake)


def test_a_damaged_lake_of_which_no_version_is_whole_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    replicated(lake, case="bank")
    for path in (lake / "changes/_delta_log").glob("*.json"):
        path.write_bytes(b"")
    with pytest.raises(ApplyError, match=r"changes is damaged: none of its versions from 0 to \d+ is whole; it lacks 0.*\.json\. Restore"):
        sink_of(lake).open(lambda target, found: 0, lambda: None)  # type: ignore[arg-type, return-value]


def test_nothing_is_changed_where_nothing_is_broken(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    replicated(lake, case="bank", mirrors=True)
    for table in logs_of(lake):
        log = CommitLog(table)
        assert log.newest() == log.last and not log.cut(log.last or 0), table
    state = Ledger(str(lake)).load()
    assert state is not None and state.commit_ts is not None
