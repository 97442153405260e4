"""Mirrors that Spark writes because they are large: deletion vectors, what delta-rs makes of them, other programs, and the removal of old files."""

import datetime
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.schemas.changes.variant_values import STORED_VARIANT
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.sinks.lake import mirror_table
from pyspark_tidb_binlog.sinks.lake.lake_table import KEPT_HOURS, written_files
from pyspark_tidb_binlog.sinks.lake.large_mirrors import LargeMirrors
from pyspark_tidb_binlog.sinks.lake.mirror_table import MirrorTable, Stamp, rows_of_version
from pyspark_tidb_binlog.sinks.lake.moments import MirrorState, Snapshots
from pyspark_tidb_binlog.sinks.lake.net_changes import MirrorChanges
from pyspark_tidb_binlog.sinks.lake.upkeep import OldVersions
from tests.support.eventually import eventually
from tests.support.golden_messages import replicate, spans_of
from tests.support.lake_lives import LOST, SHORT_PAST, life, sink_of
from tests.support.mapped_mirror import mapped
from tests.support.mirror_rows import assert_mirrored, by_spark, moments

pytestmark = [pytest.mark.spark]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
STAMP = Stamp(7, 1)
PATH = "tables/7-m"


def vectors(lake: Path) -> set[str]:
    return {path.name for path in lake.rglob("deletion_vector_*.bin")}


@pytest.mark.parametrize(
    "case", ["bank", *(pytest.param(case, marks=[pytest.mark.slow, pytest.mark.timeout(900)]) for case in ("keys", "types"))]
)
def test_recorded_tables_come_through_spark(case: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "types":
        monkeypatch.setattr(mirror_table, "_MOST_FILES", 1)
    sink = sink_of(tmp_path, mirrors=True, large=LargeMirrors(spark, 0), followed=True)
    # Values of all types are changed soon after they came: fewer moments see nothing but the last ones.
    replicate(sink, case, spans_of(case, 12 if case == "types" else 2))
    sink.close()
    assert vectors(tmp_path)
    assert_mirrored(case, tmp_path)
    assert_mirrored(case, tmp_path, by_spark(spark))


@dataclass
class Mirror:
    """A mirror of a thousand rows, and what it should have."""

    uri: str
    table: MirrorTable
    rows: dict[int, str]

    def change(self, ids: range, name: str = "", stamp: Stamp = STAMP) -> None:
        """Give rows a name; the empty one removes them."""
        keys = pa.array(ids, pa.int64())
        images = pa.table([keys, pa.array([name] * len(ids))], schema=SCHEMA)
        self.table.merge(MirrorChanges(images, pa.table({"id": keys}), pa.array([not name] * len(ids)), False), stamp)
        for i in ids:
            self.rows.pop(i, None)
        self.rows |= {i: name for i in ids if name}

    def reopened(self, version: int, large: LargeMirrors | None) -> MirrorTable:
        self.table = MirrorTable.at(self.uri, version, STAMP, large)
        return self.table

    def found(self) -> dict[int, str]:
        rows = [row for batch in self.table.read() for row in batch.to_pylist()]
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["name"] for row in rows}


@pytest.fixture
def mirror(spark: SparkSession, tmp_path: Path) -> Iterator[Mirror]:
    uri = str(tmp_path / PATH)
    made = Mirror(uri, MirrorTable.created(uri, SCHEMA, STAMP, LargeMirrors(spark, 0)), {})
    rows = pa.table([pa.array(range(1000)), pa.array(["new"] * 1000)], schema=SCHEMA)
    made.table.append(rows, STAMP)
    made.table.tidy(SCHEMA, STAMP)
    made.rows = dict.fromkeys(range(1000), "new")
    made.change(range(0, 1000, 10), "changed")
    yield made
    frame = spark.read.format("delta").option("versionAsOf", made.table.version).load(made.uri)
    assert made.found() == made.rows == {row["id"]: row["name"] for row in frame.collect()}
    assert frame.count() == len(made.rows)


