"""The mirrors of a lake without Spark: kills at every step, two writers, a suspended one that wakes, other programs in a mirror, and kinds of DDLs."""

import datetime
import json
import os
import signal
import time
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.jobs.lab.emulator.datum_encoder import JsonNull
from pyspark_tidb_binlog.schemas.errors import SchemaMismatch
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.lake import lake_table, mirror_round, mirror_table, mirrors
from pyspark_tidb_binlog.sinks.lake.lake_sink import LakeSettings, LakeSink
from pyspark_tidb_binlog.sinks.lake.lake_table import written_files
from pyspark_tidb_binlog.sinks.lake.mirror_ddl import ColumnMapping, Unfollowed, rows_of_partitions
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp
from pyspark_tidb_binlog.sinks.lake.moments import MirrorState, Snapshots
from pyspark_tidb_binlog.sinks.lake.net_changes import mirror_schema, read_rows
from pyspark_tidb_binlog.sinks.lake.upkeep import OldVersions
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.bank_states import TOTAL
from tests.support.ddl_jobs import INT, VARCHAR, column, database, index, job, table
from tests.support.eventually import eventually
from tests.support.golden_case import load_case
from tests.support.lake_lives import LOST, PAUSE, SHORT_PAST, life, replicate, replicated, sink_of
from tests.support.lake_rows import image
from tests.support.lake_scene import KEY, LakeScene, cells_of
from tests.support.mapped_mirror import mapped
from tests.support.mirror_rows import assert_mirrored, by_delta, image_of, moments, published, totals

POINTS = ("after-mirror-merge", "after-mirror-ddl", "before-publication", "after-publication", "after-downstream-commit")


def every_death() -> list[Any]:
    """Each point, of which `make test` has a few."""
    quick = {("ddl", "after-mirror-ddl"), ("bank", "after-mirror-merge"), ("txn", "before-publication"), ("txn", "after-publication")}
    ways = [(case, point) for case in ("ddl", "bank") for point in POINTS if (case, point) != ("bank", "after-mirror-ddl")]
    ways += [way for way in sorted(quick) if way not in ways]
    return [pytest.param(*way, id="-".join(way), marks=() if way in quick else pytest.mark.slow) for way in ways]


@pytest.mark.parametrize(("case", "point"), every_death())
def test_a_writer_that_is_killed_again_and_again_leaves_the_recorded_tables(case: str, point: str, tmp_path: Path) -> None:
    deaths = 0
    for passes in (1, 2, 1 << 30):
        with life(tmp_path, f"{point}:{passes}", mirrored=case) as one:
            code = one.ended()
        deaths += code == -signal.SIGKILL
    assert code == 0 and deaths >= 2
    assert_mirrored(case, tmp_path)
    if case == "bank":
        assert set(totals(tmp_path)) - {0} == {TOTAL}


@pytest.mark.parametrize(
    ("case", "point"), [("txn", "after-mirror-merge:3"), ("ddl", "after-mirror-ddl:2"), ("txn", "before-publication:3")]
)
def test_a_writer_that_was_suspended_publishes_nothing_once_it_wakes(case: str, point: str, tmp_path: Path) -> None:
    with life(tmp_path, stop=point, mirrored=case) as first:
        eventually(first.is_stopped)
        replicated(tmp_path, case=case, mirrors=True)
        at = moments(tmp_path)
        first.wake()
        # All of its steps may have been in the ledger before.
        assert first.ended() in (0, LOST)
    assert moments(tmp_path) == at
    assert_mirrored(case, tmp_path)


def test_writers_that_take_the_lease_from_each_other_leave_the_recorded_tables(tmp_path: Path) -> None:
    with (
        life(tmp_path, lease_timeout=0.02, again=True, mirrored="bank") as one,
        life(tmp_path, lease_timeout=0.02, again=True, mirrored="bank") as other,
    ):
        assert (one.ended(), other.ended()) == (0, 0)
    assert_mirrored("bank", tmp_path)
    assert set(totals(tmp_path)) - {0} == {TOTAL}


def test_what_another_program_commits_to_a_mirror_is_undone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = load_case("bank").info["end_ts"]
    sink = replicated(tmp_path, case="bank", upto=end - (1 << 30), mirrors=True)
    state = published(tmp_path)["g_bank.checking"]
    (kept,) = (table for table in sink.kept() if table.name == "g_bank.checking")
    size = sum(pa.table(DeltaTable(tmp_path / state.path).get_add_actions())["size_bytes"].to_pylist())
    assert (kept.bytes, kept.merged_ts, kept.state) == (size, state.upto_ts, "mirrored"), "what the Drainer's page shows"
    DeltaTable(tmp_path / state.path).delete("id < 100")
    replicated(tmp_path, case="bank", mirrors=True)
    assert_mirrored("bank", tmp_path)
    assert "another program has committed version" in caplog.text


