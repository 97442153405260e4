"""The feed over real HTTP and real files."""

import contextlib
import gzip
import hashlib
import itertools
import json
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from pyspark_tidb_binlog.binlog_source.changes.change_options import ChangeOptions
from pyspark_tidb_binlog.binlog_source.changes.known_history import KnownHistory
from pyspark_tidb_binlog.jobs.lab.emulator import online
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Table
from pyspark_tidb_binlog.jobs.lab.emulator.upstream import Upstream
from pyspark_tidb_binlog.schemas import history_feed
from pyspark_tidb_binlog.schemas.errors import HistoryUnavailable, Stopped
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.history import SchemaHistory, TableNow
from pyspark_tidb_binlog.schemas.history_cache import HistoryCache
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo
from pyspark_tidb_binlog.sinks.engine.history_wait import HistoryWait
from pyspark_tidb_binlog.sinks.engine.segments import TableActivity
from tests.support.ddl_jobs import INT, column, database, job, partitions, table
from tests.support.eventually import eventually
from tests.support.fakes.written import Written


class Status:
    """A status port with TiDB's rules for limit and start_job_id."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.broken = False
        self.old = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                code, body = outer.answer(urlparse(self.path).query)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, query: str) -> tuple[int, bytes]:
        params = {k: int(v[0]) for k, v in parse_qs(query).items()}
        if self.broken:
            return 500, b"tikv is away"
        found = sorted(self.jobs, key=lambda j: j["id"])
        if self.old:
            params.pop("start_job_id", None)
        if "limit" in params:
            found = [j for j in reversed(found) if j["id"] <= params.get("start_job_id", 1 << 60)][: params["limit"]]
        return 200, json.dumps(found or None).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def status() -> Iterator[Status]:
    status = Status()
    yield status
    status.close()


def many(count: int) -> list[dict[str, Any]]:
    return [database(1), *(job(i, 3, table(10_000 + i, f"t{i}")) for i in range(2, count + 1))]


@pytest.mark.shows("ddl gotcha 5")
def test_everything_once_then_only_what_is_new(status: Status) -> None:
    status.jobs = many(1000)
    feed = HistoryFeed(status.url, None, None)
    assert len(feed.snapshot()) == 1000
    status.jobs = many(1300)
    assert feed.wait_for_job(1200).id == 1200
    assert len(feed.snapshot()) == 1300
    assert all("limit=" in r for r in status.requests), "never everything at once"


def test_a_job_that_finished_late_is_found_behind_newer_ones(status: Status) -> None:
    status.jobs = [j for j in many(900) if j["id"] != 100]
    feed = HistoryFeed(status.url, None, None)
    assert feed.snapshot().job(100) is None
    status.jobs = many(900)
    assert feed.wait_for_job(100).id == 100


@pytest.mark.shows("ddl gotcha 3")
def test_a_history_that_lags_is_polled(status: Status) -> None:
    status.jobs = many(3)
    feed = HistoryFeed(status.url, None, None)
    feed.snapshot()
    asked = len(status.requests)

    def meanwhile() -> bool:
        if len(status.requests) > asked + 3:
            status.broken = len(status.requests) <= asked + 5
            status.jobs = many(4)
        return False

    assert feed.wait_for_job(4, meanwhile).id == 4


def test_a_further_job_costs_a_small_page(status: Status) -> None:
    status.jobs = many(3000)
    feed = HistoryFeed(status.url, None, None)
    before = feed.snapshot()
    status.requests.clear()
    status.jobs = many(3001)
    assert feed.wait_for_job(3001).id == 3001
    assert status.requests == ["/ddl/history?limit=8"]
    assert feed.snapshot() == SchemaHistory.of(feed.snapshot().jobs.values()), "folding on gives what folding anew does"
    assert before.job(3001) is None and 13_001 not in before.tracks, "a snapshot stays as it was"


def cached(status: Status, tmp_path: Path, cluster_id: int = 7) -> HistoryFeed:
    return HistoryFeed(status.url, HistoryCache(tmp_path / "history", cluster_id), None)


def test_the_cache_saves_reading_everything_again(status: Status, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status.jobs = many(3000)
    whole = cached(status, tmp_path).snapshot()
    status.requests.clear()
    again = cached(status, tmp_path)
    assert again.snapshot() == whole and len(status.requests) <= 4 and caplog.text == ""
    status.jobs = many(3100)
    assert cached(status, tmp_path).snapshot() == HistoryFeed(status.url, None, None).snapshot()
    assert again.wait_for_job(3050).id == 3050


@pytest.mark.parametrize("change", ["oldest", "newest", "restored", "another"])
def test_a_cache_of_another_history_is_not_used(status: Status, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture) -> None:
    status.jobs = many(1000)
    cached(status, tmp_path).snapshot()
    match change:
        case "oldest":
            status.jobs[0]["query"] = "create database other"
        case "newest":
            status.jobs[-1]["query"] = "create table other"
        case "restored":
            status.jobs = status.jobs[:900]
        case "another":
            status.jobs = [job(i, 3, table(i, f"other{i}")) for i in range(1, 1001)]
    assert cached(status, tmp_path).snapshot() == HistoryFeed(status.url, None, None).snapshot()
    assert "the cache is discarded and the whole history is read" in caplog.text
    caplog.clear()
    assert cached(status, tmp_path).snapshot() == HistoryFeed(status.url, None, None).snapshot()
    assert caplog.text == "", "the cache was replaced"


@pytest.mark.parametrize("harm", ["cluster", "torn", "flipped", "empty", "shape", "foreign"])
def test_a_cache_that_cannot_be_trusted_is_not_used(
    status: Status, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    status.jobs = many(1000)
    whole = cached(status, tmp_path).snapshot()
    file = tmp_path / "history" / "history.cache"
    data = file.read_bytes()
    cluster = 7
    match harm:
        case "cluster":
            cluster = 8
        case "torn":
            file.write_bytes(data[:-100])
        case "flipped":
            file.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
        case "empty":
            file.write_bytes(b"")
        case "shape":
            file.write_bytes(data.replace(b'"finished_ts"', b'"ended_ts"', 1))
        case "foreign":
            body = pickle.dumps([Path("/")])
            said = json.loads(data.partition(b"\n")[0]) | {"jobs": 1, "sha256": hashlib.sha256(body).hexdigest()}
            file.write_bytes(json.dumps(said).encode() + b"\n" + body)
    assert cached(status, tmp_path, cluster).snapshot() == whole
    assert "is not used" in caplog.text


def test_a_disk_that_refuses_costs_the_cache_only(status: Status, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status.jobs = many(1000)
    (tmp_path / "history").write_text("a file, and no directory")
    assert len(cached(status, tmp_path).snapshot()) == 1000
    assert "cannot cache the DDL history" in caplog.text


def test_an_old_tidb_without_pages_is_named(status: Status) -> None:
    status.jobs, status.old = many(1000), True
    with pytest.raises(HistoryUnavailable, match="does not support start_job_id"):
        HistoryFeed(status.url, None, None).snapshot()


def test_another_status_port_is_asked_when_one_is_away(status: Status) -> None:
    status.jobs = many(3)
    feed = HistoryFeed(f"http://127.0.0.1:1, {status.url}", None, None)
    assert len(feed.snapshot()) == 3
    status.broken = True
    with pytest.raises(HistoryUnavailable, match=r"500: tikv is away.*cannot read http://127.0.0.1:1/ddl/history"):
        feed.refresh()


def test_a_status_port_that_restarts_while_a_job_is_awaited_is_waited_out(status: Status, caplog: pytest.LogCaptureFixture) -> None:
    status.jobs = many(3)
    feed = HistoryFeed(status.url, None, None)
    feed.snapshot()
    status.broken = True
    asked = len(status.requests)

    def meanwhile() -> bool:
        if len(status.requests) > asked + 2:
            status.broken, status.jobs = False, many(4)
        return False

    assert feed.wait_for_job(4, meanwhile).id == 4


def test_a_status_port_that_restarts_while_a_version_is_awaited_is_waited_out(status: Status, caplog: pytest.LogCaptureFixture) -> None:
    status.jobs = many(3)
    feed = HistoryFeed(status.url, None, None)
    feed.snapshot()
    status.broken, feed.lag = True, 0.05
    asked = len(status.requests)

    def enough(history: SchemaHistory) -> bool:
        return history.newest_version >= 4

    def back() -> None:
        eventually(lambda: len(status.requests) >= asked + 3)
        status.broken, status.jobs = False, many(4)

    helper = threading.Thread(target=back)
    helper.start()
    assert feed.poll(enough, feed.lag)
    helper.join()
    assert caplog.text.count("waiting for the DDL history") == 1, "the next one comes after 30 s"
    status.broken, feed.timeout = True, 0.2
    with pytest.raises(HistoryUnavailable, match="tikv is away"):
        feed.poll(lambda history: False, feed.lag)
    assert feed.waiting_for == ""


def test_a_job_that_never_comes_is_named(status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryFeed, "timeout", 0.05)
    recorded = tmp_path / "h.json"
    recorded.write_text(json.dumps(many(3)))
    with pytest.raises(HistoryUnavailable, match=r"binlog of DDL job 77 was read, .* did not show the job within 0.05 s.*same cluster"):
        HistoryFeed(str(recorded), None, None).wait_for_job(77)
    with pytest.raises(HistoryUnavailable, match="stopped while waiting for DDL job 77"):
        HistoryFeed(status.url, None, None).wait_for_job(77, lambda: True)
    status.broken = True
    with pytest.raises(HistoryUnavailable, match=r"binlog of DDL job 77 was read, .* did not show the job within 0.05 s.*tikv is away"):
        HistoryFeed(status.url, None, None).wait_for_job(77)


def test_a_job_is_waited_for_while_the_status_port_answers(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    """TiDB writes the binlog, waits until no transaction is open at an older schema version, and then moves the job into the history."""
    monkeypatch.setattr(history_feed, "_SHOW_SECONDS", 0.0)
    status.jobs = many(3)
    shown: list[str] = []

    def pause(seconds: float) -> None:
        shown.append(feed.waiting_for)
        if len(shown) == 20:
            status.jobs = many(4)

    feed = HistoryFeed(status.url, pause=pause, cache=None, tls=None)
    feed.timeout = 0.0
    assert feed.wait_for_job(4).id == 4
    assert len(shown) >= 20 and "open transaction" in shown[1] and feed.waiting_for == ""

    def stop(seconds: float) -> None:
        raise Stopped("stopped")

    feed.pause = stop
    with pytest.raises(Stopped):
        feed.wait_for_job(5)
    assert feed.waiting_for == ""


@pytest.mark.parametrize("others", [False, True], ids=["nothing newer", "a newer job of another table"])
@pytest.mark.parametrize(
    ("changes", "public"),
    [
        ((online.add_column(Column("d", "int", default=7)), online.drop_column("c")), 3),
        ((online.drop_column("c"), online.modify_column(Column("b", "varchar(9)"), str)), 3),
        ((online.modify_column(Column("b", "bigint")), online.drop_column("c")), 0),
        ((online.drop_index("u1"),), 0),
        ((online.add_column(Column("d", "int")),), 99),
        ((online.drop_column("c"), online.add_index("i", "b")), 99),
    ],
    ids=["add and drop", "drop and convert", "wider and drop", "drop index", "add alone", "none"],
)
def test_rows_wait_for_a_ddl_that_has_changed_them_and_is_not_in_the_history(
    changes: tuple[online.Change, ...], public: int, others: bool
) -> None:
    """``public``: the first of its states whose rows need it; 99: the history has it by then."""
    upstream = Upstream(Written())
    with contextlib.ExitStack() as closing:
        service = upstream.serve()
        closing.callback(service.stop)
        upstream.ddl.create_database("d")
        upstream.ddl.create_table("d", Table("t", tuple(Column(n, "int") for n in "abc"), ("a",), unique=(("b",),)))
        table_id, feed = upstream.store.table("d.t").id, HistoryFeed(service.url, pause=lambda _: None, cache=None, tls=None)
        feed.timeout = feed.lag = 0.0
        ddl, wait, waited = upstream.ddl.start("d.t", *changes), HistoryWait(feed, lambda table: True), []
        for number in itertools.count():
            version = ddl.advance()
            if others and not ddl.done:
                upstream.ddl.create_table("d", Table(f"o{number}", (Column("a", "int"),)))

            def pause(_: float) -> None:
                waited.append(number)  # noqa: B023
                while not ddl.done:
                    ddl.advance()

            if not ddl.done:
                feed.pause = pause if number >= public else lambda _: None
            rows = [TableActivity(table_id, version, 1, 1, 1)]
            wait.ready((), rows)
            if ddl.done:
                break
        assert waited[:1] == ([] if public == 99 else [public])
        assert (feed.snapshot().job(ddl.job["id"]) is not None) or public == 99


def test_queries_wait_for_a_ddl_that_has_changed_their_rows() -> None:
    upstream = Upstream(Written())
    service = upstream.serve()
    upstream.ddl.create_database("d")
    upstream.ddl.create_table("d", Table("t", (Column("a", "int"), Column("c", "int"))))
    ddl = upstream.ddl.start("d.t", online.add_column(Column("d", "int")), online.drop_column("c"))
    versions = [ddl.advance() for _ in range(4)]

    def pause(_: float) -> None:
        while not ddl.done:
            ddl.advance()

    try:
        feed = HistoryFeed(service.url, pause=pause, cache=None, tls=None)
        feed.timeout = feed.lag = 0.0
        history = KnownHistory(feed).covering(versions, {upstream.store.table("d.t").id: max(versions)}, ChangeOptions())
        assert history.job(ddl.job["id"]) is not None
    finally:
        service.stop()


def test_an_empty_history_and_an_unusable_answer(status: Status) -> None:
    assert len(HistoryFeed(status.url, None, None).snapshot()) == 0
    status.broken = True
    with pytest.raises(HistoryUnavailable, match="answered 500: tikv is away"):
        HistoryFeed(status.url, None, None).snapshot()


def test_nobody_there() -> None:
    with pytest.raises(HistoryUnavailable, match="cannot read"):
        HistoryFeed("http://127.0.0.1:1", None, None).snapshot()


@pytest.mark.shows("spark.tidb-status")
def test_files(tmp_path: Path) -> None:
    plain, packed = tmp_path / "h.json", tmp_path / "h.json.gz"
    plain.write_text(json.dumps(many(3)))
    packed.write_bytes(gzip.compress(json.dumps(many(3)).encode()))
    assert HistoryFeed(str(plain), None, None).snapshot() == HistoryFeed(str(packed), None, None).snapshot()
    feed = HistoryFeed(str(plain), None, None)
    before = feed.snapshot()
    assert feed.refresh() is before
    plain.write_text(json.dumps(many(5)))
    assert len(feed.refresh()) == 5


@pytest.mark.parametrize("content", [b"{}", b"[", b"\x1f\x8b broken", b"\xff\xfe"])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "h.json.gz"
    path.write_bytes(content)
    with pytest.raises(HistoryUnavailable):
        HistoryFeed(str(path), None, None).snapshot()
    with pytest.raises(HistoryUnavailable, match="missing"):
        HistoryFeed(str(tmp_path / "missing"), None, None).snapshot()


def test_a_binlogs_commit_ts_counts_until_the_job_is_read_again(status: Status) -> None:
    """What a start in mid-history finds in the Pumps' binlogs is more exact than FinishedTS."""
    status.jobs = many(3)
    feed = HistoryFeed(status.url, None, None)
    finished = feed.snapshot().jobs[3].finished_ts
    assert feed.snapshot().version_at(finished - 1) < 3
    feed.note_committed({3: finished - 5})
    assert [feed.snapshot().version_at(finished - before) for before in (6, 5)] == [2, 3]
    assert feed.refresh().jobs[3].finished_ts == finished


