"""Tables that a lake loads from the upstream, without Spark and a server: at whichever moment it happens, whatever dies, the mirrors are the recorded tables."""

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.ddl_jobs import Job
from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError, Stopped
from pyspark_tidb_binlog.schemas.history import SchemaHistory
from pyspark_tidb_binlog.schemas.schema_snapshot import table_as_job
from pyspark_tidb_binlog.sinks.bootstrap import lake_load
from pyspark_tidb_binlog.sinks.bootstrap.key_ranges import KeyRange
from pyspark_tidb_binlog.sinks.bootstrap.lake_load import _UpstreamThen
from pyspark_tidb_binlog.sinks.lake import mirror_round, mirrors
from pyspark_tidb_binlog.sinks.lake.lake_table import scanned, written_files
from pyspark_tidb_binlog.sinks.lake.mirror_round import LoadLater
from pyspark_tidb_binlog.sinks.lake.mirrors import TableLoads
from pyspark_tidb_binlog.sinks.lake.moments import COLUMNS, LOADING, MIRRORED, Moment, Published
from pyspark_tidb_binlog.sinks.routing.replicated import Selection
from tests.support.bank_states import TOTAL
from tests.support.ddl_jobs import VARCHAR, column, database, job, table
from tests.support.eventually import eventually
from tests.support.golden_case import load_case
from tests.support.golden_messages import replicate, spans_of
from tests.support.lake_lives import PAUSE, life, replicate_loaded, sink_of
from tests.support.lake_scene import KEY, LakeScene, cells_of, followed_ts
from tests.support.mirror_rows import assert_mirrored, published, totals
from tests.support.recorded_upstream import RecordedUpstream, begin_of

POINTS = (
    "after-load-begin",
    "before-load-commit",
    "after-load-commit",
    "before-publication",
    "after-publication",
    "after-downstream-commit",
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.05)


def live(lake: Path, case: str, loads: TableLoads) -> None:
    """A life of a writer up to the end of a case, and of all loads."""
    sink = sink_of(lake, mirrors=True, loads=loads)
    replicate_loaded(sink, case, lake)
    sink.close()


def every_way() -> list[Any]:
    """Each case, with tables that are read at once and later; in `make test` a few."""
    quick = {("ddl", 2), ("keys", 1)}
    ways = [(case, later) for case in ("ddl", "keys", "types", "txn", "bank", "online") for later in (0, 1, 2, 5)]
    return [pytest.param(*way, id="-".join(map(str, way)), marks=() if way in quick else pytest.mark.slow) for way in ways]


@pytest.mark.parametrize(("case", "later"), every_way())
def test_a_first_load_and_then_the_stream_leave_the_recorded_tables(case: str, later: int, tmp_path: Path) -> None:
    upstream = RecordedUpstream(case, tmp_path / "upstream", later)
    live(tmp_path / "lake", case, upstream.loads)
    assert_mirrored(case, tmp_path / "lake")
    assert upstream.asked
    if case == "bank":
        assert set(totals(tmp_path / "lake")) - {0} == {TOTAL}


def every_death() -> list[Any]:
    """Each point; in `make test` those of loads, of a small case."""
    small = [pytest.param("txn", point, (1,), id=f"txn-{point}") for point in POINTS if "load" in point]
    return small + [pytest.param("ddl", point, (1, 2), id=f"ddl-{point}", marks=pytest.mark.slow) for point in POINTS]


@pytest.mark.parametrize(("case", "point", "deadly"), every_death())
def test_a_writer_that_is_killed_again_and_again_loads_the_recorded_tables(
    case: str, point: str, deadly: tuple[int, ...], tmp_path: Path
) -> None:
    deaths = 0
    for passes in (*deadly, 1 << 30):
        with life(tmp_path / "lake", f"{point}:{passes}", mirrored=case, loaded=tmp_path / "upstream") as one:
            code = one.ended()
        deaths += code == -signal.SIGKILL
    assert code == 0 and deaths >= 1
    assert_mirrored(case, tmp_path / "lake")


