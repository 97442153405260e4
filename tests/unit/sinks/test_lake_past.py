"""What a lake keeps of its past, and large moments: which rows of ``snapshots`` stay, kills at every step, a suspended writer that wakes, pieces."""

import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pyspark_tidb_binlog.binlog_source.wire.recorded_case import load
from pyspark_tidb_binlog.conf import failpoints
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake import lake_table, ledger, mirror_table, mirrors, net_changes, upkeep
from pyspark_tidb_binlog.sinks.lake.lake_reader import LakeAt
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSink
from pyspark_tidb_binlog.sinks.lake.ledger import LakeState, Ledger, LedgerWrite
from pyspark_tidb_binlog.sinks.lake.ledger_rows import LEDGER
from pyspark_tidb_binlog.sinks.lake.moments import COLUMNS, Moment, Published
from pyspark_tidb_binlog.sinks.lake.net_changes import RowPieces, held
from pyspark_tidb_binlog.sinks.lake.tables_at import TablesAt
from pyspark_tidb_binlog.sinks.lake.upkeep import OF_CHANGES, OldChanges, outlived
from pyspark_tidb_binlog.sinks.past.past_changes import PastChanges
from tests.support.bank_states import TOTAL, bank_changes, states_at
from tests.support.ddl_jobs import database, job, table
from tests.support.eventually import eventually
from tests.support.golden_case import GOLDEN, load_case
from tests.support.lake_lives import LOST, SHORT_PAST, life, replicate, replicated, sink_of
from tests.support.lake_scene import LakeScene, cells_of
from tests.support.mirror_rows import assert_mirrored, published, totals
from tests.support.past_scene import past_of

POINTS = (
    "before-thinning",
    "after-thinning",
    "after-directory-removal",
    "before-files-removal",
    "after-files-removal",
    "before-log-checkpoints",
)
HOUR = tso(3_600_000)
NOW = 1000 * HOUR


def row(
    number: int, hours_ago: float, table_id: int = 7, version: int = 9, state: str = "mirrored", job: str | None = None
) -> dict[str, Any]:
    return {
        "number": number,
        "resolved_ts": NOW - int(hours_ago * HOUR),
        "table_id": table_id,
        "schema_version": version,
        "state": state,
        "path": f"tables/{table_id}",
        "database": "shop",
        "table": "orders",
        "version": number,
        "job": job,
    }


ROWS = pa.schema([(name, pa.int64() if isinstance(value, int) else pa.string()) for name, value in row(1, 0).items()])


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        ([], []),
        ([row(1, 0.9), row(2, 0.8), row(3, 0.7)], []),
        ([row(1, 5.1), row(2, 4.8), row(3, 4.6), row(4, 4.2), row(5, 3.5)], [2, 3]),
        ([row(1, 5.1), row(2, 4.8), row(3, 4.6, version=10), row(4, 4.4, version=10), row(5, 4.2, version=10), row(6, 2)], [4]),
        ([row(1, 30), row(2, 29), row(3, 28), row(4, 23)], [1, 2]),
        ([row(1, 30, job="{}"), row(2, 29), row(3, 28), row(4, 23)], [2]),
        ([row(1, 30)], []),
        ([row(1, 30), row(2, 29, state="dropped")], [1, 2]),
        ([row(1, 30), row(2, 23, state="dropped")], []),
        ([row(1, 30), row(2, 29, state="stale")], [1]),
        ([row(1, 4.8), row(2, 4.7, 8), row(3, 4.6), row(4, 4.5, 8), row(5, 4.4), row(6, 4.3, 8)], [3, 4]),
        ([row(1, 30), row(2, 29, version=10), row(3, 28, version=11)], [1, 2]),
    ],
)
def test_which_rows_are_kept(rows: list[dict[str, Any]], gone: list[int]) -> None:
    """Of 24 hours: those of the last hour, the last one of each hour, those beside a DDL; before them what they need."""
    assert outlived(pa.Table.from_pylist(rows[::-1], schema=ROWS), NOW, NOW - 24 * HOUR) == gone
    # A writer was away for so long that nothing of this hour was removed before.
    away = pa.Table.from_pylist([row(1, 24.8), row(2, 24.6), row(3, 24.2)], schema=ROWS)
    assert outlived(away, NOW, NOW - int(24.5 * HOUR)) == [1]


