"""The target's record follows later where nothing was applied: never more than seconds late, never ahead, and never in the way."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.schemas.stages import ROW_EVENT
from pyspark_tidb_binlog.sinks.engine import late_record
from pyspark_tidb_binlog.sinks.engine.batch_report import StageClock
from pyspark_tidb_binlog.sinks.engine.segments import RowsStep
from tests.support.ddl_target import dying
from tests.support.emulated_stream import MODES, EmulatedStream
from tests.support.eventually import eventually

pytestmark = [pytest.mark.spark, pytest.mark.mysql]

MARKS = "late_marks"
ITEM = Table("item", (Column("id", "bigint"), Column("v", "int")), ("id",))
Query = Callable[[str], Any]


@pytest.fixture
def query(mariadb: PrivateMariaDB) -> Iterator[Query]:
    with mariadb.connect() as connection, connection.cursor() as cursor:

        def ask(sql: str) -> Any:
            cursor.execute(sql)
            return cursor.fetchall()

        yield ask
        for name in ("shop", MARKS):
            ask(f"DROP DATABASE IF EXISTS {name}")


class Stream(EmulatedStream):
    """Notes what is put off."""

    def __init__(self, spark: SparkSession, config: DrainerConfig, query: Query) -> None:
        super().__init__(spark, config)
        self.notes: list[tuple[int, int]] = []
        self._query = query
        self.create("shop", ITEM)

    def begin(self) -> None:
        """The tables are there, and what comes next may be put off."""
        self.apply()
        self.sink.defer(lambda recorded, upto: self.notes.append((recorded, upto)))

    @property
    def row(self) -> int:
        """The target's record."""
        ((text,),) = self._query(f"SELECT checkPoint FROM {MARKS}.checkpoint")
        assert json.loads(text)["consistent"]
        return int(json.loads(text)["commitTS"])


@pytest.fixture
def stream(spark: SparkSession, mariadb: PrivateMariaDB, query: Query, request: pytest.FixtureRequest) -> Iterator[Stream]:
    more: dict[str, Any] = {"checkpoint_schema": MARKS} | MODES[getattr(request, "param", "driver")]
    apply = ApplyConfig(**more)
    with Stream(spark, DrainerConfig(target=mariadb.target(), apply=apply), query) as made:
        yield made


@pytest.mark.parametrize("stream", MODES, indirect=True)
def test_what_applies_nothing_is_noted_and_what_comes_next_is_applied_once(
    stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    stream.begin()
    for number in range(2):
        behind = stream.row
        stands = [stream.apply().upto_ts for _ in range(2)]
        assert (stream.row, stream.sink.commit_ts) == (behind, stands[-1])
        assert stream.notes[-2:] == [(behind, ts) for ts in stands]
        for n in range(3):
            stream.change(lambda txn, at=10 * number, n=n: txn.insert("shop.item", {"id": at + n, "v": n}))
        upto_ts = stream.apply().upto_ts
        assert stream.row == upto_ts
    stream.apply()
    stream.upstream.ddl.add_column("shop.item", Column("w", "int"))
    assert stream.apply().ddls == 1
    noted = len(stream.notes)
    upto_ts = stream.apply().upto_ts
    stream.restart()
    assert stream.row == upto_ts, "what is put off is saved at the end"
    assert len(stream.notes) == noted + 1
    assert query("SELECT id, v, w FROM shop.item ORDER BY id") == tuple((n, n % 10, None) for n in (0, 1, 2, 10, 11, 12))


def test_it_is_put_off_for_some_seconds_only(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    stream.begin()
    behind = stream.row
    stream.apply()
    assert stream.row == behind
    monkeypatch.setattr(late_record, "SECONDS", 0.0)
    upto_ts = stream.apply().upto_ts
    assert stream.row == upto_ts


def test_the_first_steps_after_a_start_are_saved_at_once(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever restarts a Drainer sees by the record that it is back at the tip, of which the first step may fall short."""
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    stream.begin()
    stream.restart()
    stream.sink.defer(lambda recorded, upto: stream.notes.append((recorded, upto)))
    for _ in range(2):
        upto_ts = stream.apply().upto_ts
        assert stream.row == upto_ts
    stream.apply()
    assert (stream.row, len(stream.notes)) == (upto_ts, 1)


def test_it_is_saved_also_when_no_batch_follows(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.begin()
    monkeypatch.setattr(late_record, "SECONDS", 0.5)
    late = stream.sink._record._late  # type: ignore[attr-defined]
    monkeypatch.setattr(late, "_clock", lambda: late._saved_at)
    behind = stream.row
    upto_ts = stream.apply().upto_ts
    assert stream.notes == [(behind, upto_ts)]
    eventually(lambda: stream.row == upto_ts, seconds=30, what="the record is saved")
    stream.change(lambda txn: txn.insert("shop.item", {"id": 1, "v": 1}))
    upto_ts = stream.apply().upto_ts
    assert stream.row == upto_ts


def test_a_record_that_somebody_moved_meanwhile_is_still_noticed(stream: Stream, query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    stream.begin()
    behind = stream.row
    stream.apply()
    query(f"UPDATE {MARKS}.checkpoint SET checkPoint = REPLACE(checkPoint, '{behind}', '{behind - 1}')")
    stream.change(lambda txn: txn.insert("shop.item", {"id": 1, "v": 1}))
    with pytest.raises(ApplyError, match="was moved to"):
        stream.apply()
    assert query("SELECT * FROM shop.item") == ()


def test_a_later_beginning_becomes_the_record(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a death: the row is behind, and what was noted says that nothing is missing. That delays none of the first steps."""
    monkeypatch.setattr(late_record, "SECONDS", 1e9)
    stream.apply()
    stream.restart()
    behind = stream.row
    sink = stream.unopened()
    later = stream.upstream.oracle.next()
    sink.defer(lambda recorded, upto: stream.notes.append((recorded, upto)))
    opened = sink.open(lambda target, commit_ts: later, stream.history)
    assert behind < sink.commit_ts == stream.row == later
    for _ in range(3):
        step = RowsStep(sink.commit_ts, stream.upstream.oracle.next(), 0, {}, applied=opened.applied)
        sink.apply(ROW_EVENT.empty_table(), step, StageClock())
        saved, later = later, step.upto_ts
    assert (stream.row, stream.notes) == (saved, [(saved, later)]), "only the third is put off"
    sink.close()


@pytest.mark.parametrize("stream", ["parts", "rows"], indirect=True)
def test_a_span_that_another_drainer_has_begun_at_the_record_is_finished_first(stream: Stream, query: Query) -> None:
    """What this one noted before is no reason to forget the marks of what is half applied."""
    stream.apply()
    behind = stream.row
    for n in range(6):
        stream.change(lambda txn, n=n: txn.insert("shop.item", {"id": n, "v": n}))
    with dying("before-downstream-commit"):
        stream.apply()
    stream.restart()
    sink = stream.unopened()
    later = stream.upstream.oracle.next()
    opened = sink.open(lambda target, commit_ts: later, stream.history)
    sink.close()
    assert opened.progress.unfinished is not None
    assert sink.commit_ts == opened.progress.unfinished.after_ts == behind
    stream.apply()
    assert query("SELECT id FROM shop.item ORDER BY id") == tuple((n,) for n in range(6))
