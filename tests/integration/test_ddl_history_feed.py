"""The feed over real HTTP and real files."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from schemas.errors import HistoryUnavailable
from sinks.history_feed import HistoryFeed
from tests.ddl_jobs import database, job, table


class Status:
    """A status port with TiDB's rules for limit and start_job_id."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.broken = False
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


def test_everything_once_then_only_what_is_new(status: Status) -> None:
    status.jobs = many(1000)
    feed = HistoryFeed(status.url)
    assert len(feed.snapshot()) == 1000
    status.jobs = many(1300)
    assert feed.wait_for_job(1200, 5).id == 1200
    assert len(feed.snapshot()) == 1300
    assert status.requests[0] == "/ddl/history" and all("limit=" in r for r in status.requests[1:])


def test_a_job_that_finished_late_is_found_behind_newer_ones(status: Status) -> None:
    status.jobs = [j for j in many(900) if j["id"] != 100]
    feed = HistoryFeed(status.url)
    assert feed.snapshot().job(100) is None
    status.jobs = many(900)
    assert feed.wait_for_job(100, 5).id == 100


def test_a_history_that_lags_is_polled(status: Status) -> None:
    status.jobs = many(3)
    feed = HistoryFeed(status.url)
    feed.snapshot()
    asked = len(status.requests)

    def meanwhile() -> bool:
        if len(status.requests) > asked + 3:
            status.broken = len(status.requests) <= asked + 5
            status.jobs = many(4)
        return False

    assert feed.wait_for_job(4, 30, meanwhile).id == 4


def test_a_job_that_never_comes_is_named(status: Status) -> None:
    status.jobs = many(3)
    with pytest.raises(HistoryUnavailable, match=r"DDL job 77 did not appear .* within 0.05 s.*same cluster"):
        HistoryFeed(status.url).wait_for_job(77, 0.05)
    with pytest.raises(HistoryUnavailable, match="stopped while waiting for DDL job 77"):
        HistoryFeed(status.url).wait_for_job(77, 60, lambda: True)


def test_an_empty_history_and_an_unusable_answer(status: Status) -> None:
    assert len(HistoryFeed(status.url).snapshot()) == 0
    status.broken = True
    with pytest.raises(HistoryUnavailable, match="answered 500: tikv is away"):
        HistoryFeed(status.url).snapshot()


def test_nobody_there() -> None:
    with pytest.raises(HistoryUnavailable, match="cannot be read"):
        HistoryFeed("http://127.0.0.1:1").snapshot()


def test_files(tmp_path: Path) -> None:
    plain, packed = tmp_path / "h.json", tmp_path / "h.json.gz"
    plain.write_text(json.dumps(many(3)))
    packed.write_bytes(gzip.compress(json.dumps(many(3)).encode()))
    assert HistoryFeed(str(plain)).snapshot() == HistoryFeed(str(packed)).snapshot()
    feed = HistoryFeed(str(plain))
    before = feed.snapshot()
    assert feed.refresh() is before
    plain.write_text(json.dumps(many(5)))
    assert len(feed.refresh()) == 5


@pytest.mark.parametrize("content", [b"{}", b"[", b"\x1f\x8b broken", b"\xff\xfe"])
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "h.json.gz"
    path.write_bytes(content)
    with pytest.raises(HistoryUnavailable):
        HistoryFeed(str(path)).snapshot()
    with pytest.raises(HistoryUnavailable, match="missing"):
        HistoryFeed(str(tmp_path / "missing")).snapshot()