def state(number: int, days_ago: float, table_id: int, merged: float, state: str = "mirrored") -> dict[str, Any]:
    """``merged``: likewise, up to when the mirror has all changes."""
    made = (number, *(NOW - int(d * 24 * HOUR) for d in (days_ago, merged)), table_id, state)
    return dict(zip(("number", "resolved_ts", "upto_ts", "table_id", "state"), made, strict=True))


def test_which_row_changes_go() -> None:
    """Of two days, with moments of a week: those of more than a week, but for what the mirrors of these moments lack."""
    states = [
        *(state(1, 20, 7, 20), state(2, 9, 7, 9), state(3, 1, 7, 1)),
        state(4, 20, 8, 20),
        # A writer was away, and its first moment is much later.
        *(state(5, 20, 9, 20), state(6, 1, 9, 1)),
        *(state(7, 20, 10, 20), state(8, 9, 10, 9, "dropped")),
        *(state(9, 20, 11, 20), state(10, 9, 11, 20, "stale"), state(11, 1, 11, 1)),
    ]
    schema = pa.schema([(name, pa.string() if name == "state" else pa.int64()) for name in OF_CHANGES])
    old = OldChanges.of(pa.Table.from_pylist(states[::-1], schema), Moment(resolved_ts=NOW, kept_ts=NOW - 7 * 24 * HOUR), 2)
    assert NOW - 8 * 24 * HOUR < old.upto_ts <= NOW - 7 * 24 * HOUR and old.upto_ts % (24 * HOUR) == 0
    times = [NOW - days * 24 * HOUR for days in (21, 10, 3)]
    changes = pa.table(
        {
            "commit_ts": pa.array([ts for ts in times for _ in range(7)], pa.int64()),
            "table_id": pa.array([7, 8, 9, 10, 11, 12, 0] * 3, pa.int64()),
            "op": ["update"] * 6 + ["ddl"] + ["update"] * 6 + ["ddl"] + ["update"] * 7,
        }
    )
    assert old.ddls(changes)["commit_ts"].to_pylist() == times[:2]
    kept = old.others(changes)
    assert [*zip(kept["commit_ts"].to_pylist(), kept["table_id"].to_pylist(), strict=True)] == [
        # Table 8 has no later row, so it has no such change.
        *((times[1], table_id) for table_id in (8, 9)),
        *((times[2], table_id) for table_id in (7, 8, 9, 10, 11, 12, 0)),
    ]