def test_each_write_finds_what_vectors_have_removed(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(vectors(Path(mirror.uri))) == 1
    mirror.change(range(500))
    mirror.table.delete("id >= 900", STAMP)
    mirror.rows = {i: name for i, name in mirror.rows.items() if i < 900}
    assert mirror.found() == mirror.rows
    mirror.change(range(600, 700), "again")
    monkeypatch.setattr(mirror_table, "_MOST_FILES", 1)
    assert mirror.table.tidy(SCHEMA, STAMP) > 0
    assert mirror.table._table.get_add_actions().num_rows == 1
    mirror.change(range(700, 710), "vectors")
    assert mirror.table._table.deletion_vectors().read_all().num_rows == 1
    columns = [(pa.field("id", pa.int64()), "id"), (pa.field("name", pa.string()), "name"), (pa.field("more", pa.int32()), None)]
    assert mirror.table.alter(columns, STAMP)
    assert mirror.table.columns == ["id", "name", "more"]


@pytest.mark.parametrize("made", [MirrorTable.created, mapped], ids=["plain", "of an earlier build"])
def test_columns_of_a_large_mirror_change_without_its_files(made: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Two that swap their names, one that differs in case only, one that goes and comes again, and new ones. No version between is empty."""
    before = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string()), ("c", pa.string()), ("d", pa.string())])
    mirror = made(str(tmp_path / "t"), before, STAMP, LargeMirrors(spark, 0))
    mirror.append(pa.table([[1, 2], *([f"{name}{n}" for n in (1, 2)] for name in "abcd")], before), STAMP)
    mirror.tidy(before, STAMP)
    files, first = mirror._table.file_uris(), mirror.version
    words = {name: pa.field(name, pa.string()) for name in "abCd"}
    columns = [(pa.field("id", pa.int64()), "id"), (words["a"], "b"), (words["b"], "a"), (words["C"], "c"), (words["d"], None)]
    columns += [(field, None) for field in pa.schema([("n", pa.decimal128(10, 2)), ("t", pa.timestamp("us")), ("j", STORED_VARIANT)])]
    assert mirror.alter(columns, STAMP)
    rows = [{"id": n, "a": f"b{n}", "b": f"a{n}", "C": f"c{n}", "d": None, "n": None, "t": None, "j": None} for n in (1, 2)]
    assert mirror._table.file_uris() == files
    for version in range(first, mirror.version + 1):
        assert sum(len(batch) for batch in rows_of_version(mirror.uri, version)) == 2

    def found() -> list[list[dict[str, Any]]]:
        frame = spark.read.format("delta").option("versionAsOf", mirror.version).load(mirror.uri).orderBy("id")
        return [
            sorted((row for batch in mirror.read() for row in batch.to_pylist()), key=lambda row: row["id"]),
            [row.asDict() for row in frame.collect()],
        ]

    assert found() == [rows, rows]
    schema = pa.schema([field for field, _ in columns])
    three = pa.table([[3], ["b3"], ["a3"], ["c3"], ["d3"], [None], [datetime.datetime(2026, 1, 2)], [None]], schema)
    mirror.replace(pa.table({"id": [1]}), three, STAMP)
    rows = [rows[1], {**rows[0], "id": 3, "a": "b3", "b": "a3", "C": "c3", "d": "d3", "t": datetime.datetime(2026, 1, 2)}]
    assert found() == [rows, rows]
    mirror = MirrorTable.at(mirror.uri, first, STAMP, mirror._large)
    assert mirror.columns == before.names and len(found()[0]) == len(found()[1]) == 2
    # Spark could not read it.
    assert not mirror.alter([*((field, field.name) for field in before), (pa.field("_Metadata", pa.string()), None)], STAMP)


def test_a_mirror_is_as_large_as_what_was_written_into_it(mirror: Mirror) -> None:
    loaded = MirrorTable.created(f"{mirror.uri}-loaded", SCHEMA, STAMP, mirror.table._large)
    assert not loaded._is_large
    stored = loaded.stored_schema(SCHEMA)
    rows = pa.table([[5000], ["new"]], stored).to_batches()
    loaded.append_files(list(written_files(loaded.uri, stored, iter(rows))), STAMP)
    assert loaded._is_large
    assert mirror.table.rewritten(f"{mirror.uri}-again", SCHEMA, lambda batch: batch, STAMP)._is_large
    # Spark could not write this one.
    schema = SCHEMA.append(pa.field("_Metadata", pa.int32()))
    refused = MirrorTable.created(f"{mirror.uri}-refused", schema, STAMP, mirror.table._large)
    refused.append_files(
        list(
            written_files(
                refused.uri, refused.stored_schema(schema), iter(pa.table([[1], ["a"], [2]], refused.stored_schema(schema)).to_batches())
            )
        ),
        STAMP,
    )
    assert refused.bytes > 0 and not refused._is_large


def test_a_version_behind_the_published_one_is_undone(mirror: Mirror, caplog: pytest.LogCaptureFixture) -> None:
    rows, version, large = dict(mirror.rows), mirror.table.version, mirror.table._large
    mirror.change(range(50, 60))
    mirror.reopened(version, large)
    assert "another program" not in caplog.text
    assert mirror.found() == rows
    version = mirror.table.version
    DeltaTable(mirror.uri).delete("id < 100")
    assert mirror.reopened(version, large).version == version + 2
    assert "another program has committed version" in caplog.text
    mirror.rows = rows
    mirror.change(range(3), "after")


@pytest.mark.slow
def test_a_version_that_is_old_and_has_new_columns_is_restored(mirror: Mirror) -> None:
    mirror.table.alter([(pa.field("id", pa.int64()), "id"), (pa.field("name", pa.string()), None)], STAMP)
    rows, version, large = dict.fromkeys(mirror.rows), mirror.table.version, mirror.table._large
    then = time.time() - (KEPT_HOURS + 1) * 3600
    for commit in Path(mirror.uri, "_delta_log").iterdir():
        os.utime(commit, (then, then))
    mirror.change(range(3))
    assert mirror.reopened(version, large).version > version
    mirror.rows = rows
    mirror.change(range(5), "again")


@pytest.mark.slow
def test_what_a_user_has_set_for_all_sessions_changes_nothing(mirror: Mirror, spark: SparkSession) -> None:
    of_all, set_by_user = (
        spark.sparkContext._jsc.sc().conf(),
        "spark.databricks.delta.autoCompact.enabled spark.sql.files.ignoreMissingFiles",
    )
    refused = "spark.databricks.delta.commitInfo.enabled"
    try:
        for name in set_by_user.split():
            of_all.set(name, "true")
        of_all.set(refused, "false").set("spark.databricks.delta.autoCompact.minNumFiles", "2")
        mirror.reopened(mirror.table.version, LargeMirrors(spark, 0))
    finally:
        for name in (*set_by_user.split(), refused, "spark.databricks.delta.autoCompact.minNumFiles"):
            of_all.remove(name)
    for first in range(3):
        mirror.change(range(first, 1000, 9), "more")
    found = pa.table(mirror.table._table.get_add_actions())
    # No removal has added an empty file.
    assert found.num_rows == 5 and all(found["num_records"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_commit_of_another_program_beside_that_of_spark(late: bool, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark goes behind it, or it behind Spark. Nothing that was not ours counts."""
    rows, version, large, real = dict(mirror.rows), mirror.table.version, mirror.table._large, LargeMirrors.remove

    def remove(self: LargeMirrors, *given: Any) -> None:
        if late:
            real(self, *given)
        DeltaTable(mirror.uri).delete("id = 999")
        if not late:
            real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(LargeMirrors, "remove", remove)
        with pytest.raises(DeltaError):
            mirror.change(range(5))
    assert DeltaTable(mirror.uri).version() == version + 2
    mirror.reopened(version, large)
    mirror.rows = rows
    mirror.change(range(5))


def test_vectors_stay_while_a_version_needs_them(
    mirror: Mirror, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (module, name), value in SHORT_PAST.items():
        monkeypatch.setattr(module, name, value)
    snapshots = Snapshots(str(tmp_path), 1000.0)
    snapshots.take(1)
    past = OldVersions(str(tmp_path), snapshots)

    def publish(seconds: int) -> None:
        state = MirrorState(7, "shop", "orders", PATH, mirror.table.version, 1)
        snapshots.publish(tso(1000 * seconds), (), [(tso(1000 * seconds), state)])

    first, rows, (named,) = mirror.table.version, dict(mirror.rows), vectors(tmp_path)
    publish(10)
    mirror.change(range(3, 900, 7))
    mirror.change(range(4, 900, 7))
    publish(20)
    assert len(vectors(tmp_path)) == 3
    for _ in range(3):
        past.look()
    assert named in vectors(tmp_path) and len(vectors(tmp_path)) == 2
    then = spark.read.format("delta").option("versionAsOf", first).load(mirror.uri)
    assert {row["id"]: row["name"] for row in then.collect()} == rows
    snapshots.thin([1])
    for _ in range(3):
        past.look()
    assert named not in vectors(tmp_path) and len(vectors(tmp_path)) == 1
    assert {path.name[1:-4] for path in tmp_path.rglob(".deletion_vector_*.crc")} == vectors(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before-spark-write", "after-spark-write"])
def test_a_writer_dies_beside_a_commit_of_spark(point: str, spark: SparkSession, tmp_path: Path) -> None:
    with life(tmp_path, f"{point}:1", mirrored="bank", large=True) as one:
        assert one.ended(240) == -signal.SIGKILL
    sink = sink_of(tmp_path, mirrors=True, large=LargeMirrors(spark, 0))
    replicate(sink, "bank", spans_of("bank", 2))
    sink.close()
    assert_mirrored("bank", tmp_path)


@pytest.mark.slow
def test_a_writer_that_was_suspended_amid_a_write_of_spark_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with life(tmp_path, stop="before-spark-write:1", mirrored="bank", large=True) as first:
        eventually(first.is_stopped, seconds=240)
        sink = sink_of(tmp_path, mirrors=True, large=LargeMirrors(spark, 0))
        replicate(sink, "bank", spans_of("bank", 2))
        sink.close()
        at = moments(tmp_path)
        first.wake()
        # All of its steps may have been in the ledger before.
        assert first.ended(240) in (0, LOST)
    assert moments(tmp_path) == at
    assert_mirrored("bank", tmp_path)
