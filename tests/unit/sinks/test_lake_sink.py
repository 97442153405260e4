"""The lake without Spark: kills at every step, two writers, a suspended one that wakes, other programs in the table, and what a row holds."""

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, FileConfig, TableMigrateRule, TableRoute
from pyspark_tidb_binlog.jobs.stream.targets import sink_of as sink_of_settings
from pyspark_tidb_binlog.schemas.errors import ApplyError, ConfigError, LeaseLost, SchemaMismatch
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.engine import late_record
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs, RowsStep
from pyspark_tidb_binlog.sinks.lake import ledger, upkeep
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.lake_table import LiveFile
from pyspark_tidb_binlog.sinks.lake.ledger import LakeWriter, Ledger
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER, Doubled, ledger_rows
from pyspark_tidb_binlog.sinks.lake.moments import Snapshots
from pyspark_tidb_binlog.sinks.lake.upkeep import due
from tests.support.ddl_jobs import INT, column, database, history, job, steps_of, table
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN, load_case
from tests.support.golden_messages import spans_of
from tests.support.lake_lives import BUSY_UPKEEP, CASE, HELD, LOST, life, replicate, replicated, sink_of
from tests.support.lake_rows import ledger_of, net_rows, place
from tests.support.plan_samples import row_event
from tests.support.recorded_tables import comparable, recorded_rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The ledger of one life without any trouble."""
    lake = tmp_path_factory.mktemp("whole")
    replicated(lake)
    return ledger_of(lake)


def step(after_ts: int, upto_ts: int) -> RowsStep:
    return RowsStep(after_ts, upto_ts, 0, {}, applied=AppliedJobs(7))


def empty(sink: LakeSink, upto_ts: int) -> None:
    sink.apply(ROW_EVENT.empty_table(), step(sink.commit_ts, upto_ts), StageClock())


OPENED: list[LakeSink] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No thread of a sink outlives its test."""
    yield
    while OPENED:
        OPENED.pop().close()


def opened(lake: Path, lease_timeout: float = 1.0, mirrors: bool = False) -> LakeSink:
    sink = sink_of(lake, lease_timeout, mirrors)
    OPENED.append(sink)
    sink.open(lambda _, commit_ts: 5 if commit_ts is None else commit_ts, lambda: history(job(7, 3, table(10, "t"), version=7)))
    return sink


def test_the_ledger_holds_each_change_and_leaves_the_recorded_tables(whole: list[dict[str, Any]]) -> None:
    left, history = net_rows(whole), load_case(CASE).history
    for name, rows in left.items():
        info = history.find(*name.split("."), history.newest_version).info  # type: ignore[union-attr]
        got = [tuple(comparable(c, row[c.name]) for c in info.target_columns()) for row in rows]
        assert sorted(got, key=repr) == recorded_rows(GOLDEN / CASE, name, info), name
    assert left and {row["op"] for row in whole} == {"insert", "update", "delete", "ddl"}
    assert all(row["start_ts"] < row["commit_ts"] <= row["resolved_ts"] for row in whole if row["op"] != "ddl")