@pytest.mark.parametrize("fails", ["merge", "tidy"])
def test_a_table_that_fails_is_set_aside_and_the_others_go_on(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tidy``: among pieces of the rows of a round."""
    real = getattr(MirrorTable, fails)

    def failing(self: MirrorTable, *given: Any) -> Any:
        if "/410-" in self.uri:
            raise OSError("the disk is odd")
        return real(self, *given)

    monkeypatch.setattr(MirrorTable, fails, failing)
    monkeypatch.setattr(mirror_round, "_LONG", 0.0)
    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.05)
    if fails == "tidy":
        monkeypatch.setattr(mirrors, "PIECE_BYTES", 1)
    sink = sink_of(tmp_path, mirrors=True)
    replicate(sink, case="bank")
    eventually(lambda: any(s.state == "stale" for s in published(tmp_path).values()), pause=PAUSE)
    sink.close()
    assert_mirrored("bank", tmp_path, stale=frozenset({"checking"}))
    assert published(tmp_path)["g_bank.checking"].why == "OSError: the disk is odd"


def test_a_failure_that_passes_is_no_more_than_a_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = MirrorTable.merge, [2]

    def merge(self: MirrorTable, *given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("the answer is lost")
        real(self, *given)

    monkeypatch.setattr(MirrorTable, "merge", merge)
    replicated(tmp_path, case="bank", mirrors=True)
    assert_mirrored("bank", tmp_path)


def test_a_round_holds_a_file_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest moment may end where a file ends."""
    monkeypatch.setattr(mirrors, "_ROUND_BYTES", 1)
    replicated(tmp_path, case="bank", mirrors=True)
    assert_mirrored("bank", tmp_path)


def test_what_was_replaced_puts_the_next_moment_off() -> None:
    waits = [mirrors.pause_after(size << 20, 30.0) for size in (0, 16, 160, 1 << 20)]
    assert waits == [30.0, 30.0, 300.0, 3600.0]
    assert mirrors.pause_after(1 << 40, 0.0) == 0.0
    assert mirrors.pause_after(1 << 40, 7200.0) == 7200.0


def test_a_moment_that_was_put_off_comes_with_many_changes_and_at_the_end(tmp_path: Path) -> None:
    rounds = list[int]()

    class Costly(mirrors.Mirrors):
        def catch_up(self) -> int:
            self._open.replaced_bytes += 1 << 40
            rounds.append(self._changes)
            return 1

        def _load_tables(self, ts: int) -> bool:
            return False

    one = Costly(str(tmp_path), 0.01, 60.0, Selection())
    one._old_versions = SimpleNamespace(look=lambda: None)  # type: ignore[assignment]
    one.start(1)
    eventually(lambda: len(rounds) == 1)
    one.note(1)
    time.sleep(0.2)
    assert len(rounds) == 1
    one.note(mirrors.MUCH)
    eventually(lambda: len(rounds) == 2)
    one.close()
    assert len(rounds) == 3


def test_a_table_whose_beginning_the_ledger_lacks_is_stale(tmp_path: Path) -> None:
    without_ddls = frozenset(ddl.commit_ts for ddl in load_case("bank").ddls)
    sink = LakeSink(LakeSettings(str(tmp_path), 1, ignored_ts=without_ddls, mirror_interval=0.0))
    replicate(sink, case="bank")
    sink.close()
    found = published(tmp_path)
    assert {s.state for s in found.values()} == {"stale"} and len(found) == 2
    assert "from its beginning" in str(found["g_bank.savings"].why)
    assert found["g_bank.savings"].path == ""


BIGINT, DOUBLE, DECIMAL = ({**INT, "Tp": tp, "Flen": 20, "Decimal": d} for tp, d in ((8, 0), (5, -1), (246, 2)))
LONG, LONGER = {**DECIMAL, "Flen": 60, "Decimal": 4}, {**DECIMAL, "Flen": 65, "Decimal": 6}
UNSIGNED, SHORT, CHAR = {**INT, "Flag": 32}, {**VARCHAR, "Flen": 3}, {**VARCHAR, "Tp": 254}
AB, ABC, CAB = ({**VARCHAR, "Tp": 247, "Elems": list(elems)} for elems in ("ab", "abc", "cab"))
DAY, MOMENT, SECONDS = ({**INT, "Tp": tp, "Decimal": d} for tp, d in ((10, 0), (12, 6), (12, 0)))
MEDIUM, YEAR, BINARY = (
    {**INT, "Tp": 9},
    {**INT, "Tp": 13},
    {**VARCHAR, "Tp": 254, "Flag": 128, "Flen": 3, "Charset": "binary", "Collate": "binary"},
)
STAMP, TIME, JSON = ({**INT, "Tp": tp, "Decimal": 0} for tp in (7, 11, 245))


def info_of(*columns: dict[str, Any], **more: Any) -> TableInfo:
    return TableInfo.from_json(table(10, "t", [column(1, "id", {**INT, "Flag": 4099}), *columns], **more))


def rows_of(info: TableInfo, *columns: list[Any]) -> pa.RecordBatch:
    schema = mirror_schema(info)
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@pytest.mark.parametrize(
    ("old", "new", "value", "wanted"),
    [
        (INT, BIGINT, 7, 7),
        (BIGINT, INT, 7, 7),
        (BIGINT, INT, 1 << 40, Unfollowed),
        (INT, UNSIGNED, 7, 7),
        (INT, UNSIGNED, -1, Unfollowed),
        (BIGINT, MEDIUM, 1 << 30, Unfollowed),
        (INT, YEAR, 20, Unfollowed),
        (INT, DECIMAL, 7, Decimal("7.00")),
        (DECIMAL, DOUBLE, Decimal("0.10"), Unfollowed),
        (DOUBLE, DECIMAL, 0.25, Unfollowed),
        (BINARY, {**BINARY, "Flen": 5}, b"abc", Unfollowed),
        (DECIMAL, INT, Decimal("7.50"), Unfollowed),
        (DECIMAL, LONG, Decimal("7.50"), "7.5000"),
        (INT, LONG, -7, "-7.0000"),
        (LONG, LONGER, "-7.5000", "-7.500000"),
        (LONG, DECIMAL, "7.5000", Decimal("7.50")),
        (LONGER, LONG, "7.000001", Unfollowed),
        (LONG, INT, "7.0000", 7),
        (LONG, MEDIUM, "16777216.0000", Unfollowed),
        (LONG, VARCHAR, "7.5000", "7.5000"),
        (INT, VARCHAR, -7, "-7"),
        (DOUBLE, VARCHAR, 0.1, "0.1"),
        (VARCHAR, INT, "7", Unfollowed),
        (VARCHAR, SHORT, "abc", "abc"),
        (VARCHAR, SHORT, "abcd", Unfollowed),
        (VARCHAR, CHAR, "a ", Unfollowed),
        (AB, ABC, "b", "b"),
        (AB, CAB, "b", "b"),
        (CAB, AB, "c", Unfollowed),
        (AB, VARCHAR, "a", "a"),
        (DAY, MOMENT, datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2)),
        (MOMENT, SECONDS, datetime.datetime(2026, 1, 2, 3), datetime.datetime(2026, 1, 2, 3)),
        (MOMENT, SECONDS, datetime.datetime(2026, 1, 2, 3, 4, 5, 6), Unfollowed),
        (SECONDS, STAMP, datetime.datetime(2026, 1, 2), Unfollowed),
        (TIME, VARCHAR, "10:00:00", Unfollowed),
        (VARCHAR, JSON, "1", Unfollowed),
        (INT, INT, None, None),
    ],
)
def test_a_converted_column_keeps_its_values_or_sets_the_table_aside(old: Any, new: Any, value: Any, wanted: Any) -> None:
    before, after = info_of(column(2, "v", old)), info_of(column(3, "v", new))
    change = ColumnMapping.of(before, after, "alter table t modify column v")
    rows = rows_of(before, [1, 2], [value, None])
    if wanted is Unfollowed:
        with pytest.raises(Unfollowed, match="column v"):
            change.turned(rows)
    else:
        assert change.turned(rows).column("v").to_pylist() == [wanted, None]