def test_jobs_without_binlogs_are_looked_for_now_and_then_and_nobody_waits_for_them(status: Status) -> None:
    status.jobs, feed = many(3), HistoryFeed(status.url, None, None)
    wait = HistoryWait(feed, lambda table: True)
    feed.snapshot()
    status.jobs = many(4)
    wait.ready((), (), tso(100_000))
    assert 4 in feed.snapshot().jobs and wait.known_ts == tso(100_000)
    status.jobs = many(5)
    wait.ready((), (), tso(129_000))
    assert 5 not in feed.snapshot().jobs, "not for each batch"
    status.broken = True
    wait.ready((), (), tso(131_000))
    assert wait.known_ts == tso(100_000), "what ended since is not known"
    status.broken = False
    wait.ready((), (), tso(190_000))
    assert 5 in feed.snapshot().jobs and wait.known_ts == tso(190_000)


def test_a_lost_job_that_many_younger_ones_overtook_is_found(status: Status) -> None:
    status.jobs, feed = many(300), HistoryFeed(status.url, None, None)
    wait = HistoryWait(feed, lambda table: True)
    feed.snapshot()
    for second, newest in ((100, 600), (140, 900), (180, 1000)):
        status.jobs = [one for one in many(newest) if one["id"] != 310]
        wait.ready((), (), tso(second * 1000))
    status.jobs, status.requests = many(1001), []
    assert 310 not in feed.refresh().jobs and len(status.requests) <= 2, "an ordinary refresh goes no further"
    wait.ready((), (), tso(220_000))
    assert 310 in feed.snapshot().jobs and len(status.requests) <= 6
    status.jobs, status.requests = many(20_000), []
    feed.wait_for_job(20_000)
    status.requests.clear()
    feed.refresh(overtaken=True)
    assert len(status.requests) <= 18, "not all of a long life"


