"""The Delta tables as delta-rs writes them: each batch once, few files, a short log. No Spark."""

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tidb_binlog.sinks.delta import appended_table
from pyspark_tidb_binlog.sinks.delta.appended_table import FAULTS, AppendedTable, properties, vacuum_every

WEEK = 7 * 86_400.0
SCHEMA = pa.schema([pa.field("batch_id", pa.int64())])


def rows(*batches: int) -> pa.Table:
    return pa.Table.from_pylist([{"batch_id": i} for i in batches], schema=SCHEMA)


def table_at(path: Path, app_id: str = "query", retention: float = WEEK) -> AppendedTable:
    return AppendedTable(str(path), SCHEMA, app_id, retention)


def append(table: AppendedTable, *batches: int) -> None:
    table.newest_batch()
    table.commit(rows(*batches), max(batches))


def batches(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["batch_id"].to_pylist())


@pytest.mark.parametrize(("retention", "every"), [(WEEK, 3600.0), (3600.0, 900.0), (60.0, 15.0)])
def test_a_short_retention_is_looked_after_more_often(retention: float, every: float) -> None:
    assert vacuum_every(retention) == every


def test_the_log_is_kept_as_long_as_the_files() -> None:
    made = properties(90.5)
    assert made["delta.deletedFileRetentionDuration"] == made["delta.logRetentionDuration"] == "interval 91 seconds"


def test_a_table_knows_the_newest_batch_of_each_query(tmp_path: Path) -> None:
    one, two = (table_at(tmp_path / "made" / "here", app_id) for app_id in ("one", "two"))
    assert (one.newest_batch(), two.newest_batch()) == (-1, -1)
    append(one, 3, 4)
    append(two, 0)
    append(two, -1)
    assert (one.newest_batch(), two.newest_batch()) == (4, 0)
    assert table_at(one_place := tmp_path / "made" / "here", "one").newest_batch() == 4 and batches(one_place) == [-1, 0, 3, 4]


@pytest.mark.parametrize("batch_id", [1, -1])
def test_of_two_writers_at_once_the_second_changes_nothing(batch_id: int, tmp_path: Path) -> None:
    one, two = table_at(tmp_path), table_at(tmp_path)
    append(one, 0)
    for each in (one, two):
        assert each.newest_batch() == 0
    one.commit(rows(1), 1)
    with pytest.raises(DeltaError):
        two.commit(rows(batch_id), batch_id)
    assert two.newest_batch() == 1
    two.commit(rows(2), 2)
    assert batches(tmp_path) == [0, 1, 2]


def test_two_queries_commit_at_once(tmp_path: Path) -> None:
    """Two Drainers with one table stop at the same moment: the one that comes second has no time to try again."""
    one, two = (table_at(tmp_path, app_id) for app_id in ("one", "two"))
    append(one, 0)
    two.newest_batch()
    append(one, 1)
    two.commit(rows(2), 2)
    assert (one.newest_batch(), two.newest_batch()) == (1, 2) and batches(tmp_path) == [0, 1, 2]


def test_a_table_that_was_removed_is_made_again(tmp_path: Path) -> None:
    table = table_at(tmp_path / "delta")
    append(table, 0)
    shutil.rmtree(tmp_path / "delta")
    with pytest.raises(FAULTS):
        append(table, 1)
    assert table.newest_batch() == -1
    append(table, 1)
    assert batches(tmp_path / "delta") == [1] and DeltaTable(tmp_path / "delta").version() == 1