@pytest.mark.parametrize(
    ("before", "after", "query", "wanted"),
    [
        ([column(2, "a")], [column(2, "a", comment="x")], "", "id=id a=a"),
        ([column(2, "a")], [column(2, "b")], "alter table t rename column a to b", "id=id b=a"),
        ([column(2, "a")], [], "alter table t drop column a", "id=id"),
        ([column(2, "a")], [column(3, "j", JSON), column(2, "a")], "", "id=id j=None a=a"),
        ([column(2, "a"), column(3, "b")], [column(3, "b"), column(2, "a")], "alter table t modify column b int first", "id=id b=b a=a"),
        ([], [column(2, "a", INT, origin_default="5")], "", None),
        ([], [column(2, "a", {**INT, "Flag": 1})], "", None),
        ([column(2, "a")], [column(2, "a"), column(3, "g", INT, generated_expr_string="`a` + 1")], "", "id=id a=a"),
        (
            [column(2, "a"), column(3, "b")],
            [column(2, "b"), column(3, "a")],
            "alter table t rename column a to b, rename column b to a",
            "id=id b=a a=b",
        ),
    ],
)
def test_what_becomes_of_columns(before: Any, after: Any, query: str, wanted: str | None) -> None:
    """``wanted``: each column, and what it was before; None: rows change."""
    change = ColumnMapping.of(info_of(*before), info_of(*after), query)
    columns = change.metadata
    assert (columns and " ".join(f"{c.name}={was}" for c, was in columns)) == wanted
    assert change.none == (wanted in ("id=id a=a", "id=id b=b a=a"))