def test_nobody_waits_for_the_index_of_an_expression_nor_for_a_table_that_is_left_out() -> None:
    known = TableInfo.from_json(table(60, "t"))
    own, shown = column(1, "id", {**INT, "Flag": 4099}), column(9, "_v$_e_0", INT)
    assert not TableNow(9, TableInfo.from_json(table(60, "t", [own, {**shown, "hidden": True}]))).is_ahead_of(known)
    assert TableNow(9, TableInfo.from_json(table(60, "t", [own, shown]))).is_ahead_of(known)
    parted = table(60, "t", partition=partitions((101, "p0"), (102, "p1")))
    without = TableNow(9, TableInfo.from_json(table(60, "t", partition=partitions((102, "p1")))))
    exchanged = TableNow(9, TableInfo.from_json(table(60, "t", partition=partitions((103, "p0"), (102, "p1")))))
    assert without.is_ahead_of(TableInfo.from_json(parted)) and not exchanged.is_ahead_of(TableInfo.from_json(parted))
    upstream = Upstream(Written())
    service = upstream.serve()
    try:
        upstream.ddl.create_database("d")
        upstream.ddl.create_table("d", Table("t", (Column("a", "int"), Column("c", "int"))))
        ddl = upstream.ddl.start("d.t", online.add_column(Column("d", "int")), online.drop_column("c"))
        versions = [ddl.advance() for _ in range(4)]
        waited: list[float] = []
        feed = HistoryFeed(service.url, pause=waited.append, cache=None, tls=None)
        feed.timeout = feed.lag = 0.0
        feed.refresh()
        rows = [TableActivity(upstream.store.table("d.t").id, versions[-1], 1, 1, 1)]
        HistoryWait(feed, lambda table: False).ready((), rows)
        assert not waited
    finally:
        service.stop()


def test_rows_that_the_history_may_explain_go_on_where_no_port_tells(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_tidb_binlog.schemas.history_feed._UNTOLD_SECONDS", 0.05)
    upstream = Upstream(Written())
    service = upstream.serve()
    upstream.ddl.create_database("d")
    for name in ("t", "o"):
        upstream.ddl.create_table("d", Table(name, (Column("a", "int"),)))
    feed, checked = HistoryFeed(service.url, pause=lambda _: None, cache=None, tls=None), dict[int, int]()
    newest = int(feed.refresh().newest_version)
    service.stop()
    feed.wait_for_unfinished({upstream.store.table("d.t").id: newest}, checked)
    assert "is not known" in caplog.text and not checked
    feed.timeout = 0.05
    with pytest.raises(HistoryUnavailable):
        feed.wait_for_unfinished({upstream.store.table("d.t").id: newest + 1}, checked)
