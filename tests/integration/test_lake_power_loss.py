"""A loss of power takes files of the newest commits of a lake, or parts of them: the next start goes back to what is whole, and the end is exact."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pyspark_tidb_binlog.schemas.errors import ApplyError, LeaseLost
from pyspark_tidb_binlog.sinks.lake.commit_log import CommitLog, NotForced
from pyspark_tidb_binlog.sinks.lake.power_loss import put_back, put_back_mirrors
from tests.support.golden_messages import spans_of
from tests.support.lake_lives import BUSY_UPKEEP, SHORT_PAST, replicate, replicated, sink_of
from tests.support.lake_rows import ledger_of
from tests.support.mirror_rows import assert_mirrored, published

STEPS = 30


def logs_of(lake: Path) -> list[Path]:
    return sorted(path.parent for path in lake.glob("**/_delta_log") if "parts" not in path.parts)


def newest_files(table: Path, commits: int) -> Iterator[Path]:
    """Of so many commits: the entries, and what they have added."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    for entry in entries[len(entries) - commits :]:
        yield entry
        yield from (table / path for path in re.findall(r'"add":{"path":"([^"]+)"', entry.read_text()))


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
    """Files of some of the newest four commits to ledger and moments, and of those to mirrors that were not published."""
    chance, lake = random.Random(f"{case} {seed}"), tmp_path / "lake"
    for _ in range(2):
        spans = spans_of(case, STEPS)
        replicated(lake, STEPS, chance.choice(spans[3:-1])[1], case, mirrors=True)
        for table in reversed(logs_of(lake)):
            is_mirror, commits = table.parent.name == "tables", chance.randint(0, 4)
            if is_mirror:
                commits = chance.randint(0, 2) if f"tables/{table.name}" in {state.path for state in published(lake).values()} else 0
                for _ in range(commits):
                    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "false"})
            for path in sorted({path for path in newest_files(table, commits) if path.exists()}):
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
    with pytest.raises(ApplyError, match=r"changes is damaged: none of its versions up to \d+ is whole. Restore"):
        sink_of(lake).open(lambda target, found: 0, lambda: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("table", ["changes", "snapshots"])
def test_a_loss_in_the_first_second(table: str, tmp_path: Path, wanted: dict[str, Any]) -> None:
    lake = tmp_path / "lake"
    if table == "snapshots":
        replicated(lake, case="bank", upto=spans_of("bank", STEPS)[5][1])
    log = lake / table / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").touch()
    sink = sink_of(lake, mirrors=table == "changes")
    replicate(sink, STEPS, case="bank")
    sink.close()
    assert changes_of(lake) == wanted["bank"]


def test_a_disk_that_refuses_ends_the_writer_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    lake, force, calls = tmp_path / "lake", CommitLog.force, list[int]()

    def refused(log: CommitLog, after: int, upto: int) -> None:
        calls.append(upto)
        if len(calls) == 12:
            raise NotForced("no space left on the device")
        force(log, after, upto)

    monkeypatch.setattr(CommitLog, "force", refused)
    sink = sink_of(lake, mirrors=False)
    with pytest.raises(LeaseLost, match="no space left on the device: this Drainer writes nothing more"):
        replicate(sink, STEPS, case="bank")
    sink.close()
    sink = sink_of(lake, mirrors=True)
    replicate(sink, STEPS, case="bank")
    sink.close()
    assert changes_of(lake) == wanted["bank"]


def test_nothing_is_changed_where_nothing_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With old versions removed and logs shortened."""
    for (module, name), value in (BUSY_UPKEEP | SHORT_PAST).items():
        monkeypatch.setattr(module, name, value)
    lake = tmp_path / "lake"
    for span in spans_of("bank", 4):
        replicated(lake, STEPS, span[1], "bank", mirrors=True)
        before = {path: path.stat().st_mtime_ns for path in lake.glob("**/*") if path.is_file()}
        put_back(str(lake))
        put_back_mirrors(str(lake), published(lake).values())
        assert {path: path.stat().st_mtime_ns for path in lake.glob("**/*") if path.is_file()} == before
