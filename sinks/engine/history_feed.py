"""Reads the DDL history: over HTTP from a status port (``GET /ddl/history``), or from a recorded ``.json`` or ``.json.gz`` file.

Promises: everything is read once, in pages (``?limit=N&start_job_id=S``, newest first), and kept in a cache where one is given; after that only
what is new. A cache that does not fit what the status port says is thrown away, with a warning. A job shows up there shortly after its binlog
commits, so ``wait_for_job`` polls. Several addresses may be given: each question goes to the one that answered last, then to the others.
Failures are ``HistoryUnavailable`` with the addresses and what to do.
"""

import contextlib
import gc
import gzip
import json
import logging
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas.errors import HistoryUnavailable
from schemas.history import Job, JobReader, SchemaHistory
from sinks.engine.history_cache import HistoryCache

_FIRST_PAGE, _PAGE = 8, 256
_OVERLAP = 256
"""Job ids that are read again at each refresh: a job with a lower id may finish after one with a higher id."""
_REQUEST_TIMEOUT = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_CACHE_AGAIN = 512
"""So many jobs more than the cache holds are worth writing it again, at the next start."""
_log = logging.getLogger(__name__)


class HistoryFeed:
    """The DDL history behind one address."""

    def __init__(self, url: str, cache: HistoryCache | None = None) -> None:
        """``url``: ``http://host:port,http://host:port`` of status ports of one cluster, or the path of a recorded history."""
        over_http = url.startswith(("http://", "https://"))
        self._urls = [part.strip().rstrip("/") for part in url.split(",") if part.strip()] if over_http else []
        self._path = Path(url)
        self._cache = cache
        self._highest = 0
        """The highest job id that was seen."""
        self._reader = JobReader()
        self._history: SchemaHistory | None = None
        self._stamp: tuple[int, int] = (0, 0)

    @property
    def is_recorded(self) -> bool:
        """True for a file: what it lacks will not come."""
        return not self._urls

    def snapshot(self) -> SchemaHistory:
        """What is known so far; the first call reads everything."""
        return self._history if self._history is not None else self.refresh()

    def refresh(self) -> SchemaHistory:
        """Ask for what is new."""
        if not self._urls:
            return self._reread_file()
        if self._history is None:
            self._history = self._read_all()
            return self._history
        return self._fetch_down_to(self._highest - _OVERLAP, _PAGE)

    def wait_for_job(self, job_id: int, timeout: float, stop: Callable[[], bool] = lambda: False) -> Job:
        """The job ``job_id``, polled for until it is there.

        Raises:
            HistoryUnavailable: not there after ``timeout`` seconds, or ``stop()`` said so; the last trouble is in the text.
        """
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        trouble = ""
        while True:
            try:
                job = self.snapshot().job(job_id) or self._look_for(job_id)
                if job is not None:
                    return job
                trouble = ""
            except HistoryUnavailable as error:
                trouble = f" Last trouble: {error}"
            if stop():
                raise HistoryUnavailable(f"stopped while waiting for DDL job {job_id} in the history at {self._where}.{trouble}")
            if time.monotonic() >= deadline:
                raise HistoryUnavailable(
                    f"DDL job {job_id} did not appear in the history at {self._where} within {timeout:g} s, though its binlog is there. "
                    f"Check that ddl-history points to the same cluster as the Pumps.{trouble}"
                )
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 2, _LONGEST_PAUSE)

    @property
    def _where(self) -> str:
        return ",".join(self._urls) or str(self._path)

    def _read_all(self) -> SchemaHistory:
        """From the cache what fits, the rest from the status port."""
        with _no_collection():
            cached = self._cache.load() if self._cache is not None else []
        fits = bool(cached) and self._fits(cached)
        known = {job.id: job for job in cached} if fits else {}
        self._reader.know(known.values())
        with _no_collection():
            new = list(self._pages(max(known, default=0) - _OVERLAP, _PAGE, known))
            history = SchemaHistory.of((known | {job.id: job for job in new}).values())
        self._highest = max(history.jobs, default=0)
        if self._cache is not None and (len(new) > _CACHE_AGAIN or (cached and not fits)):
            self._cache.store(sorted(history.jobs.values(), key=lambda job: job.id))
        return history

    def _fits(self, cached: list[Job]) -> bool:
        """Whether the history still holds what was cached of it: its oldest and its newest jobs, as they were."""
        for start in (cached[0].id, cached[-1].id):
            page = {job.id: job for job in self._reader.read(self._get(f"?start_job_id={start}&limit={_FIRST_PAGE}"))}
            lowest = min(page, default=start)
            if any(page.get(job.id) != job for job in cached if lowest <= job.id <= start) or start not in page:
                _log.warning("the cached DDL history is not that of %s as it is now: it is read anew", self._where)
                return False
        return True

    def _look_for(self, job_id: int) -> Job | None:
        """Down to the newest job known as well, or a hole would stay between the pages and it."""
        if not self._urls:
            return self._reread_file().job(job_id)
        self.snapshot()
        return self._fetch_down_to(min(job_id, self._highest), _FIRST_PAGE).job(job_id)

    def _fetch_down_to(self, job_id: int, page: int) -> SchemaHistory:
        """Read what is new, until a page reaches ``job_id``."""
        history = self.snapshot()
        found = sorted(self._pages(job_id, page, history.jobs), key=lambda job: job.id)
        self._history = history.merged(found)
        self._highest = max(self._highest, found[-1].id if found else 0)
        return self._history

    def _pages(self, job_id: int, limit: int, known: Mapping[int, Job]) -> Iterator[Job]:
        """The jobs that are not ``known``, newest first, in pages from ``limit`` on that grow, until one reaches ``job_id``."""
        query, before = f"?limit={limit}", 1 << 62
        while True:
            page = self._get(query)
            ids = [int(job["id"]) for job in page]
            if ids and max(ids) >= before:
                raise HistoryUnavailable(f"{self._where}/ddl/history knows no start_job_id: a TiDB of version 5.4 or later is needed")
            # a finished job does not change
            yield from self._reader.read(job for job, i in zip(page, ids, strict=True) if i not in known or not _same(known[i], job))
            before = min(ids, default=0)
            if len(page) < limit or before <= max(job_id, 1):
                return
            limit = min(limit * 4, _PAGE)
            query = f"?start_job_id={before - 1}&limit={limit}"

    def _get(self, query: str) -> list[dict[str, Any]]:
        """The answer of the first address that gives one; that one is asked first from then on."""
        failures = []
        for url in tuple(self._urls):
            try:
                answer = self._get_from(url, query)
            except HistoryUnavailable as error:
                failures.append(str(error))
                continue
            self._urls.remove(url)
            self._urls.insert(0, url)
            return answer
        raise HistoryUnavailable(" ".join(failures))

    def _get_from(self, address: str, query: str) -> list[dict[str, Any]]:
        url = f"{address}/ddl/history{query}"
        try:
            with urllib.request.urlopen(url, timeout=_REQUEST_TIMEOUT) as answer:
                return _jobs(json.load(answer), url)
        except urllib.error.HTTPError as error:
            said = error.read(200).decode("utf-8", "replace").strip()
            error.close()
            raise HistoryUnavailable(f"{url} answered {error.code}: {said}. Check ddl-history.") from error
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"{url} cannot be read: {error}. Check ddl-history and that the status port is up.") from error

    def _reread_file(self) -> SchemaHistory:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if self._history is None or stamp != self._stamp:
                data = self._path.read_bytes()
                text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
                self._history = SchemaHistory.of(self._reader.read(_jobs(json.loads(text), str(self._path))))
                self._stamp = stamp
        except (OSError, EOFError, zlib.error, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"the recorded DDL history {self._path} cannot be read: {error}") from error
        return self._history


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small values are made here that stay for good: to look through them for cycles, again and again, costs more than to make them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _same(known: Job, job: Mapping[str, Any]) -> bool:
    """Whether a job in JSON is one that was read before."""
    binlog = job.get("binlog") or {}
    return (known.version, known.state, known.finished_ts) == (
        binlog.get("SchemaVersion") or 0,
        job.get("state"),
        binlog.get("FinishedTS") or 0,
    )


def _jobs(parsed: Any, where: str) -> list[dict[str, Any]]:
    """The answer as a list; TiDB writes ``null`` for an empty one."""
    if parsed is None:
        return []
    if not isinstance(parsed, list):
        raise HistoryUnavailable(f"{where} is no list of DDL jobs but {type(parsed).__name__}. Check ddl-history.")
    return parsed
