"""A DDL history of 100,000 jobs behind a real HTTP server: the first start, a later one from the cache, one more job; time and memory.

Run: ``python -m benchmarks.bench_history [jobs]``. The status port and each start run in their own process.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyspark_tidb_binlog.schemas.history_cache import HistoryCache
from pyspark_tidb_binlog.schemas.history_feed import HistoryFeed
from tests.support.ddl_jobs import VARCHAR, column, database, index, job, table

CLUSTER, TABLES, FURTHER = 7, 2_000, 50
_SERVE, _START = "serve", "start"


def job_of(number: int) -> dict[str, Any]:
    """A database, and ``TABLES`` tables of ten columns and two indexes that are altered in turn, and recreated now and then."""
    if number == 1:
        return database(1)
    turn, place = divmod(number, TABLES)
    table_id = 10_000 + place + (TABLES * (turn // 20))
    columns = [column(1, "id"), *(column(i, f"column_{i}", VARCHAR) for i in range(2, 11 + turn % 20))]
    indexes = [index(1, "by_2", ("column_2", 1)), index(2, "by_3_4", ("column_3", 2), ("column_4", 3), unique=True)]
    kind = 3 if turn % 20 == 0 else 5
    query = f"ALTER TABLE `d`.`table_{place}` ADD COLUMN `column_{10 + turn % 20}` VARCHAR(20) NOT NULL DEFAULT ''"
    return job(number, kind, table(table_id, f"table_{place}", columns, index_info=indexes), query=query)


class Status(BaseHTTPRequestHandler):
    """``/ddl/history`` with TiDB's rules for pages."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    shown = 0

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer one page."""
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(self.path).query).items()}
        newest = min(Status.shown, query.get("start_job_id", Status.shown))
        body = json.dumps([job_of(number) for number in range(newest, max(0, newest - query["limit"]), -1)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def serve(count: int) -> None:
    """Serve until stdin ends; each line adds one job."""
    Status.shown = count
    server = ThreadingHTTPServer(("127.0.0.1", 0), Status)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    for _ in sys.stdin:
        Status.shown += 1
        print(Status.shown, flush=True)


def megabytes() -> float:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start(url: str, directory: str) -> None:
    """Start the feed once and print its cost as JSON, then wait for one more job per line of stdin."""
    imported, begun = megabytes(), time.perf_counter()
    feed = HistoryFeed(url, HistoryCache(Path(directory), CLUSTER), None)
    jobs = len(feed.snapshot())
    print(json.dumps({"jobs": jobs, "seconds": time.perf_counter() - begun, "mib": megabytes(), "imports_mib": imported}), flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        feed.wait_for_job(int(line))
        print(json.dumps({"ms": (time.perf_counter() - begun) * 1000}), flush=True)


def _process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.bench_history", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _asked(process: subprocess.Popen[str], line: str = "") -> str:
    assert process.stdin is not None and process.stdout is not None
    if line:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def main(count: int) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as directory, _process(_SERVE, str(count)) as server:
        url = _asked(server)
        for name in ("first start, no cache", "start from the cache"):
            with _process(_START, url, directory) as feed:
                took = json.loads(_asked(feed))
                further = sorted(json.loads(_asked(feed, _asked(server, "more")))["ms"] for _ in range(FURTHER // 2))
                assert feed.stdin is not None
                feed.stdin.close()
            print(
                f"{name:24} {took['jobs']:,} jobs in {took['seconds']:.1f} s, {took['mib']:.0f} MiB at most ({took['imports_mib']:.0f} of them imports); "
                f"a further job {further[len(further) // 2]:.1f} ms (median), {further[-1]:.1f} ms (worst)"
            )
        assert server.stdin is not None
        server.stdin.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [mode, count] if mode == _SERVE:
            serve(int(count))
        case [mode, url, directory] if mode == _START:
            start(url, directory)
        case [*given]:
            main(int(given[0]) if given else 100_000)