def test_rows_from_before_a_json_column_have_jsons_null_if_it_is_not_null() -> None:
    before, after = info_of(), info_of(column(2, "j", {**JSON, "Flag": 1}, origin_default="null"), column(3, "k", JSON))
    rows = ColumnMapping.of(before, after, "alter table t add column j json not null, add column k json").turned(rows_of(before, [1, 2]))
    assert [image(cell) for cell in rows.column("j").to_pylist()] == [None, None] and rows.column("j").null_count == 0
    assert rows.column("k").null_count == 2


def test_a_generated_column_that_becomes_a_plain_one_sets_its_table_aside() -> None:
    before = info_of(column(2, "a"), column(3, "g", INT, generated_expr_string="`a` + 1", generated_stored=True))
    with pytest.raises(Unfollowed, match="column g was a generated one"):
        ColumnMapping.of(before, info_of(column(2, "a"), column(3, "g")), "alter table t modify column g int")


def test_a_key_whose_bytes_are_no_text_is_refused() -> None:
    """Two of them would be one text. What is U+FFFD upstream is itself."""
    for collate, wrong in (("utf8mb4_bin", False), ("latin1_bin", True)):
        kind = {**VARCHAR, "Flag": 3, "Charset": collate.partition("_")[0], "Collate": collate}
        primary = {
            "index_info": [index(1, "PRIMARY", ("k", 0), unique=True, primary=True)],
            "pk_is_handle": False,
            "is_common_handle": True,
        }
        info = TableInfo.from_json(table(10, "t", [column(1, "k", kind)], **primary))
        images = pa.record_batch({"k": pa.array(["é\ufffd".encode(), b"\x80"][wrong:], pa.binary())[:1]})
        with pytest.raises(SchemaMismatch, match="bytes in the key column k that are no text") if wrong else nullcontext():
            assert read_rows(info, images, None).column("k").to_pylist() == ["é\ufffd"]


ROWS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32())])
ONE_STAMP = Stamp(1, 1)


def test_a_plain_mirror_takes_new_columns_in_one_version(tmp_path: Path) -> None:
    """At the end, also of types that need a feature. For any other change of columns it is to be written again."""
    schema, mirror = ROWS, filled(MirrorTable.created, tmp_path / "t")
    assert (mirror._table.protocol().min_reader_version, mirror._table.protocol().reader_features) == (1, None)
    before, (of_id, of_a, of_b) = mirror.version, schema
    new = [mirror_schema(info_of(column(5, "j", JSON))).field("j"), pa.field("t", pa.timestamp("us"))]
    for columns in (
        [(of_id, "id"), (of_b, "b")],
        [(of_id, "id"), (of_b, "a"), (of_a, "b")],
        [(of_id, "id"), (of_a, None), (of_b, "b")],
    ):
        assert not mirror.alter(columns, ONE_STAMP)
    assert mirror.alter([(new[0], None), (of_id, "id"), (of_b, "b"), (new[1], None), (of_a, "a")], ONE_STAMP)
    assert (mirror.version, mirror.columns) == (before + 1, ["id", "a", "b", "j", "t"])
    assert rows_in(mirror) == [{"id": n, "a": 10 * n, "b": 100 * n, "j": None, "t": None} for n in (1, 2)]
    assert DeltaTable(mirror.uri).file_uris() == DeltaTable(mirror.uri, version=before).file_uris()
    other_order = pa.schema([new[1], of_b, of_id, of_a, new[0]])
    mirror.append(pa.table([[datetime.datetime(2026, 1, 2)], [300], [3], [30], [None]], schema=other_order), ONE_STAMP)
    assert [row["t"] for batch in mirror.read("a = 30") for row in batch.to_pylist()] == [datetime.datetime(2026, 1, 2)]
    again = MirrorTable.at(mirror.uri, before, ONE_STAMP)
    assert again.columns == schema.names and [row["b"] for row in rows_in(again)] == [100, 200]