@pytest.fixture
def short_past(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in SHORT_PAST.items():
        monkeypatch.setattr(module, name, value)


def rows_of_snapshots(lake: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(lake / "snapshots").to_pyarrow_table().to_pylist(), key=lambda r: r["number"])


def assert_past_of_bank(lake: Path) -> None:
    """Each version that is still named can be read, and is what the upstream had."""
    changes = bank_changes(load(GOLDEN / "bank"), load_case("bank").history)
    named = sorted((r for r in rows_of_snapshots(lake) if r["path"] and r["database"] == "g_bank"), key=lambda r: r["upto_ts"])
    for one, state in zip(named, states_at(changes, [r["upto_ts"] for r in named]), strict=True):
        wanted = {row_id: balance for (table, row_id), balance in state.items() if table == one["table"]}
        found = pa.table(DeltaTable(lake / one["path"], version=one["version"]).scan(["id", "balance"])).to_pylist()
        assert {r["id"]: r["balance"] for r in found} == wanted, one
        assert len(found) == len(wanted)


def parquet_files(lake: Path) -> set[Path]:
    return {path for path in (lake / "tables").rglob("*.parquet") if "_delta_log" not in path.parts}


def every_point(*quick: str) -> list[Any]:
    """Each point, of which `make test` has some."""
    return [pytest.param(point, marks=() if point in quick else pytest.mark.slow) for point in POINTS]


@pytest.mark.parametrize("point", every_point("after-thinning"))
def test_a_writer_that_is_killed_while_it_removes_old_versions(point: str, tmp_path: Path) -> None:
    deaths, case = 0, "ddl" if point == "after-directory-removal" else "bank"
    for passes in (1, 1, 2, 1 << 30):
        with life(tmp_path, f"{point}:{passes}", mirrored=case, short=True) as one:
            code = one.ended()
        deaths += code == -signal.SIGKILL
    assert code == 0 and deaths
    assert_mirrored(case, tmp_path)
    if case == "bank":
        assert_past_of_bank(tmp_path)


def ledger_of(lake: Path) -> list[dict[str, Any]]:
    columns = ["commit_ts", "seq", "table_id", "op", "job_id"]
    return sorted(pa.table(DeltaTable(lake / "changes").scan(columns)).to_pylist(), key=lambda r: (r["commit_ts"], r["seq"]))


def begin_of(lake: Path) -> int:
    state = Ledger(str(lake)).load()
    assert state is not None
    return state.begin_ts


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-compaction-commit:2", "after-compaction-commit:2"])
def test_a_writer_that_is_killed_while_old_changes_go(point: str, tmp_path: Path) -> None:
    codes = list[int | None]()
    while codes[-1:] != [0]:
        with life(tmp_path, mirrored="bank", die=point, busy=True, short=True) as one:
            codes.append(one.ended())
    assert len(codes) > 1 and set(codes[:-1]) == {-signal.SIGKILL}
    replicated(tmp_path / "whole", case="bank")
    begin_ts, found, whole = begin_of(tmp_path), ledger_of(tmp_path), ledger_of(tmp_path / "whole")
    assert [r for r in found if r["op"] == "ddl" or r["commit_ts"] > begin_ts] == [
        r for r in whole if r["op"] == "ddl" or r["commit_ts"] > begin_ts
    ]
    assert len(found) < len(whole) and begin_ts > whole[0]["commit_ts"]
    assert_mirrored("bank", tmp_path)
    assert_past_of_bank(tmp_path)


DAYS = [(1000 - days) * 24 * HOUR for days in (40, 35, 9, 1)]


def forty_days() -> LakeScene:
    """A table that gets a row at each of ``DAYS``, and then another table."""
    scene = LakeScene(DAYS[0] - 10)
    scene.ddl(DAYS[0] - 2, database(1))
    scene.ddl(DAYS[0] - 1, job(2, 3, table(10, "t")))
    for number, ts in enumerate(DAYS):
        scene.row(ts, 10, 2, None, {"id": number})
    scene.ddl(DAYS[3] + 1, job(3, 3, table(11, "u")))
    scene.row(DAYS[3] + 2, 11, 3, None, {"id": 7})
    return scene


def assert_thirty_days(lake: Path) -> None:
    assert begin_of(lake) == DAYS[3] - 30 * 24 * HOUR
    assert [(r["commit_ts"], r["op"]) for r in ledger_of(lake)] == [
        *((DAYS[0] - n, "ddl") for n in (2, 1)),
        *((ts, "insert") for ts in DAYS[2:]),
        (DAYS[3] + 1, "ddl"),
        (DAYS[3] + 2, "insert"),
    ]
    assert cells_of(lake, "d.t", "id") == [(0,), (1,), (2,), (3,)]


class Died(Exception):
    pass


@pytest.mark.parametrize("point", ["before-compaction-commit", "after-compaction-commit"])
def test_a_death_while_old_changes_go_is_no_more_than_a_repetition(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Died

    monkeypatch.setattr(upkeep.Upkeep, "start", lambda self: None)
    scene = forty_days()
    sink = scene.sink(tmp_path, days=30)
    scene.follow(sink, *DAYS, DAYS[3] + 3)
    before = ledger_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "point", die)
        with pytest.raises(Died):
            sink._upkeep.look()
    sink.close()
    if point.startswith("before"):
        assert ledger_of(tmp_path) == before and begin_of(tmp_path) == 0
    sink = scene.sink(tmp_path, days=30)
    sink._upkeep.look()
    assert_thirty_days(tmp_path)
    files = Ledger(str(tmp_path))
    files.load()
    paths = {file.path for file in files.files()}
    assert sum(path.startswith("ddls/") for path in paths) == 1
    # What is kept is not written again on the same day; what was replaced goes in the end.
    monkeypatch.setattr(ledger, "KEPT_HOURS", 0)
    sink._upkeep._swept_at = float("-inf")
    sink._upkeep.look()
    sink.close()
    changes = tmp_path / "changes"
    assert {str(path.relative_to(changes)) for path in changes.rglob("*.parquet") if "_delta_log" not in path.parts} == paths


def test_who_read_the_lake_before_is_told_that_changes_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo of them would be empty."""
    monkeypatch.setattr(upkeep.Upkeep, "start", lambda self: None)
    scene = forty_days()
    sink = scene.sink(tmp_path, days=30)
    scene.follow(sink, *DAYS, DAYS[3] + 3)
    past = past_of(tmp_path)
    sink._upkeep.look()
    sink.close()
    lake = LakeAt(cast(Any, None), TablesAt(str(tmp_path), past.published, past.commit_ts, 0))
    for ask in (lambda: past.changes(DAYS[0] - 1, DAYS[1], None), lambda: lake.changes("d.t")):
        with pytest.raises(ConfigError, match="any more: refresh the Lake"):
            ask()
    assert past.changes(begin_of(tmp_path), DAYS[3], None)["commit_ts"].to_pylist() == DAYS[2:]


def test_a_ledger_that_does_not_begin_with_its_tables_sets_them_aside_without_snapshots(tmp_path: Path) -> None:
    scene = forty_days()
    scene.run(tmp_path, *DAYS[:3])
    sink = scene.sink(tmp_path, days=30)
    scene.follow(sink, DAYS[3], DAYS[3] + 3)

    def shortened() -> bool:
        sink._upkeep._wake.set()
        return begin_of(tmp_path) == DAYS[3] - 30 * 24 * HOUR

    eventually(shortened)
    sink.close()
    assert_thirty_days(tmp_path)
    shutil.rmtree(tmp_path / "snapshots")
    scene.run(tmp_path)
    assert {name: state.state for name, state in published(tmp_path).items()} == {"d.t": "stale", "d.u": "mirrored"}
    assert cells_of(tmp_path, "d.u", "id") == [(7,)]


def commit(ts: int, table_ids: Sequence[int]) -> pa.RecordBatch:
    """A transaction with a row of each table."""
    rows = [
        {"op": "insert", "commit_ts": ts, "seq": n, "schema_version": 1, "table_id": i, "row_key": bytes(100), "resolved_ts": ts}
        for n, i in enumerate(table_ids)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=LEDGER)


def test_a_question_reads_only_files_of_its_time_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten files, which are the ranges of a ledger written again: while it is answered all others are away."""
    here, state = Ledger(str(tmp_path)), LakeState("t", 1, 1)
    here.create(state)
    batches = [commit(1200 + n, [*range(100, 105), *([900] if n in (13, 14) else [])]) for n in range(40)]
    for number, batch in enumerate(batches):
        before, state = state, replace(state, number=number + 1, commit_ts=1200 + number)
        here.commit(before, state, LedgerWrite([batch]))
    for module in (ledger, lake_table):
        monkeypatch.setattr(module, "RUN_BYTES", 3 * max(batch.nbytes for batch in batches) + 1)
    small = sorted(here.files(), key=lambda file: file.first_ts)
    parts = here.rewritten(small, lambda: False)
    here.commit(state, replace(state, number=99, commit_ts=1240), LedgerWrite(parts=parts, gone=small))
    there = {tmp_path / "changes" / file.path for file in here.files()}
    assert len(there) == 10 and all("/runs/" in str(path) for path in there)
    none = pa.Table.from_pylist([], pa.schema([(name, pa.int64()) for name in COLUMNS]))
    past = PastChanges(str(tmp_path), Published(none, Moment()), 1240)
    for after_ts, upto_ts, ids, rows, files in (
        (1204, 1206, None, 10, 1),
        (1206, 1208, None, 10, 2),
        (0, 1 << 60, {900}, 2, 1),
        (1220, 1240, {900}, 0, 0),
        (1230, 1239, {103}, 9, 3),
    ):
        read = {path for path in there if pc.any(chosen(pa.parquet.read_table(path), after_ts, upto_ts, ids)).as_py()}
        for path in there - read:
            path.rename(path.with_suffix(".away"))
        found = past.changes(after_ts, upto_ts, ids, ("commit_ts", "seq", "schema_version"))
        assert (found.num_rows, len(read)) == (rows, files)
        for path in there - read:
            path.with_suffix(".away").rename(path)


def chosen(rows: pa.Table, after_ts: int, upto_ts: int, ids: set[int] | None) -> pa.ChunkedArray:
    """Which rows a question is about."""
    mine = pc.is_in(rows["table_id"], pa.array(sorted(ids or {*rows["table_id"].to_pylist()})))
    return pc.and_(mine, pc.and_(pc.greater(rows["commit_ts"], after_ts), pc.less_equal(rows["commit_ts"], upto_ts)))


@pytest.mark.parametrize("point", every_point("before-files-removal"))
def test_a_writer_that_was_suspended_while_it_removes_old_versions(point: str, tmp_path: Path) -> None:
    """The other one goes on to the end meanwhile, and what it has published stays."""
    case = "ddl" if point == "after-directory-removal" else "bank"
    with life(tmp_path, stop=f"{point}:2", mirrored=case, short=True) as first:
        eventually(first.is_stopped)
        with life(tmp_path, mirrored=case, short=True) as second:
            assert second.ended() == 0
        rows = rows_of_snapshots(tmp_path)
        first.wake()
        # All of its steps may have been in the ledger before.
        assert first.ended() in (0, LOST)
    assert rows_of_snapshots(tmp_path) == rows
    assert_mirrored(case, tmp_path)
    if case == "bank":
        assert_past_of_bank(tmp_path)


def test_what_no_moment_needs_is_gone(tmp_path: Path, short_past: None) -> None:
    sink = sink_of(tmp_path, mirrors=True)
    replicate(sink, 20, case="bank")
    assert sink._mirrors is not None
    sink.close()
    moment, rows = sink._mirrors._snapshots.moment, rows_of_snapshots(tmp_path)
    orphan = tmp_path / "tables" / "7-attempt" / "_delta_log"
    orphan.mkdir(parents=True)
    # A pass keeps what rows named when it began.
    for _ in range(4):
        sink._mirrors._old_versions.look()
    kept = rows_of_snapshots(tmp_path)
    assert len(kept) < moment.number // 4 and kept[-1] == rows[-1]
    assert moment.kept_ts > rows[0]["resolved_ts"] and sum(r["resolved_ts"] <= moment.kept_ts for r in kept) <= 2
    assert not orphan.parent.exists()
    named = {(r["path"], r["version"]) for r in kept if r["path"]}
    needed = {Path(uri) for path, version in named for uri in DeltaTable(tmp_path / path, version=version).file_uris()}
    assert parquet_files(tmp_path) == needed
    for path in {path for path, _ in named}:
        log = sorted((tmp_path / path / "_delta_log").glob("*.json"))
        assert len(log) <= 1 + sum(of == path for of, _ in named), [entry.name for entry in log]
    assert_mirrored("bank", tmp_path)
    assert_past_of_bank(tmp_path)
    # The next life goes on from there.
    again = sink_of(tmp_path, mirrors=True)
    replicate(again, case="bank")
    again.close()
    assert set(totals(tmp_path)) - {0} == {TOTAL}


def test_files_that_were_removed_just_now_stay(tmp_path: Path, short_past: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader may have a version of the last hours that no row names any more."""
    monkeypatch.setattr(upkeep, "KEPT_HOURS", 3)
    sink = replicated(tmp_path, 12, case="bank", mirrors=True)
    assert sink._mirrors is not None
    files = parquet_files(tmp_path)
    sink._mirrors._old_versions.look()
    assert parquet_files(tmp_path) == files
    for path in files:
        os.utime(path, (time.time() - 36_000,) * 2)
    sink._mirrors._old_versions.look()
    assert parquet_files(tmp_path) == files


SCHEMA = pa.schema([("table_id", pa.int64()), ("row_key", pa.binary()), ("seq", pa.int64())])


def some_rows(count: int) -> Iterator[pa.RecordBatch]:
    numbers = np.arange(count)
    for part in np.array_split(numbers, 7):
        keys = [int(n % 97).to_bytes(8, "big") for n in part]
        yield pa.record_batch([pa.array(part % 3), pa.array(keys), pa.array(part)], schema=SCHEMA)


def test_all_changes_of_a_row_are_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_changes, "PIECE_BYTES", 4_000)
    assert held(some_rows(5_000), SCHEMA, 4_000) is None
    whole = held(some_rows(5_000), SCHEMA, 1 << 30)
    assert whole is not None and whole.num_rows == 5_000
    with RowPieces(some_rows(5_000), SCHEMA, str(tmp_path)) as pieces:
        assert not list(tmp_path.iterdir()), "a file without a name goes with its process"
        for _ in range(2):
            found = list(pieces)
            assert len(found) > 10
            keys = [set(zip(p["table_id"].to_pylist(), p["row_key"].to_pylist(), strict=True)) for p in found]
            assert sum(map(len, keys)) == len(set().union(*keys))
            assert sorted(seq for p in found for seq in p["seq"].to_pylist()) == list(range(5_000))


# In `make test` those of ``bank`` come so in ``test_a_writer_that_is_killed_among_pieces``.
@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) for case in ("bank", "ddl", "types")] + ["keys"])
def test_rows_that_are_too_many_come_in_pieces(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "PIECE_BYTES", 1)
    monkeypatch.setattr(net_changes, "PIECE_BYTES", 10_000)
    replicated(tmp_path, case=case, mirrors=True)
    assert_mirrored(case, tmp_path)


@pytest.mark.parametrize("case", ["keys", *(pytest.param(case, marks=pytest.mark.slow) for case in ("bank", "ddl", "types"))])
def test_small_files_of_a_mirror_become_few(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind merges and changes of columns; some are full, and closed."""
    monkeypatch.setattr(mirror_table, "_MOST_FILES", 1)
    monkeypatch.setattr(mirror_table, "RUN_BYTES", 2_000)
    replicated(tmp_path, 12, case=case, mirrors=True)
    assert_mirrored(case, tmp_path)
    for state in published(tmp_path).values():
        files = pa.table(DeltaTable(tmp_path / state.path, version=state.version).get_add_actions())["path"].to_pylist()
        assert sum(not path.startswith("runs/") for path in files) <= 1, files


def test_a_writer_that_is_killed_among_pieces(tmp_path: Path) -> None:
    with life(tmp_path, mirrored="bank", die="after-mirror-merge:2", pieces=True) as one:
        assert one.ended() == -signal.SIGKILL
    with life(tmp_path, mirrored="bank", pieces=True) as one:
        assert one.ended() == 0
    assert_mirrored("bank", tmp_path)
    assert published(tmp_path)["g_bank.checking"].version


class Hours:
    """A lake to which hours happen: its newest moment goes on, its files get older, and passes are due."""

    def __init__(self, lake: Path, sink: LakeSink) -> None:
        assert sink._mirrors is not None
        self._lake, self._snapshots, self._old = lake, sink._mirrors._snapshots, sink._mirrors._old_versions
        self._now = self._snapshots.moment.resolved_ts

    def pass_at(self, ts: int) -> None:
        past, self._now = (ts - self._now) / HOUR * 3600, ts
        for path in [*self._lake.rglob("*")]:
            status = path.stat()
            os.utime(path, (status.st_atime - past, status.st_mtime - past))
        retention = self._snapshots._retention
        self._snapshots.moment = replace(self._snapshots.moment, resolved_ts=ts, kept_ts=ts - retention)
        self._old._due = 0.0
        self._old.look()


def test_a_version_can_be_read_for_three_hours_after_it_was_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PASS_SECONDS", 1e9)
    scene, minute = LakeScene(NOW - HOUR), HOUR // 60
    scene.ddl(NOW - 50 * minute, database(1))
    scene.ddl(NOW - 49 * minute, job(2, 3, table(10, "t")))
    times = [NOW + at * minute for at in (5, 51, 59)]
    for number, ts in enumerate(times):
        scene.row(ts, 10, 2, None, {"id": number})
    sink = scene.sink(tmp_path)
    scene.follow(sink, *times)
    sink.close()
    read = published(tmp_path, times[1])["d.t"]
    hours = Hours(tmp_path, sink)
    for at in (1.9, 2.9, 3.9):
        hours.pass_at(NOW + int(at * HOUR))
        assert pa.table(DeltaTable(tmp_path / read.path, version=read.version).scan(["id"])).num_rows == 2, at
    for at in (4.9, 5.9):
        hours.pass_at(NOW + int(at * HOUR))
    with pytest.raises(DeltaError):
        DeltaTable(tmp_path / read.path, version=read.version)


def test_a_directory_stays_until_the_pass_after_its_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PASS_SECONDS", 1e9)
    scene = LakeScene(NOW - HOUR)
    scene.ddl(NOW - 1000, database(1))
    scene.ddl(NOW, job(2, 3, table(10, "t")))
    scene.ddl(NOW + HOUR, job(3, 4, table(10, "t"), query="drop table t"))
    scene.run(tmp_path, NOW + 1)
    sink = scene.sink(tmp_path)
    scene.play(sink, NOW + HOUR)
    sink.close()
    (directory,), hours = (tmp_path / "tables").iterdir(), Hours(tmp_path, sink)
    hours.pass_at(NOW + 8 * 24 * HOUR)
    assert not rows_of_snapshots(tmp_path) and directory.exists()
    hours.pass_at(NOW + 8 * 24 * HOUR + HOUR)
    assert not directory.exists()


def test_what_a_compaction_has_replaced_goes_also_if_its_table_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PASS_SECONDS", 0.0)
    monkeypatch.setattr(mirror_table, "_MOST_FILES", 2)
    scene = LakeScene.of(table(10, "t"))
    for ts in (31, 32, 33):
        scene.row(ts, 10, 2, None, {"id": ts})
    sink = scene.sink(tmp_path)
    scene.follow(sink, 20, 31, 32, 33)
    sink.close()
    assert sink._mirrors is not None
    for _ in range(3):
        sink._mirrors._old_versions.look()
    assert len(parquet_files(tmp_path)) > 1
    monkeypatch.setattr(upkeep, "KEPT_HOURS", 0)
    sink._mirrors._old_versions.look()
    needed = {uri for r in rows_of_snapshots(tmp_path) for uri in DeltaTable(tmp_path / r["path"], version=r["version"]).file_uris()}
    assert parquet_files(tmp_path) == set(map(Path, needed))