@pytest.mark.parametrize("error", [Py4JNetworkError, ConnectionRefusedError, AttributeError, PySparkException])
def test_a_table_that_is_read_while_spark_ends_is_loaded_by_the_next_start(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not set aside: a JVM was killed, or the session was stopped."""

    class Ended:
        @property
        def sparkContext(self) -> Any:  # noqa: N802
            raise error

    then = _UpstreamThen(None, 1, None, {}, lambda: False, Ended())  # type: ignore[arg-type]
    monkeypatch.setattr(then, "_at", lambda attempt: contextlib.nullcontext())
    monkeypatch.setattr(lake_load, "ranges_of", lambda source, session, table, ids: [KeyRange()] * 3)
    with pytest.raises(LoadLater, match="Spark has ended"):
        then.files_of(None, "", None)  # type: ignore[arg-type]


class OneTable(RecordedUpstream):
    """Cannot be read: ``error`` for the table ``name``."""

    def __init__(self, case: str, directory: Path, name: str, error: Callable[[], Exception]) -> None:
        super().__init__(case, directory)
        self._name, self._error = name, error

    def files_of(self, table: Any, *given: Any) -> Any:
        if table.name == self._name:
            raise self._error()
        return super().files_of(table, *given)


def test_a_table_that_is_refused_is_set_aside_and_loaded_when_asked_again(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    refusing = OneTable("bank", tmp_path / "upstream", "checking", lambda: BootstrapRefused("no SELECT on it"))
    sink = sink_of(lake, mirrors=True, loads=refusing.loads)
    replicate_loaded(sink, "bank", lake)
    assert published(lake)["g_bank.checking"].why == "BootstrapRefused: no SELECT on it"
    refusing._name = ""
    history = load_case("bank").history
    jobs = refusing.tables(history, history.newest_version)
    sink.load(jobs, absent=True)
    eventually(lambda: published(lake)["g_bank.checking"].state == "mirrored", pause=PAUSE)
    version = published(lake)["g_bank.savings"].path
    assert sorted(refusing.asked.values()) == [1, 1]
    sink.load(jobs)
    eventually(lambda: published(lake)["g_bank.savings"].path not in ("", version), pause=PAUSE)
    eventually(lambda: published(lake)["g_bank.checking"].state == "mirrored" and max(refusing.asked.values()) == 2, pause=PAUSE)
    sink.close()
    assert_mirrored("bank", lake)


def test_a_lake_that_began_without_its_tables_gets_them_later(tmp_path: Path) -> None:
    """Also those of which no row has come yet."""
    lake, upstream = tmp_path / "lake", RecordedUpstream("keys", tmp_path / "upstream")
    sink = sink_of(lake, mirrors=True, loads=TableLoads(lambda history, version: (), upstream.at))
    replicate_loaded(sink, "keys", lake)
    eventually(lambda: {s.state for s in published(lake).values()} == {"stale"}, pause=PAUSE)
    history = load_case("keys").history
    sink.load(upstream.tables(history, history.newest_version), absent=True)
    eventually(lambda: {s.state for s in published(lake).values()} == {"mirrored"}, seconds=60, pause=PAUSE)
    sink.close()
    assert_mirrored("keys", lake)


@contextmanager
def nowhere(ts: int, stopped: Callable[[], bool]) -> Iterator[Any]:
    raise LoadLater(str(ConfigError("spark.upstream.host is empty")))
    yield


def replicate_half(sink: Any, case: str) -> None:
    replicate(sink, case, [], begin_ts=begin_of(case))


def test_without_an_upstream_tables_wait_and_a_start_with_one_loads_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake, upstream = tmp_path / "lake", RecordedUpstream("keys", tmp_path / "upstream")
    sink = sink_of(lake, mirrors=True, loads=TableLoads(upstream.tables, nowhere))
    replicate_half(sink, "keys")
    eventually(lambda: "wait to be loaded: spark.upstream.host is empty" in caplog.text)
    assert {s.state for s in published(lake).values()} == {LOADING}
    sink.close()
    assert caplog.text.count("spark.upstream.host is empty") == 1
    live(lake, "keys", TableLoads(no_tables, upstream.at))
    assert_mirrored("keys", lake)


def no_tables(history: Any, version: int) -> Sequence[Any]:
    raise AssertionError("the lake has begun")


def test_a_stop_gives_up_the_read(tmp_path: Path) -> None:
    lake, upstream = tmp_path / "lake", RecordedUpstream("keys", tmp_path / "upstream")
    reading: list[Callable[[], bool]] = []

    class Endless:
        def files_of(self, *given: Any) -> Any:
            reading.append(self.stopped)
            eventually(self.stopped, seconds=60)
            raise Stopped("the read is given up")

    @contextmanager
    def endless(ts: int, stopped: Callable[[], bool]) -> Iterator[Any]:
        one = Endless()
        one.stopped = stopped  # type: ignore[attr-defined]
        yield one

    sink = sink_of(lake, mirrors=True, loads=TableLoads(upstream.tables, endless))
    replicate_half(sink, "keys")
    eventually(lambda: reading)
    sink.close()
    assert len(reading) == 1
    assert {s.state for s in published(lake).values()} == {LOADING} and not list((lake / "tables").iterdir())
    live(lake, "keys", TableLoads(no_tables, upstream.at))
    assert_mirrored("keys", lake)


def test_a_table_that_is_loaded_again_can_be_read_as_it_was_before(tmp_path: Path) -> None:
    lake, upstream = tmp_path / "lake", RecordedUpstream("bank", tmp_path / "upstream")
    live(lake, "bank", upstream.loads)
    before = published(lake)["g_bank.savings"]
    sink = sink_of(lake, mirrors=True, loads=TableLoads(no_tables, nowhere))
    replicate_half(sink, "bank")
    history = load_case("bank").history
    sink.load([job for job in upstream.tables(history, history.newest_version) if job.table_name == "savings"])
    eventually(lambda: published(lake)["g_bank.savings"].state == LOADING, pause=PAUSE)
    sink.close()
    rows = scanned(f"{lake}/snapshots", COLUMNS, "number > 0")
    assert rows is not None
    known = Published(rows.read_all(), Moment())
    marked = published(lake)["g_bank.savings"]
    assert marked.path == ""
    last = max(row["resolved_ts"] for row in known.rows.to_pylist() if row["state"] == LOADING)
    with pytest.raises(ConfigError, match=rf"g_bank.savings is not loaded yet; .* \({last}\); lake.at\({last - 1}\).table"):
        known.table_at("g_bank.savings", last)
    assert known.table_at("g_bank.savings", last - 1).path == before.path


class PanicException(BaseException):
    """delta-rs's is no ``Exception``, and known by its name."""


@pytest.mark.parametrize(
    ("error", "times", "why"),
    [
        (lambda: OSError(28, "no space left"), 2, None),
        (lambda: OSError(28, "no space left"), 1 << 30, "OSError: [Errno 28] no space left"),
        (lambda: PanicException("a bug"), 1 << 30, "PanicException: a bug"),
    ],
)
def test_a_load_fails_as_a_merge_does(
    error: Callable[[], BaseException], times: int, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may pass is tried again, for a while; what cannot pass sets the table aside; nothing is left of an attempt."""
    lake, left = tmp_path / "lake", [times]
    monkeypatch.setattr(mirror_round, "_LONG", 0.3 if why else 60.0)

    def fault() -> Any:
        left[0] -= 1
        upstream._name = "checking" if left[0] else ""
        return error()

    upstream = OneTable("bank", tmp_path / "upstream", "checking", fault)
    live(lake, "bank", upstream.loads)
    assert_mirrored("bank", lake, stale=frozenset({"checking"} if why else ()))
    assert published(lake)["g_bank.checking"].why == why
    assert len(list((lake / "tables").iterdir())) == (1 if why else 2)


@pytest.mark.parametrize("what", ["snapshots", "a mirror", "a mirror for an older one"])
def test_what_a_person_removes_under_a_writer_is_made_again(what: str, tmp_path: Path) -> None:
    """Mirrors from the ledger, or a mirror from the upstream."""
    lake, upstream = tmp_path / "lake", RecordedUpstream("bank", tmp_path / "upstream")
    sink = sink_of(lake, mirrors=True, loads=TableLoads(lambda history, version: (), upstream.at))

    def spans() -> Iterator[tuple[int, int]]:
        for number, span in enumerate(spans_of("bank", 6)):
            if number == 3:
                eventually(lambda: followed_ts(sink) == sink.commit_ts)
                path = lake / ("snapshots" if what == "snapshots" else published(lake)["g_bank.checking"].path)
                newest = max((path / "_delta_log").glob("*.json"))
                if what == "a mirror for an older one":
                    newest.unlink()
                else:
                    shutil.rmtree(path)
            yield span

    replicate(sink, "bank", spans())  # type: ignore[arg-type]
    eventually(lambda: followed_ts(sink) == sink.commit_ts and {s.state for s in published(lake).values()} == {"mirrored"}, seconds=60)
    sink.close()
    assert_mirrored("bank", lake)


def test_a_reload_that_was_asked_is_known_after_a_stop(tmp_path: Path) -> None:
    lake, upstream = tmp_path / "lake", RecordedUpstream("bank", tmp_path / "upstream")
    sink = sink_of(lake, mirrors=True, loads=TableLoads(upstream.tables, nowhere))
    replicate(sink, "bank", spans_of("bank", 6))
    history = load_case("bank").history
    sink.load(upstream.tables(history, history.newest_version))
    sink.close()
    assert {s.state for s in published(lake).values()} == {LOADING}


def test_a_stop_does_not_wait_for_an_upstream_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_PATIENCE", 0.1)
    lake, upstream, asked, end = tmp_path / "lake", RecordedUpstream("keys", tmp_path / "upstream"), threading.Event(), threading.Event()

    @contextmanager
    def deaf(ts: int, stopped: Callable[[], bool]) -> Iterator[Any]:
        asked.set()
        end.wait(60)
        raise LoadLater("no answer")
        yield

    sink = sink_of(lake, mirrors=True, loads=TableLoads(upstream.tables, deaf))
    replicate_half(sink, "keys")
    assert asked.wait(60)
    sink.close()
    assert not end.is_set() and sink._mirrors is not None and sink._mirrors._thread is not None
    end.set()
    sink._mirrors._thread.join()


def once_asked(asked: threading.Event) -> TableLoads:
    """Loads of table 10, which has one row; they are put off until ``asked``."""

    class Upstream:
        def files_of(self, table: Any, uri: str, stored: pa.Schema) -> Any:
            if not asked.is_set():
                raise LoadLater("not yet")
            return list(written_files(uri, stored, iter([pa.record_batch([pa.array([1], pa.int32())], schema=stored)])))

    def first(history: SchemaHistory, version: int) -> list[Job]:
        at = history.table_at(10, version)
        assert at is not None
        return [table_as_job(at, history)]

    return TableLoads(first, lambda ts, stopped: nullcontext(Upstream()))


def test_a_table_that_comes_back_is_loaded_if_it_was_dropped_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_RETRY_SECONDS", 0.1)
    made, asked = table(10, "t", [column(1, "id", KEY)]), threading.Event()
    scene = LakeScene.of(made, start=25)
    scene.ddl(40, job(3, 4, None, table_id=10, query="drop table t"))
    scene.ddl(50, job(4, 25, made, query="recover table t"))
    sink = scene.sink(tmp_path, once_asked(asked))
    scene.follow(sink, 40, 50)
    asked.set()
    eventually(lambda: published(tmp_path)["d.t"].state == MIRRORED)
    sink.close()
    assert cells_of(tmp_path, "d.t", "id") == [(1,)]


@pytest.mark.shows("spark.reload-interval")
@pytest.mark.parametrize("again", [3600.0, 0.0])
def test_a_table_that_is_set_aside_again_is_loaded_ever_more_rarely(again: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; an hour later, two hours after that, four; once it has held for its pause, at once; and never without the setting."""
    ahead, loads, refused = [0.0], list[float](), [True]
    monkeypatch.setattr(mirrors, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))

    class Upstream:
        def files_of(self, *given: Any) -> Any:
            loads.append(ahead[0] / 3600)
            if refused[0]:
                raise BootstrapRefused("no SELECT on it")
            return []

    def item(name: dict[str, Any], number: int) -> dict[str, Any]:
        return table(10, "item", [column(1, "id", KEY), column(number, "name", name)])

    data = {**VARCHAR, "Charset": "binary", "Collate": "binary"}
    scene = LakeScene.of(item(VARCHAR, 2))
    scene.row(25, 10, 2, None, {"id": 1, "name": b"x"})
    scene.ddl(30, job(3, 12, item(data, 3), query="alter table item modify name varbinary(20)"))
    scene.ddl(90, job(4, 12, item(VARCHAR, 4), query="alter table item modify name varchar(20)"))
    sink = scene.sink(tmp_path, TableLoads(lambda history, version: (), lambda ts, stopped: nullcontext(Upstream()), again))
    scene.follow(sink, 30)
    for ts, hours in ((40, 0.0), (50, 0.9), (60, 1.1), (70, 3.0), (80, 3.2), (85, 9.0)):
        ahead[0], refused[0] = hours * 3600, hours < 3.2
        for later in (ts, ts + 1):  # what was due at the first moment is done at the second one
            scene.row(later, 10, 3, None, {"id": later, "name": b"x"})
            scene.follow(sink, later)
    scene.follow(sink, 90)
    eventually(lambda: len(loads) == (4 if again else 0))
    sink.close()
    assert loads == ([0.0, 1.1, 3.2, 9.0] if again else [])
    assert {name: state.state for name, state in published(tmp_path).items()} == {"d.item": MIRRORED if again else "stale"}


def test_a_table_that_left_the_filters_before_it_was_loaded_is_set_aside(tmp_path: Path) -> None:
    """Its rows do not come any more."""
    scene = LakeScene(25, Selection.of(ApplyConfig(replicate_do_db=("d",))))
    made = table(10, "t", [column(1, "id", KEY)])
    for ts, one in ((10, database(1)), (11, database(2, "other", 1001)), (20, job(3, 3, made))):
        scene.ddl(ts, one)
    scene.ddl(40, job(4, 14, made, schema_id=1001, schema_name="other", query="rename table d.t to other.t"))
    asked = threading.Event()
    sink = scene.sink(tmp_path, once_asked(asked))
    scene.play(sink, 45)
    eventually(lambda: "other.t" in published(tmp_path))
    asked.set()
    eventually(lambda: published(tmp_path)["other.t"].state != LOADING)
    sink.close()
    assert published(tmp_path)["other.t"].why == "filters leave out other.t, and its rows from here on"