def test_small_files_become_one_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_table, "MOST_FILES", 3)
    monkeypatch.setattr(appended_table, "vacuum_every", lambda retention: 0.0)
    table = table_at(tmp_path, retention=1.0)
    for i in range(6):
        append(table, i)
        table.tidy()
    assert DeltaTable(tmp_path).to_pyarrow_dataset().count_rows() == 6
    assert len(DeltaTable(tmp_path).file_uris()) <= 3
    orphan = tmp_path / "part-of-a-commit-that-failed.parquet"
    shutil.copy(next(tmp_path.glob("*.parquet")), orphan)
    time.sleep(1.1)
    append(table, 6)
    table.tidy()
    assert len(list(tmp_path.glob("*.parquet"))) <= 3 and not orphan.exists()
    assert batches(tmp_path) == list(range(7)) and table.newest_batch() == 6


def test_files_that_somebody_else_has_committed_since_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings may not come for longer than the retention, while another Drainer or an OPTIMIZE commits."""
    monkeypatch.setattr(appended_table, "vacuum_every", lambda retention: 0.0)
    table = table_at(tmp_path, retention=1.0)
    for i in range(2):
        append(table, i)
    DeltaTable(tmp_path).optimize.compact()
    append(table_at(tmp_path, "another"), 2)
    time.sleep(1.1)
    table.tidy()
    assert batches(tmp_path) == [0, 1, 2] and len(list(tmp_path.glob("*.parquet"))) == 2


@pytest.mark.parametrize("name", ["deletion_vector_75b3f3f6-b076-4608-b9c7-4fd0fe18fba0.bin", "spark/metadata", "more/part-0.parquet"])
def test_files_that_may_be_in_use_are_kept(name: str, tmp_path: Path) -> None:
    """Deletion vectors, and directories of the Drainer where ``delta-dir`` is the one above."""
    table = table_at(tmp_path)
    append(table, 0)
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    file.touch()
    os.utime(file, (0, 0))
    with pytest.raises(DeltaError, match=name):
        table.tidy()
    assert file.exists()
    append(table, 1)
    table.tidy()


def test_a_query_that_waits_for_the_store_leaves_python_to_others(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    append(table, 0)
    (file,) = tmp_path.glob("*.parquet")
    file.unlink()
    os.mkfifo(file)
    with ThreadPoolExecutor(1) as other, subprocess.Popen(["sh", "-c", 'sleep 1; : > "$0"', str(file)]):
        asked, turns = other.submit(table.found, "SELECT * FROM t"), 0
        while not asked.done():
            time.sleep(0.01)
            turns += 1
        assert turns > 5 and isinstance(asked.exception(), FAULTS)


def test_a_file_is_kept_for_its_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_table, "MOST_FILES", 2)
    table = table_at(tmp_path)
    for i in range(2):
        append(table, i)
    table.tidy()
    assert (len(DeltaTable(tmp_path).file_uris()), len(list(tmp_path.glob("*.parquet")))) == (1, 3)


def test_full_files_are_not_joined_at_every_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_table, "MOST_FILES", 2)
    monkeypatch.setattr(appended_table, "_FULL_BYTES", 1)
    table = table_at(tmp_path)
    for i in range(4):
        append(table, i)
        table.tidy()
    version = DeltaTable(tmp_path).version()
    append(table, 4)
    table.tidy()
    assert DeltaTable(tmp_path).version() == version + 1 and batches(tmp_path) == list(range(5))


def test_old_entries_of_the_log_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appended_table, "properties", lambda retention: {**properties(retention), "delta.checkpointInterval": "4"})
    table = table_at(tmp_path, retention=1.0)
    for i in range(11):
        if i == 6:
            time.sleep(1.2)
        append(table, i)
    table.tidy()
    log = tmp_path / "_delta_log"
    assert 0 < min(int(file.name[:20]) for file in log.glob("*.json")) <= 7
    assert batches(tmp_path) == list(range(11)) and table_at(tmp_path).newest_batch() == 10


def test_another_retention_is_another_property(tmp_path: Path) -> None:
    append(table_at(tmp_path), 0)
    table = table_at(tmp_path, retention=3600.0)
    append(table, 1)
    table.tidy()
    assert DeltaTable(tmp_path).metadata().configuration.items() >= properties(3600.0).items()
