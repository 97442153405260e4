"""Tables that a lake loads from the upstream, without Spark and a server: at whichever moment it happens, whatever dies, the mirrors are the recorded tables."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.schemas.errors import BootstrapRefused, ConfigError, Stopped
from pyspark_tidb_binlog.sinks.lake import mirrors
from pyspark_tidb_binlog.sinks.lake.lake_moment import COLUMNS, Published
from pyspark_tidb_binlog.sinks.lake.ledger import scanned
from pyspark_tidb_binlog.sinks.lake.mirror_load import LoadLater, TableLoads
from pyspark_tidb_binlog.sinks.lake.moments import LOADING, Moment
from tests.support.bank_states import TOTAL
from tests.support.eventually import eventually
from tests.support.golden_case import load_case
from tests.support.golden_messages import replicate
from tests.support.lake_lives import PAUSE, life, replicate_loaded, sink_of
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


def every_way() -> list[Any]:
    """Each case, with tables that are read at once and later; in `make test` a few."""
    quick = {("ddl", 2), ("keys", 1)}
    ways = [(case, later) for case in ("ddl", "keys", "types", "txn", "bank", "online") for later in (0, 1, 2, 5)]
    return [pytest.param(*way, id="-".join(map(str, way)), marks=() if way in quick else pytest.mark.slow) for way in ways]


@pytest.mark.parametrize(("case", "later"), every_way())
def test_a_first_load_and_then_the_stream_leave_the_recorded_tables(case: str, later: int, tmp_path: Path) -> None:
    upstream = RecordedUpstream(case, tmp_path / "upstream", later)
    sink = sink_of(tmp_path / "lake", mirrors=True, loads=upstream.loads)
    replicate_loaded(sink, case, tmp_path / "lake")
    sink.close()
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
    assert published(lake)["g_bank.checking"].why == "it could not be loaded: BootstrapRefused: no SELECT on it"
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
    assert {s.state for s in published(lake).values()} == {"stale"}
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
    sink = sink_of(lake, mirrors=True, loads=TableLoads(no_tables, upstream.at))
    replicate_loaded(sink, "keys", lake)
    sink.close()
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
    sink = sink_of(lake, mirrors=True, loads=TableLoads(no_tables, upstream.at))
    replicate_loaded(sink, "keys", lake)
    sink.close()
    assert_mirrored("keys", lake)


def test_a_table_that_is_loaded_again_can_be_read_as_it_was_before(tmp_path: Path) -> None:
    lake, upstream = tmp_path / "lake", RecordedUpstream("bank", tmp_path / "upstream")
    sink = sink_of(lake, mirrors=True, loads=upstream.loads)
    replicate_loaded(sink, "bank", lake)
    sink.close()
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
    last = max(row["resolved_ts"] for row in known._rows.to_pylist() if row["state"] == LOADING)
    with pytest.raises(ConfigError, match=rf"g_bank.savings is not loaded yet; .* \({last}\); lake.at\({last - 1}\).table"):
        known.table_at("g_bank.savings", last)
    assert known.table_at("g_bank.savings", last - 1).path == before.path