@pytest.mark.parametrize(
    ("point", "busy"),
    [
        *((point, False) for point in ("before-downstream-commit:2", "after-downstream-commit:1")),
        *((point, True) for point in ("before-compaction-commit:2", "after-compaction-commit:1", "before-log-checkpoint:2", "after-log-checkpoint:2")),
    ],
)  # fmt: skip
def test_a_writer_that_is_killed_at_every_step_leaves_the_same(
    point: str, busy: bool, whole: list[dict[str, Any]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each life dies before its second commit, or behind its first one: so each step is a death. ``busy``: so is each of the upkeep."""
    if busy:
        request.getfixturevalue("busy_upkeep")
    deaths = deaths_of(tmp_path, point, busy)
    assert ledger_of(tmp_path) == whole
    assert deaths >= (1 if busy else len(spans_of(CASE, 6)) - 2)
    if busy:
        # The last life may have ended before it came to it.
        opened(tmp_path)
        eventually(lambda: log_versions(tmp_path)[0] > 0)


def outlive(lake: Path, point: str, busy: bool = False) -> None:
    """Another writer does the work of one that is suspended at ``point``, which then wakes."""
    with life(lake, stop=point, busy=busy) as first:
        eventually(first.is_stopped)
        last = log_versions(lake)[-1]
        sink = sink_of(lake)
        replicate(sink)
        if busy:
            eventually(lambda: log_versions(lake)[0] > last + 2)
        first.wake()
        assert first.ended() == LOST
        assert sink.lost is None
        sink.close()


def deaths_of(lake: Path, point: str, busy: bool = False) -> int:
    """Lives that end at ``point``, until one does not."""
    for deaths in range(60):
        with life(lake, point, busy=busy) as one:
            code = one.ended()
        if code != -signal.SIGKILL:
            assert code == 0
            return deaths
    raise AssertionError("no life ends")


@pytest.mark.parametrize(
    ("point", "busy"),
    [
        ("before-downstream-commit:4", False),
        ("before-downstream-commit:2", True),
        ("before-compaction-commit:1", True),
        ("before-log-checkpoint:2", True),
        ("after-log-checkpoint:2", True),
    ],
)
def test_a_writer_that_was_suspended_changes_nothing_once_it_wakes(
    point: str, busy: bool, whole: list[dict[str, Any]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Within a commit, or within its upkeep, where it may write an old checkpoint of the log."""
    if busy:
        request.getfixturevalue("busy_upkeep")
    outlive(tmp_path, point, busy)
    assert ledger_of(tmp_path) == whole


def test_writers_that_take_the_lease_from_each_other_leave_the_same(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    with (
        life(tmp_path, lease_timeout=0.02, again=True, busy=True) as one,
        life(tmp_path, lease_timeout=0.02, again=True, busy=True) as other,
    ):
        assert (one.ended(), other.ended()) == (0, 0)
    assert ledger_of(tmp_path) == whole


def test_files_that_another_program_has_compacted_meanwhile_are_not_swapped(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_upkeep: None, caplog: pytest.LogCaptureFixture
) -> None:
    """At each commit of a compaction another program has been there: before its look at the files, and between the look and the commit."""
    sink = sink_of(tmp_path)
    real, passes = sink._ledger.commit, itertools.count()

    def compact() -> None:
        DeltaTable(tmp_path / "changes").optimize.compact()

    def commit(before: Any, state: Any, added: Any = ledger.NO_ROWS) -> None:
        if added.gone and next(passes) % 2:
            compact()
            sink._ledger.load()
        elif added.gone:
            look = sink._ledger.files
            monkeypatch.setattr(sink._ledger, "files", lambda: (look(), compact())[0])
            try:
                real(before, state, added)
            finally:
                monkeypatch.setattr(sink._ledger, "files", look)
        real(before, state, added)

    monkeypatch.setattr(sink._ledger, "commit", commit)
    replicate(sink)
    sink.close()
    assert next(passes) > 2
    assert "is given up: version" in caplog.text
    assert ledger_of(tmp_path) == whole


def test_what_no_version_needs_goes_and_what_a_version_got_meanwhile_stays(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_upkeep: None
) -> None:
    """A process that was suspended takes a file for an old one of no version, though a commit has it by now."""
    sink = sink_of(tmp_path)
    replicate(sink)
    changes = tmp_path / "changes"
    (died,) = ledger.written_part(str(tmp_path), iter(a_batch(tmp_path)))
    (late,) = ledger.written_part(str(tmp_path), iter(a_batch(tmp_path)))
    before = {path for path in changes.rglob("*.parquet") if "_delta_log" not in path.parts}
    for path in changes.rglob("*"):
        os.utime(path, (time.time() - 36_000,) * 2)
    monkeypatch.setattr(ledger, "KEPT_HOURS", 0)
    here = ledger.Ledger(str(tmp_path))
    here.load()
    here.sweep(lambda: sink._swap([late], []))
    sink.close()
    live = {changes / path for path in (f.path for f in fresh_files(tmp_path))}
    assert changes / died.path in before and changes / late.path in live
    assert {path for path in changes.rglob("*.parquet") if "_delta_log" not in path.parts} == live < before
    assert {path for path in changes.rglob("*") if path.is_dir() and not any(path.iterdir())} == set()
    assert not [*changes.glob("parts/*/_delta_log"), *changes.glob("runs/*/_delta_log")]


def test_a_compaction_is_no_change_and_carries_the_state(whole: list[dict[str, Any]], tmp_path: Path, busy_upkeep: None) -> None:
    sink = sink_of(tmp_path)
    replicate(sink)
    compactions = 0
    for path in (tmp_path / "changes" / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        changed = {a[kind]["dataChange"] for a in actions for kind in ("add", "remove") if kind in a}
        compactions += any("remove" in a for a in actions)
        assert len(changed) <= 1 and changed != {any("remove" in a for a in actions)}
        assert all("tidb_binlog" in a["commitInfo"] for a in actions if "commitInfo" in a)
    assert compactions
    files = [pa.parquet.read_table(tmp_path / "changes" / f.path).to_pylist() for f in fresh_files(tmp_path)]
    assert len(files) < BUSY_UPKEEP[upkeep, "MOST_OPEN"] < len(whole)
    for rows in files:
        assert rows == sorted(rows, key=lambda row: (row["table_id"], *place(row)))
    sink.close()
    assert opened(tmp_path).commit_ts == sink.commit_ts


def test_another_program_does_not_clean_the_log_of_the_state(tmp_path: Path) -> None:
    """A stream that was stopped for long, and a program that commits so often that the log has a new checkpoint."""
    sink = opened(tmp_path)
    empty(sink, 10)
    sink.close()
    for number in range(202):
        DeltaTable(tmp_path / "changes").alter.set_table_description(f"a person's {number}")
        for path in (tmp_path / "changes" / "_delta_log").iterdir():
            os.utime(path, (time.time() - 100 * 86_400,) * 2)
    assert opened(tmp_path).commit_ts == 10
    assert len(list((tmp_path / "changes" / "_delta_log").glob("*.checkpoint.parquet"))) == 2


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([1] * 3, 0),
        ([1] * 4, 4),
        ([100, 50, 1, 1], 2),
        ([100, 50, 30, 1], 2),
        ([100, 2, 1, 1], 3),
        ([4, 2, 1, 1], 4),
    ],
)
def test_which_files_are_compacted(sizes: list[int], chosen: int, busy_upkeep: None) -> None:
    """At least the newest two, and older ones that are no larger than all newer ones together; never one that is full."""
    files = [LiveFile(f"part-{ts}", size, ts) for ts, size in enumerate(sizes)]
    full = [LiveFile(f"runs/{ts}", 1, ts) for ts in range(9)]
    assert due([*full, *reversed(files)]) == files[len(files) - chosen :]


def a_batch(lake: Path) -> list[pa.RecordBatch]:
    return pa.table(DeltaTable(lake / "changes").scan()).slice(0, 1).cast(LEDGER).to_batches()


def fresh_files(lake: Path) -> list[LiveFile]:
    found = Ledger(str(lake))
    found.load()
    return found.files()


def log_versions(lake: Path) -> list[int]:
    return sorted(int(path.stem) for path in (lake / "changes" / "_delta_log").glob("*.json"))


@pytest.fixture
def busy_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in BUSY_UPKEEP.items():
        monkeypatch.setattr(module, name, value)


def test_a_start_goes_on_from_where_the_writer_that_it_waited_for_has_ended(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    with life(tmp_path, stop="before-downstream-commit:4") as first:
        eventually(first.is_stopped)

        def pause(seconds: float) -> None:
            first.wake()
            assert first.ended() == 0

        sink = LakeSink(LakeSettings(str(tmp_path), 1), pause)
        replicate(sink)
        sink.close()
    assert ledger_of(tmp_path) == whole


def test_a_start_is_refused_while_another_writer_lives_and_not_once_it_is_gone(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with life(tmp_path) as second:
        assert second.ended() == HELD
    with life(tmp_path / "other", "before-downstream-commit:3") as killed:
        assert killed.ended() == -signal.SIGKILL
    # No wait for a process of this machine that is gone.
    successor = sink_of(tmp_path / "other", 600.0)
    replicate(successor)
    successor.close()
    assert first.lost is None
    first.close()


def test_commits_of_other_programs_come_between_and_the_steps_are_committed_anew(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(tmp_path)
    real, passes = sink._ledger.commit, itertools.count()

    def commit(*given: Any, **more: Any) -> None:
        if next(passes) % 3:
            DeltaTable(tmp_path / "changes").optimize.compact()
        real(*given, **more)

    monkeypatch.setattr(sink._ledger, "commit", commit)
    replicate(sink)
    sink.close()
    assert ledger_of(tmp_path) == whole
    assert "OPTIMIZE" in {c["operation"] for c in DeltaTable(tmp_path / "changes").history()}


def test_an_answer_that_is_lost_is_found_to_be_committed(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write_deltalake

    def write(*given: Any, **more: Any) -> None:
        real(*given, **more)
        raise OSError("the answer is lost")

    monkeypatch.setattr(ledger, "write_deltalake", write)
    replicated(tmp_path)
    assert ledger_of(tmp_path) == whole


def test_a_ledger_that_was_restored_is_not_written_to(tmp_path: Path) -> None:
    sink = opened(tmp_path, 600.0)
    empty(sink, 10)
    shutil.copytree(tmp_path / "changes", tmp_path / "backup")
    empty(sink, 20)
    shutil.rmtree(tmp_path / "changes")
    shutil.copytree(tmp_path / "backup", tmp_path / "changes")
    for ts in (1, 2, 3):
        DeltaTable(tmp_path / "changes").alter.set_table_description(f"a person's {ts}")
    with pytest.raises(LeaseLost, match="was restored or replaced"):
        empty(sink, 30)
    assert sink.lost is not None
    sink.close()


@pytest.mark.parametrize("older", ["changes", "nothing", "snapshots"])
def test_parts_of_different_backups_are_refused(older: str, tmp_path: Path) -> None:
    """Mirrors ahead of their ledger would have rows twice, and behind its begin lose some."""
    replicated(tmp_path, steps=3, mirrors=True)
    ledger, snapshots = Ledger(str(tmp_path)), Snapshots(str(tmp_path))
    state, moment = ledger.load(), snapshots.load()
    assert state is not None and moment is not None and state.commit_ts == moment.resolved_ts
    if older == "nothing":
        shutil.rmtree(tmp_path / "changes")
    else:
        later = {"changes": {"commit_ts": moment.resolved_ts - 1}, "snapshots": {"begin_ts": moment.resolved_ts + 1, "commit_ts": 1 << 62}}
        ledger.commit(state, replace(state, **later[older]))
    with pytest.raises(ApplyError, match="has parts of different moments: its snapshots are of .* Restore all of it from one backup"):
        opened(tmp_path, mirrors=True)


def test_a_full_disk_is_named_and_the_next_start_goes_on(
    whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = write_deltalake, [5]

    def write(*given: Any, **more: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "write_deltalake", write)
        sink = sink_of(tmp_path)
        with pytest.raises(ApplyError, match=r"cannot commit version \d+ of .*changes: .*No space left"):
            replicate(sink)
        sink.close()
        # So does a start that finds it full.
        with pytest.raises(ApplyError, match=r"cannot commit version \d+ of .*changes: .*No space left"):
            replicate(sink_of(tmp_path, 0.1))
    sink = sink_of(tmp_path, 0.1)
    replicate(sink)
    sink.close()
    assert ledger_of(tmp_path) == whole


def test_what_is_no_ledger_or_anothers_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "a" / "changes", pa.table({"x": [1]}))
    with pytest.raises(ApplyError, match="holds no record of a stream"):
        opened(tmp_path / "a")
    sink = opened(tmp_path / "b")
    sink.close()
    other = LakeSink(LakeSettings(str(tmp_path / "b"), 2))
    with pytest.raises(ApplyError, match="is the ledger of cluster 1, this is cluster 2"):
        other.open(lambda _, commit_ts: commit_ts or 5, lambda: history())
    other.close()


def test_steps_without_rows_are_recorded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    noted: list[tuple[int, int]] = []
    sink = sink_of(tmp_path, 600.0)
    sink.defer(lambda recorded, upto: noted.append((recorded, upto)))
    sink.open(lambda _, commit_ts: commit_ts or 5, lambda: history(job(7, 3, table(10, "t"), version=7)))
    for ts in range(10, 100, 10):
        empty(sink, ts)
    commits = DeltaTable(tmp_path / "changes").version()
    assert commits <= 3 and noted[-1][1] == sink.commit_ts == 90
    sink.close()
    assert opened(tmp_path).commit_ts == 90


def test_an_idle_writer_shows_that_it_lives(tmp_path: Path) -> None:
    sink = opened(tmp_path, 0.3)
    before = DeltaTable(tmp_path / "changes").version()
    eventually(lambda: DeltaTable(tmp_path / "changes").version() > before + 2)
    empty(sink, 10)
    assert sink.lost is None
    sink.close()
    assert opened(tmp_path).commit_ts == 10


def test_files_of_a_commit_have_the_ends_of_what_they_hold(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    replicated(tmp_path)
    files = pa.table(DeltaTable(tmp_path / "changes").get_add_actions(flatten=True)).to_pylist()
    assert len(files) > 3
    assert all(f["min.commit_ts"] <= f["max.commit_ts"] <= f["max.resolved_ts"] and f["null_count.table_id"] == 0 for f in files)
    assert {row["commit_ts"] for row in whole} >= {f["min.commit_ts"] for f in files}


ONE = history(database(1), job(2, 3, table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), column(2, "v")])))
AT = ONE.table_at(10, 2)
assert AT is not None


def event(commit_ts: int, seq: int, new: dict[int, Any], table_id: int = 10) -> dict[str, Any]:
    return row_event(AT, commit_ts, seq, None, new) | {"table_id": table_id}


def rows_of(*blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    doubled, found = Doubled(), []
    for block in blocks:
        assert AT is not None
        batches = ledger_rows(pa.Table.from_pylist(block, schema=ROW_EVENT), {10: AT}, 99, doubled)
        found += [row for batch in batches for row in batch.to_pylist()]
    return found


def test_a_change_that_came_from_two_pumps_is_one_row() -> None:
    first, second, third = (event(ts, seq, {1: ts + seq, 2: 1}) for ts, seq in ((10, 0), (10, 1), (20, 0)))
    for blocks in ([[second, first, third, first]], [[first, second], [second, third, first]], [[third, first], [second], [first, third]]):
        assert sorted((r["commit_ts"], r["seq"]) for r in rows_of(*blocks)) == [(10, 0), (10, 1), (20, 0)]


def test_null_of_a_json_column_is_told_from_jsons_null(tmp_path: Path) -> None:
    """By the recorded tables: NULL is no field, JSON's null is one."""
    replicated(tmp_path, case="types")
    left, history, seen = net_rows(ledger_of(tmp_path)), load_case("types").history, set()
    for name, rows in left.items():
        info = history.find(*name.split("."), history.newest_version).info  # type: ignore[union-attr]
        columns = info.target_columns()
        for number, column_ in enumerate(columns):
            if column_.tp != ColumnType.JSON:
                continue
            wanted = [row[number] for row in recorded_rows(GOLDEN / "types", name, info)]
            got = [row[column_.name] if column_.name in row else "no field" for row in rows]
            assert got.count("no field") == wanted.count(None) and got.count(None) == wanted.count("null")
            seen |= {"NULL"} if None in wanted else set()
            seen |= {"null"} if "null" in wanted else set()
    assert seen == {"NULL", "null"}


def test_a_row_of_a_table_that_is_not_known_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"from commit_ts 10 on there are rows of tables \[11\]"):
        rows_of([event(10, 0, {1: 1, 2: 1}, table_id=11)])


def test_an_early_ddl_comes_behind_the_transaction_whose_commit_ts_it_shares() -> None:
    from pyspark_tidb_binlog.sinks.lake.ledger_rows import ddl_row

    early = replace(steps_of(ONE, {})[-1], commit_ts=10, early=True)
    (row,) = ddl_row(early, ("d", "t")).to_pylist()
    last = rows_of([event(10, 7, {1: 1, 2: 1})])[0]
    assert (row["commit_ts"], row["seq"]) > (last["commit_ts"], last["seq"])
    assert (row["database"], row["table"], row["early"], json.loads(row["job"])["id"]) == ("d", "t", True, early.job.id)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dir": ""}, "syncer.to.dir: with syncer.db-type"),
        (
            {"routes": (TableRoute(db_name="a", tbl_name="t", to_tbl="u", where="id > 1"),)},
            "where and columns of spark.route: a lake has every",
        ),
        ({"table_migrate_rule": (TableMigrateRule(source_schema="a"),)}, "syncer.table-migrate-rule: a lake has every change"),
        ({"sync_ddl": False}, "syncer.sync-ddl = false: a lake has every change"),
        ({"loopback_control": True, "channel_id": 7}, "syncer.loopback-control: a lake has every change"),
    ],
)
def test_settings_that_a_lake_cannot_have(more: dict[str, Any], words: str) -> None:
    directory = more.pop("dir", "x")
    config = DrainerConfig(apply=ApplyConfig(db_type="lake", **more), files=FileConfig(dir=directory))
    with pytest.raises(ConfigError, match=words):
        sink_of_settings(config, 1, lambda seconds: None)


def test_a_writer_of_another_machine_may_live() -> None:
    here = LakeWriter.here("d")
    assert not here.is_gone and not replace(here, host="elsewhere", pid=0).is_gone
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert replace(here, pid=child).is_gone


def test_rows_reach_as_far_as_the_newest_state(tmp_path: Path) -> None:
    """delta-rs gives the newest commits, also those behind the version of the handle: a follower that asked in between missed their rows for ever."""
    sinks = [sink_of(tmp_path), sink_of(tmp_path)]
    replicate(sinks[0], upto=spans_of(CASE, 6)[2][1])
    follower = Ledger(str(tmp_path))
    before = follower.load()
    sinks[0].close()
    replicate(sinks[1])
    state = follower._newest()
    assert before is not None and before.commit_ts is not None and state.commit_ts is not None and state.commit_ts > before.commit_ts
    span = follower.span(0, (), state.commit_ts)
    rows = pa.concat_tables([span.ddls(["commit_ts"]), pa.Table.from_batches(span.changes(["commit_ts"]))])
    assert sorted(rows["commit_ts"].to_pylist()) == sorted(row["commit_ts"] for row in ledger_of(tmp_path))
    sinks[1].close()