def test_a_mirror_of_an_earlier_build_has_column_mapping_until_it_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_table, "_MOST_FILES", 1)
    mirror = filled(mapped, tmp_path / "t")
    stored, schema = mirror.stored_schema(ROWS), ROWS
    assert not set(stored.names) & set(schema.names)
    mirror.append_files(list(written_files(mirror.uri, stored, iter(pa.table([[3], [30], [300]], schema=stored).to_batches()))), ONE_STAMP)
    mirror.replace(pa.table({"id": [1]}), pa.table([[4], [40], [400]], schema=schema), ONE_STAMP)
    mirror.tidy(schema, ONE_STAMP)
    mirror = MirrorTable.at(mirror.uri, mirror.version, ONE_STAMP)
    rows = [{"id": n, "a": 10 * n, "b": 100 * n} for n in (2, 3, 4)]
    assert rows_in(mirror) == rows
    new = (pa.field("c", pa.string()), None)
    assert not mirror.alter([*((field, field.name) for field in schema), new], ONE_STAMP)
    plain = mirror.rewritten(str(tmp_path / "u"), schema, lambda rows: rows, ONE_STAMP)
    assert rows_in(plain) == rows and plain._table.protocol().reader_features is None


def test_a_small_mirror_is_written_again_in_one_version_and_others_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No version is without its rows. One behind the published one is taken back, and who reads the version before does not notice."""
    after, mirror = pa.schema([ROWS[0], pa.field("at", pa.timestamp("us"))]), filled(MirrorTable.created, tmp_path / "t")

    def turned(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([rows["id"], rows["a"].cast(pa.int64()).cast(pa.timestamp("us"))], schema=after)

    before = mirror.version
    assert mirror.rewritten(str(tmp_path / "u"), after, turned, ONE_STAMP) is mirror and mirror.columns == after.names
    for version in range(before, mirror.version):
        assert DeltaTable(mirror.uri, version=version).to_pyarrow_table().sort_by("id")["b"].to_pylist() == [100, 200]
    assert not list(Path(mirror.uri).rglob("parts/*/_delta_log")) and DeltaTable(mirror.uri).to_pyarrow_table().num_rows == 2
    again = MirrorTable.at(mirror.uri, before, ONE_STAMP)
    assert again.columns == ROWS.names and [row["b"] for row in rows_in(again)] == [100, 200]
    # It has a feature that these rows do not need.
    other = again.rewritten(str(tmp_path / "u"), ROWS, lambda rows: rows, ONE_STAMP)
    assert other.uri == str(tmp_path / "u") and other._table.protocol().reader_features is None
    monkeypatch.setattr(mirror_table, "_HERE_BYTES", 0)
    assert other.rewritten(str(tmp_path / "v"), ROWS, lambda rows: rows, ONE_STAMP).uri == str(tmp_path / "v")


DOCUMENTS = {1: {"a": [1, 1.5, 100.0, 1 << 53], "é": 'x"'}, 2: JsonNull(), 3: None}


@pytest.mark.shows("spark.lake-json")
@pytest.mark.parametrize("variants", [False, True], ids=["string", "variant"])
def test_a_mirror_keeps_the_json_that_it_has_until_it_is_written_again(variants: bool, tmp_path: Path) -> None:
    """A lake that was begun with the other setting. A column that is added, and a table that is made, are as the setting says."""
    of_json, more = column(2, "j", JSON), column(3, "k", JSON)
    scene = LakeScene.of(table(10, "plain", [ID, of_json]), ranged(21, 22, columns=[ID, of_json]))
    for number, document in DOCUMENTS.items():
        scene.row(30, 20, 3, None, {"id": number, "j": document})
    scene.ddl(40, exchange(4, 10, ranged(10, 22, columns=[ID, of_json])))
    scene.ddl(50, job(5, 5, ranged(10, 22, columns=[ID, of_json, more]), query="alter table parent add column k json"))
    scene.row(55, 20, 5, None, {"id": 200, "j": [], "k": {}})
    scene.ddl(60, job(6, 5, ranged(10, 22, columns=[ID, column(2, "i", JSON), more]), query="alter table parent rename column j to i"))
    other, now = (str, dict) if variants else (dict, str)
    there = [{"a": [1, 1.5, 100.0, 1 << 53], "é": 'x"'}, None, "NULL"]
    scene.run(tmp_path, 35, json_variants=not variants)
    assert documents(tmp_path, "d.parent", "j") == (there, {other})
    scene.run(tmp_path, 57, json_variants=variants)
    assert documents(tmp_path, "d.plain", "j") == (there, {now})
    assert [documents(tmp_path, "d.parent", name) for name in "jk"] == [([[]], {other}), ([{}], {now})]
    scene.run(tmp_path, 70, json_variants=variants)
    assert [documents(tmp_path, "d.parent", name) for name in "ik"] == [([[]], {now}), ([{}], {now})]


def documents(lake: Path, name: str, column_: str) -> tuple[list[Any], set[type]]:
    """The documents of a mirror, and how it has them."""
    rows = sorted(by_delta(lake, published(lake)[name]), key=lambda row: int(row["id"]))
    cells = [row[column_] for row in rows]
    values = [json.loads(cell) if isinstance(cell, str) else "NULL" if cell is None else image_of(cell) for cell in cells]
    return values, {type(cell) for cell in cells if cell is not None}


def filled(made: Any, uri: Path) -> MirrorTable:
    mirror: MirrorTable = made(str(uri), ROWS, ONE_STAMP)
    mirror.append(pa.table([[1, 2], [10, 20], [100, 200]], schema=ROWS), ONE_STAMP)
    return mirror


def rows_in(mirror: MirrorTable) -> list[dict[str, Any]]:
    return sorted((row for batch in mirror.read() for row in batch.to_pylist()), key=lambda row: int(row["id"]))


def parts(kind: int, expr: str, *columns: str, **limits: Any) -> dict[str, Any]:
    made = [{"id": 20 + n, "name": {"O": f"p{n}"}, **part} for n, part in enumerate(limits["of"])]
    return {"partition": {"type": kind, "expr": expr, "columns": [{"O": c} for c in columns], "definitions": made}}


def below(*limits: str) -> dict[str, Any]:
    return {"less_than": list(limits)}


def among(*values: str) -> dict[str, Any]:
    return {"in_values": [[v] for v in values]}


YEARS = [datetime.date(2024, 12, 31), datetime.date(2025, 1, 1), datetime.date(2025, 12, 31), datetime.date(2026, 1, 1), None]


@pytest.mark.parametrize(
    ("kind", "values", "how", "wanted"),
    [
        (
            INT,
            [None, -5, 9, 10, 99, 100],
            parts(1, "`v`", of=[below("10"), below("100"), below("MAXVALUE")]),
            {0: [0, 1, 2], 1: [3, 4], 2: [5]},
        ),
        (DAY, YEARS, parts(1, "year(`v`)", of=[below("2025"), below("2026"), below("MAXVALUE")]), {0: [0, 4], 1: [1, 2], 2: [3]}),
        (DAY, YEARS, parts(1, "to_days(`v`)", of=[below("739617"), below("739982"), below("MAXVALUE")]), {0: [0, 4], 1: [1, 2], 2: [3]}),
        (
            DAY,
            YEARS,
            parts(1, "", "v", of=[below("'2025-01-01'"), below("'2026-01-01'"), below("MAXVALUE")]),
            {0: [0, 4], 1: [1, 2], 2: [3]},
        ),
        (VARCHAR, ["a", "b", "c", None], parts(1, "", "v", of=[below("'b'"), below("'c'")]), {0: [0, 3], 1: [1]}),
        (INT, [1, 2, 3, None], parts(3, "`v`", of=[among("1", "3"), among("2", "NULL")]), {0: [0, 2], 1: [1, 3]}),
        (INT, [-3, 0, 4, 5, None], parts(2, "`v`", of=[{}, {}, {}, {}]), {0: [1, 2, 4], 1: [3], 2: [], 3: [0]}),
        (
            {**BIGINT, "Flag": 32},
            [2**64 - 1, 2**63, 2**64 - 3, 5, None],
            parts(2, "`v`", of=[{}, {}, {}, {}]),
            {0: [1, 4], 1: [0, 3], 2: [], 3: [2]},
        ),
        (INT, [1], parts(1, "`v` * 2", of=[below("10")]), {0: Unfollowed}),
        (INT, [1], parts(4, "", "v", of=[{}, {}]), {0: Unfollowed}),
        ({**VARCHAR, "Collate": "utf8mb4_general_ci"}, ["a"], parts(1, "", "v", of=[below("'b'")]), {0: Unfollowed}),
    ],
)
def test_the_rows_of_a_partition(kind: Any, values: list[Any], how: dict[str, Any], wanted: dict[int, Any], tmp_path: Path) -> None:
    info = info_of(column(2, "v", kind), **how)
    mirror = MirrorTable.created(str(tmp_path / "m"), mirror_schema(info), Stamp(1, 1))
    mirror.append(pa.Table.from_batches([rows_of(info, list(range(len(values))), values)]), Stamp(1, 1))
    for number, ids in wanted.items():
        if ids is Unfollowed:
            with pytest.raises(Unfollowed):
                rows_of_partitions(info, [f"p{number}"])
        else:
            found = [row["id"] for batch in mirror.read(rows_of_partitions(info, [f"p{number}"])) for row in batch.to_pylist()]
            assert sorted(found) == ids, number


ID, A, B = column(1, "id", KEY), column(2, "a"), column(3, "b")


def ranged(*ids: int, columns: Any = (ID, A, B)) -> dict[str, Any]:
    """The table `parent`, whose partitions have these ids."""
    how = parts(1, "`id`", of=[below("100"), below("MAXVALUE")])
    for one, partition_id in zip(how["partition"]["definitions"], ids, strict=True):
        one["id"] = partition_id
    return table(20, "parent", columns, **how)


def exchange(job_id: int, table_id: int, parent: dict[str, Any], how: str = "") -> dict[str, Any]:
    return job(job_id, 42, parent, table_id=table_id, query=f"alter table parent exchange partition p0 with table plain {how}")


def test_rows_are_exchanged_by_the_places_of_columns(tmp_path: Path) -> None:
    """A column that was moved writes no row again."""
    moved = [ID, column(2, "b"), column(3, "a")]
    scene = LakeScene.of(table(10, "plain", [ID, A, B]), ranged(21, 22, columns=moved))
    scene.row(30, 10, 2, None, {"id": 1, "a": 11, "b": 22})
    scene.row(31, 20, 3, None, {"id": 2, "b": 33, "a": 44})
    scene.ddl(40, job(4, 12, table(10, "plain", [ID, B, A]), query="alter table plain modify b int after id"))
    scene.row(45, 10, 4, None, {"id": 3, "b": 222, "a": 111})
    scene.ddl(50, exchange(5, 10, ranged(10, 22, columns=moved)))
    scene.run(tmp_path, 35, 47, 60)
    assert cells_of(tmp_path, "d.parent", "id", "a", "b") == [(1, 11, 22), (3, 111, 222)]
    assert cells_of(tmp_path, "d.plain", "id", "a", "b") == [(2, 44, 33)]


def test_a_partition_with_rows_of_others_sets_its_table_aside(tmp_path: Path) -> None:
    """DROP PARTITION would take other rows than TiDB."""
    scene = LakeScene.of(table(10, "plain", [ID]), ranged(21, 22, columns=[ID]))
    scene.row(30, 10, 2, None, {"id": 150})
    scene.row(31, 20, 3, None, {"id": 5})
    scene.ddl(50, exchange(4, 10, ranged(10, 22, columns=[ID]), "WITHOUT  VALIDATION"))
    scene.run(tmp_path, 35, 60)
    assert "WITHOUT VALIDATION" in str(published(tmp_path)["d.parent"].why)
    assert cells_of(tmp_path, "d.plain", "id") == [(5,)]


def test_an_exchange_that_fails_sets_both_tables_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one has an id again that it had before."""
    scene = LakeScene()
    scene.ddl(10, database(1))
    scene.ddl(20, job(2, 3, ranged(21, 22, columns=[ID])))
    scene.ddl(25, job(3, 3, table(10, "plain", [ID])))
    scene.ddl(50, exchange(4, 10, ranged(10, 22, columns=[ID])))
    scene.ddl(60, exchange(5, 21, ranged(21, 22, columns=[ID])))
    scene.run(tmp_path, 55)

    def odd(*given: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(MirrorTable, "read", odd)
    scene.run(tmp_path, 65)
    found = {name: (s.table_id, s.state) for name, s in published(tmp_path).items()}
    assert found == {"d.plain": (10, "stale"), "d.parent": (20, "stale")}


def test_a_table_that_filters_left_out_for_a_while_stays_aside(tmp_path: Path) -> None:
    made, scene = table(10, "t", [ID, A]), LakeScene(1, Selection.of(ApplyConfig(replicate_do_db=("d",))))
    scene.ddl(10, database(1))
    scene.ddl(11, database(2, "other", 1001))
    scene.ddl(20, job(3, 3, made))
    scene.row(30, 10, 3, None, {"id": 1, "a": 1})
    scene.ddl(40, job(4, 14, made, schema_id=1001, schema_name="other", query="rename table d.t to other.t"))
    scene.row(50, 10, 4, {"id": 1, "a": 1}, {"id": 1, "a": 99})
    scene.ddl(60, job(5, 14, made, query="rename table other.t to d.t"))
    scene.row(70, 10, 5, None, {"id": 3, "a": 3})
    scene.run(tmp_path, 35, 45, 55, 65, 80)
    assert {n: (s.state, s.why) for n, s in published(tmp_path).items()} == {
        "d.t": ("stale", "filters leave out other.t, and its rows from here on")
    }


def test_a_table_that_filters_of_another_start_leave_out_is_set_aside(tmp_path: Path) -> None:
    """Its mirror would be taken for the newest rows, and later go on without what came meanwhile."""
    for do_db, end in (("d", 35), ("other", 55), ("d", 80)):
        scene = LakeScene.of(table(10, "t", [ID, A]), selection=Selection.of(ApplyConfig(replicate_do_db=(do_db,))))
        scene.row(30, 10, 2, None, {"id": 1, "a": 1})
        scene.row(50, 10, 2, {"id": 1, "a": 1}, {"id": 1, "a": 2})
        scene.row(70, 10, 2, None, {"id": 3, "a": 3})
        scene.run(tmp_path, end)
    found = published(tmp_path)["d.t"]
    assert (found.state, found.why) == ("stale", "filters leave out d.t, and its rows from here on")
    assert published(tmp_path, 34)["d.t"].state == "mirrored"


def test_a_mirror_with_vectors_is_written_again_for_a_name_that_spark_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be read any more."""
    scene = LakeScene.of(table(10, "t", [ID]))
    scene.row(30, 10, 2, None, {"id": 1})
    scene.ddl(40, job(3, 5, table(10, "t", [ID, column(2, "_Metadata")]), query="alter table t add column _Metadata int"))
    scene.run(tmp_path, 35)
    large = str(tmp_path / published(tmp_path)["d.t"].path)
    monkeypatch.setattr(MirrorTable, "_has_vectors", property(lambda self: self.uri == large))
    monkeypatch.setattr(mirror_round, "_LONG", 0.0)
    scene.run(tmp_path, 45)
    assert published(tmp_path)["d.t"].why is None
    assert cells_of(tmp_path, "d.t", "id", "_Metadata") == [(1, None)]


def test_a_moment_from_before_the_clock_was_set_back_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version seems to be younger than the removal of its files."""
    for (module, name), value in SHORT_PAST.items():
        monkeypatch.setattr(module, name, value)
    schema, stamp, path = pa.schema([("id", pa.int64())]), Stamp(1, 1), "tables/7-m"
    mirror, snapshots = MirrorTable.created(str(tmp_path / path), schema, stamp), Snapshots(str(tmp_path), 1000.0)
    mirror.append(pa.table([[1, 2]], schema=schema), stamp)
    snapshots.take(1)
    first, past = mirror.version, OldVersions(str(tmp_path), snapshots)
    for seconds in (10, 20):
        state = MirrorState(7, "d", "t", path, mirror.version, 1)
        snapshots.publish(tso(1000 * seconds), (), [(tso(1000 * seconds), state)])
        if seconds == 10:
            for commit in Path(mirror.uri, "_delta_log").glob("*.json"):
                os.utime(commit, (time.time() + 3600,) * 2)
            mirror.delete("id = 1", stamp)
    for _ in range(3):
        past.look()
    then = MirrorTable(mirror.uri, DeltaTable(mirror.uri, version=first))
    assert [row["id"] for batch in then.read() for row in batch.to_pylist()] == [1, 2]


def test_nothing_is_left_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is written again for a DDL would fill a disk by its attempts: also those of a round that another table fails."""
    wider = [ID, column(2, "a", {**INT, "Flag": 1})]
    scene = LakeScene.of(table(10, "t", [ID]), table(11, "u", [ID, A]))
    scene.row(30, 10, 3, None, {"id": 1})
    scene.row(31, 11, 3, None, {"id": 1, "a": 1})
    scene.ddl(40, job(4, 5, table(10, "t", wider), query="alter table t add column a int not null"))
    scene.row(45, 11, 4, {"id": 1, "a": 1}, {"id": 1, "a": 2})
    scene.run(tmp_path, 35)
    overwrite, merge, left = lake_table.overwrite, MirrorTable.merge, {"overwrite": 3, "merge": 3}

    def fails(of: str, real: Any) -> Any:
        def one(*given: Any) -> None:
            left[of] -= 1
            if left[of] >= 0:
                raise OSError(28, "no space left")
            real(*given)

        return one

    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(mirror_table, "_HERE_BYTES", -1)
    monkeypatch.setattr(lake_table, "overwrite", fails("overwrite", overwrite))
    monkeypatch.setattr(MirrorTable, "merge", fails("merge", merge))
    sink = scene.sink(tmp_path)
    scene.play(sink, 50)
    eventually(lambda: published(tmp_path)["d.u"].upto_ts == 50)
    sink.close()
    assert max(left.values()) < 0
    assert cells_of(tmp_path, "d.t", "id", "a") == [(1, 0)]
    assert len(list((tmp_path / "tables").iterdir())) == 3, "of t as it was, of t as it is, of u"
